"""Find the end of the log and make queues and index fit it. Corresponds to RocketMQ's
recoverNormally and recoverAbnormally.

Where the scan starts (the first that applies):

| state | start |
|---|---|
| `twinlog/recovery` is valid | its dispatched offset: everything below is durable |
| no `abort` | third-last segment |
| `abort` | newest segment whose first record is not newer than `checkpoint` says |
| queues or index missing, or less than `twinlog/queues` says | the first record, for that part |

Every record from there on is checked (size, magic, own offset, CRC, queue offset) and dispatched;
queues and index ignore what they have. One that was flushed and whose body alone is damaged keeps
its place, and is named. Where no record begins the log ends. Bytes behind the end
are moved aside when they may be the torn end of a crash; when they were known to be durable, the
store is damaged and does not start.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinlog.message.layout import BODY_CRC_AT, HEAD_SIZE, MAGIC_AT, MESSAGE_MAGICS
from twinlog.message.record import ScanEntry, ScanStop, scan
from twinlog.runtime.clock import Clock
from twinlog.store.errors import StoreDamagedError
from twinlog.store.index.index_service import IndexService
from twinlog.store.integrity.damage import Damage, place_of
from twinlog.store.integrity.record_check import body_fault
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.log.segment import Segment, data_ranges
from twinlog.store.queue.queue_manifest import Ends, QueueManifest
from twinlog.store.queue.queue_table import ConsumeQueueTable
from twinlog.store.reader import store_timestamp_of
from twinlog.store.recovery.checkpoint import RecoveryPoint, StoreCheckpoint
from twinlog.store.recovery.dispatch import NOT_TORN, Dispatcher, QueueGapError, StaleRecordError
from twinlog.store.recovery.missing_log import missing_log
from twinlog.store.recovery.resync import find_record

if TYPE_CHECKING:
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_CHUNK_SIZE: Final = 8 << 20  # Read at once: what a call costs is shared by many records.
_PROGRESS_MS: Final = 2000
_FILES_NORMAL: Final = 3  # RocketMQ checks the last three files after a clean stop.


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did."""

    was_clean: bool
    has_point: bool = False  # Everything below `start_offset` was read in an earlier life.
    start_offset: int = 0
    end_offset: int = 0
    record_count: int = 0
    cut_bytes: int = 0
    last_store_timestamp: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Scan:
    """Where the scan is and why it ended."""

    position: int
    record_count: int = 0
    last_timestamp: int = 0
    reason: str = ""


class Recovery:
    """One run over a loaded store."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        check_crc: bool,
        is_index_safe: bool,
        is_copy: bool,
        mark_unclean: Callable[[], None],
        manifest: QueueManifest,
        damage: Callable[[Damage], object],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._clock = clock
        self._check_crc = check_crc
        self._is_index_safe = is_index_safe
        self._is_copy = is_copy
        self._mark_unclean = mark_unclean
        self._manifest = manifest
        self._damage = damage
        self._lost: Ends = {}
        self._safe_end = 1 << 62  # Below this the log was synced: nothing can be torn.
        self._flushed_end = 0  # The same, where it is known by more than a clean stop.
        self._chunk_start = 0

    async def run(self, *, was_clean: bool) -> RecoveryReport:
        """Recover; raises StoreDamagedError when durable bytes are not a valid log."""
        # A million short-lived tuples and no cycle: the collector would only walk them, for a
        # seventh of the time.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return await self._run(was_clean)
        finally:
            if was_enabled:
                gc.enable()

    async def _run(self, was_clean: bool) -> RecoveryReport:
        report = RecoveryReport(was_clean)
        segments = self._log.segments.segments
        if not segments:
            self._recover_empty(report)
            return report
        self._log.find_first_record()
        point = self._usable_point()
        report.has_point = point is not None
        self._flushed_end = point.flushed if point is not None else self._safe_end * was_clean
        if not was_clean:
            self._safe_end = point.flushed if point is not None else 0
        start = self._prepare(point, was_clean, report)
        self._dispatcher.is_strict = True
        if self._is_copy:
            self._dispatcher.torn_from = self._safe_end
            self._dispatcher.torn_after_ms = self._checkpoint.physic_timestamp * (point is None)
        try:
            found = await self._scan(start)
        except QueueGapError as error:
            report.notes.append(f"queues made again from the whole log: {error}")
            _LOG.warning("queue has a gap, all queues are rebuilt: %s", error)
            self._begin_rebuild()
            self._queues.destroy(tuple(self._queues))
            if self._index is not None:
                self._index.forget_pending()  # They come again.
            self._dispatcher.is_strict = False
            start = self._log.min_offset
            found = await self._scan_again(start)
        finally:
            self._dispatcher.is_strict = False
            self._dispatcher.torn_from = NOT_TORN
        report.start_offset = start
        report.record_count = found.record_count
        report.end_offset = found.position
        report.last_store_timestamp = found.last_timestamp
        self._finish(found, point, was_clean, report)
        return report

    async def _scan_again(self, start: int) -> _Scan:
        """The scan of a rebuild: no entry is missing, so a gap means a record that is not right."""
        try:
            return await self._scan(start)
        except QueueGapError as error:
            offset = error.physical_offset
            segment = self._log.segments.find(offset)
            assert segment is not None
            why = "its size and its checksum are right"
            raise self._damaged(segment, offset, str(error), why) from error

    def _recover_empty(self, report: RecoveryReport) -> None:
        """No log: nothing that points into one may stay, unless the checkpoint knows of one."""
        if self._checkpoint.physic_timestamp > 0:
            raise missing_log(self._log.directories, "the checkpoint knows of flushed records")
        if len(self._queues):
            report.notes.append("no commit log: consume queues removed")
            self._queues.destroy(tuple(self._queues))
        if self._index is not None:
            self._index.remove_all()
        self._log.set_end(0)
        self._lost = self._manifest.lost(
            self._queues, self._log.min_offset
        )  # As `migrate run` has left them.
        self._keep_numbers(0)

    def _usable_point(self) -> RecoveryPoint | None:
        point = self._checkpoint.load_point()
        last = self._log.segments.segments[-1]
        if point is not None and point.flushed > last.end:
            raise self._damaged(last, last.end, "the next segment is missing", "it was flushed")
        if point is None or point.dispatched < self._log.min_offset:
            return None
        return point

    # Where to start

    def _prepare(self, point: RecoveryPoint | None, was_clean: bool, report: RecoveryReport) -> int:
        """Cut queues and index back to what is durable; the offset to scan from."""
        start = max(self._start(point, was_clean), self._log.min_offset)
        has_queues = any(queue.next_offset for queue in self._queues)
        if was_clean and point is not None:
            # Entries that lead behind the end are damaged ones: their queues are short, then.
            self._queues.truncate(point.dispatched)
        self._lost = self._manifest.lost(self._queues, self._log.min_offset)
        if not was_clean:
            self._queues.truncate(start)
            self._queues.clear_behind()
        starts = [start]
        if not has_queues or self._queues.holed or self._lost:
            starts.append(self._log.min_offset)
            if start > self._log.min_offset:
                report.notes.append("consume queues made again from the whole log")
                self._begin_rebuild()
            self._queues.destroy(self._queues.holed)
            self._destroy_lost()
        index = self._index
        if index is not None:
            if not was_clean:
                self._cut_index(index, point, start)
            if not index.files:
                if start > self._log.min_offset:
                    report.notes.append("index made again from the whole log")
                    self._begin_rebuild()
                starts.append(self._log.min_offset)
            elif point is None and index.end_offset < start:
                starts.append(max(index.end_offset, self._log.min_offset))
        return min(starts)

    def _destroy_lost(self) -> None:
        """What is left of queues that lost entries goes, too: they are made from their records."""
        for (topic, queue_id), end in self._lost.items():
            queue = self._queues.get(topic, queue_id)
            _LOG.warning(
                "queue is missing or cut short, rebuilt topic=%s queue=%d entries=%d to %d of %d",
                topic, queue_id, 0 if queue is None else queue.first_offset,
                0 if queue is None else queue.next_offset, end,
            )  # fmt: skip
            if queue is not None:
                self._queues.destroy((queue,))

    def _keep_numbers(self, log_end: int) -> None:
        """A lost queue whose records are all expired goes on with the number that it had. It is
        written, or the next start would not know it."""
        for (topic, queue_id), end in self._lost.items():
            queue = self._queues.make(topic, queue_id)
            if end and not queue.next_offset:
                queue.begin_at(end, is_alone=True)
                # Behind all that waits, and before all that comes.
                self._queues.mark_dirty(queue, self._clock.monotonic_ms(), log_end - 1)

    def _begin_rebuild(self) -> None:
        """What is missing is made again from the whole log. Written down before anything else:
        when this is interrupted, the half that is there must not be taken for the whole."""
        self._mark_unclean()
        self._checkpoint.reset()

    def _start(self, point: RecoveryPoint | None, was_clean: bool) -> int:
        segments = self._log.segments.segments
        if point is not None:
            return point.dispatched
        if was_clean:
            return segments[max(0, len(segments) - _FILES_NORMAL)].start
        checkpoint = self._checkpoint
        limit = checkpoint.min_timestamp
        if self._index is not None and self._is_index_safe:
            limit = checkpoint.min_timestamp_index
        for segment in reversed(segments):
            timestamp = self._first_timestamp(segment)
            if 0 < timestamp <= limit:
                return segment.start
        return segments[0].start

    def _first_timestamp(self, segment: Segment) -> int:
        """Store time of the record a segment begins with, 0 when there is none."""
        head = segment.file.pread(HEAD_SIZE, 0)
        magic = int.from_bytes(head[MAGIC_AT:BODY_CRC_AT], "big")
        return store_timestamp_of(head) if magic in MESSAGE_MAGICS else 0

    def _cut_index(self, index: IndexService, point: RecoveryPoint | None, start: int) -> None:
        if point is None:
            # Apache's rule: only a full file was ever synced.
            index.remove_newer_than(self._checkpoint.index_timestamp)
        else:
            index.recover(start, self._store_time)

    def _store_time(self, offset: int) -> int:
        segment = self._log.segments.find(offset)
        if segment is None:
            return 0
        return store_timestamp_of(segment.file.pread(HEAD_SIZE, offset - segment.start))

    # The scan

    async def _scan(self, start: int) -> _Scan:
        """Check and dispatch records from `start` until none begins."""
        state = _Scan(start)
        reported_ms = self._clock.monotonic_ms()
        size = _CHUNK_SIZE
        while (segment := self._log.segments.find(state.position)) is not None:
            at = state.position - segment.start
            size_max = min(size, segment.size - at)
            data = segment.file.pread(size_max, at)
            self._chunk_start = state.position
            if self._dispatch_bulk(data, state):
                reported_ms = await self._go_on(state, reported_ms)
                continue
            result = scan(
                data, 0, state.position,
                check_crc=self._check_crc,
                file_position=at if state.position + size_max > self._safe_end else None,
                is_copy=self._is_copy,
            )  # fmt: skip
            try:
                self._dispatch(result.entries, state)
            except StaleRecordError as error:
                state.position = error.physical_offset
                state.reason = str(error)
                break
            is_last_chunk = at + size_max == segment.size
            if result.stop is ScanStop.BLANK:
                state.position = segment.end
            elif result.stop is ScanStop.DAMAGED and self._pass_over(data, state):
                pass
            elif result.stop in (ScanStop.EMPTY, ScanStop.DAMAGED) or (
                is_last_chunk and not result.entries
            ):
                state.reason = result.reason or "the record does not end in its segment"
                if result.stop is ScanStop.EMPTY:
                    state.reason = ""
                break
            elif not result.entries:
                size *= 2  # A record larger than the chunk.
                continue
            size = _CHUNK_SIZE
            reported_ms = await self._go_on(state, reported_ms)
        return state

    def _pass_over(self, data: bytes, state: _Scan) -> bool:
        """A record that was flushed, whose body alone is damaged: it keeps its place and its
        number, is named, and never handed out; whether this is one."""
        at = state.position - (self._chunk_start)
        one = scan(data, at, state.position, check_crc=False, count_max=1).entries
        if not one or one[0][0] + one[0][1] > self._flushed_end:
            return False
        offset, size = one[0][:2]
        if not body_fault(data, at, size):
            return False  # Something else is wrong with it.
        self._dispatch(one, state)
        self._damage(place_of(offset, size, body_fault(data, at, size)))
        return True

    async def _go_on(self, state: _Scan, reported_ms: int) -> int:
        """Let the loop run, and say where we are from time to time."""
        await asyncio.sleep(0)
        now_ms = self._clock.monotonic_ms()
        if now_ms - reported_ms < _PROGRESS_MS:
            return reported_ms
        _LOG.info(
            "recovery at=%d records=%d log_end_max=%d",
            state.position, state.record_count, self._log.segments.segments[-1].end,
        )  # fmt: skip
        return now_ms

    def _dispatch_bulk(self, data: bytes, state: _Scan) -> bool:
        """Take the plain records that `data` begins with all at once; false when there are none."""
        taken = self._dispatcher.dispatch_plain(data, 0, state.position, check_crc=self._check_crc)
        if taken is None:
            return False
        state.position = taken.end
        state.record_count += taken.record_count
        state.last_timestamp = taken.last_timestamp
        return True

    def _dispatch(self, entries: list[ScanEntry], state: _Scan) -> None:
        if not entries:
            return
        self._dispatcher.dispatch(entries)
        last = entries[-1]
        state.position = last[0] + last[1]
        state.record_count += len(entries)
        state.last_timestamp = last[5]

    # The end

    def _finish(
        self, found: _Scan, point: RecoveryPoint | None, was_clean: bool, report: RecoveryReport
    ) -> None:
        end = found.position
        segment = self._log.segments.find(end) or self._log.segments.segments[-1]
        if point is not None and end < point.flushed:
            raise self._damaged(segment, end, found.reason, "it was flushed")
        if point is None and self._has_later_records(found, was_clean):
            raise self._damaged(segment, end, found.reason, "valid records follow it")
        report.cut_bytes = self._log.cut(end, found.reason or "bytes behind the last whole record")
        if report.cut_bytes:
            report.notes.append(f"{report.cut_bytes} bytes behind {end} moved aside")
        if not was_clean:
            self._sync_log(point.flushed if point is not None else 0)
        self._queues.truncate(end)
        self._keep_numbers(end)
        if self._index is not None:
            try:
                self._index.truncate(end, self._store_time)
            except OSError as error:
                # A full disk: its keys wait, and are written when there is room; reads need none.
                _LOG.error("index not written, tried again while the broker runs: %s", error)

    def _sync_log(self, start: int) -> None:
        """A killed process leaves records that are only in the page cache: found is not safe.

        From here on they count as flushed, so they must be.
        """
        for segment in self._log.segments.segments:
            if segment.end > start:
                segment.file.fdatasync()
        self._log.sync_directories()

    def _damaged(self, segment: Segment, offset: int, reason: str, why: str) -> StoreDamagedError:
        return StoreDamagedError(
            f"the commit log is damaged at offset {offset} ({segment.path}, position "
            f"{offset - segment.start}): {reason or 'no record begins there'}, although {why}. "
            "Nothing was changed. Restore the file from a replica or a backup. Without one, "
            "`twinlog store give-up` gives up the damaged record and keeps what is behind it",
            path=segment.path,
            physical_offset=offset,
        )

    def _has_later_records(self, found: _Scan, was_clean: bool) -> bool:
        """Whether records behind the end show a hole in the middle and not a torn end.

        Older ones than the last good record are what a truncation by Apache left behind. After
        a crash, pages that were never synced may be missing in any order: only records that the
        checkpoint knows as flushed count.
        """
        limit = (1 << 62) if was_clean else self._checkpoint.physic_timestamp
        for segment in self._log.segments.segments:
            if segment.end <= found.position:
                continue
            start = max(found.position + 1, segment.start) - segment.start
            for timestamp in self._timestamps_after(segment, start):
                if max(found.last_timestamp, 1) <= timestamp <= limit:
                    return True
        return False

    def _timestamps_after(self, segment: Segment, start: int) -> list[int]:
        """Store time of the first whole record at or behind position `start`."""
        for range_start, range_end in data_ranges(segment.file, start, segment.size):
            at = find_record(segment, range_start, range_end)
            if at is not None:
                return [store_timestamp_of(segment.file.pread(HEAD_SIZE, at))]
        return []


def recovery_of(
    store: MessageStore, clock: Clock, mark_unclean: Callable[[], None], *, is_copy: bool
) -> Recovery:
    """The recovery of a store that is loaded and not open yet."""
    return Recovery(
        store.commit_log,
        store.queue_table,
        store.index,
        store.checkpoint,
        store.dispatcher,
        clock,
        check_crc=store.config.check_crc_on_recover,
        is_index_safe=store.config.message_index_safe,
        is_copy=is_copy,
        mark_unclean=mark_unclean,
        manifest=store.queue_manifest,
        damage=store.damage.found,
    )
