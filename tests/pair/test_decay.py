"""Bits flipped at random places of the files of a master and its slave, stopped and running.

Nothing damaged is served, by either, at any time; what was flipped in the log and the queues is
healed by one scrub of each, or named.
"""

from __future__ import annotations

import os
import random
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command_line import twinlog
from support.damage import Flip, flip_bit, log_place
from support.ha_load import Connection, ask, send_command
from support.pair_story import Pair, running_pair
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

SEGMENT = 1 << 20
QUEUE_FILE = 20 * 200
SLOTS = 1000
CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": QUEUE_FILE,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": 1000,
    "twinlogScrubCpuPercent": 100,
    "twinlogScrubRateMax": 1 << 30,
    "twinlogDamageWaitMillis": 1000,
    "flushIntervalCommitLog": 50,
}
QUEUES = 4
STORED = (0, 10, 11, 12)  # All but the first: without its slave, or too late for it.


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
    connection.close()
    pair.wait_in_sync()
    return bodies


def served(broker: TwinlogBroker) -> Iterator[bytes]:
    """Every body that a reader of all queues is given, going on behind errors."""
    connection = Connection(broker.address)
    try:
        for queue_id in range(QUEUES):
            header = {"topic": "load", "queueId": queue_id}
            end = int(connection.call(RequestCode.GET_MAX_OFFSET, header).ext()["offset"])
            offset = 0
            while offset < end:
                pull = {
                    "consumerGroup": "g", "topic": "load", "queueId": queue_id,
                    "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0,
                    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
                    "expressionType": "TAG",
                }  # fmt: skip
                answer = connection.call(RequestCode.PULL_MESSAGE, pull)
                data, at = bytes(answer.body), 0
                while at < len(data):
                    record = decode_record(data, at, check_crc=False)
                    yield record.body
                    at += record.total_size
                offset = max(offset + 1, int(answer.ext().get("nextBeginOffset", 0)))
    finally:
        connection.close()


def _status(broker: TwinlogBroker, header: dict[str, str] | None = None) -> dict[str, Any]:
    answer = ask(broker.address, RequestCode.TWINLOG_SCRUB, header or {})
    assert answer.code == 0, answer.remark
    value: dict[str, Any] = fastjson.loads(bytes(answer.body))
    return value


def scrub(broker: TwinlogBroker) -> dict[str, Any]:
    """A whole walk over its store, begun now; what it says at its end."""
    passes = _status(broker, {"begin": "true"})["passes"]
    is_over = lambda: _status(broker)["passes"] > passes  # noqa: E731
    wait_until(is_over, "the scrub has seen all", deadline_s=120)
    return _status(broker)


def log_end(broker: TwinlogBroker) -> int:
    return int(_status(broker)["end"])


def wait_for_replicas(*brokers: TwinlogBroker) -> None:
    for broker in brokers:
        wait_until(lambda b=broker: _status(b)["replicas"], "it knows the other copy")  # type: ignore[misc]


class Decay:
    """Flips bits of one node. Whole segments of the log, so that digests know what they were; a
    node has its own, so that the other one has a good copy."""

    def __init__(self, rng: random.Random, broker: TwinlogBroker, segments: list[int]) -> None:
        self._rng = rng
        self._broker = broker
        self._segments = segments
        self.flips: list[Flip] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            kinds = (self._in_log, self._in_log, self._in_queue, self._in_index, self._in_table)
            path, position = self._rng.choice(kinds)()
            if (path, position) not in [(flip.path, flip.position) for flip in self.flips]:
                times = path.stat()
                self.flips.append(flip_bit(path, position, self._rng))
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # Nobody has written.

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
        (count,) = struct.unpack_from(">i", path.read_bytes(), 36)
        used = 40 + 4 * SLOTS + 20 * max(1, count - 1)  # Entry 0 has a place, and no content.
        position = self._rng.randrange(used)
        first = 40 + 4 * SLOTS
        return path, position + 20 if first <= position < first + 20 else position

    def _in_table(self) -> tuple[Path, int]:
        # One that nobody changes meanwhile: what was there is what must be there again.
        path = self._broker.store / "config" / "topics.json"
        return path, self._rng.randrange(path.stat().st_size)

    @property
    def open(self) -> list[str]:
        """Places that are not as they were."""
        return [str(flip) for flip in self.flips if not flip.is_healed]


def story(directory: Path, seed: int, places: int, messages: int, *, is_stopped: bool) -> None:
    rng = random.Random(seed)
    with running_pair(directory, **CONFIG) as pair:
        bodies = fill(pair, rng, messages)
        wait_for_replicas(pair.master, pair.slave)
        full = full_segments(pair, rng)
        if is_stopped:
            pair.slave.stop()
            pair.master.stop()
        half = len(full) // 2
        nodes = [Decay(rng, pair.master, full[:half]), Decay(rng, pair.slave, full[half:])]
        for node in nodes:
            node.run(places // 2)
        if is_stopped:
            pair.master = pair.restart(pair.master)
            pair.slave = pair.restart(pair.slave)
            pair.wait_in_sync()
            wait_for_replicas(pair.master, pair.slave)
        for broker in (pair.master, pair.slave):
            assert set(served(broker)) <= bodies, "a damaged body was served"
        for broker in (pair.master, pair.slave):
            found = scrub(broker)
            assert found["damageFound"] + found["healedEntries"] > 0
        named = [scrub(broker)["places"] for broker in (pair.master, pair.slave)]
        assert ([node.open for node in nodes], named) == ([[], []], [[], []])
        assert set(served(pair.master)) == bodies
        for broker in (pair.master, pair.slave):
            result = twinlog("store", "verify", str(broker.store), "-o", "json")
            texts = [row["finding"] for row in result.json.get("findings", [])]
            assert texts == []


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
                self.wrong += set(served(broker)) - self._bodies
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
    bodies: set[bytes], seed: int, master: TwinlogBroker, *slaves: TwinlogBroker
) -> Iterator[Traffic]:
    traffic = Traffic(master, [master, *slaves], bodies, seed)
    traffic.start()
    wait_until(lambda: traffic.rounds > 0 or not traffic.is_alive(), "traffic", deadline_s=120)
    yield traffic
    traffic.stop()
    assert traffic.wrong == []


def full_segments(pair: Pair, rng: random.Random) -> list[int]:
    for broker in (pair.master, pair.slave):
        assert scrub(broker)["damageFound"] == 0
    full = list(range(0, log_end(pair.master) // SEGMENT * SEGMENT, SEGMENT))
    assert len(full) >= 2
    rng.shuffle(full)
    return full


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3])
def test_bits_flip_while_clients_send_and_read(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with running_pair(tmp_path, **CONFIG) as pair:
        bodies = fill(pair, rng, 1_500)
        wait_for_replicas(pair.master, pair.slave)
        full = full_segments(pair, rng)
        half = len(full) // 2
        nodes = [Decay(rng, pair.master, full[:half]), Decay(rng, pair.slave, full[half:])]
        with under_traffic(bodies, seed, pair.master, pair.slave):
            for _ in range(3):
                for node in nodes:
                    node.run(4)
                for broker in (pair.master, pair.slave):
                    scrub(broker)
        named = [scrub(broker)["places"] for broker in (pair.master, pair.slave)]
        assert ([node.open for node in nodes], named) == ([[], []], [[], []])
        assert set(served(pair.master)) == bodies


def is_named(flip: Flip, places: list[str]) -> bool:
    offset = int(flip.path.name) + flip.position
    found = [re.search(r"(\d+) bytes at offset (\d+) of the log", text) for text in places]
    spans = [(int(m[2]), int(m[2]) + int(m[1])) for m in found if m]
    return any(start <= offset < end for start, end in spans)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [4])
def test_bits_flip_while_the_peer_is_away(tmp_path: Path, seed: int) -> None:
    """Queues are healed from the log at once; what the log has lost is named until the peer is
    back, and then healed."""
    rng = random.Random(seed)
    with running_pair(tmp_path, **CONFIG) as pair:
        bodies = fill(pair, rng, 1_500)
        wait_for_replicas(pair.master, pair.slave)
        node = Decay(rng, pair.master, full_segments(pair, rng))
        with under_traffic(bodies, seed, pair.master):
            pair.slave.stop()
            node.run(12)
            scrub(pair.master)
            places = scrub(pair.master)["places"]
        in_log = [flip for flip in node.flips if flip.path.parent.name == "commitlog"]
        assert in_log
        assert [
            str(flip) for flip in in_log if not (flip.is_healed or is_named(flip, places))
        ] == []
        assert [text for text in node.open if not text.startswith("commitlog/")] == []
        pair.slave = pair.restart(pair.slave)
        pair.wait_in_sync()
        wait_for_replicas(pair.master)
        scrub(pair.master)
        assert (node.open, scrub(pair.master)["places"]) == ([], [])
        assert set(served(pair.master)) == bodies


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_few_dozen_places(tmp_path: Path, is_stopped: bool) -> None:
    story(tmp_path, 1, 24, 1_500, is_stopped=is_stopped)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_places(tmp_path: Path, seed: int, is_stopped: bool) -> None:
    story(tmp_path, 100 + seed, 100, 6_000, is_stopped=is_stopped)
