"""Puts, watermarks, refusals, batches, and what the disk may do to them."""

import asyncio
import errno

import pytest
from tests.support.stores import ManualClock, make_store, message, running_store, small_config

from twinlog.message.batch import BatchMember
from twinlog.message.record import decode_record
from twinlog.runtime.broker_config import BrokerRole, FlushDiskType
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.watermark import Outcome, Watermark
from twinlog.store.errors import OffsetOutOfRangeError, StoreBrokenError, StoreError
from twinlog.store.recovery.reput import GATHER_MS
from twinlog.store.status import GetMessageStatus, PutMessageStatus
from twinlog.testing.simdisk import SimDisk

OK = PutMessageStatus.PUT_OK


def _store(disk=None, **values):
    return running_store(small_config("/store", **values), disk or SimDisk())


async def test_puts_of_one_turn_are_one_write_and_one_move_of_the_watermark():
    disk = SimDisk()
    async with _store(disk) as store:
        store.put(message(0))
        await asyncio.sleep(0)
        writes, moves = disk.stats.calls["pwritev"], []
        store.appended.subscribe(moves.append)
        results = [store.put(message(number)) for number in range(1, 50)]
        assert store.appended.value == results[0].physical_offset
        await asyncio.sleep(0)
        assert disk.stats.calls["pwritev"] == writes + 1
        assert moves == [results[-1].end_offset]
        assert [result.queue_offset for result in results] == list(range(1, 50))
        assert store.dispatched.value == results[-1].end_offset


async def test_a_message_is_not_visible_before_it_is_written():
    async with _store() as store:
        store.put(message(0))
        assert store.max_offset_in_queue("T", 0) == 0
        assert store.get_message("T", 0, 0, 1).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        await asyncio.sleep(0)
        assert store.max_offset_in_queue("T", 0) == 1


async def test_waiters_run_in_order_and_listeners_once_per_turn():
    async with _store() as store:
        seen, moved = [], []
        store.add_dispatch_listener(lambda keys: moved.append(sorted(keys)))
        for number in range(6):
            end = store.put(message(number, queue_id=number % 2)).end_offset
            store.appended.wait(
                end, 1 << 62, lambda n, outcome, _: seen.append((n, outcome)), number
            )
        await asyncio.sleep(0)
        assert seen == [(number, Outcome.REACHED) for number in range(6)]
        assert moved == [[("T", 0), ("T", 1)]]


async def test_a_put_from_a_waiter_is_stored_in_the_next_turn():
    async with _store() as store:
        first = store.put(message(0))
        store.appended.wait(first.end_offset, 1 << 62, lambda *_: store.put(message(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.max_offset_in_queue("T", 0) == 2


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"body": b"x" * 1001}, PutMessageStatus.MESSAGE_ILLEGAL, "maxMessageSize is 1000"),
        ({"topic": "t" * 128}, PutMessageStatus.MESSAGE_ILLEGAL, "at most 127"),
        ({"topic": ""}, PutMessageStatus.MESSAGE_ILLEGAL, "empty"),
        ({"properties": b"p" * 32768}, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, "at most 32767"),
        (
            {"properties": b"p\x01" + bytes(512) + b"v"},
            PutMessageStatus.MESSAGE_ILLEGAL,
            "512 zero bytes in a row",
        ),
    ],
)
async def test_messages_over_their_limits_are_refused_and_change_nothing(change, status, text):
    async with _store(max_message_size=1000) as store:
        bad = message(0)
        for name, value in change.items():
            setattr(bad, name, value)
        result = store.put(bad)
        assert result.status is status
        assert text in result.reason
        good = store.put(message(1))
        assert (good.status, good.physical_offset, good.queue_offset) == (OK, 0, 0)


async def test_record_larger_than_a_segment_is_refused():
    """H17: Apache turns a whole file into one blank record and says PUT_OK."""
    async with _store(mapped_file_size_commit_log=1024) as store:
        assert store.put(message(0, size=100)).status is OK
        refused = store.put(message(1, size=2000))
        assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "does not fit a segment of 1024" in refused.reason
        assert store.put(message(2, size=100)).queue_offset == 1


async def test_slave_stopped_and_new_stores_refuse_puts_with_a_reason():
    store = make_store(small_config("/store"), SimDisk())
    assert store.put(message(0)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    async with _store(broker_role=BrokerRole.SLAVE, broker_id=1) as slave:
        refused = slave.put(message(0))
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "slave" in refused.reason
    assert "not running" in slave.put(message(0)).reason


async def test_prepared_and_rollback_records_have_no_queue():
    async with _store() as store:
        for sys_flag in (0x4, 0xC):
            half = message(sys_flag)
            half.sys_flag = sys_flag
            result = store.put(half)
            assert (result.status, result.queue_offset) == (OK, 0)
        store.write_pending()
        assert store.max_offset_in_queue("T", 0) == 0
        assert store.query_message("T", f"{4:032X}", 5, 0, 1 << 62).physical_offsets == [0]
        assert not store.query_message("T", f"{12:032X}", 5, 0, 1 << 62).physical_offsets


async def test_batch_is_contiguous_in_one_segment():
    async with _store(mapped_file_size_commit_log=4096) as store:
        store.put(message(0, size=2500))
        members = [BatchMember(b"%d" % n * 200, b"K\x01%d" % n) for n in range(6)]
        result = store.put_batch(message(1), members)
        store.write_pending()
        assert result.message_count == 6
        assert result.physical_offset == 4096
        assert result.queue_offset == 1
        end = result.physical_offset
        for number, offset in enumerate(result.offsets):
            assert offset == end
            record = decode_record(store.message_by_offset(offset))
            assert record.queue_offset == 1 + number
            assert record.properties.startswith(b"K\x01%d\x02UNIQ_KEY" % number)
            end = record.end_offset
        assert result.end_offset == end


async def test_batch_member_whose_merged_properties_are_too_long_is_refused():
    """H22: Apache stores a record that its next recovery takes for damage."""
    async with _store() as store:
        members = [BatchMember(b"a"), BatchMember(b"b", b"p" * 32760)]
        result = store.put_batch(message(0), members)
        assert result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert store.put(message(1)).physical_offset == 0


@pytest.mark.parametrize("members", [[], [BatchMember(b"x" * 5000)]])
async def test_batches_that_cannot_be_are_refused(members):
    async with _store(max_message_size=4000) as store:
        result = store.put_batch(message(0), members)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert result.reason


async def test_failed_write_gives_the_places_back_and_tells_who_waits():
    disk = SimDisk()
    async with _store(disk) as store:
        store.put(message(0))
        await asyncio.sleep(0)
        outcomes = []
        for number in range(1, 4):
            end = store.put(message(number, queue_id=number)).end_offset
            store.appended.wait(
                end, 1 << 62, lambda _, outcome, why: outcomes.append((outcome, why))
            )
        disk.fail("pwritev", number=errno.ENOSPC)
        await asyncio.sleep(0)
        assert [outcome for outcome, _ in outcomes] == [Outcome.FAILED] * 3
        assert all("failed" in why for _, why in outcomes)
        again = store.put(message(9, queue_id=1))
        store.write_pending()
        assert (again.status, again.queue_offset) == (OK, 0)
        assert store.max_offset_in_queue("T", 1) == 1
        assert store.max_offset_in_queue("T", 2) == 0
        assert decode_record(store.message_by_offset(again.physical_offset)).queue_id == 1
        assert not store.query_message("T", f"{2:032X}", 5, 0, 1 << 62).physical_offsets


async def test_failed_sync_is_final():
    disk = SimDisk()
    store = make_store(small_config("/store", flush_disk_type=FlushDiskType.SYNC_FLUSH), disk)
    await store.load()
    died = []
    tasks = TaskOwner("test", on_failure=lambda name, error: died.append((name, error)))
    await store.start(tasks)
    disk.fail("fdatasync", path="commitlog", nth=2)  # The first makes the new segment safe.
    end = store.put(message(0)).end_offset
    assert await store.flushed.reached(end, 1 << 62) is Outcome.FAILED
    refused = store.put(message(1))
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "broken" in refused.reason
    with pytest.raises(StoreBrokenError):
        store.commit_log.append_raw(store.commit_log.tail, b"x")
    await asyncio.sleep(0)
    assert isinstance(died[0][1], StoreBrokenError)
    await tasks.stop()
    await store.stop()
    assert disk.exists("/store/abort")


async def test_sync_flush_shares_one_sync_between_turns():
    disk = SimDisk()
    store = make_store(small_config("/store", flush_disk_type=FlushDiskType.SYNC_FLUSH), disk)
    await store.load()
    tasks = TaskOwner("test")
    await store.start(tasks)
    first = store.put(message(0))
    assert await store.flushed.reached(first.end_offset, 1 << 62) is Outcome.REACHED
    disk.stall()
    held = store.put(message(1))
    for number in range(2, 12):
        last = store.put(message(number))
        await asyncio.sleep(0)
    assert store.flushed.value == first.end_offset
    syncs = disk.stats.calls["fdatasync"]
    disk.resume()
    assert await store.flushed.reached(last.end_offset, 1 << 62) is Outcome.REACHED
    assert held.end_offset < last.end_offset
    assert disk.stats.calls["fdatasync"] <= syncs + 3
    await tasks.stop()
    await store.stop()


async def test_disk_full_at_a_new_segment_refuses_and_recovers_by_itself():
    disk = SimDisk(quota=300_000)
    async with _store(disk) as store:
        status = OK
        count = 0
        while status is OK:
            result = store.put(message(count))
            store.write_pending()
            status = result.status
            count += 1
        assert status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
        assert "disk full" in result.reason
        assert "/store/commitlog" in result.reason
        end = store.appended.value
        disk.quota = 10_000_000
        assert store.put(message(count)).status is OK
        store.write_pending()
        assert store.appended.value > end


async def test_disk_above_the_warning_level_refuses_puts_until_there_is_space():
    disk = SimDisk(quota=1_000_000)
    async with _store(disk) as store:
        store.put(message(0))
        store.write_pending()
        disk.quota = int(disk.space("/store").used * 1.05)
        await store.cleaner.clean()
        refused = store.put(message(1))
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert "the limit is 90%" in refused.reason
        assert not store.is_writeable
        disk.quota = 100_000_000
        await store.cleaner.clean()
        assert store.put(message(1)).status is OK


async def test_full_disk_keeps_queue_entries_until_they_can_be_written():
    disk = SimDisk()
    async with _store(disk) as store:
        store.put(message(0))
        store.write_pending()
        disk.fail("pwritev", path="consumequeue", number=errno.ENOSPC)
        clock = store._clock
        clock.advance(1000)
        store.housekeeping._tick(clock.monotonic_ms())
        assert store.put(message(1)).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert store.get_message("T", 0, 0, 1).status is GetMessageStatus.FOUND
        store.housekeeping._tick(clock.monotonic_ms())
        assert store.put(message(1)).status is OK


async def test_raw_bytes_must_continue_the_log_and_fit_the_segment():
    async with _store(broker_role=BrokerRole.SLAVE, broker_id=1) as store:
        log = store.commit_log
        with pytest.raises(OffsetOutOfRangeError):
            log.append_raw(10, b"x")
        log.append_raw(0, bytes(100))
        with pytest.raises(OffsetOutOfRangeError):
            log.append_raw(50, b"x")
        with pytest.raises(StoreError, match="mappedFileSizeCommitLog differs"):
            log.append_raw(100, bytes(65536))
        with pytest.raises(StoreError, match="not empty"):
            log.start_at(65536)


async def test_damage_on_a_slave_stops_dispatch_until_the_log_is_truncated():
    good = make_store(small_config("/other"), SimDisk())
    await good.load()
    good.open_for_puts()
    ends = [good.put(message(number)).end_offset for number in range(3)]
    good.write_pending()
    data = good.commit_log.read(0, ends[-1])
    await good.stop()
    bad = bytearray(data)
    bad[ends[0] + 100] ^= 0xFF
    async with _store(broker_role=BrokerRole.SLAVE, broker_id=1) as store:
        seen = []
        store.reput.on_damage = lambda offset, reason: seen.append((offset, reason))
        store.commit_log.append_raw(0, bytes(bad))
        await asyncio.sleep(0)
        assert store.dispatched.value == ends[0]
        assert seen[0][0] == ends[0]
        assert "CRC" in seen[0][1]
        assert store.max_offset_in_queue("T", 0) == 1
        store.commit_log.truncate_to(ends[0], reason="damaged")
        store._clock.advance(GATHER_MS)
        store.commit_log.append_raw(ends[0], data[ends[0] :])
        await asyncio.sleep(0)
        assert store.dispatched.value == ends[-1]
        assert store.max_offset_in_queue("T", 0) == 3


async def test_r10_dispatch_limit_holds_messages_back_until_they_are_confirmed():
    async with _store() as store:
        confirmed = Watermark("confirmed")
        store.set_dispatch_limit(confirmed)
        first = store.put(message(0))
        store.write_pending()
        second = store.put(message(1))
        store.write_pending()
        assert store.appended.value == second.end_offset
        assert store.dispatched.value == 0
        assert store.max_offset_in_queue("T", 0) == 0
        confirmed.advance(first.end_offset)
        assert store.max_offset_in_queue("T", 0) == 1
        confirmed.advance(second.end_offset)
        assert store.dispatched.value == second.end_offset
        assert store.max_offset_in_queue("T", 0) == 2


async def test_new_master_dispatches_what_it_has_and_cuts_a_torn_end():
    good = make_store(small_config("/other"), SimDisk())
    await good.load()
    good.open_for_puts()
    end = [good.put(message(number)).end_offset for number in range(3)][-1]
    good.write_pending()
    data = good.commit_log.read(0, end)
    await good.stop()
    async with _store(broker_role=BrokerRole.SLAVE, broker_id=1) as store:
        store.commit_log.append_raw(0, data[:-10])
        store.change_role(is_master=True)
        result = store.put(message(2))
        store.write_pending()
        assert (result.status, result.queue_offset) == (OK, 2)
        assert store.commit_log.read(0, end)[:-10][:100] == data[:100]
        assert store.max_offset_in_queue("T", 0) == 3


async def test_nobody_becomes_master_by_cutting_off_what_follows_damage():
    good = make_store(small_config("/other"), SimDisk())
    await good.load()
    good.open_for_puts()
    ends = [good.put(message(number)).end_offset for number in range(3)]
    good.write_pending()
    data = bytearray(good.commit_log.read(0, ends[-1]))
    await good.stop()
    data[ends[0] + 100] ^= 0xFF
    async with _store(broker_role=BrokerRole.SLAVE, broker_id=1) as store:
        store.commit_log.append_raw(0, bytes(data))
        with pytest.raises(AssertionError, match="would be cut off"):
            store.change_role(is_master=True)
        assert not store.is_master
        assert store.commit_log.max_offset == ends[-1]


async def test_deleted_topics_start_again_at_zero():
    async with _store() as store:
        for number in range(3):
            store.put(message(number))
            store.put(message(number, topic="U"))
        assert store.delete_topics(["T"]) == 1
        assert store.queues == [("U", 0)]
        assert store.put(message(9)).queue_offset == 0
        assert store.clean_unused_topics({"U"}) == 1


async def test_queues_of_the_broker_itself_are_never_unused():
    own = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
    async with _store() as store:
        for topic in own:
            store.put(message(1, topic=topic))
        assert store.clean_unused_topics(set()) == 0
        assert sorted(store.queues) == sorted((topic, 0) for topic in own)


@pytest.mark.parametrize("topic", ["a/../../../b", "/etc/x", "..", "."])
async def test_topic_that_is_a_path_stays_inside_the_store(topic):
    """A broker refuses such names; a slave and a recovery meet what others let through."""
    disk = SimDisk()
    config = small_config("/outer/store")
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    store.put(message(1, topic=topic))
    await store.stop()
    (directory,) = disk.list("/outer/store/consumequeue")
    assert disk.list(f"/outer/store/consumequeue/{directory}") == ["0"]
    assert disk.list("/outer") == ["store"]


async def test_recreated_topic_is_rebuilt_with_its_new_numbers():
    disk = SimDisk()
    config = small_config("/store")
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    for number in range(5):
        store.put(message(number))
    store.delete_topics(["T"])
    last = [store.put(message(number)) for number in range(5, 8)]
    store.write_pending()
    survivor = disk.kill()
    again = make_store(config, survivor)
    await again.load()
    assert again.max_offset_in_queue("T", 0) == 3
    found = again.get_message("T", 0, 0, 1)
    assert decode_record(found.buffers[0]).physical_offset == last[0].physical_offset
    await again.stop()


async def test_waiters_time_out():
    store = make_store(small_config("/store"), SimDisk(), ManualClock())
    await store.load()
    store.open_for_puts()
    end = store.put(message(0)).end_offset
    outcomes = []
    store.flushed.wait(end, 1000, lambda _, outcome, __: outcomes.append(outcome))
    store.housekeeping._tick(999)
    assert outcomes == []
    store.housekeeping._tick(1000)
    assert outcomes == [Outcome.TIMEOUT]
    await store.stop()


async def test_open_files_are_bounded(monkeypatch):
    monkeypatch.setattr("twinlog.store.message_store.CONSUME_QUEUE_FILES_OPEN_MAX", 8)
    async with _store() as store:
        for number in range(100):
            store.put(message(number, queue_id=number))
        store.write_pending()
        store.queue_table.write_all()
        assert store.queue_table.pool.count == 8
        for number in range(100):
            assert store.get_message("T", number, 0, 1).message_count == 1


async def test_many_queues_are_synced_by_one_call_and_survive_a_power_cut():
    disk = SimDisk()
    config = small_config("/store")
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    for number in range(200):
        store.put(message(number, queue_id=number))
    assert await store.housekeeping.save_round()
    assert disk.stats.calls["sync_filesystem"] == 1
    again = make_store(config, disk.crash(None))
    report = await again.load()
    assert report.record_count == 0
    assert all(again.max_offset_in_queue("T", number) == 1 for number in range(200))
    await again.stop()


async def test_a_cut_makes_nothing_durable():
    """A slave acknowledges by `flushed`: what is kept is as safe as it was, not safer."""
    disk = SimDisk()
    store = make_store(small_config("/store", broker_role=BrokerRole.SLAVE, broker_id=1), disk)
    await store.load()
    log = store.commit_log
    log.append_raw(0, record_bytes(0, 3))
    await store.flush_service.flush()
    safe = log.max_offset
    log.append_raw(safe, record_bytes(safe, 3))
    kept = log.max_offset
    log.append_raw(kept, record_bytes(kept, 1))
    log.truncate_to(kept, reason="test")
    assert (store.flushed.value, store.appended.value) == (safe, kept)
    await store.stop()


async def test_a_sync_that_began_before_a_cut_says_nothing_about_what_follows():
    disk = SimDisk()
    store = make_store(small_config("/store", broker_role=BrokerRole.SLAVE, broker_id=1), disk)
    await store.load()
    log = store.commit_log
    log.append_raw(0, record_bytes(0, 3))
    kept = log.max_offset
    await store.flush_service.flush()
    log.append_raw(kept, record_bytes(kept, 3))
    disk.stall()
    sync = asyncio.ensure_future(store.flush_service.flush())
    await asyncio.sleep(0)
    log.truncate_to(kept, reason="test")
    log.append_raw(kept, record_bytes(kept, 2))
    disk.resume()
    await sync
    assert store.flushed.value == kept
    assert await store.flush_service.flush() == log.max_offset
    await store.stop()


async def test_a_cut_that_removes_a_file_under_a_sync_breaks_nothing():
    """Found by the simulation (group, mixed, seed 2): the slave's process ended with EBADF."""
    disk = SimDisk()
    store = make_store(small_config("/store"), disk)
    await store.load()
    store.open_for_puts()
    log = store.commit_log
    kept = store.put(message(0)).end_offset
    while log.tail < 2 * log.segment_size:
        store.put(message(1))
    store.write_pending()
    disk.stall()
    sync = asyncio.ensure_future(store.flush_service.flush())
    await asyncio.sleep(0)
    log.truncate_to(kept, reason="test")
    disk.resume()
    await sync
    assert not log.broken_reason
    assert await store.flush_service.flush() == kept
    await store.stop()


async def test_a_log_that_began_and_has_no_byte_may_begin_elsewhere():
    disk = SimDisk()
    store = make_store(small_config("/store", broker_role=BrokerRole.SLAVE, broker_id=1), disk)
    await store.load()
    log = store.commit_log
    for start in (log.segment_size, 3 * log.segment_size):
        log.start_at(start)
        assert (log.min_offset, log.max_offset) == (start, start)
    log.append_raw(log.max_offset, record_bytes(log.max_offset, 1))
    with pytest.raises(StoreError, match="not empty"):
        log.start_at(0)
    await store.stop()


def record_bytes(offset, count):
    """Records as a master would send them from `offset` on; only their size matters here."""
    return b"".join(bytes([0, 0, 0, 100]) + b"\xda\xa3\x20\xa7" + b"x" * 92 for _ in range(count))


async def test_the_bytes_of_the_last_turn_are_read_as_from_the_file():
    async with _store() as store:
        log = store.commit_log
        first = store.put(message(0))
        log.write_pending()
        assert log.read(0, 1 << 20) == b"", "written is not appended"
        store.appended.advance(first.end_offset)
        kept = log.read(0, 1 << 20)
        assert kept == log.segments.find(0).file.pread(first.end_offset, 0)
        assert log.read(0, 10) == kept[:10]
        second = store.put(message(1))
        store.write_pending()
        assert log.read(0, first.end_offset) == kept
        whole = log.read(0, 1 << 20)
        assert whole[first.end_offset :] == log.read(first.end_offset, 1 << 20)
        log.truncate_to(first.end_offset, reason="test")
        log.append_raw(first.end_offset, bytes(second.end_offset - first.end_offset))
        assert set(log.read(first.end_offset, 1 << 20)) == {0}, "those bytes are gone"
