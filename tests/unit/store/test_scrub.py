"""The walk of the scrub by itself: when a pass begins, what its file may hold, what it forgets."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.stores import ManualClock, message, running_store, small_config
from twinlog.message.layout import ENTRY
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.integrity.damage import Damage, DamageLog, place_of
from twinlog.store.integrity.digests import digest_of
from twinlog.store.integrity.mixing import PLACES_MAX, whole_of
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.message_store import MessageStore
from twinlog.store.queue.consume_queue import PRE_BLANK

HOUR_MS = 3_600_000
WEEK_MS = 168 * HOUR_MS


class NoTasks(TaskOwner):
    """The test takes the steps itself."""

    def contained(self, name: str, factory: Any) -> None:
        """Nothing is started."""


@asynccontextmanager
async def walking(path: Path, clock: ManualClock) -> AsyncIterator[tuple[MessageStore, Scrubber]]:
    config = small_config(path, mapped_file_size_commit_log=16384)
    async with running_store(config, clock=clock) as store:
        for number in range(300):
            store.put(message(number, queue_id=0, size=200))
            store.write_pending()
        await store.flush_service.flush()
        yield store, open_scrub(store, path, clock)


def open_scrub(
    store: MessageStore, path: Path, clock: ManualClock, disk: PosixDisk | None = None
) -> Scrubber:
    scrubber = Scrubber(store, disk or PosixDisk(), clock, str(path / "twinlog"))
    scrubber.at_end = []  # The index, which rests in between.
    scrubber.start(NoTasks(asyncio.get_running_loop(), lambda *_: None), has_point=True)
    return scrubber


async def to_the_end(scrubber: Scrubber, clock: ManualClock, step_ms: int = 0) -> None:
    passes = scrubber.state.passes
    while scrubber.state.passes == passes:
        await scrubber.step()
        clock.advance(step_ms)


async def has_begun(scrubber: Scrubber) -> bool:
    for _ in range(3):
        await scrubber.step()
    return bool(scrubber.state.started_ms)


async def test_a_pass_begins_an_interval_after_the_one_before_has_begun(tmp_path: Path) -> None:
    """The walk over a large store takes all of the interval: counted from its end, everything would
    be seen in two weeks only."""
    clock = ManualClock()
    async with walking(tmp_path, clock) as (_, scrubber):
        await scrubber.step()
        clock.advance(WEEK_MS - HOUR_MS)
        await to_the_end(scrubber, clock)
        assert not await has_begun(scrubber)
        clock.advance(HOUR_MS)
        assert await has_begun(scrubber)


async def test_a_clock_that_was_ahead_does_not_end_the_walks(tmp_path: Path) -> None:
    clock = ManualClock()
    async with walking(tmp_path, clock) as (_, scrubber):
        clock.wall_ms += 400 * WEEK_MS
        await to_the_end(scrubber, clock)
        clock.wall_ms -= 400 * WEEK_MS
        assert await has_begun(scrubber)


async def test_no_flipped_bit_of_its_file_lets_a_pass_leave_something_out(tmp_path: Path) -> None:
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        for _ in range(3):
            await scrubber.step()
        await scrubber._save()
        file = tmp_path / "twinlog" / "scrub.json"
        whole, position = file.read_bytes(), scrubber.state.position
        assert 0 < position < store.commit_log.max_offset
        for at, bit in itertools.product(range(len(whole)), range(8)):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            file.write_bytes(data)
            assert open_scrub(store, tmp_path, clock).state.position in (0, position), bytes(data)
        for data in (b"", b"{}", b"[]", b'{"position":1e99}', whole[:-1], b"\0" * 100):
            file.write_bytes(data)
            assert open_scrub(store, tmp_path, clock).state.position == 0
        file.unlink()
        file.mkdir()  # Cannot be read at all.
        assert open_scrub(store, tmp_path, clock).state.position == 0


async def test_damage_that_expired_or_was_deleted_is_not_named_any_more(tmp_path: Path) -> None:
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        second = store.commit_log.segments.segments[1].start
        last = store.max_offset_in_queue("T", 0) - 1
        for damage in (
            place_of(100, 50, "expired"), place_of(second, 50, "still there"),
            Damage("T", 0, 3, 1 << 50, 50, "expired, by an entry that says nonsense"),
            Damage("T", 0, last, 100, 50, "still there"),
            Damage("deleted", 0, 0, second, 50, "of a topic that is gone"),
        ):  # fmt: skip
            store.damage.found(damage)
        store.commit_log.remove_first()
        await to_the_end(scrubber, clock)
        await scrubber.step()
        assert {place.reason for place in store.damage.places.values()} == {"still there"}


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_a_reader_waits_as_long_when_a_clock_is_set(step_ms: int) -> None:
    """Else it would go on behind a message that a replica has."""
    clock = ManualClock()
    damages = DamageLog(clock, lambda: 60_000)
    damages.may_heal = lambda: True
    assert damages.found(place_of(0, 100, "test"))
    clock.wall_ms += step_ms
    assert damages.found(place_of(0, 100, "test"))
    clock.advance(60_000)
    assert not damages.found(place_of(0, 100, "test"))


@pytest.mark.parametrize("seed", range(40))
def test_two_copies_that_decayed_in_different_places_are_whole_together(seed: int) -> None:
    rng = random.Random(seed)
    right = rng.randbytes(rng.choice((5_000, 40_000)))
    mine, other = bytearray(right), bytearray(right)
    for copy, residue in ((mine, 0), (other, 1)):
        for _ in range(rng.randrange(1, 4)):
            # In parts of their own, which a file system's block or a bit may be.
            begin = (rng.randrange(len(right) // 1024) * 2 + residue) * 512
            for at in range(begin, begin + rng.choice((1, 1, 100))):
                copy[at] ^= 1 << rng.randrange(8)
    assert whole_of(bytes(mine), bytes(other), digest_of(right)) == right


def test_what_cannot_be_proved_is_not_made_up() -> None:
    right = random.Random(1).randbytes(100_000)
    digest = digest_of(right)
    same = right[:500] + bytes([right[500] ^ 1]) + right[501:]
    other = right[:500] + bytes([right[500] ^ 2]) + right[501:]
    assert whole_of(same, other, digest) is None
    assert whole_of(same, same, digest) is None
    assert whole_of(right[:-1], same, digest) is None
    many = bytearray(right)
    for number in range(PLACES_MAX + 1):
        many[1000 * (number + 2)] ^= 1
    assert whole_of(same, bytes(many), digest) is None
    assert whole_of(same, right, digest) == right


class Copy:
    """A replica in memory."""

    name = "copy"

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def digests(self, offset: int, count: int) -> list[bytes] | None:
        return None

    async def read(self, offset: int, size: int) -> bytes | None:
        return self._data[offset : offset + size]


async def test_a_kill_after_a_repair_leaves_no_digest_of_the_damage(tmp_path: Path) -> None:
    """The digest was made of damaged bytes. If it outlived them, sound bytes would be named as
    damaged for good, and no replica could give what it asks for."""
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        path = Path(store.commit_log.segments.segments[0].path)
        right = path.read_bytes()
        at = right.index(b"." * 50)  # In the body of the first message.
        path.write_bytes(right[:at] + b"?" + right[at + 1 :])
        scrubber.digests.add(0, digest_of(path.read_bytes()))
        scrubber.digests.save()
        scrubber.healer.replicas = lambda: [Copy(right)]
        assert await scrubber.healer.heal_record(0)
        assert path.read_bytes() == right
        after_a_kill = open_scrub(store, tmp_path, clock)
        await to_the_end(after_a_kill, clock)
        assert store.damage.places == {}


class ExpiringCopy(Copy):
    """While it is asked, retention takes the first segment."""

    def __init__(self, data: bytes, store: MessageStore) -> None:
        super().__init__(data)
        self._store = store

    async def read(self, offset: int, size: int) -> bytes | None:
        if self._store.commit_log.min_offset <= offset:
            self._store.commit_log.remove_first()
        return await super().read(offset, size)


@pytest.mark.parametrize("who", ["reader", "scrub", "scrub, without an answer"])
async def test_what_expires_while_a_replica_is_asked_is_gone_and_ends_nothing(
    tmp_path: Path, who: str
) -> None:
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        right = Path(store.commit_log.segments.segments[0].path).read_bytes()
        store.commit_log.segments.segments[0].file.pwritev((b"?",), right.index(b"." * 50))
        copy = ExpiringCopy(b"" if "without" in who else right, store)
        scrubber.healer.replicas = lambda: [copy]
        if who == "reader":
            store.damage.found(Damage("T", 0, 0, 0, 300, "met by a reader"))
            await scrubber._heal_urgent()
        await to_the_end(scrubber, clock)
        assert store.damage.places == {}


async def test_a_copy_that_went_on_differently_heals_nothing(tmp_path: Path) -> None:
    """An old master keeps the end of its log until it is cut: at the same places it has records
    that are sound, of the same sizes and numbers, and other messages."""
    clock = ManualClock()
    config = small_config(tmp_path / "other", mapped_file_size_commit_log=16384)
    async with walking(tmp_path, clock) as (store, scrubber), running_store(config) as other:
        for number in range(300):
            other.put(message(number if number < 3 else 1000 + number, queue_id=0, size=200))
            other.write_pending()
        right = store.commit_log.read(0, 16384)
        its = other.commit_log.read(0, 16384)
        size = int.from_bytes(right[:4], "big")
        segment = store.commit_log.segments.segments[0]
        for number in (0, 1, 5, 20):
            at = number * size
            segment.file.pwritev((b"?",), right.index(b"." * 50, at))
            scrubber.healer.replicas = lambda: [Copy(its)]
            is_same = number < 2
            assert await scrubber.healer.heal_record(at) is is_same
            assert (store.commit_log.read(at, size) == right[at : at + size]) is is_same
            scrubber.healer.replicas = lambda: [Copy(its), Copy(right)]
            assert await scrubber.healer.heal_record(at)
            assert store.commit_log.read(at, size) == right[at : at + size]


async def test_an_entry_that_was_left_blank_for_a_damaged_record_is_written_when_it_is_whole(
    tmp_path: Path,
) -> None:
    """Queues that are made again while the topic in a record is damaged leave its number blank."""
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        await to_the_end(scrubber, clock)
        await store.housekeeping.save_round()
        queue, pool = store.queue_table.get("T", 0), store.queue_table.pool
        assert queue is not None
        right = queue.read(pool, 0, 60)
        for number in (12, 40, 41, 42):
            pool.get(queue.path_of(0)).pwritev((PRE_BLANK,), number * len(PRE_BLANK))
        assert queue.read(pool, 0, 60) != right
        scrubber.hurry()
        await to_the_end(scrubber, clock)
        assert queue.read(pool, 0, 60) == right
        assert scrubber.healer.healed_entries == 4


class CuttingDisk(PosixDisk):
    """The log is cut when the `left`-th call in a thread is over, before its caller goes on."""

    left = 0
    cut: Callable[[], None]

    async def run(self, function: Any, *arguments: Any) -> Any:
        value = await super().run(function, *arguments)
        self.left -= 1
        if self.left == 0:
            self.cut()
        return value


@pytest.mark.parametrize("what", ["a range without a digest", "a range with one"])
@pytest.mark.parametrize("call", range(1, 7))
async def test_a_log_that_is_cut_while_it_is_looked_at_is_judged_by_what_it_holds_then(
    tmp_path: Path, call: int, what: str
) -> None:
    """As that of a slave is, whose master says otherwise. A digest of the bytes before would name
    those behind them as damaged for good, and take a copy that still has them for the right one."""
    clock, disk = ManualClock(), CuttingDisk()
    async with walking(tmp_path, clock) as (store, first):
        log = store.commit_log
        begin = log.segments.segments[2].start
        size = int.from_bytes(log.read(begin, 4), "big")
        right = log.read(begin, 16384)
        if "with one" in what:
            await to_the_end(first, clock)
        scrubber = open_scrub(store, tmp_path, clock, disk)
        events: list[str] = []
        scrubber.healer.on_event = lambda kind, **details: events.append(kind)

        def cut() -> None:
            log.truncate_to(begin + size, reason="diverged")
            for number in range(1000, 1200):
                store.put(message(number, queue_id=0, size=200))
                store.write_pending()

        disk.left, disk.cut = call, cut
        while log.cut_count == 0:
            scrubber.state.position = begin
            await scrubber.step()
        await store.flush_service.flush()
        await scrubber._seal()
        scrubber.healer.replicas = lambda: [Copy(bytes(begin) + right)]
        for _ in range(2):
            scrubber.hurry()
            await to_the_end(scrubber, clock)
        assert (store.damage.places, events) == ({}, [])
        assert bytes(log.read(begin, 16384)) != right
        disk.close()


@pytest.fixture
def small_own(tmp_path: Path) -> Iterator[Path]:
    """`store/twinlog` on a disk of its own that is soon full."""
    own = tmp_path / "twinlog"
    own.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "none", str(own)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield own
    subprocess.run(["umount", str(own)], check=True)


async def test_a_repair_without_room_for_the_old_bytes_changes_and_leaves_nothing(
    tmp_path: Path, small_own: Path
) -> None:
    clock, own = ManualClock(), small_own
    async with walking(tmp_path, clock) as (store, scrubber):
        path = Path(store.commit_log.segments.segments[0].path)
        right = path.read_bytes()
        scrubber.digests.add(0, digest_of(right))
        scrubber.digests.save()
        damaged = right[:500] + bytes(9000) + right[9500:]
        path.write_bytes(damaged)
        scrubber.healer.replicas = lambda: [Copy(right)]
        room = os.statvfs(own)
        ballast = own / "ballast"
        ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - 8192))
        assert not await scrubber.healer.heal_range(0, len(right))
        assert path.read_bytes() == damaged
        assert list(own.glob("damaged-*")) == []
        ballast.unlink()
        assert await scrubber.healer.heal_range(0, len(right))
        assert path.read_bytes() == right
        assert [kept.read_bytes() for kept in own.glob("damaged-*")] == [damaged]


@pytest.mark.parametrize("what", ["body", "magic", "size", "all", "first of the next file"])
async def test_an_entry_is_found_again_behind_damage_of_the_log(tmp_path: Path, what: str) -> None:
    """Between the neighbours of a wrong entry the log may be damaged, too, or go on in another
    file: the message itself is whole, and no replica is needed to find it."""
    clock = ManualClock()
    config = small_config(tmp_path, mapped_file_size_commit_log=16384)
    async with running_store(config, clock=clock) as store:
        # One of two messages in three is another queue's: damaged ones lie between neighbours.
        for number in range(300):
            store.put(message(number, queue_id=int(number % 3 > 0), size=200))
            store.write_pending()
        await store.flush_service.flush()
        await store.housekeeping.save_round()
        scrubber = open_scrub(store, tmp_path, clock)
        queue, pool = store.queue_table.get("T", 0), store.queue_table.pool
        assert queue is not None
        number = 40
        if what == "first of the next file":
            size = store.commit_log.segment_size
            while queue.entry(pool, number - 1)[0] // size == queue.entry(pool, number)[0] // size:
                number += 1
        before, right = queue.entry(pool, number - 1), queue.entry(pool, number)
        begin = before[0] + before[1]
        segment = store.commit_log.segments.find(begin)
        for at, count in {"body": ((120, 1),), "magic": ((5, 1),), "size": ((1, 1),),
                          "all": ((0, right[0] - begin),)}.get(what, ()):  # fmt: skip
            segment.file.pwritev((b"\xff" * count,), begin - segment.start + at)
        wrong = ENTRY.pack(right[0] | 1 << 50, *right[1:])
        pool.get(queue.path_of(0)).pwritev((wrong,), number * len(wrong))
        assert await scrubber.healer.heal(Damage("T", 0, number, right[0] | 1 << 50, right[1], ""))
        assert queue.entry(pool, number) == right


async def test_a_search_between_neighbours_ends_where_all_is_damaged(tmp_path: Path) -> None:
    clock = ManualClock()
    async with walking(tmp_path, clock) as (store, scrubber):
        await store.housekeeping.save_round()
        queue, pool = store.queue_table.get("T", 0), store.queue_table.pool
        assert queue is not None
        for segment in store.commit_log.segments.segments[1:]:
            segment.file.pwritev((b"\xff" * segment.size,), 0)
        offset, size, tags = queue.entry(pool, 200)
        wrong = ENTRY.pack(offset | 1 << 50, size, tags)
        pool.get(queue.path_of(0)).pwritev((wrong,), 200 * len(wrong))
        assert not await scrubber.healer.heal(Damage("T", 0, 200, offset | 1 << 50, size, ""))
        assert queue.entry(pool, 200) == ENTRY.unpack(wrong)
