"""A slave's dispatch: when it runs, how much it takes at once, what a full disk does to it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.stores import make_store, message, small_config
from twinlog.message.model import PutMessage
from twinlog.runtime.broker_config import BrokerRole
from twinlog.store.message_store import MessageStore
from twinlog.store.recovery import dispatch
from twinlog.store.recovery.dispatch import Dispatcher
from twinlog.store.recovery.reput import GATHER_MS, RETRY_MS
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk

SEGMENT_SIZE = 8 << 20


async def log_of(messages: list[PutMessage]) -> tuple[bytes, list[int]]:
    """The bytes of a master's log, and where its records end."""
    store = make_store(small_config("/master", mapped_file_size_commit_log=SEGMENT_SIZE), SimDisk())
    await store.load()
    store.open_for_puts()
    ends = [store.put(one).end_offset for one in messages]
    store.write_pending()
    data = store.commit_log.read(0, ends[-1])
    await store.stop()
    return data, ends


@asynccontextmanager
async def slave(clock: ManualClock) -> AsyncIterator[MessageStore]:
    config = small_config(
        "/slave",
        mapped_file_size_commit_log=SEGMENT_SIZE,
        max_index_num=100_000,
        broker_role=BrokerRole.SLAVE,
        broker_id=1,
    )
    store = make_store(config, SimDisk(), clock)
    await store.load()
    store.open_for_puts()
    try:
        yield store
    finally:
        await store.stop()


async def test_after_a_pause_at_once_and_in_a_stream_together() -> None:
    data, ends = await log_of([message(number) for number in range(4)])
    clock = ManualClock()
    async with slave(clock) as store:
        steps: list[int] = []
        store.dispatched.subscribe(steps.append)
        start = 0
        for end in ends[:3]:
            store.commit_log.append_raw(start, data[start:end])
            start = end
            await asyncio.sleep(0)
        assert steps == ends[:1]
        clock.advance(GATHER_MS)
        assert steps == [ends[0], ends[2]]
        clock.advance(GATHER_MS)
        store.commit_log.append_raw(start, data[start:])
        await asyncio.sleep(0)
        assert steps == [ends[0], ends[2], ends[3]]


async def test_what_fills_a_step_does_not_wait() -> None:
    data, ends = await log_of([message(number, size=1000) for number in range(600)])
    async with slave(ManualClock()) as store:
        store.commit_log.append_raw(0, data[: ends[0]])
        await asyncio.sleep(0)
        assert store.dispatched.value == ends[0]
        store.commit_log.append_raw(ends[0], data[ends[0] :])
        await asyncio.sleep(0)
        assert store.dispatched.value > ends[0]


@pytest.mark.compiled
@pytest.mark.parametrize("has_odd", [False, True])
async def test_records_taken_together_give_what_one_by_one_gives(
    has_odd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [message(number, queue_id=number % 3) for number in range(6000)]
    if has_odd:
        messages[700].properties += b"\x02KEYS\x01a b c"
        messages[1900].topic = "Th\u00e9me"
    data, _ = await log_of(messages)
    seen: list[Any] = []
    taken: list[int] = []
    plain = Dispatcher.dispatch_plain

    def counted(self: Dispatcher, *arguments: Any, **named: Any) -> Any:
        found = plain(self, *arguments, **named)
        taken.append(0 if found is None else found.record_count)
        return found

    monkeypatch.setattr(Dispatcher, "dispatch_plain", counted)
    for is_compiled in (True, False):
        taken.clear()
        with monkeypatch.context() as patch:
            patch.setenv("TWINLOG_PURE", "0" if is_compiled else "1")
            seen.append(await dispatched(data))
        assert (sum(taken) > 500) == is_compiled
    assert seen[0] == seen[1]


async def dispatched(data: bytes) -> Any:
    """Queues and index of a slave that got `data` in pieces."""
    clock = ManualClock()
    async with slave(clock) as store:
        for start in range(0, len(data), 50_000):
            store.commit_log.append_raw(start, data[start : start + 50_000])
            await asyncio.sleep(0)
        while store.dispatched.value < len(data):
            clock.advance(GATHER_MS)
            await asyncio.sleep(0)
        assert store.index is not None
        store.index.drain()
        index = store.index.files[0]
        entries = index.file.pread(index.index_count * 20, 40 + 4 * index.slots_max)
        queues = {
            queue.key: (queue.max_offset, store.queue_table.pool and bytes(queue.tail))
            for queue in store.queue_table
        }
        return queues, entries, index.index_count, index.end_offset


async def test_a_disk_that_was_full_is_tried_again_without_a_new_record(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, ends = await log_of([message(0), message(1)])
    clock = ManualClock()
    async with slave(clock) as store:
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(dispatch, "TAIL_SIZE_MAX", 0)
            patch.setattr(store.queue_table, "write", full)
            store.commit_log.append_raw(0, data)
            await asyncio.sleep(0)
            assert store.dispatched.value == 0
            assert "No space left" in caplog.text
        clock.advance(RETRY_MS)
        assert store.dispatched.value == ends[-1]
        assert store.max_offset_in_queue("T", 0) == 2


async def test_dispatch_stops_at_the_record_whose_number_is_damaged_and_not_before() -> None:
    """What lies before it is shown, and it is the record that is fetched from a replica."""
    data, ends = await log_of([message(number, queue_id=0) for number in range(40)])
    at = ends[24] + 20
    damaged = bytearray(data)
    damaged[at + 6] ^= 1  # Number 25 says 281.
    clock = ManualClock()
    async with slave(clock) as store:
        found: list[int] = []
        store.reput.on_damage = lambda offset, reason: found.append(offset)
        store.commit_log.append_raw(0, bytes(damaged))
        await asyncio.sleep(0)
        assert found == [ends[24]]
        assert store.dispatched.value == ends[24]
        assert store.max_offset_in_queue("T", 0) == 25
        segment = store.commit_log.segments.find(at)
        assert segment is not None
        segment.file.pwritev((data[at : at + 8],), at)
        store.reput.healed()
        clock.advance(GATHER_MS)
        assert store.dispatched.value == ends[-1]
        assert store.max_offset_in_queue("T", 0) == 40
