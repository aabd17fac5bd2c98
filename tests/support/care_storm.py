"""A controlled group whose files decay while everything that an operator does goes on at once.

Load, readers of both nodes, scrubs, retention by bytes, backups, switches, kills in the middle of a
repair and rebuilt slaves. A body follows from its number, so that whoever reads one can judge it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.command_line import process
from support.damage import Flip, flip_bit
from support.failover_group import TOPIC, Group, switch
from support.ha_load import Connection, ha_status
from support.processes import wait_until
from support.served import QUEUES, end_of, records_served, scrub, scrub_status
from support.twinlog_servers import TwinlogBroker
from twinlog.client import Message, Producer
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode

SEGMENT = 1 << 18
RETENTION = 24 * SEGMENT
CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 2000,
    "twinlogRetentionBytes": RETENTION,
    "cleanResourceInterval": 200,
    "deleteCommitLogFilesInterval": 0,
    "twinlogScrubCpuPercent": 100,
    "twinlogScrubRateMax": 1 << 30,
    "twinlogDamageWaitMillis": 1000,
    "flushIntervalCommitLog": 50,
    "slaveReadEnable": "true",
}
DEADLINE_S = 120.0
# It changes too fast, or is being rebuilt and has nothing yet.
REFUSALS = (
    "make the backup again", "no commit log", "does not contain a store", "is missing; is the log",
)  # fmt: skip


def body_of(number: int) -> bytes:
    rng = random.Random(number)
    return b"%08d " % number + rng.randbytes(rng.choice((20, 900, 6000)))


def is_right(body: bytes) -> bool:
    return body[:8].isdigit() and body == body_of(int(body[:8]))


class StormLoad:
    """Sends one behind the other; what was acknowledged, by its place."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.times: list[tuple[float, tuple[int, int]]] = []
        self.must_stop = False
        self.number = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._lane() for _ in range(8)))

    async def _lane(self) -> None:
        while not self.must_stop:
            self.number += 1
            number = self.number
            try:
                receipt = await self._producer.send(Message(TOPIC, body_of(number), tags="a"))
            except Exception:
                await asyncio.sleep(0.1)
                continue
            if receipt.is_acknowledged:
                place = (receipt.queue.queue_id, receipt.queue_offset)
                self.acknowledged[place] = number
                self.times.append((time.monotonic(), place))

    async def goes_on(self, count: int = 300) -> None:
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + DEADLINE_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "no sends any more"
            await asyncio.sleep(0.02)


def first_of(connection: Connection, queue_id: int) -> int:
    header = {"topic": TOPIC, "queueId": queue_id}
    return int(connection.call(RequestCode.GET_MIN_OFFSET, header).ext()["offset"])


def ends(broker: TwinlogBroker) -> list[int]:
    connection = Connection(broker.address)
    try:
        return [end_of(connection, TOPIC, queue_id) for queue_id in range(QUEUES)]
    finally:
        connection.close()


def served(broker: TwinlogBroker) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Place and body of everything that one node gives."""
    for record in records_served(broker, TOPIC):
        yield (record.queue_id, record.queue_offset), record.body


@dataclass
class Storm:
    """The group, what is done to it, and what came of it."""

    group: Group
    load: StormLoad
    directory: Path
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    served: int = 0
    is_over: bool = False

    @property
    def line(self) -> str:
        return (
            f"{dict(self.done)}, {len(self.load.acknowledged)} acknowledged, "
            f"{self.served} bodies served, {len(self.wrong)} wrong"
        )

    @property
    def slave(self) -> TwinlogBroker:
        master = self.group.master
        return next(broker for broker in self.group.brokers if broker is not master)

    def read(self) -> None:
        """In a thread, all the time: nothing that any node serves is other than it was sent."""
        while not self.is_over:
            for broker in self.group.brokers:
                try:
                    for place, body in served(broker):
                        self.served += 1
                        if not is_right(body):
                            self.wrong.append(f"{broker.address} {place}: {body[:40]!r}")
                except (OSError, EOFError, ConnectionError, KeyError, AssertionError):
                    continue  # It was killed, or is not there yet.

    # What an operator, a disk and fate do

    def damage(self) -> None:
        """One node, so that there is a good copy: whole segments behind the first few."""
        broker = self.rng.choice(self.group.brokers)
        segments = sorted((broker.store / "commitlog").iterdir())[3:-3]
        for path in self.rng.sample(segments, min(3, len(segments))):
            try:
                self.flips.append(flip_bit(path, self.rng.randrange(SEGMENT), self.rng))
            except (OSError, ValueError):
                continue  # Expired meanwhile.
            self.done["flips"] += 1

    def heal(self) -> None:
        """Every node looks at everything; then nothing may be named any more."""
        for broker in self.group.brokers:
            scrub(broker, DEADLINE_S)
        for broker in self.group.brokers:
            places = scrub(broker, DEADLINE_S)["places"]
            assert places == [], (broker.address, places)
        left = [flip for flip in self.flips if flip.path.exists() and not flip.is_healed]
        assert left == [], [str(flip) for flip in left]
        self.flips.clear()
        self.done["heals"] += 1

    def come_in_sync(self) -> None:
        """A slave that was damaged before a kill, at a place that nobody knew as flushed, ends
        there. What is left of its log may be older than all that retention has kept: such a slave
        says so and waits for somebody who lets it copy everything again."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.group.members) < len(self.group.brokers):
            assert time.monotonic() < deadline, "a replica does not come in sync"
            if self._is_left_behind():
                self.rebuild()
                self.done["left behind"] += 1
                deadline = time.monotonic() + DEADLINE_S
            time.sleep(0.05)

    def _is_left_behind(self) -> bool:
        """As the slave says, and as its log and that of its master show."""
        try:
            slave, master = self.slave, self.group.master
            client = ha_status(slave.address)["haClientRuntimeInfo"]["twinlog"]
            end = int(scrub_status(slave)["end"])
        except (OSError, EOFError, ConnectionError, KeyError, AssertionError):
            return False  # It is being started.
        first = min(int(path.name) for path in (master.store / "commitlog").iterdir())
        return "nothing is common" in str(client["lastDisconnectReason"]) and end < first

    def begin_scrubs(self) -> None:
        for broker in self.group.brokers:
            scrub_status(broker, begin=True)

    def back_up(self) -> None:
        """Of either node; what was acknowledged before it began is in it, but for what expired."""
        broker = self.rng.choice(self.group.brokers)
        place = self.directory / "backups"
        is_member = not self._has_open_flips(broker)
        is_member = is_member and self.group.id_of(broker) in self.group.members
        began = time.monotonic()
        made = process("backup", "create", place, "--store", broker.store, "-o", "json")
        if made.code:
            assert any(text in made.err for text in REFUSALS), made
            self.done["backups refused"] += 1
            return
        (row,) = made.json["backups"]
        process("backup", "verify", place, "--id", row["id"]).ok()
        target = self.directory / "restored"
        process("backup", "restore", place, target, "--id", row["id"]).ok()
        found = dict(bodies_in_log(target / "commitlog"))
        is_whole = is_member and not self._has_open_flips(broker)
        floor = {queue: min((p[1] for p in found if p[0] == queue), default=1 << 60)
                 for queue in range(QUEUES)}  # fmt: skip
        for at, where in list(self.load.times):
            if at < began and is_whole and where[1] >= floor[where[0]] and where not in found:
                self.wrong.append(f"{where} is not in {row['id']} of {broker.address}")
        shutil.rmtree(target)
        process("backup", "remove", place, "--keep", "2").ok()
        self.done["backups"] += 1

    def _has_open_flips(self, broker: TwinlogBroker) -> bool:
        return any(
            broker.store in flip.path.parents and flip.path.exists() and not flip.is_healed
            for flip in self.flips
        )

    async def switch(self) -> None:
        before = self.group.master
        try:
            await switch(self.group)
        except AssertionError:
            return
        deadline = time.monotonic() + DEADLINE_S
        while self.group.master is before:
            assert time.monotonic() < deadline, "no new master"
            await asyncio.sleep(0.05)
        self.done["switches"] += 1

    def kill_in_repair(self) -> None:
        """SIGKILL of a node at a random moment of a scrub that heals."""
        broker = self.rng.choice(self.group.brokers)
        before = scrub_status(broker, begin=True)["healedBytes"]
        deadline = time.monotonic() + self.rng.random()
        while time.monotonic() < deadline and scrub_status(broker)["healedBytes"] == before:
            time.sleep(0.001)
        broker.kill()
        self.group.restart(broker)
        self.done["kills"] += 1

    def rebuild(self) -> None:
        """A slave loses its store and copies everything from a master that is whole."""
        slave = self.slave
        slave.stop()
        shutil.rmtree(slave.store)
        self.flips = [flip for flip in self.flips if slave.store not in flip.path.parents]
        self.group.restart(slave)
        self.done["rebuilds"] += 1

    def failures(self) -> list[str]:
        """Errors that nobody expected, as the logs of the brokers tell."""
        logs = [broker.store.parent / "broker.log" for broker in self.group.brokers]
        lines = [line for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
        return [line for line in lines if "contained failure" in line]

    def judge(self) -> None:
        """Everything that was acknowledged and has not expired is there, on both nodes, as soon as
        the slave's queues have followed its log."""
        tables = [broker.store / "config" / "topics.json" for broker in self.group.brokers]
        wait_until(lambda: all(path.exists() for path in tables), "a rebuilt slave has its tables",
                   deadline_s=DEADLINE_S)  # fmt: skip
        wait_until(lambda: len({tuple(ends(b)) for b in self.group.brokers}) == 1,
                   "the queues of all nodes end alike", deadline_s=DEADLINE_S)  # fmt: skip
        for broker in self.group.brokers:
            found = dict(served(broker))
            connection = Connection(broker.address)  # Behind it: something may have expired.
            low = {queue: first_of(connection, queue) for queue in range(QUEUES)}
            connection.close()
            for place, number in self.load.acknowledged.items():
                if place[1] >= low[place[0]] and found.get(place) != body_of(number):
                    self.wrong.append(f"{place} of {broker.address} is not message {number}")


def bodies_in_log(directory: Path) -> Iterator[tuple[tuple[int, int], bytes]]:
    """By a walk that knows nothing of queues."""
    for path in sorted(directory.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data) and (size := int.from_bytes(data[at : at + 4], "big")) > 8:
            if data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
                try:
                    record = decode_record(data, at, check_crc=False)
                except Exception:
                    record = None
                if record is not None and record.topic == TOPIC:
                    yield (record.queue_id, record.queue_offset), record.body
            at += size
