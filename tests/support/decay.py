"""A pair whose files decay: bits are flipped, and everything that it serves meanwhile is judged.

A story has one of four conditions (the brokers run, are stopped, work under load, or one of them is
alone) and ends with a tally: what was flipped where, what was healed, what was named.
"""

from __future__ import annotations

import os
import random
import re
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.command_line import twinlog
from support.damage import Flip, flip_bit, log_place
from support.ha_load import Connection, send_command
from support.pair_story import Pair, running_pair
from support.processes import wait_until
from support.served import QUEUES, records_served, scrub, scrub_status
from support.twinlog_servers import TwinlogBroker
from twinlog.message.layout import ENTRY
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

SEGMENT = 1 << 20
QUEUE_FILE = 20 * 200
SLOTS = 1000
INDEX_SLOTS = 40  # Behind the header of an index file.
INDEX_ENTRIES = INDEX_SLOTS + 4 * SLOTS
CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": QUEUE_FILE,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": 1000,
    "twinlogScrubCpuPercent": 100,
    "twinlogScrubRateMax": 1 << 30,
    "twinlogDamageWaitMillis": 1000,
    "flushIntervalCommitLog": 50,
    "flushConsumerOffsetInterval": 500,
}
STORED = (0, 10, 11, 12)  # All but the first: without its slave, or too late for it.
GROUP = "g"
# Nobody changes these meanwhile: what was there is what must be there again.
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
CONDITIONS = ("running", "stopped", "load", "master alone", "slave alone")


@dataclass
class Tally:
    """What became of a story's flips, and of the bodies that were read meanwhile."""

    condition: str
    seed: int
    places: Counter[str] = field(default_factory=Counter)
    named: int = 0
    healed: int = 0
    served: int = 0
    damaged: int = 0

    @property
    def line(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.places.items()))
        return (
            f"decay: {self.condition}, seed {self.seed}: {self.places.total()} places ({kinds}); "
            f"{self.healed} healed, {self.named} of them named first; "
            f"{self.served} bodies served, {self.damaged} of them damaged"
        )

    def judge(self, broker: TwinlogBroker, sent: set[bytes]) -> set[bytes]:
        """Read everything from one node; the bodies, of which none may be other than was sent."""
        found = list(served(broker))
        self.served += len(found)
        self.damaged += sum(body not in sent for body in found)
        assert self.damaged == 0, "a damaged body was served"
        return set(found)


def fill(pair: Pair, rng: random.Random, count: int) -> set[bytes]:
    bodies = set()
    connection = Connection(pair.master.address)
    for number in range(count):
        body = b"%06d " % number + rng.randbytes(rng.choice((30, 700, 4000)))
        command = send_command(body, queue_id=number % QUEUES, KEYS=f"k{number}", TAGS="a")
        connection.send(command)
        answer = connection.receive()
        assert answer.code == 0, answer.remark
        bodies.add(body)
    header = {"consumerGroup": GROUP, "topic": "load", "queueId": 0, "commitOffset": 7}
    assert connection.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
    connection.close()
    pair.wait_in_sync()
    for broker in (pair.master, pair.slave):
        assert set(served(broker)) == bodies  # Also makes the group, where it is made by a read.
        wait_until(lambda b=broker: _has_offset(b), "the committed offset is in the file")  # type: ignore[misc]
    return bodies


def _has_offset(broker: TwinlogBroker) -> bool:
    file = broker.store / "config" / "consumerOffset.json"
    return file.exists() and f"load@{GROUP}".encode() in file.read_bytes()


def served(broker: TwinlogBroker) -> Iterator[bytes]:
    """Every body that a reader of all queues is given."""
    return (record.body for record in records_served(broker, "load"))


def log_end(broker: TwinlogBroker) -> int:
    return int(scrub_status(broker)["end"])


def wait_for_replicas(*brokers: TwinlogBroker) -> None:
    for broker in brokers:
        wait_until(lambda b=broker: scrub_status(b)["replicas"], "it knows the other copy")  # type: ignore[misc]


class Decay:
    """Flips bits of one node. Whole segments of the log, so that digests know what they were; a
    node has its own, so that the other one has a good copy."""

    def __init__(self, rng: random.Random, broker: TwinlogBroker, segments: list[int]) -> None:
        self._rng = rng
        self._broker = broker
        self._segments = segments
        self.flips: list[Flip] = []
        self.kinds: Counter[str] = Counter()
        tables = (broker.store / "config" / name for name in TABLES)
        self._tables = {path: path.read_bytes() for path in tables if path.exists()}

    def run(self, count: int) -> None:
        kinds = {
            "log": self._in_log, "queues": self._in_queue, "index": self._in_index,
            "tables": self._in_table,
        }  # fmt: skip
        end = len(self.flips) + count
        while len(self.flips) < end:
            kind = self._rng.choice(["log", *kinds])  # The log twice as often as each other.
            path, position = kinds[kind]()
            if all((flip.path, flip.position) != (path, position) for flip in self.flips):
                self._flip(path, position)
                self.kinds[kind] += 1

    def _flip(self, path: Path, position: int) -> None:
        times, content = path.stat(), self._tables.get(path)
        entry_count = index_entry_count(path) if path.parent.name == "index" else None
        flip = flip_bit(path, position, self._rng)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # Nobody has written.
        if content:
            flip = TableFlip(path, position, flip.before, content)
        elif entry_count is not None:
            flip = IndexFlip(path, position, flip.before, entry_count)
        self.flips.append(flip)

    def _in_log(self) -> tuple[Path, int]:
        start = self._rng.choice(self._segments)
        return log_place(self._broker.store, start, start + SEGMENT, SEGMENT, self._rng)

    def _in_queue(self) -> tuple[Path, int]:
        files = sorted((self._broker.store / "consumequeue" / "load").glob("*/*"))
        path = self._rng.choice(files)
        used = len(path.read_bytes().rstrip(b"\0"))
        return path, self._rng.randrange(max(1, used - 40))  # The last ones wait in memory.

    def _in_index(self) -> tuple[Path, int]:
        path = self._rng.choice(sorted((self._broker.store / "index").iterdir()))
        # Entry 0 has a place, and no content.
        used = INDEX_ENTRIES + 20 * max(1, index_entry_count(path) - 1)
        position = self._rng.randrange(used)
        first = INDEX_ENTRIES
        return path, position + 20 if first <= position < first + 20 else position

    def _in_table(self) -> tuple[Path, int]:
        path = self._rng.choice(sorted(self._tables))
        return path, self._rng.randrange(path.stat().st_size)

    @property
    def open(self) -> list[str]:
        """Places that are not as they were."""
        return [str(flip) for flip in self.flips if not flip.is_healed]


@dataclass(frozen=True)
class TableFlip(Flip):
    """In a table, which may be written again at any time: its content counts, not its bytes."""

    content: bytes

    @property
    def is_healed(self) -> bool:
        try:
            return _without_version(self.path.read_bytes()) == _without_version(self.content)
        except ValueError:
            return False


@dataclass(frozen=True)
class IndexFlip(Flip):
    """In an index file. While keys still come into it, a message of the traffic may write the same
    slot, or the header, once more: what stands there then is not what was there before."""

    entry_count: int

    @property
    def is_healed(self) -> bool:
        if super().is_healed:
            return True
        if self.position < INDEX_SLOTS:
            return index_entry_count(self.path) > self.entry_count
        return self.position < INDEX_ENTRIES and self._is_slot_of_later_entry

    @property
    def _is_slot_of_later_entry(self) -> bool:
        slot, data = (self.position - INDEX_SLOTS) // 4, self.path.read_bytes()
        (number,) = struct.unpack_from(">i", data, INDEX_SLOTS + 4 * slot)
        if not self.entry_count <= number < index_entry_count(self.path):
            return False
        (key_hash,) = struct.unpack_from(">i", data, INDEX_ENTRIES + 20 * number)
        return bool(key_hash % SLOTS == slot)


def index_entry_count(path: Path) -> int:
    """As the header says; the first number in use is 1."""
    (count,) = struct.unpack_from(">i", path.read_bytes(), 36)
    return int(count)


def _without_version(content: bytes) -> Any:
    table = fastjson.loads(content)
    return {key: value for key, value in table.items() if key != "dataVersion"}


class Traffic(threading.Thread):
    """Sends and reads all the time: every body that either node gives must be one that was sent."""

    def __init__(
        self, master: TwinlogBroker, read: list[TwinlogBroker], bodies: set[bytes], seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._master = master
        self._read = read
        self._bodies = bodies
        self._rng = random.Random(seed)
        self._must_stop = threading.Event()
        self.wrong: list[bytes] = []
        self.sent = 0
        self.served = 0
        self.rounds = 0

    def run(self) -> None:
        connection = Connection(self._master.address)
        while not self._must_stop.is_set():
            for _ in range(50):
                body = b"live %06d " % self.sent + self._rng.randbytes(300)
                self._bodies.add(body)
                queue_id = self.sent % QUEUES
                connection.send(send_command(body, queue_id=queue_id, KEYS=f"l{self.sent}"))
                assert connection.receive().code in STORED
                self.sent += 1
            for broker in self._read:
                found = list(served(broker))
                self.served += len(found)
                self.wrong += set(found) - self._bodies
            self.rounds += 1
        connection.close()

    def stop(self) -> None:
        """After one more round over everything."""
        before = self.rounds
        wait_until(lambda: self.rounds > before or not self.is_alive(), "one more round")
        self._must_stop.set()
        self.join()
        assert self.rounds > before, "the traffic has broken"


@contextmanager
def under_traffic(
    bodies: set[bytes], tally: Tally, master: TwinlogBroker, *slaves: TwinlogBroker
) -> Iterator[Traffic]:
    traffic = Traffic(master, [master, *slaves], bodies, tally.seed)
    traffic.start()
    wait_until(lambda: traffic.rounds > 0 or not traffic.is_alive(), "traffic", deadline_s=120)
    yield traffic
    traffic.stop()
    tally.served += traffic.served
    tally.damaged += len(traffic.wrong)
    assert traffic.wrong == [], "a damaged body was served"


def full_segments(pair: Pair, rng: random.Random) -> list[int]:
    for broker in (pair.master, pair.slave):
        assert scrub(broker)["damageFound"] == 0
    full = list(range(0, log_end(pair.master) // SEGMENT * SEGMENT, SEGMENT))
    assert len(full) >= 2
    rng.shuffle(full)
    return full


def is_named(flip: Flip, status: dict[str, Any]) -> bool:
    """By the place in the log; an index file by its name; the tags of an entry by the place of its
    record, since nobody can say which of the two is right."""
    if flip.path.parent.name == "index":
        return flip.path.name in status["indexUnchecked"]
    if flip.path.parent.name == "commitlog":
        return _is_place_named(int(flip.path.name) + flip.position, status["places"])
    if flip.path.parent.name.isdigit() and flip.position % ENTRY.size >= 12:
        entry = flip.path.read_bytes()[flip.position - flip.position % ENTRY.size :][: ENTRY.size]
        return _is_place_named(ENTRY.unpack(entry)[0], status["places"])
    return False


def _is_place_named(offset: int, places: list[str]) -> bool:
    found = [re.search(r"(\d+) bytes at offset (\d+) of the log", text) for text in places]
    spans = [(int(m[2]), int(m[2]) + int(m[1])) for m in found if m]
    return any(start <= offset < end for start, end in spans)


# The stories


def decay_story(directory: Path, condition: str, seed: int, places: int, messages: int) -> Tally:
    """One pair, filled, damaged at `places` places under a condition, scrubbed, judged."""
    rng, tally = random.Random(seed), Tally(condition, seed)
    with running_pair(directory, **CONFIG) as pair:
        bodies = fill(pair, rng, messages)
        wait_for_replicas(pair.master, pair.slave)
        full = full_segments(pair, rng)
        half = len(full) // 2
        nodes = [Decay(rng, pair.master, full[:half]), Decay(rng, pair.slave, full[half:])]
        if condition == "load":
            _under_load(pair, nodes, bodies, places, tally)
        elif condition in ("master alone", "slave alone"):
            node = Decay(rng, pair.master if condition == "master alone" else pair.slave, full)
            nodes = [node]
            _alone(pair, node, bodies, places, tally)
        else:
            _at_rest(pair, nodes, bodies, places, tally)
        _assert_as_before(pair, nodes, bodies, tally)
    return tally


def _at_rest(pair: Pair, nodes: list[Decay], bodies: set[bytes], places: int, tally: Tally) -> None:
    if tally.condition == "stopped":
        pair.slave.stop()
        pair.master.stop()
    for node in nodes:
        node.run(places // 2)
    if tally.condition == "stopped":
        pair.master = pair.restart(pair.master)
        pair.slave = pair.restart(pair.slave)
        pair.wait_in_sync()
        wait_for_replicas(pair.master, pair.slave)
    for broker in (pair.master, pair.slave):
        tally.judge(broker, bodies)
    for broker in (pair.master, pair.slave):
        found = scrub(broker)
        assert found["damageFound"] + found["healedEntries"] > 0


def _under_load(
    pair: Pair, nodes: list[Decay], bodies: set[bytes], places: int, tally: Tally
) -> None:
    rounds = 3
    with under_traffic(bodies, tally, pair.master, pair.slave):
        for number in range(rounds):
            for node in nodes:
                node.run(places // 2 * (number + 1) // rounds - places // 2 * number // rounds)
            for broker in (pair.master, pair.slave):
                scrub(broker)


def _alone(pair: Pair, node: Decay, bodies: set[bytes], places: int, tally: Tally) -> None:
    """Queues, index and tables are healed from the log at once; what the log has lost is named
    until the peer is back, and then healed."""
    if tally.condition == "master alone":
        with under_traffic(bodies, tally, pair.master):
            pair.slave.stop()
            node.run(places)
            scrub(pair.master)
            status = scrub(pair.master)
        pair.slave = pair.restart(pair.slave)
    else:
        pair.master.stop()
        node.run(places)
        tally.judge(pair.slave, bodies)
        scrub(pair.slave)
        status = scrub(pair.slave)
        tally.judge(pair.slave, bodies)
        pair.master = pair.restart(pair.master)
    waiting = [flip for flip in node.flips if not flip.is_healed]
    unnamed = [str(flip) for flip in waiting if not is_named(flip, status)]
    assert not unnamed, f"neither healed nor named: {unnamed}"
    assert any(flip.path.parent.name == "commitlog" for flip in waiting)
    tally.named = len(waiting)
    pair.wait_in_sync()
    wait_for_replicas(pair.master, pair.slave)


def _assert_as_before(pair: Pair, nodes: list[Decay], bodies: set[bytes], tally: Tally) -> None:
    named = [scrub(broker)["places"] for broker in (pair.master, pair.slave)]
    left = [text for node in nodes for text in node.open]
    assert (left, named) == ([], [[], []]), f"not healed: {left}, named: {named}"
    for broker in (pair.master, pair.slave):
        assert tally.judge(broker, bodies) == bodies
        result = twinlog("store", "verify", str(broker.store), "-o", "json")
        texts = [row["finding"] for row in result.json.get("findings", [])]
        assert not texts, texts
    for node in nodes:
        tally.places += node.kinds
    tally.healed = tally.places.total()
