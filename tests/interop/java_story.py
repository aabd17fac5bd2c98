"""The master of a pair dies under Java clients and comes back: what was promised, what was seen.

For tests and for `make bench`: `tell` runs the story on any two makes of broker and raises
AssertionError when something promised was lost.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.cluster import START_BROKER, START_NAMESRV, names, unique
from support.ha_files import LogFiles
from support.ha_load import ask
from support.java_driver import Driver, Event, Job
from support.processes import ProcessGroup, wait_until
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

QUEUES = 4
WINDOW = 256
PLANS = ["commit", "rollback", "check-commit", "check-rollback"]
CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5000,
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 3s",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 1000,
    "waitTimeMillsInSendQueue": 5000,
    "osPageCacheBusyTimeOutMills": 10000,
    "flushConsumerOffsetInterval": 1000,
    "haSendHeartbeatInterval": 1000,
    "registerNameServerPeriod": 10000,
    "slaveReadEnable": True,
    "brokerRole": "SYNC_MASTER",
}
# What the Java client does when nobody tells it otherwise.
JAVA_DEFAULTS = {"routeMs": 30_000, "heartbeatMs": 30_000, "persistMs": 5_000}


class Pair:
    """A name server, a master and a slave, each of a make."""

    def __init__(
        self, group: ProcessGroup, directory: Path, *, master_of: str, slave_of: str
    ) -> None:
        self._group = group
        # Apache's brokers leave a twinlog name server's routes as fast as they leave Apache's.
        namesrv_of = "twinlog" if "twinlog" in (master_of, slave_of) else "apache"
        self.namesrv: Any = group.add(START_NAMESRV[namesrv_of](directory / "namesrv"))
        self.makes = (master_of, slave_of)
        config = {**CONFIG, "namesrv": self.namesrv.address}
        self.master: Any = group.add(START_BROKER[master_of](directory / "master", **config))
        config |= {"brokerRole": "SLAVE", "brokerId": 1}
        self.slave: Any = group.add(START_BROKER[slave_of](directory / "slave", **config))
        if self.is_twin:
            wait_until(self._metadata_flows, "the master writes metadata into the log")

    def _metadata_flows(self) -> bool:
        answer = ask(self.master.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return bool(fastjson.loads(answer.body)["table"]["metadataInLog"] == "true")

    @property
    def is_twin(self) -> bool:
        return self.makes == ("twinlog", "twinlog")

    def restart(self, which: str, **changes: object) -> None:
        setattr(self, which, self._group.add(getattr(self, which).restart(**changes)))

    def revive(self) -> None:
        for which in ("master", "slave"):
            if not getattr(self, which).is_alive:
                self.restart(which)

    def wait_in_sync(self, java: Driver, topic: str) -> None:
        """A SYNC_MASTER answers SEND_OK only when its slave has the message."""

        def is_ok() -> bool:
            sent = java.run(
                "send", namesrv=self.namesrv.address, topic=topic, prefix="probe", retries=0
            )["sent"]
            return bool(sent) and sent[0]["status"] == "SEND_OK"

        wait_until(is_ok, "a slave that acknowledges", deadline_s=120, interval_s=0.3)


def table(broker: Any, code: int, member: str) -> dict[str, Any]:
    answer = ask(broker.address, code)
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = fastjson.loads(answer.body)[member]
    return found


def committed(broker: Any, group: str, topic: str) -> dict[int, int]:
    """A group's offsets as a consumer that starts would be told."""
    found = {}
    for queue in range(QUEUES):
        header = {"consumerGroup": group, "topic": topic, "queueId": queue}
        answer = ask(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        found[queue] = int(answer.ext()["offset"]) if answer.code == 0 else 0
    return found


def queue_ends(broker: Any, topic: str) -> dict[int, int]:
    return {
        queue: int(
            ask(
                broker.address, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue}
            ).ext()["offset"]
        )
        for queue in range(QUEUES)
    }


@dataclass
class Measured:
    """What `make bench` shows next to Apache's own pair."""

    first_read_s: float = 0.0
    sends_work_s: float = 0.0
    fallback_messages: int = 0
    fallback_s: float = 0.0


@dataclass
class Cast:
    """Names of this telling, and the clients that play in it."""

    plain: str = field(default_factory=lambda: unique("plain"))
    ordered: str = field(default_factory=lambda: unique("ordered"))
    delayed: str = field(default_factory=lambda: unique("delayed"))
    tx: str = field(default_factory=lambda: unique("tx"))
    fresh: str = field(default_factory=lambda: unique("fresh"))
    many: str = field(default_factory=lambda: unique("many"))
    inline: str = field(default_factory=lambda: unique("inline"))
    everyone: str = field(default_factory=lambda: unique("everyone"))


class Story:
    """One seed. The steps are called in their order by who tells it."""

    def __init__(self, pair: Pair, java: Driver, seed: int, **client: object) -> None:
        self.pair = pair
        self.java = java
        self.rng = random.Random(seed)
        self.cast = Cast()
        self.measured = Measured()
        self.client = {"namesrv": pair.namesrv.address, **client}
        self.send = {**self.client, "retries": 0, "timeoutMs": 5000}
        self.jobs: list[Job] = []
        self._prefixes: dict[str, str] = {}
        self.plans: dict[str, str] = {}
        self.killed_at = 0.0
        self.returned_at = 0.0

    # Before

    def create(self, *topics: str) -> None:
        for topic in topics:
            self.java.mqadmin(
                "updateTopic", "-n", self.pair.namesrv.address, "-b", self.pair.master.address,
                "-t", topic, "-r", str(QUEUES), "-w", str(QUEUES),
            )  # fmt: skip

    def begin(self) -> None:
        cast = self.cast
        self.create(cast.plain, cast.ordered, cast.delayed, cast.tx)
        self.pair.wait_in_sync(self.java, cast.plain)
        topics = ",".join((cast.plain, cast.delayed, cast.tx))
        self.many = self._consume(topics, cast.many)
        self.inline = self._consume(cast.ordered, cast.inline, order="true")
        self.everyone = self._consume(cast.plain, cast.everyone, model="BROADCASTING")
        self._wait_sent(self._load(cast.plain, "a", 200))
        self._wait_sent(self._load(cast.ordered, "a", 100, mode="ordered"))
        if not self.pair.is_twin:
            # RocketMQ's slave asks for the tables every ten seconds, and refuses pulls without.
            wait_until(self._slave_knows_topics, "the topics at the slave")

    def _slave_knows_topics(self) -> bool:
        known = table(self.pair.slave, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        return {self.cast.plain, self.cast.ordered, self.cast.delayed, self.cast.tx} <= set(known)

    def _consume(self, topic: str, group: str, **more: object) -> Job:
        job = self.java.start("push", **self.client, topic=topic, group=group, **more)
        self.jobs.append(job)
        job.wait_for("started")
        return job

    def _load(self, topic: str, prefix: str, count: int, **more: object) -> Job:
        arguments = {"mode": "async", "window": WINDOW, "sizes": "60,200,1000", **more}
        job = self.java.start(
            "send", **self.send, topic=topic, prefix=f"{topic}.{prefix}", count=count, **arguments
        )
        self._prefixes[job.id] = f"{topic}.{prefix}"
        self.jobs.append(job)
        return job

    def _wait_sent(self, job: Job) -> None:
        job.wait_for("done", deadline_s=120)

    # The kill

    def kill(self) -> int:
        """New names, traffic of every kind, SIGKILL; how many sends were on their way."""
        cast, java = self.cast, self.java
        self.create(cast.fresh)
        java.mqadmin(
            "updateSubGroup", "-n", self.pair.namesrv.address, "-b", self.pair.master.address,
            "-g", cast.fresh,
        )  # fmt: skip
        self.reader = java.start(
            "probe-pull", **self.client, topic=cast.plain, group=unique("reader")
        )
        self.writer = java.start(
            "probe-send", **self.send | {"timeoutMs": 1000}, topic=cast.fresh, prefix="w"
        )
        self.jobs += [self.reader, self.writer]
        self.reader.wait(lambda job: states(job)[-1:] == ["FOUND"], "the reader reads")
        self.writer.wait(lambda job: states(job)[-1:] == ["SEND_OK"], "the writer writes")
        loads = [
            self._load(cast.ordered, "b", 2000, mode="ordered"),
            self._load(cast.delayed, "b", 400, delay=1, window=8),
        ]
        decider = java.start(
            "transaction", **self.send, topic=cast.tx, group=f"{cast.tx}-p", count=12,
            prefix=f"{cast.tx}.b", plans=",".join(PLANS),
        )  # fmt: skip
        self.jobs.append(decider)
        self.decider = decider
        decider.wait_for("sent", 4)
        # Last, so that it is in full swing at the kill.
        burst = self._load(cast.plain, "b", 20_000)
        burst.wait_for("sent", self.rng.randrange(300, 3000))
        self.killed_at = time.monotonic()
        self.pair.master.kill()
        for job in (*loads, burst, decider):
            job.wait_for("done", deadline_s=240)
        failed = burst.of("failed")
        return int(failed[0]["outstanding"]) if failed else 0

    def promised(self) -> dict[str, set[str]]:
        """Topic -> names of what was answered with SEND_OK, of every load so far."""
        found: dict[str, set[str]] = {topic: set() for topic in vars(self.cast).values()}
        for job in self.jobs:
            if job.command == "send":
                for event in job.of("sent"):
                    if event["status"] == "SEND_OK":
                        prefix = self._prefixes[job.id]
                        found[prefix.partition(".")[0]].add(f"{prefix}-{event['n']}")
        for event in self.decider.of("sent"):
            if event["status"] == "SEND_OK":
                name = f"{self.cast.tx}.b-{event['n']}"
                self.plans[name] = PLANS[event["n"] % len(PLANS)]
        found[self.cast.tx] = {n for n, plan in self.plans.items() if plan.endswith("commit")}
        return found

    # After

    def measure_first_read(self) -> None:
        """From the SIGKILL to the first message that a consumer that runs reads again."""
        self.reader.wait(self._reads_again, "reads from the slave", deadline_s=120)
        again = self._reads_again(self.reader)
        assert again is not None
        self.measured.first_read_s = again["at"] - self.killed_at

    def _reads_again(self, reader: Job) -> Event | None:
        """The first success behind a failure since the kill."""
        has_failed = False
        for event in reader.of("state"):
            has_failed |= event["is"] == "FAILED" and event["at"] > self.killed_at
            if has_failed and event["is"] == "FOUND":
                return event
        return None

    def wait_consumed(self, job: Job, wanted: Iterable[str], what: str) -> None:
        goal = set(wanted)

        def missing() -> set[str]:
            return goal - set(names(job.of("message")))

        try:
            wait_until(lambda: not missing(), what, deadline_s=150)
        except AssertionError:
            left = sorted(missing())
            raise AssertionError(
                f"{what}: {len(left)} of {len(goal)} missing: {left[:5]}"
            ) from None

    def come_back(self) -> None:
        """The master starts again; how far offsets fall back, and when sends are taken."""
        cast, measured = self.cast, self.measured
        # What was read from the slave is committed there: that is what a master may fall behind.
        # A consumer may stand beyond the slave's end: the dead master gave it what only it had.
        goal = queue_ends(self.pair.slave, cast.plain)
        wait_until(
            lambda: self._is_caught_up(self.pair.slave, goal),
            f"commits on the slave up to {goal}", deadline_s=90,
        )  # fmt: skip
        before = committed(self.pair.slave, cast.many, cast.plain)
        started = time.monotonic()
        self.pair.restart("master")
        after = committed(self.pair.master, cast.many, cast.plain)
        self.returned_at = time.monotonic()
        measured.fallback_messages = sum(max(0, before[q] - after[q]) for q in before)
        if measured.fallback_messages:
            wait_until(
                lambda: self._is_caught_up(self.pair.master, before),
                "offsets are where they were", deadline_s=120,
            )  # fmt: skip
            measured.fallback_s = time.monotonic() - self.returned_at
        self.writer.wait(
            lambda job: job.of("sent") and job.of("sent")[-1]["at"] > started,
            "sends work again", deadline_s=120,
        )  # fmt: skip
        first = next(event for event in self.writer.of("sent") if event["at"] > started)
        measured.sends_work_s = first["at"] - started

    def _is_caught_up(self, broker: Any, goal: dict[int, int]) -> bool:
        now = committed(broker, self.cast.many, self.cast.plain)
        return all(now[queue] >= goal[queue] for queue in goal)

    def afterwards(self) -> None:
        self.pair.wait_in_sync(self.java, self.cast.plain)
        self._wait_sent(self._load(self.cast.plain, "c", 100))
        self._wait_sent(self._load(self.cast.ordered, "c", 50, mode="ordered"))

    def end(self) -> None:
        for job in self.jobs:
            job.events[:] = [event for event in job.events if event["event"] != "error"]
            job.stop()

    # What was seen

    def duplicates(self, job: Job, topic: str) -> Counter[str]:
        own = (e["name"] for e in job.of("message") if e["topic"] == topic)
        counts = Counter(name for name in own if name.startswith(f"{topic}."))  # Probes repeat.
        return Counter({name: count for name, count in counts.items() if count > 1})

    def stored_names(self, broker: Any) -> set[str]:
        bodies = LogFiles(broker.store).bodies.values()
        return {body.partition(b":")[0].decode() for body in bodies}


def states(job: Job) -> list[str]:
    return [event["is"] for event in job.of("state")]


def order_faults(job: Job) -> list[str]:
    """Per queue what is new must come in the order of the log, without a gap."""
    highest: dict[int, int] = {}
    faults = []
    for event in job.of("message"):
        last = highest.get(event["queue"])
        if last is not None and event["offset"] > last + 1:
            faults.append(f"queue {event['queue']}: {last} and then {event['offset']}")
        highest[event["queue"]] = max(event["offset"], -1 if last is None else last)
    return faults


def tell(story: Story) -> None:
    story.begin()
    on_their_way = story.kill()
    assert on_their_way >= 64, "too few sends were on their way at the kill"
    promised = story.promised()
    check_slave_alone(story, promised)
    story.measure_first_read()
    plain, cast = promised[story.cast.plain], story.cast
    story.wait_consumed(story.many, plain, "the backlog from the slave")
    story.wait_consumed(story.everyone, plain, "the backlog from the slave for all")
    story.come_back()
    story.afterwards()
    promised = story.promised()
    mine = promised[cast.plain] | promised[cast.delayed] | promised[cast.tx]
    story.wait_consumed(story.many, mine, "everything")
    story.wait_consumed(story.everyone, promised[cast.plain], "everything for all")
    story.wait_consumed(story.inline, promised[cast.ordered], "everything in order")
    judge(story)
    story.end()


def check_slave_alone(story: Story, promised: dict[str, set[str]]) -> None:
    """Every SEND_OK before the kill is in the slave's files, and the names too between twinlogs."""
    held = story.stored_names(story.pair.slave)
    wanted = set().union(*promised.values()) | set(story.plans)
    assert len(wanted) > 300
    missing = wanted - held
    assert missing == set(), f"{len(missing)} of {len(wanted)} promised are not on the slave"
    if story.pair.is_twin:
        slave, fresh = story.pair.slave, story.cast.fresh
        assert fresh in table(slave, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        groups = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        assert fresh in table(slave, groups, "subscriptionGroupTable")


def judge(story: Story) -> None:
    cast = story.cast
    rolled_back = {name for name, plan in story.plans.items() if plan.endswith("rollback")}
    seen = {event["name"] for event in story.many.of("message")}
    assert not rolled_back & seen, "rolled back and consumed"
    assert order_faults(story.inline) == []
    again = {topic: len(story.duplicates(story.many, topic)) for topic in
             (cast.plain, cast.delayed, cast.tx)}  # fmt: skip
    ordered = len(story.duplicates(story.inline, cast.ordered))
    print(f"{again} came again, ordered {ordered}; {story.measured}")
    if story.pair.is_twin:
        assert set(again.values()) == {0}, "consumers that stayed up were given messages twice"
        assert story.measured.fallback_messages == 0
