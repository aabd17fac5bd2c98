"""The demo's stories: a pair under load, SIGKILL of its master, its return, audit, verdict.

`Demo` is the one with fixed roles: reads go on from the slave, writes when the master is back.
`FailoverDemo` is the one with a controller: the slave takes over, the old master rejoins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from twinlog.cli import local_cluster
from twinlog.cli.demo.java_tools import java_command
from twinlog.cli.demo.java_traffic import JavaTraffic
from twinlog.cli.demo.ledger import Ledger
from twinlog.cli.demo.look_up import messages_in_store
from twinlog.cli.demo.observe import Observer, first_caught_up
from twinlog.cli.demo.plot import Point
from twinlog.cli.demo.sabotage import sabotage_slave
from twinlog.cli.demo.traffic import TOPIC, Load, Stopwatch, Traffic
from twinlog.cli.demo.verdict import Findings, Moments, Verdict, judge
from twinlog.cli.local_cluster import ClusterPlan, LocalCluster, Node

IN_FLIGHT_MIN = 64  # Open sends at the kill.
OUTAGE_SECONDS = 6.0
OUTAGE_SECONDS_MAX = 40.0
DRAIN_SECONDS_MAX = 60.0
CATCH_UP_SECONDS_MAX = 60.0
RETURN_SECONDS_MAX = 60.0
TAKE_OVER_SECONDS_MAX = 30.0
SLAVE_REFUSES = "HA refused code=19"  # CONFIRMED_DIFFERS


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asked for."""

    directory: Path
    seconds: float = 8.0  # of traffic before the kill, and again after the return
    load: Load = field(default_factory=Load)
    sabotage: str | None = None
    with_spark: bool = True
    with_apache_client: bool = False
    is_fixed: bool = False


class DemoFailure(Exception):
    """The story could not be told to its end. The text says where it stopped."""


class Demo:
    """One run. `say` gets one sentence for each step; `ledger` and `moments` are live."""

    def __init__(self, options: DemoOptions, say: Callable[[str], None]) -> None:
        self.options = options
        self.say = say
        self.ledger = Ledger()
        self.moments = Moments()
        self.findings = Findings(is_pipeline_expected=options.with_spark)
        self.lag: list[Point] = []
        self.phase = "starting"
        self.now = Stopwatch()
        self.cluster: LocalCluster | None = None
        self._replicas: tuple[Node, Node] | None = None
        self._is_stopping = False
        self._starting: asyncio.Future[object] | None = None
        self._traffic: Traffic | JavaTraffic | None = None
        self._observer: Observer | None = None

    start_text = "starting a name server, a SYNC_MASTER and a SLAVE"

    def plan(self) -> ClusterPlan:
        return ClusterPlan(self.options.directory, is_sync=True, uses_free_ports=True)

    @property
    def master(self) -> Node:
        assert self._replicas is not None
        return self._replicas[0]

    @property
    def slave(self) -> Node:
        assert self._replicas is not None
        return self._replicas[1]

    async def run(self) -> Verdict:
        """The whole story; everything that was started is stopped, whatever happens."""
        try:
            await self._start()
            await self._before_the_kill()
            await self._kill()
            await self._outage()
            await self._return()
            await self._drain()
        finally:
            await self._stop()
        if self.options.with_spark:
            await self._pipeline()
        self.phase = "done"
        return judge(self.ledger, self.moments, self.findings)

    async def _start(self) -> None:
        directory = self.options.directory
        command: list[str] = []
        if self.options.with_apache_client:
            self.say("fetching and compiling for RocketMQ's Java client")
            command = await java_command(directory)
        self.say(self.start_text)
        self.cluster = local_cluster.prepare_cluster(self.plan())
        await self._in_thread(local_cluster.start_nodes, self.cluster, lambda: self._is_stopping)
        first, second = self.cluster.brokers
        self._replicas = (first, second)
        name_server = self.cluster.name_server.address
        self._observer = Observer(name_server, first.address, second.address)
        await self._observer.start()
        await self._until(self._observer.is_replicating, 30, "the slave to follow its master")
        await self._find_roles()
        create_topic = partial(self._observer.create_topic, TOPIC, 4)
        await self._until(create_topic, 30, "the topic to be created")
        self.now = Stopwatch()
        self.lag.clear()  # Of another clock.
        load = self.options.load
        if command:
            self._traffic = JavaTraffic(
                name_server, load, self.ledger, self.now, directory, command
            )
        else:
            self._traffic = Traffic(name_server, load, self.ledger, self.now)
        await self._traffic.start()

    async def _find_roles(self) -> None:
        """Who was elected; the first started is, unless the machine was very busy."""
        assert self._observer is not None
        if await self._observer.master() == self.slave.address:
            self._swap()

    def _swap(self) -> None:
        assert self._observer is not None
        self._replicas = (self.slave, self.master)
        self._observer.swap()

    async def _before_the_kill(self) -> None:
        self.phase = "traffic"
        self.say(f"traffic for {self.options.seconds:.0f} s, {self.options.load.size} bytes each")
        assert self._traffic is not None
        while self.now() < self.options.seconds:
            await self._sample(0.25)
        self._traffic.rush(is_on=True)
        while self.ledger.in_flight < IN_FLIGHT_MIN:
            if self.now() > self.options.seconds + 30:
                raise DemoFailure(f"only {self.ledger.in_flight} sends were ever open at once")
            await self._sample(0.005)
        if not self.ledger.acknowledged:
            raise DemoFailure(f"no send was acknowledged: {self.ledger.unknown}")

    async def _kill(self) -> None:
        assert self._traffic is not None
        master, slave = self.master, self.slave
        process = master.process()
        if process is None:
            raise DemoFailure(f"the master ended by itself; see {master.log_path}")
        self.findings.in_flight_at_kill = self.ledger.in_flight
        # No await between the signal and the time that is written down.
        os.kill(process.pid, 9)
        self.moments.kill = self.now()
        self._traffic.rush(is_on=False)
        self._traffic.hurry()
        self.phase = "no master"
        self.findings.unread_at_kill = self.ledger.unread
        self.say(f"SIGKILL of the master with {self.findings.in_flight_at_kill} sends open and "
                 f"{self.ledger.unread:,} messages unread")  # fmt: skip
        await asyncio.to_thread(local_cluster.kill_process, master)
        if self.options.sabotage:
            self.say("sabotage: " + await asyncio.to_thread(
                sabotage_slave, slave.store_path, TOPIC, self.options.sabotage))  # fmt: skip
        acknowledged = self.ledger.acknowledged_until(self.moments.kill)
        self.findings.acknowledged_at_kill = len(acknowledged)
        found = await asyncio.to_thread(_numbers, slave.store_path)
        self.findings.missing_on_slave = len(acknowledged - found)
        self.say(f"{len(acknowledged):,} acknowledged messages looked up in the slave's files: "
                 f"{self.findings.missing_on_slave:,} missing")  # fmt: skip

    async def _outage(self) -> None:
        """Readers live on the slave. The outage ends when they have shown it, not by the clock."""
        earliest, latest = self.now() + OUTAGE_SECONDS, self.now() + OUTAGE_SECONDS_MAX
        while self.now() < earliest or (self.ledger.unread and self.now() < latest):
            await self._sample(0.25)
        read = self.findings.unread_at_kill - self.ledger.unread
        self.say(f"consumers read {read:,} more messages while only the slave was there, "
                 f"{self.ledger.unread:,} are left")  # fmt: skip

    async def _return(self) -> None:
        assert self.cluster is not None
        self.phase = "return"
        self.moments.restart = self.now()
        await self._in_thread(self.cluster.start_node, self.master)
        if self.options.sabotage:
            await self._let_the_slave_copy_again()
        await self._until(
            lambda: self.ledger.first_write_after(self.moments.restart) is not None,
            RETURN_SECONDS_MAX, "the first send after the return",
        )  # fmt: skip
        gap = self.ledger.first_write_after(self.moments.restart)
        assert gap is not None
        self.moments.returned = self.moments.restart + gap
        self.say(f"the master is back, first SEND_OK after {gap:.2f} s")
        self.phase = "traffic again"
        while self.now() < self.moments.returned + self.options.seconds:
            await self._sample(0.25)

    async def _let_the_slave_copy_again(self) -> None:
        """A slave whose log differs below what is confirmed cuts nothing by itself: who is right is
        for a person to say. Here the damage is known to be the slave's."""
        assert self.cluster is not None
        slave = self.slave
        await self._until(
            lambda: SLAVE_REFUSES in slave.log_path.read_text(errors="replace")
            or self.ledger.first_write_after(self.moments.restart) is not None,
            RETURN_SECONDS_MAX, "the slave to refuse a cut below what is confirmed",
        )  # fmt: skip
        if self.ledger.first_write_after(self.moments.restart) is not None:
            return  # The damage was above what the slave knew as confirmed: it mended itself.
        self.say("the slave refuses to cut what it knows as confirmed; its operator lets it")
        await self._in_thread(local_cluster.stop_process, slave)
        for name in ("confirmed.mark", "replicas.json"):
            (slave.store_path / "twinlog" / name).unlink(missing_ok=True)
        await self._in_thread(self.cluster.start_node, slave)

    async def _drain(self) -> None:
        assert self._traffic is not None
        assert self._observer is not None
        self.phase = "draining"
        await self._traffic.stop_writing()
        self.moments.stopped = self.now()
        self.say(f"writing stopped, {self.ledger.unread:,} messages left to read")
        last, deadline = self.ledger.unread, self.now() + DRAIN_SECONDS_MAX
        while self.ledger.unread and self.now() < deadline:
            await self._sample(0.25)
            if self.ledger.unread < last:
                last, deadline = self.ledger.unread, self.now() + DRAIN_SECONDS_MAX
        # Closing the clients commits offsets, which travel in the log too: only then is it at rest.
        await self._traffic.stop()
        self._traffic.check()
        await self._until(self._observer.is_at_rest, CATCH_UP_SECONDS_MAX, "the pair to be at rest")
        self.moments.caught_up = first_caught_up(self.lag, self.moments.restart)
        self._say_what_the_slave_repaired()

    def _say_what_the_slave_repaired(self) -> None:
        """Replicas that are equal after a sabotage need a word: the slave compared and mended."""
        aside = (self.slave.store_path / "twinlog").glob("cut-*/*")
        size = sum(path.stat().st_size for path in aside)
        if size:
            self.say(f"the slave's log differed from its master's: it moved {size:,} bytes aside"
                     " and copied them again")  # fmt: skip

    async def _in_thread(self, function: Callable[..., object], *arguments: object) -> None:
        """Start processes off the loop. An interrupt does not end a thread: `_stop` waits for it,
        so that no process is started behind its back."""
        self._starting = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        while not self._starting.done():
            await asyncio.wait([self._starting], timeout=0.25)
            if self._traffic is not None:
                await self._sample(0)
        self._starting.result()

    async def _stop(self) -> None:
        self._is_stopping = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._traffic is not None:
            await self._traffic.stop()
        if self._observer is not None:
            await self._observer.close()
        if self.cluster is not None:
            await asyncio.to_thread(self.cluster.stop)

    async def _pipeline(self) -> None:
        # Imported here: a demo without Spark must run where pyarrow is not installed.
        from twinlog.cli.demo.pipeline import run_pipeline

        self.phase = "Spark"
        await run_pipeline(
            self.master.store_path, self.slave.store_path, self.options.directory / "archive",
            set(self.ledger.acknowledged), self.findings, self.say,
        )  # fmt: skip

    async def _sample(self, seconds: float) -> None:
        assert self._observer is not None
        await asyncio.sleep(seconds)
        if self._traffic is not None:
            self._traffic.check()
        lag = await self._observer.lag_bytes()
        if lag is not None:
            self.lag.append((self.now(), float(lag)))

    async def _until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        deadline = self.now() + seconds
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            if self.now() > deadline:
                raise DemoFailure(f"waited {seconds:.0f} s for {what}, without success")
            await self._sample(0.1)


class FailoverDemo(Demo):
    """With a controller: the slave takes over, writes go on, the old master rejoins by itself."""

    start_text = "starting a name server with a controller inside, and two replicas"

    def plan(self) -> ClusterPlan:
        return ClusterPlan(self.options.directory, uses_free_ports=True, has_failover=True)

    async def _find_roles(self) -> None:
        assert self._observer is not None
        await self._until(self._observer.is_admitted, 30, "the slave to be admitted")
        await super()._find_roles()

    async def _outage(self) -> None:
        """The slave becomes the master; then traffic with one copy for a while."""
        assert self._observer is not None
        await self._until(self._is_taken_over, TAKE_OVER_SECONDS_MAX, "the slave to take over")
        seen = self.now()
        await self._until(
            lambda: self.ledger.first_write_after(seen) is not None,
            TAKE_OVER_SECONDS_MAX, "a send to the new master",
        )  # fmt: skip
        self.moments.switched = self.ledger.writes_again(self.moments.kill)
        gap = self.ledger.seconds_without_writes(self.moments.kill) or 0.0
        self.say(f"the slave is the master now: {gap:.2f} s without a SEND_OK")
        self._swap()
        self.phase = "one copy"
        while self.now() < seen + self.options.seconds:
            await self._sample(0.25)

    async def _is_taken_over(self) -> bool:
        assert self._observer is not None
        return await self._observer.master() == self.slave.address

    async def _return(self) -> None:
        """The old master comes back as a slave; what only it had is moved aside."""
        assert self.cluster is not None
        assert self._observer is not None
        self.phase = "return"
        self.moments.restart = self.now()
        await self._in_thread(self.cluster.start_node, self.slave)
        await self._until(self._observer.is_admitted, RETURN_SECONDS_MAX, "it to be in sync")
        self.moments.returned = self.now()
        took = self.moments.returned - self.moments.restart
        self.say(f"the old master has rejoined as a slave, in sync after {took:.2f} s")
        self.phase = "traffic again"
        while self.now() < self.moments.returned + self.options.seconds:
            await self._sample(0.25)


def story(options: DemoOptions, say: Callable[[str], None]) -> Demo:
    """Damage done on purpose, and clients that poll routes every 30 s, belong to fixed roles."""
    is_fixed = options.is_fixed or options.sabotage or options.with_apache_client
    return Demo(options, say) if is_fixed else FailoverDemo(options, say)


def _numbers(store: Path) -> set[int]:
    return {found.number for found in messages_in_store(store, TOPIC)}
