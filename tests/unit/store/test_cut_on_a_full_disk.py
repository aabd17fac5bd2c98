"""A cut of the log that fails leaves the log as it was, and the next try succeeds.

Generated: where the cut begins x which call of the disk finds no room. A slave that had no room to
keep its tail aside had dropped a file already, and could never follow its master again.
"""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from support.stores import make_store, message, small_config
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.message_store import MessageStore
from twinlog.testing.group.records import BLANK_MAGIC
from twinlog.testing.simdisk import SimCrash, SimDisk

SEGMENT_SIZE = 4096
# (call of the disk, part of the path): what needs room. Zeros go where there is room already.
CALLS = (
    ("make_directories", "/twinlog"), ("open", "/twinlog"), ("pwritev", "/twinlog"),
    ("rename", "/twinlog"), ("open", "/index"), ("pwritev", "/index"),
)  # fmt: skip
PLACES = (0, 1, 7, 20, 40, 59)  # Numbers of the records at which the log is cut.


async def a_store(disk: SimDisk) -> tuple[MessageStore, list[int]]:
    config = small_config("/store", mapped_file_size_commit_log=SEGMENT_SIZE)
    store = make_store(config, disk)
    await store.load()
    store.open_for_puts()
    offsets = [store.put(message(n)).physical_offset for n in range(60)]
    store.write_pending()
    await store.flush_service.flush()
    return store, offsets


def all_bytes(log: CommitLog) -> bytes:
    pieces, position = [], log.min_offset
    while position < log.max_offset:
        pieces.append(log.read(position, SEGMENT_SIZE))
        position += len(pieces[-1])
    return b"".join(pieces)


def fails_at(disk: SimDisk, log: CommitLog, offset: int, call: tuple[str, str], nth: int) -> bool:
    """Whether the cut got as far as to the `nth` such call, which has no room."""
    disk.fail(call[0], nth=nth, number=errno.ENOSPC, path=call[1])
    try:
        log.truncate_to(offset, reason="test")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("call", CALLS, ids=" in ".join)
@pytest.mark.parametrize("place", PLACES)
async def test_no_room_for_the_cut_changes_nothing(place: int, call: tuple[str, str]) -> None:
    failure_count = 0
    for nth in range(1, 16):
        disk = SimDisk()
        store, offsets = await a_store(disk)
        log, offset = store.commit_log, offsets[place]
        before, end = all_bytes(log), log.max_offset
        assert len(log.segments.segments) >= 3
        if fails_at(disk, log, offset, call, nth):
            failure_count += 1
            assert log.max_offset == end
            assert all_bytes(log) == before
            log.truncate_to(offset, reason="again")
        disk._faults.clear()
        check(store, offset, before)  # Also when it was the index that had no room.
    assert (failure_count > 0) == (call[1] == "/twinlog")


@pytest.mark.parametrize("place", PLACES)
async def test_a_cut_that_ends_in_the_middle_is_finished_at_the_next_start(place: int) -> None:
    for change in range(1, 60):
        disk = SimDisk()
        store, offsets = await a_store(disk)
        before = all_bytes(store.commit_log)
        disk.crash_after = disk.change_count + change
        try:
            store.commit_log.truncate_to(offsets[place], reason="test")
        except SimCrash:
            disk = disk.crash(None)
        else:
            break
        again = make_store(small_config("/store", mapped_file_size_commit_log=SEGMENT_SIZE), disk)
        await again.load()
        # All of the records before the cut; behind them what was left of the log, or nothing.
        found = all_bytes(again.commit_log)
        kept = offsets[place] - again.commit_log.min_offset
        assert found[:kept] == before[:kept]
        assert before.startswith(found.rstrip(b"\0")) or len(found) == kept
    assert change > 3


def offset_count(log: bytes, end: int) -> int:
    """Records in the first `end` bytes of a log that begins at 0."""
    return sum(1 for offset in _record_offsets(log) if offset < end)


def _record_offsets(log: bytes) -> list[int]:
    found, position = [], 0
    while position + 8 <= len(log):
        size, magic = struct.unpack_from(">II", log, position)
        if magic == BLANK_MAGIC:
            position += SEGMENT_SIZE - position % SEGMENT_SIZE
            continue
        found.append(position)
        position += size
    return found


def check(store: MessageStore, offset: int, before: bytes) -> None:
    log: Any = store.commit_log
    assert log.max_offset == offset
    assert store.dispatched.value <= offset
    assert store.max_offset_in_queue("T", 0) == offset_count(before, offset)
    assert all_bytes(log) == before[: offset - log.min_offset]
    assert store.put(message(99)).physical_offset == offset
    store.write_pending()
