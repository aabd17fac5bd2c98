"""Retention: by age, by hour, by disk space; queues and index follow the log."""

import asyncio
from datetime import datetime

import pytest
from tests.support.stores import ManualClock, message, running_store, small_config

from twinlog.message.layout import ENTRY_SIZE, STORE_TIMESTAMP_AT
from twinlog.runtime.watermark import Watermark
from twinlog.store.index.index_service import IndexService
from twinlog.store.status import GetMessageStatus
from twinlog.testing.simdisk import SimDisk

HOUR_MS = 3_600_000
NOON_MS = int(datetime(2024, 5, 6, 12).timestamp() * 1000)


def _store(clock, disk=None, **values):
    config = small_config("/store", mapped_file_size_commit_log=16384, **values)
    return running_store(config, disk or SimDisk(), clock)


async def _fill(store, clock, count=700, step_ms=60_000):
    for number in range(count):
        clock.advance(step_ms)
        store.put(message(number))
        store.write_pending()
    await store.flush_service.flush()


async def test_expired_segments_go_in_the_hour_of_delete_when():
    clock = ManualClock(NOON_MS)
    async with _store(clock, file_reserved_time=2, delete_when="04") as store:
        await _fill(store, clock, 1000)
        assert len(store.commit_log.segments.segments) > 13
        hour = datetime.fromtimestamp(clock.now_ms() // 1000).hour
        clock.advance(((28 - hour) % 24) * HOUR_MS)
        floor = clock.now_ms() - 2 * HOUR_MS
        count = await store.cleaner.clean()
        assert count == 10  # At most ten in one run.
        while await store.cleaner.clean():
            pass
        minimum = store.min_offset_in_queue("T", 0)
        assert minimum > 0
        assert store.commit_log.min_offset > 0
        assert store.message_store_time("T", 0, minimum) >= floor - 200 * 60_000
        assert store.get_message("T", 0, 0, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
        assert store.get_message("T", 0, minimum, 1).status is GetMessageStatus.FOUND


async def test_nothing_goes_outside_the_hour_unless_asked():
    clock = ManualClock(NOON_MS)
    other = (datetime.fromtimestamp(NOON_MS // 1000).hour + 12) % 24
    async with _store(clock, file_reserved_time=1, delete_when=f"{other:02d}") as store:
        await _fill(store, clock, 300, 1000)
        clock.advance(3 * HOUR_MS)
        assert await store.cleaner.clean() == 0
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() > 0


async def test_queue_and_index_files_follow_the_log():
    clock = ManualClock(NOON_MS)
    disk = SimDisk()
    async with _store(clock, disk, file_reserved_time=0) as store:
        await _fill(store, clock, 900)
        store.queue_table.write_all()
        store.housekeeping.drain_index()
        store.cleaner.execute_delete_files_manually()
        index_files = len(store.index.files)
        while await store.cleaner.clean():
            pass
        assert len(store.commit_log.segments.segments) <= 2
        assert disk.list("/store/consumequeue/T/0")[0] != "0" * 20
        assert len(store.index.files) < index_files
        assert store.put(message(900)).queue_offset == 900
    # The numbers are the same after a restart.
    async with _store(clock, disk) as store:
        assert store.max_offset_in_queue("T", 0) == 901
        assert store.min_offset_in_queue("T", 0) > 700


async def test_full_disk_deletes_regardless_of_age():
    clock = ManualClock(NOON_MS)
    disk = SimDisk()
    async with _store(clock, disk, delete_when="03") as store:
        await _fill(store, clock, 500, 1000)
        disk.quota = int(disk.space("/store").used / 0.95)
        before = len(store.commit_log.segments.segments)
        assert await store.cleaner.clean() > 0
        assert len(store.commit_log.segments.segments) < before
        assert store.is_writeable


async def test_full_disk_keeps_young_files_when_told():
    clock = ManualClock(NOON_MS)
    disk = SimDisk()
    async with _store(clock, disk, clean_file_forcibly_enable=False) as store:
        await _fill(store, clock, 500, 1000)
        disk.quota = int(disk.space("/store").used / 0.95)
        assert await store.cleaner.clean() == 0
        assert not store.is_writeable
        disk.quota *= 100
        await store.cleaner.clean()


@pytest.mark.parametrize("is_full", [False, True], ids=["expired", "full disk"])
async def test_what_a_controlled_group_has_not_confirmed_stays(is_full):
    """Another replica may be elected that lacks it: this log must be able to be cut to there."""
    clock = ManualClock(NOON_MS)
    disk = SimDisk()
    async with _store(clock, disk, file_reserved_time=0) as store:
        await _fill(store, clock, 500, 1000)
        assert store.dispatched.value == store.commit_log.max_offset
        second = store.commit_log.segments.segments[1]
        confirmed = Watermark("confirmed", second.end - 1)
        store.set_dispatch_limit(confirmed)
        if is_full:
            disk.quota = int(disk.space("/store").used / 0.95)
        store.cleaner.execute_delete_files_manually()
        while await store.cleaner.clean():
            pass
        assert store.commit_log.min_offset == second.start
        disk.quota = 1 << 40
        confirmed.advance(second.end)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() == 1


@pytest.mark.parametrize("topic", ["T", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_expired_queues_are_cleaned_on_demand(topic):
    """Not the broker's own: what reads them knows its place by number."""
    clock = ManualClock(NOON_MS)
    async with _store(clock, file_reserved_time=0) as store:
        store.put(message(0, topic=topic))
        for number in range(300):
            clock.advance(1000)
            store.put(message(number, topic="Other"))
            store.write_pending()
        await store.flush_service.flush()
        store.cleaner.execute_delete_files_manually()
        while await store.cleaner.clean():
            pass
        assert store.clean_expired_consume_queues() == (1 if topic == "T" else 0)


async def test_segments_without_entries_or_behind_which_nothing_is_safe_are_kept():
    clock = ManualClock(NOON_MS)
    async with _store(clock, file_reserved_time=1) as store:
        await _fill(store, clock)
        clock.advance(24 * HOUR_MS)
        store.cleaner.execute_delete_files_manually()
        flushed, dispatched = store.commit_log.flushed.value, store.dispatched.value
        store.commit_log.flushed.value = 16384
        assert await store.cleaner.clean() == 0
        store.commit_log.flushed.value, store.dispatched.value = flushed, 16383
        assert await store.cleaner.clean() == 0
        store.dispatched.value = dispatched
        assert await store.cleaner.clean() > 0


async def test_without_an_index_queues_still_follow_the_log():
    clock = ManualClock(NOON_MS)
    async with _store(clock, file_reserved_time=1, message_index_enable=False) as store:
        await _fill(store, clock)
        clock.advance(24 * HOUR_MS)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() > 0
        assert store.min_offset_in_queue("T", 0) > 0


async def test_the_disk_is_looked_at_again_and_again():
    clock = ManualClock(NOON_MS)
    async with _store(clock) as store:
        looks = []
        store.cleaner.check_disk = lambda: bool(looks.append(clock.now_ms()))
        task = asyncio.ensure_future(store.cleaner.run())
        while len(looks) < 3:
            await asyncio.sleep(0)
            clock.advance(1_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_log_that_is_larger_than_its_limit_loses_its_oldest_segments():
    clock = ManualClock(NOON_MS)
    limit = 5 * 16384
    async with _store(clock, twinlog_retention_bytes=limit, delete_when="04") as store:
        await _fill(store, clock, 700, 1)
        log = store.commit_log
        assert len(log.segments.segments) > 8
        while await store.cleaner.clean():
            pass
        assert limit <= log.max_offset - log.min_offset < limit + 2 * log.segment_size
        assert store.get_message("T", 0, store.min_offset_in_queue("T", 0), 1).message_count == 1


async def test_what_a_slave_has_not_got_stays_until_the_disk_is_too_full(caplog):
    clock = ManualClock(NOON_MS)
    disk = SimDisk()
    async with _store(clock, disk, twinlog_retention_bytes=16384) as store:
        await _fill(store, clock, 700, 1)
        log = store.commit_log
        slave_at = log.segments.segments[3].start + 100
        store.cleaner.needed_from = lambda: slave_at
        while await store.cleaner.clean():
            pass
        assert log.min_offset == slave_at - 100
        assert await store.cleaner.clean() == 0
        assert caplog.text.count("segment kept for a slave") == 1
        store.cleaner.check_disk = lambda: log.min_offset <= slave_at
        caplog.clear()
        assert await store.cleaner.clean() > 0
        assert log.min_offset > slave_at
        assert "reason=disk space, which a slave does not have yet" in caplog.text


async def test_nothing_goes_while_what_follows_from_it_cannot_be_saved(monkeypatch):
    clock = ManualClock(NOON_MS)
    async with _store(clock, file_reserved_time=0) as store:
        await _fill(store, clock, 300)
        save_round = store.housekeeping.save_round

        async def failing():
            return False

        monkeypatch.setattr(store.housekeeping, "save_round", failing)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() == 0
        assert store.commit_log.min_offset == 0
        monkeypatch.setattr(store.housekeeping, "save_round", save_round)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() > 0


# One damaged number must not take away what has not expired.


def _clock_and_disk():
    clock, disk = ManualClock(NOON_MS), SimDisk()
    disk.now_ms = clock.now_ms
    return clock, disk


def _flip(disk, path, position, bit):
    file = disk.open(path)
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 1 << bit])], position)
    file.close()


async def _decayed_each_bit(store, disk, path, positions):
    """Flip each bit, let the cleaner work, put it back; nothing may be gone."""
    for position in positions:
        for bit in range(8):
            _flip(disk, path, position, bit)
            store.cleaner.execute_delete_files_manually()
            store.cleaner._cleaned_to = -1
            assert await store.cleaner.clean() == 0, (position, bit)
            _flip(disk, path, position, bit)


@pytest.mark.parametrize("count", [2, 3, 40])
async def test_a_flipped_bit_in_a_record_makes_no_segment_expire(count):
    """The store time in a record has no checksum."""
    clock, disk = _clock_and_disk()
    async with _store(clock, disk, file_reserved_time=72) as store:
        number = 0
        while len(store.commit_log.segments.segments) < 2:
            await _fill(store, clock, 1, 1000)
            number += 1
        await _fill(store, clock, count - 1, 1000)
        second = store.commit_log.segments.segments[1]
        await _decayed_each_bit(store, disk, second.path, range(88))
        clock.advance(73 * HOUR_MS)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() == 1


async def test_a_flipped_bit_in_an_old_record_keeps_no_segment():
    clock, disk = _clock_and_disk()
    async with _store(clock, disk, file_reserved_time=72) as store:
        await _fill(store, clock, 300, 1000)
        clock.advance(73 * HOUR_MS)
        _flip(disk, store.commit_log.segments.segments[1].path, STORE_TIMESTAMP_AT, 5)
        store.cleaner.execute_delete_files_manually()
        assert await store.cleaner.clean() > 1


async def test_a_flipped_bit_in_a_queue_takes_no_file_of_it_away():
    clock, disk = _clock_and_disk()
    async with _store(clock, disk, file_reserved_time=72) as store:
        await _fill(store, clock, 1200, 1000)
        store.queue_table.write_all()
        store.commit_log.remove_first()
        first = disk.list("/store/consumequeue/T/0")
        path = f"/store/consumequeue/T/0/{first[0]}"
        last = disk.file_size(path) - ENTRY_SIZE
        await _decayed_each_bit(store, disk, path, range(last, last + ENTRY_SIZE))
        assert disk.list("/store/consumequeue/T/0") == first
        for position in range(last, last + ENTRY_SIZE):
            _flip(disk, path, position, 0)  # And all of it: a place that a lost record has.
        store.cleaner._cleaned_to = -1
        await store.cleaner.clean()
        assert disk.list("/store/consumequeue/T/0") == first


async def test_a_flipped_bit_in_the_head_of_an_index_file_does_not_take_it_away():
    clock, disk = _clock_and_disk()
    async with _store(clock, disk) as store:
        await _fill(store, clock, 1200, 1000)
    names = disk.list("/store/index")
    path = f"/store/index/{names[0]}"
    for position in range(40):
        for bit in range(8):
            _flip(disk, path, position, bit)
            index = IndexService(disk, clock, "/store/index", slots_max=100, index_max=400)
            index.load()
            index.remove_expired(16384)
            assert disk.list("/store/index") == names, (position, bit)
            index.close()
            _flip(disk, path, position, bit)
