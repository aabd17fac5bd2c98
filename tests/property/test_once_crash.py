"""Power cuts under idempotent sends: the table never knows more, nor less, than the log has."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from support.stores import ManualClock, make_store, message, small_config
from twinlog.broker.put.idempotence import Verdict
from twinlog.broker.put.once_service import IdempotentSends
from twinlog.message.once import ONCE_NAME, Mark, read_mark
from twinlog.message.record import decode_record
from twinlog.store.message_store import MessageStore
from twinlog.store.status import PutMessageStatus
from twinlog.testing.simdisk import SimCrash, SimDisk

ROOT = "/store"
PRODUCERS = ("p", "q")
QUEUES = (0, 1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("twinlog").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("twinlog").setLevel(logging.NOTSET)


class Node:
    """A store with idempotent sends on a disk that loses power."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.store: MessageStore
        self.once: IdempotentSends
        self._pending: list[Mark] = []

    async def open(self) -> None:
        self.store = make_store(small_config(ROOT), self.disk, self.clock)
        self.once = IdempotentSends(self.store, self.disk, self.clock, ROOT)
        self.once.load()
        report = await self.store.load()
        await self.once.recovered(report)
        self.store.open_for_puts()

    def send(self, producer: str, queue_id: int, count: int = 1) -> None:
        """The next messages of a producer, as the broker takes them."""
        for _ in range(count):
            number = len(self.stored(pending=True).get((producer, queue_id), []))
            mark = Mark(producer, 0, number, queue_id, "T")
            assert self.once.decide(mark, 1).verdict is Verdict.NEW
            one = message(number, queue_id=queue_id, size=700)
            one.properties += f"\x02{ONCE_NAME}{mark.text()}".encode()
            result = self.store.put(one)
            if result.status is PutMessageStatus.PUT_OK:
                self.once.stored(mark, result, is_elsewhere=False)
                self._pending.append(mark)

    def write(self) -> None:
        self.store.write_pending()
        self._pending = []

    def stored(self, *, pending: bool = False) -> dict[tuple[str, int], list[int]]:
        """Numbers in the log by producer and queue, in their order."""
        found: dict[tuple[str, int], list[int]] = {}
        for queue_id in QUEUES:
            for offset in range(self.store.max_offset_in_queue("T", queue_id)):
                result = self.store.get_message("T", queue_id, offset, 1)
                record = decode_record(result.buffers[0])
                mark = read_mark(record.properties.decode())
                if mark is not None:
                    found.setdefault((mark.producer, queue_id), []).append(mark.number)
        for mark in self._pending if pending else []:
            found.setdefault((mark.producer, mark.queue_id), []).append(mark.number)
        return found

    def check(self) -> None:
        stored = self.stored()
        for producer in PRODUCERS:
            for queue_id in QUEUES:
                numbers = stored.get((producer, queue_id), [])
                assert numbers == list(range(len(numbers))), "stored twice, or one is missing"
                first = Mark(producer, 0, 0, queue_id, "T")
                for number in numbers:
                    known = self.once.decide(first._replace(number=number), 1)
                    assert known.verdict is Verdict.REPEAT, "a stored message is not known"
                after = self.once.decide(first._replace(number=len(numbers)), 1)
                assert after.verdict is Verdict.NEW, "a message is known that is not stored"

    async def fill_and_crash(self) -> None:
        """Ordinary messages where marked ones were, then a power cut; what is left holds."""
        for number in range(5):
            self.store.put(message(number, queue_id=1, size=900))
        self.write()
        await self.store.flush_service.flush()
        self.crash(None)
        await self.open()
        self.check()

    def crash(self, rng: random.Random | None) -> None:
        self.disk = self.disk.crash(rng)
        self._pending = []


async def _script(node: Node) -> None:
    await node.open()
    for number in range(6):
        node.send("p", number % 2)
        node.store.put(message(number, size=200))
        node.write()
    await node.store.housekeeping.save_round()
    node.send("p", 0, 3)
    node.send("q", 0, 2)
    node.write()
    await node.store.flush_service.flush()
    node.send("q", 1, 2)
    node.write()
    await node.store.housekeeping.save_round()
    node.send("p", 0, 4)
    node.write()
    node.send("q", 0)
    node.write()
    await node.store.stop()
    await node.open()
    node.send("p", 1, 2)
    node.write()
    await node.store.housekeeping.save_round()
    node.send("q", 1)
    node.write()


async def _run(node: Node) -> None:
    try:
        await _script(node)
    except SimCrash:
        return


def _in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


async def _crash_at(change: int, rng: random.Random | None) -> None:
    node = Node()
    node.disk.crash_after = change
    await _run(node)
    node.crash(rng)
    await node.open()
    node.check()
    # What was lost is sent again and takes the place of what was there; then the power goes again.
    node.send("q", 0, 2)
    node.send("p", 1, 2)
    node.write()
    await node.store.flush_service.flush()
    node.crash(rng)
    await node.open()
    node.check()


def _changes() -> int:
    async def count() -> int:
        node = Node()
        await _script(node)
        node.check()
        return node.disk.change_count

    return int(_in_loop(count()))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_power_cut_after_every_change(seed: int | None) -> None:
    for change in range(1, _changes() + 1):
        rng = None if seed is None else random.Random(f"{seed}-{change}")
        try:
            _in_loop(_crash_at(change, rng))
        except Exception as error:
            raise AssertionError(f"power cut after change {change}, seed {seed}") from error


def test_a_cut_log_and_a_turn_that_was_not_written_take_their_numbers_back() -> None:
    async def run() -> None:
        node = Node()
        await node.open()
        node.send("p", 0, 6)
        node.write()
        offset = node.store.queue_table.by_key["T", 0].entry(node.store.queue_table.pool, 4)
        await node.store.housekeeping.save_round()
        assert offset is not None
        node.store.commit_log.truncate_to(offset[0], reason="test")
        node.check()
        # Others take the place of numbers 4 and 5; no round since the cut.
        await node.fill_and_crash()
        assert node.stored()["p", 0] == list(range(4))
        node.send("p", 0, 2)
        node.disk.fail("pwritev")
        node.write()
        node.check()

    _in_loop(run())


def test_a_snapshot_that_knows_more_than_a_power_cut_left() -> None:
    async def run() -> None:
        node = Node()
        await node.open()
        node.send("p", 0, 2)
        node.write()
        await node.store.flush_service.flush()
        node.send("p", 0, 2)
        node.write()
        await node.once.save()
        node.crash(None)
        await node.open()
        assert node.stored()["p", 0] == [0, 1]
        node.check()
        await node.fill_and_crash()
        assert node.stored()["p", 0] == [0, 1]

    _in_loop(run())


@pytest.mark.parametrize("content", [b"", b"TWINONCE1 00000000\n{}"])
def test_a_damaged_snapshot_is_made_again_from_the_log(content: bytes) -> None:
    async def run() -> None:
        node = Node()
        await node.open()
        node.send("p", 0, 150)
        node.send("q", 1, 3)
        node.write()
        await node.store.stop()
        file = node.disk.open(f"{ROOT}/twinlog/producers")
        file.truncate(0)
        if content:
            file.pwritev([content], 0)
        await node.open()
        node.check()
        assert len(node.stored()["p", 0]) == 150

    _in_loop(run())


async def _retention_and_kill(*, is_disk_full: bool) -> None:
    node = Node()
    await node.open()
    for _ in range(120):
        node.send("p", 0)
        node.write()
    await node.store.flush_service.flush()
    for number in range(200):  # None of the producer's records is left.
        node.store.put(message(number, queue_id=1, size=900))
    node.write()
    await node.store.flush_service.flush()
    if is_disk_full:  # There is room for a snapshot still.
        node.store.cleaner.check_disk = lambda: True  # type: ignore[method-assign]
    else:
        node.store.cleaner.execute_delete_files_manually()
        node.clock.advance(100 * 3_600_000)
    while node.store.min_offset_in_queue("T", 0) < 120:
        assert await node.store.cleaner.clean()
    assert node.store.min_offset_in_queue("T", 0) == 120
    node.disk = node.disk.kill()
    await node.open()
    assert node.once.decide(Mark("p", 0, 120, 0, "T"), 1).verdict is Verdict.NEW
    assert node.once.decide(Mark("p", 0, 119, 0, "T"), 1).verdict is Verdict.REPEAT


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_numbers_are_saved_before_retention_takes_their_records(is_disk_full: bool) -> None:
    """Within the five seconds between two checkpoints a file may be filled and deleted."""
    asyncio.run(_retention_and_kill(is_disk_full=is_disk_full))


QUEUE = f"{ROOT}/consumequeue/T/0"
ENTRY_SIZE = 20
WRONG_ENTRIES = {  # What a place in a consume queue may hold that is no entry of a message.
    "filler": (0, 0x7FFFFFFF),
    "zeros": (0, 0),
    "negative": (-1, -5),
    "beyond the log": (1 << 40, 100),
    "before the run": (0, 10),
    "endless": (0, -1),
}


async def _sends_of_many_sizes(rng: random.Random) -> tuple[Node, dict[Mark, tuple[int, int]]]:
    """Runs of both producers with others between them; where each marked record is."""
    node = Node()
    await node.open()
    places: dict[Mark, tuple[int, int]] = {}
    numbers = dict.fromkeys(PRODUCERS, 0)
    for number in range(300):
        if rng.random() < 0.2:
            node.store.put(message(number, queue_id=rng.choice(QUEUES), size=900))
            continue
        producer = rng.choice(PRODUCERS[: rng.choice((1, 2))])
        mark = Mark(producer, 0, numbers[producer], 0, "T")
        numbers[producer] += 1
        one = message(number, queue_id=0, size=rng.choice((10, 700)))
        one.properties += f"\x02{ONCE_NAME}{mark.text()}".encode()
        result = node.store.put(one)
        node.once.stored(mark, result, is_elsewhere=False)
        places[mark] = (result.physical_offset, result.end_offset)
    node.write()
    await node.store.flush_service.flush()
    return node, places


def _check_places(node: Node, places: dict[Mark, tuple[int, int]]) -> None:
    """What a repeat waits for covers its record, and is never more than there is."""
    for mark, (start, end) in places.items():
        place = node.once.place(mark) or node.once.forgotten_place(mark)
        assert end <= place.safe_end <= node.store.commit_log.max_offset, (mark, place)
        assert place.physical_offset in (-1, start), (mark, place)


async def _retention_and_lost_queue(seed: int) -> None:
    rng = random.Random(seed)
    node, places = await _sends_of_many_sizes(rng)
    _check_places(node, places)
    node.store.cleaner.execute_delete_files_manually()
    node.clock.advance(100 * 3_600_000)
    await node.store.cleaner.clean()
    assert node.store.commit_log.min_offset > 0
    await node.store.stop()
    node.disk.remove_tree(QUEUE)
    await node.open()
    _check_places(node, places)


@pytest.mark.parametrize("seed", range(5))
def test_a_repeat_of_what_retention_took_waits_for_nothing_that_never_comes(seed: int) -> None:
    """A queue that was made again begins with entries of 2 GiB; repeats waited for their end."""
    _in_loop(_retention_and_lost_queue(seed))


async def _wrong_entries(content: tuple[int, int], seed: int) -> None:
    rng = random.Random(seed)
    node, places = await _sends_of_many_sizes(rng)
    await node.store.stop()
    await node.open()
    for name in node.disk.list(QUEUE):
        file = node.disk.open(f"{QUEUE}/{name}")
        size = file.size()
        for at in range(0, size - ENTRY_SIZE + 1, ENTRY_SIZE):
            if rng.random() < 0.5:
                file.pwritev([struct.pack(">qiq", *content, 0)], at)
    _check_places(node, places)


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_a_damaged_queue_does_not_say_what_a_repeat_waits_for(name: str) -> None:
    for seed in range(3):
        _in_loop(_wrong_entries(WRONG_ENTRIES[name], seed))
