"""Recovery: clean and crashed stores, torn ends, damage in the middle, missing parts."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest
from tests.support.stores import (
    SEGMENT_SIZE,
    ManualClock,
    copy_apache_store,
    make_store,
    message,
    running_store,
    small_config,
)

from twinlog.message.layout import ENTRY, QUEUE_OFFSET_AT, SECTOR_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record
from twinlog.runtime.broker_config import BrokerRole
from twinlog.runtime.disk import PosixDisk
from twinlog.store.errors import StoreDamagedError, StoreLayoutError, StoreLockedError
from twinlog.store.recovery import recover as recovery
from twinlog.store.status import GetMessageStatus


@asynccontextmanager
async def opened(config, disk=None):
    """A store that was just loaded, with its report; stopped cleanly."""
    own = disk or PosixDisk()
    store = make_store(config, own)
    report = await store.load()
    store.open_for_puts()
    try:
        yield store, report
    finally:
        await store.stop()
        if disk is None:
            own.close()


async def _fill(root, count=400, *, crash=True, **config):
    """Write `count` messages; the crash is what SIGKILL leaves: all written, nothing closed."""
    store_config = small_config(root, **config)
    offsets = []
    if not crash:
        async with running_store(store_config) as store:
            for number in range(count):
                offsets.append(store.put(message(number, queue_id=number % 2)))
                store.write_pending()
        return store_config, offsets
    disk = PosixDisk()
    store = make_store(store_config, disk)
    await store.load()
    store.open_for_puts()
    for number in range(count):
        offsets.append(store.put(message(number, queue_id=number % 2)))
        store.write_pending()
    store._close_files()
    disk.close()
    return store_config, offsets


def _segment(root, offset):
    return root / "commitlog" / f"{offset // SEGMENT_SIZE * SEGMENT_SIZE:020d}"


def _overwrite(root, offset, data):
    with _segment(root, offset).open("r+b") as file:
        file.seek(offset % SEGMENT_SIZE)
        file.write(data)


async def test_clean_stop_starts_without_reading_the_log(tmp_path):
    config, results = await _fill(tmp_path, crash=False)
    async with opened(config) as (store, report):
        assert report.was_clean
        assert report.record_count == 0
        assert store.appended.value == results[-1].end_offset
        assert store.max_offset_in_queue("T", 0) == 200


async def test_crash_without_any_checkpoint_rebuilds_queues_and_index(tmp_path):
    config, results = await _fill(tmp_path)
    async with opened(config) as (store, report):
        assert not report.was_clean
        assert report.record_count == 400
        assert store.max_offset_in_queue("T", 1) == 200
        found = store.query_message("T", f"{7:032X}", 5, 0, 1 << 62)
        assert found.physical_offsets == [results[7].physical_offset]


class HastyClock(ManualClock):
    """A second goes by with each look."""

    def monotonic_ms(self) -> int:
        self.advance(1000)
        return self.elapsed_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms()


async def test_a_long_recovery_says_where_it_is(tmp_path, monkeypatch, caplog):
    config, _ = await _fill(tmp_path)
    monkeypatch.setattr(recovery, "_CHUNK_SIZE", 4096)
    disk = PosixDisk()
    store = make_store(config, disk, HastyClock())
    with caplog.at_level("INFO", logger="twinlog.store"):
        await store.load()
    lines = [line for line in caplog.messages if line.startswith("recovery at=")]
    assert len(lines) >= 3
    assert "log_end_max=" in lines[0]
    await store.stop()
    disk.close()


async def test_crash_recovery_starts_at_the_saved_point(tmp_path):
    config = small_config(tmp_path)
    disk = PosixDisk()
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    for number in range(300):
        last = store.put(message(number))
        if number == 249:
            assert await store.housekeeping.save_round()
    store.write_pending()
    store._close_files()
    disk.close()
    async with opened(config) as (store, report):
        assert report.record_count == 50
        assert report.end_offset == last.end_offset
        assert store.max_offset_in_queue("T", 0) == 300


async def test_torn_end_is_cut_and_moved_aside(tmp_path):
    config, results = await _fill(tmp_path)
    torn = results[-1]
    data = _segment(tmp_path, torn.physical_offset).read_bytes()
    start = torn.physical_offset % SEGMENT_SIZE
    end = torn.end_offset % SEGMENT_SIZE
    _overwrite(tmp_path, torn.end_offset - 60, bytes(60))
    async with opened(config) as (store, report):
        assert store.appended.value == torn.physical_offset
        assert report.cut_bytes > 0
        assert store.max_offset_in_queue("T", 1) == 199
        again = store.put(message(399, queue_id=1))
        store.write_pending()
        assert again.physical_offset == torn.physical_offset
        assert again.queue_offset == torn.queue_offset
    aside = list((tmp_path / "twinlog").glob("cut-*/*"))
    assert len(aside) == 1
    assert aside[0].read_bytes() == data[start : end - 60]
    assert int(aside[0].name) == torn.physical_offset


async def test_bytes_behind_the_end_are_zero_after_a_cut(tmp_path):
    """H2: what is not made zero comes back as records after the next crash."""
    config, results = await _fill(tmp_path)
    victim = results[-5]
    _overwrite(tmp_path, victim.physical_offset + 100, b"\xff")
    async with opened(config) as (store, _):
        assert store.appended.value == victim.physical_offset
    position = victim.physical_offset % SEGMENT_SIZE
    rest = _segment(tmp_path, victim.physical_offset).read_bytes()[position:]
    assert rest == bytes(len(rest))


async def test_damage_below_what_was_flushed_refuses_the_start(tmp_path):
    config = small_config(tmp_path)
    disk = PosixDisk()
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    results = [store.put(message(number)) for number in range(200)]
    store.write_pending()
    await store.flush_service.flush()
    store.checkpoint.physic_timestamp = store.last_store_timestamp
    from twinlog.store.recovery.checkpoint import RecoveryPoint

    store.checkpoint.save(RecoveryPoint(flushed=store.flushed.value, dispatched=0))
    store._close_files()
    disk.close()
    victim = results[100]
    _overwrite(tmp_path, victim.physical_offset + 5, b"\xff")  # Its magic.
    before = _segment(tmp_path, victim.physical_offset).read_bytes()
    with pytest.raises(StoreDamagedError) as caught:
        async with opened(config):
            pass
    assert caught.value.physical_offset == victim.physical_offset
    assert "restore" in str(caught.value).lower()
    assert _segment(tmp_path, victim.physical_offset).read_bytes() == before


async def test_hole_in_a_cleanly_stopped_apache_store_is_damage(tmp_path):
    copy_apache_store(tmp_path)
    _overwrite(tmp_path, 458752 + 2000, b"\xff" * 600)
    with pytest.raises(StoreDamagedError):
        async with opened(small_config(tmp_path)):
            pass


async def test_wrong_segment_size_names_file_and_key(tmp_path):
    await _fill(tmp_path, 10, crash=False)
    with pytest.raises(StoreLayoutError, match="mappedFileSizeCommitLog is 32768"):
        async with opened(small_config(tmp_path, mapped_file_size_commit_log=32768)):
            pass
    async with opened(small_config(tmp_path)) as (store, report):
        assert report.was_clean
        assert store.max_offset_in_queue("T", 0) == 5


@pytest.mark.parametrize(("number", "error"), [(1, StoreLayoutError), (2, StoreDamagedError)])
async def test_missing_segment_is_named(tmp_path, number, error):
    await _fill(tmp_path, 600, crash=False)
    assert len(list((tmp_path / "commitlog").iterdir())) == 3
    (tmp_path / "commitlog" / f"{number * SEGMENT_SIZE:020d}").unlink()
    with pytest.raises(error, match=r"hole|missing"):
        async with opened(small_config(tmp_path)):
            pass


async def test_truncated_slave_starts_again_at_its_new_end(tmp_path):
    config, results = await _fill(tmp_path, 600, crash=False)
    async with opened(config) as (store, _):
        await store.housekeeping.save_round()
        cut = results[100].physical_offset
        store.commit_log.truncate_to(cut, reason="diverged")
        assert store.appended.value == store.dispatched.value == cut
        assert store.max_offset_in_queue("T", 0) == 50
        assert not store.query_message("T", f"{100:032X}", 5, 0, 1 << 62).physical_offsets
        again = store.put(message(100, queue_id=0))
        assert (again.physical_offset, again.queue_offset) == (cut, 50)
    async with opened(config) as (store, report):
        assert report.was_clean
        assert store.max_offset_in_queue("T", 0) == 51
        assert store.query_message("T", f"{99:032X}", 5, 0, 1 << 62).physical_offsets


async def test_second_process_is_refused_before_anything_is_read(tmp_path):
    code = (
        "import fcntl, os, sys\n"
        f"fd = os.open({str(tmp_path / 'lock')!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=pipe, stdout=pipe
    )
    assert await holder.stdout.readline() == b"locked\n"
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        async with opened(small_config(tmp_path)):
            pass
    assert not (tmp_path / "commitlog").exists()
    holder.stdin.close()
    await holder.wait()


async def test_foreign_and_empty_files_do_not_stop_the_start(tmp_path):
    await _fill(tmp_path, 10, crash=False)
    (tmp_path / "commitlog" / "notes.txt").write_text("mine")
    (tmp_path / "commitlog" / f"{SEGMENT_SIZE:020d}").touch()
    async with opened(small_config(tmp_path)) as (store, _):
        assert store.max_offset_in_queue("T", 0) == 5
    assert (tmp_path / "commitlog" / "notes.txt").exists()


async def test_store_path_that_cannot_be_written_is_a_clear_error(tmp_path):
    from twinlog.store.errors import StoreError

    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="storePathRootDir"):
        async with opened(small_config(tmp_path / "file" / "store")):
            pass


async def test_delayed_messages_get_their_deliver_time_in_recovery(tmp_path):
    """H12: Apache parses the levels after recovery and delivers these at once."""
    from twinlog.message.properties import encode_properties

    config = small_config(tmp_path)
    disk = PosixDisk()
    clock = ManualClock()
    store = make_store(config, disk, clock)
    await store.load()
    store.open_for_puts()
    delayed = message(1, topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
    delayed.properties = encode_properties({"DELAY": "3", "TAGS": "a"})
    store.put(delayed)
    store.write_pending()
    queue = store.queue_table.get("SCHEDULE_TOPIC_XXXX", 2)
    due = clock.now_ms() + 10_000
    assert queue.entry(store.queue_table.pool, 0)[2] == due
    store._close_files()
    disk.close()
    async with opened(config) as (store, _):
        queue = store.queue_table.get("SCHEDULE_TOPIC_XXXX", 2)
        assert queue.entry(store.queue_table.pool, 0)[2] == due


async def test_slave_log_that_starts_inside_a_segment_is_found_again(tmp_path):
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    start = 5 * SEGMENT_SIZE + 1000
    record = encode_record(message(1), 7, start, 1_700_000_000_000)
    async with running_store(config) as store:
        store.commit_log.start_at(start)
        store.commit_log.append_raw(start, record)
        assert store.commit_log.min_offset == start
    async with opened(config) as (store, _):
        assert store.commit_log.min_offset == start
        assert store.appended.value == start + len(record)
        assert store.max_offset_in_queue("T", 0) == 8
        assert store.min_offset_in_queue("T", 0) == 7
        assert store.get_message("T", 0, 7, 1).status is GetMessageStatus.FOUND


async def test_partly_received_record_of_a_slave_is_cut_and_asked_for_again(tmp_path):
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    record = encode_record(message(1), 0, 0, 1_700_000_000_000)
    async with running_store(config) as store:
        store.commit_log.append_raw(0, record + record[:50])
    async with opened(config) as (store, _):
        assert store.appended.value == len(record)
        assert store.dispatched.value == len(record)


async def test_blank_entries_are_not_messages_although_their_offset_is_0(tmp_path):
    """H26: with a log that begins at 0, Apache takes them for records in the first file."""
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    record = encode_record(message(1), 7, 0, 1_700_000_000_000)
    async with running_store(config) as store:
        store.commit_log.append_raw(0, record)
    async with opened(config) as (store, _):
        assert store.commit_log.min_offset == 0
        assert store.min_offset_in_queue("T", 0) == 7
        assert store.get_message("T", 0, 3, 1).next_begin_offset == 7 or not store.is_master


async def test_own_recovery_point_is_not_believed_after_another_broker_ran(tmp_path):
    config, _ = await _fill(tmp_path, 50, crash=False)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[7] ^= 1
    (tmp_path / "checkpoint").write_bytes(data)
    async with opened(config) as (store, report):
        assert report.record_count == 50  # The last three files are read, as Apache does.
        assert store.max_offset_in_queue("T", 0) == 25


@pytest.mark.parametrize("position", [0, 9, 30, 73])
async def test_damaged_recovery_point_is_not_believed(tmp_path, position):
    config, _ = await _fill(tmp_path, 50, crash=False)
    data = bytearray((tmp_path / "twinlog" / "recovery").read_bytes())
    data[position] ^= 1
    (tmp_path / "twinlog" / "recovery").write_bytes(data)
    async with opened(config) as (store, report):
        assert report.record_count == 50
        assert store.max_offset_in_queue("T", 1) == 25


async def test_checkpoint_has_the_specified_bytes(tmp_path):
    from twinlog.store.recovery.checkpoint import RecoveryPoint, StoreCheckpoint

    (tmp_path / "twinlog").mkdir()
    disk = PosixDisk()
    checkpoint = StoreCheckpoint(disk, str(tmp_path), str(tmp_path / "twinlog"))
    checkpoint.physic_timestamp = checkpoint.logics_timestamp = 1_700_000_000_123
    checkpoint.save(RecoveryPoint(5, 4))
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert data[:24].hex() == "0000018bcfe5687b0000018bcfe5687b0000000000000000"
    assert not any(data[24:])
    again = StoreCheckpoint(disk, str(tmp_path), str(tmp_path / "twinlog"))
    again.load()
    assert again.load_point() == RecoveryPoint(5, 4)
    assert again.min_timestamp == 1_700_000_000_123 - 3000
    assert again.min_timestamp_index == 0
    disk.close()


def _files(root):
    return {
        path.relative_to(root): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("crash", [False, True], ids=["clean", "crashed"])
async def test_store_whose_log_is_missing_is_refused_and_nothing_is_destroyed(tmp_path, crash):
    root = tmp_path / "store"
    config, _ = await _fill(root, crash=crash)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    before = _files(root)
    for _ in range(2):
        with pytest.raises(StoreLayoutError, match="commit log is missing") as refusal:
            await make_store(config, PosixDisk()).load()
        assert "mounted" in str(refusal.value)
        assert crash or "consumequeue" in str(refusal.value)
        assert not (root / "commitlog").exists()
        assert _files(root) == before
    (tmp_path / "elsewhere").rename(root / "commitlog")
    async with opened(config) as (store, _):
        assert store.max_offset_in_queue("T", 0) == 200


async def test_empty_mount_point_of_a_log_that_was_flushed_is_refused(tmp_path):
    root = tmp_path / "store"
    config, _ = await _fill(root, crash=False)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    (root / "commitlog").mkdir()
    before = _files(root)
    with pytest.raises(StoreLayoutError, match="checkpoint knows of flushed records"):
        await make_store(config, PosixDisk()).load()
    assert _files(root) == before


@pytest.mark.parametrize("name", ["config/topics.json", "checkpoint", "index/20261116000000000"])
async def test_each_part_of_a_store_is_a_witness_of_its_log(tmp_path, name):
    root = tmp_path / "store"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"")
    with pytest.raises(StoreLayoutError, match="storePathCommitLog"):
        await make_store(small_config(root), PosixDisk()).load()


@pytest.mark.parametrize("names", [[], ["config"], ["config", "consumequeue", "twinlog"]])
async def test_root_with_nothing_in_it_is_a_fresh_start(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
    async with opened(small_config(tmp_path)) as (store, report):
        assert report.was_clean
        assert store.commit_log.max_offset == 0


@pytest.mark.parametrize("bit", [2, 6, 20, 45])
async def test_record_with_an_impossible_number_is_damage_not_a_gap_to_fill(tmp_path, bit):
    """No checksum covers the number of a record in its queue, but there was only room for so many
    records before it. Filled, the gap would hide all messages before it, or fill the disk."""
    config, results = await _fill(tmp_path)
    damaged = results[100].physical_offset
    assert not results[100].queue_offset >> bit & 1
    _overwrite(tmp_path, damaged + 20, (results[100].queue_offset | 1 << bit).to_bytes(8, "big"))
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=f"damaged at offset {damaged}"):
            await make_store(config, PosixDisk()).load()


@pytest.mark.parametrize("role", ["SLAVE", "SYNC_MASTER"])
async def test_a_copy_whose_last_properties_came_in_part_is_cut_there(tmp_path, role):
    """As a slave again and when it is promoted: properties of zeros are another message."""
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    record = encode_record(message(1), 0, 0, 1_700_000_000_000)
    torn = encode_record(message(2), len(record), 1, 1_700_000_000_000)[:-3]
    async with running_store(config) as store:
        store.commit_log.append_raw(0, record + torn)
    config.broker_role = BrokerRole(role)
    store = make_store(config, PosixDisk())
    await store.load(was_copy=True)
    store.open_for_puts()
    assert store.commit_log.max_offset == len(record)
    assert store.max_offset_in_queue("T", 0) == 1
    await store.stop()


@pytest.mark.parametrize(
    ("is_copy", "shift", "has_point", "is_flushed", "count"),
    [
        (True, 0, True, False, 2),  # The write ended in the number; its sector has no more.
        (True, -7, True, False, 2),
        (True, 0, False, False, 2),
        (True, 8, True, False, 3),  # Sectors tell nothing: a topic that was made again, perhaps.
        (True, 0, False, True, 3),
        (False, 0, True, False, 3),  # A master writes records, and nobody has it besides.
    ],
)
async def test_a_number_that_a_power_cut_took_from_a_copy_is_asked_for_again(
    tmp_path, is_copy, shift, has_point, is_flushed, count
):
    """No checksum covers the number. As 0 it would begin the queue again, without its entries."""
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    disk = PosixDisk()
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    log = store.commit_log
    first = encode_record(message(0), 0, 0, 1_700_000_000_000)
    log.append_raw(0, first)
    if has_point:
        assert await store.housekeeping.save_round()
    # The last of the number is the last of a sector, and a byte of the own offset begins the next.
    at = 2 * SECTOR_SIZE - QUEUE_OFFSET_AT - 8 + shift
    filler = PutMessage("Other", 0, bytes(0))
    empty = len(encode_record(filler, 0, 0, 0))
    filler = PutMessage("Other", 0, b"x" * (at - len(first) - empty))
    log.append_raw(len(first), encode_record(filler, 0, len(first), 1_700_000_000_000))
    record = bytearray(encode_record(message(1), 1, at, 1_700_000_000_000))
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = bytes(8)
    log.append_raw(at, bytes(record))
    if is_flushed:
        assert await store.housekeeping.save_round()
    end = log.max_offset
    store._close_files()
    disk.close()
    config.broker_role = BrokerRole.SLAVE if is_copy else BrokerRole.SYNC_MASTER
    async with opened(config) as (store, report):
        assert report.has_point is (has_point or is_flushed)
        assert not report.was_clean
        assert store.commit_log.max_offset == (at if count == 2 else end)
        assert store.max_offset_in_queue("T", 0) == 1


async def test_entries_behind_one_that_a_power_cut_took_do_not_come_back(tmp_path):
    """They lead into a part of the log that is gone; the next entries would reach them."""
    config, _ = await _fill(tmp_path, 20, crash=False)
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(13 * ENTRY.size)
        file.write(ENTRY.pack(40, 100, 0))
    (tmp_path / "abort").touch()
    async with opened(config) as (store, report):
        assert not report.was_clean
        assert store.max_offset_in_queue("T", 0) == 10
        for number in range(3):
            assert store.put(message(number, queue_id=0)).queue_offset == 10 + number
        store.write_pending()
    async with opened(config) as (store, _):
        assert store.max_offset_in_queue("T", 0) == 13
