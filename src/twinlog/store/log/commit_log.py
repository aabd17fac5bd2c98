"""The log: the one file set that matters. Corresponds to RocketMQ's CommitLog.

Owns the segments, the bytes waiting to be written in this turn of the loop, and the watermarks
`appended` and `flushed`. Does not know topics, queues or indexes.

Invariants: flushed <= appended <= tail; every byte in [appended, end of the segment) is zero on
disk once a turn is over; `tail` is where the next record goes, pending ones included; a record
never crosses a segment, and at least 8 bytes stay for the blank record that closes it.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections.abc import Callable, Sequence

from twinlog.message.layout import BLANK_SIZE_MIN
from twinlog.message.record import blank_record
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, FileBytes, write_atomically
from twinlog.runtime.numbers import number_or_none
from twinlog.runtime.watermark import Watermark
from twinlog.store.errors import OffsetOutOfRangeError, StoreBrokenError, StoreError
from twinlog.store.log.appender import LogEnd
from twinlog.store.log.segment import Segment, data_ranges, read_pages, segment_name, zero_data
from twinlog.store.log.segment_queue import SegmentQueue
from twinlog.store.recovery.missing_log import check_log_is_there

_LOG = logging.getLogger("twinlog.store")
_COPY_SIZE = 4 << 20
# Prepare the next segment when the current one is half full: early enough at disk speed, and an
# idle broker does not reserve twice the space.
_PREPARE_FRACTION = 2
# A reader may still send from a file that was removed: RocketMQ's destroyMapedFileIntervalForcibly.
_RETIRE_DELAY_MS = 120_000


class CommitLog:
    """Segments, pending bytes, appended and flushed."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        *,
        directories: Sequence[str],
        read_only_directories: Sequence[str] = (),
        segment_size: int,
        aside_directory: str,
        end: LogEnd,
    ) -> None:
        assert segment_size > BLANK_SIZE_MIN
        self._disk = disk
        self._clock = clock
        self._directories = list(directories)
        self._read_only_directories = list(read_only_directories)
        self._aside_directory = aside_directory
        self._start_path = posixpath.join(aside_directory, "log-start")
        self._cutting_path = posixpath.join(aside_directory, "cutting")
        self.segment_size = segment_size
        self.segments = SegmentQueue(disk, directories, segment_size)
        self.appended = Watermark("appended")
        self.flushed = Watermark("flushed")
        self.cut_count = 0
        """How often the end went back: a sync that began before says nothing about what follows."""
        self.end = end
        self.broken_reason = ""
        self.lacks_room = False
        """The disk refused the next segment, and nobody has got one since."""
        # Before anything is cut, and after: who says how far the log is durable must know first.
        self.on_truncating: Callable[[], None] | None = None
        self.on_truncate: Callable[[int], None] | None = None
        self._first_offset = 0
        self._pieces_start = 0
        self._last: Segment | None = None
        self._next: Segment | None = None
        self._preparing_start = -1
        self._retired: list[Segment] = []
        # What the last turn wrote, and where: replication sends it without reading it back.
        self._written = b""
        self._written_start = -1
        self._unreadable: set[int] = set()  # Segments of which the log has said so.

    # Loading

    @property
    def directories(self) -> list[str]:
        """Where segments may be."""
        return [*self._directories, *self._read_only_directories]

    def load(self) -> None:
        """Open the files that are there. Positions come from `set_end` after recovery.

        Raises StoreLayoutError when the rest of a store is there and the log is not.
        """
        check_log_is_there(self._disk, posixpath.dirname(self._aside_directory), self.directories)
        for directory in self._directories:
            self._disk.make_directories(directory)
            self._disk.fsync_directory(posixpath.dirname(directory))
        self.segments.load(key="mappedFileSizeCommitLog", read_only=self._read_only_directories)
        if self._disk.exists(self._cutting_path):
            self._finish_cut()

    def set_end(self, offset: int) -> None:
        """The log ends here: what recovery found. Unused segments behind it become spare."""
        segments = self.segments.segments
        while segments and segments[-1].start >= offset and len(segments) > 1:
            self._drop_spare(segments.pop())
        self._last = segments[-1] if segments else None
        self.end.segment_end = self._last.end if self._last else 0
        self.end.tail = self._pieces_start = offset
        self._written_start = -1
        self.appended.reset(offset, "the log was truncated")
        self.flushed.reset(offset, "the log was truncated")
        assert self._last is None or self._last.start <= offset <= self._last.end

    def _drop_spare(self, segment: Segment) -> None:
        """Remove a segment and its name for good.

        One at a time: of two removals that are not safe yet a power cut may undo either, and a
        hole in the row is a log that does not load.
        """
        segment.file.close()
        self._disk.unlink(segment.path)
        self._disk.fsync_directory(posixpath.dirname(segment.path))

    def find_first_record(self) -> None:
        """A slave's log may begin in the middle of its first segment, where `start_at` said.

        Zeros alone do not tell: after a power cut a master's first sectors may be missing while
        later ones are there, and those records are not the beginning of anything.
        """
        segment = self.segments.segments[0]
        self._first_offset = segment.start
        if segment.file.pread(BLANK_SIZE_MIN, 0) != bytes(BLANK_SIZE_MIN):
            return
        if self._disk.exists(self._start_path):
            start = number_or_none(self._disk.read_bytes(self._start_path))
            if start is not None and segment.start <= start < segment.end:
                self._first_offset = start

    @property
    def min_offset(self) -> int:
        """First byte of the first segment; the end when there is none."""
        segments = self.segments.segments
        return max(segments[0].start, self._first_offset) if segments else self.appended.value

    @property
    def max_offset(self) -> int:
        return self.appended.value

    @property
    def tail(self) -> int:
        """Where the next record goes, behind what waits to be written."""
        return self.end.tail

    @property
    def segment_end(self) -> int:
        """Of the segment that is being filled; 0 when there is none."""
        return self.end.segment_end

    @property
    def pieces(self) -> list[bytes]:
        """What waits to be written, in order."""
        return self.end.pieces

    @property
    def is_empty(self) -> bool:
        return not self.segments.segments

    # Appending

    def make_room(self, size: int) -> None:
        """Close the segment with a blank record and take the next one, so that `size` bytes fit.

        Raises OSError when there is no space for a new segment: nothing has changed then. Raises
        StoreError when the pending bytes could not be written: `discard_pending` must follow.
        """
        assert size + BLANK_SIZE_MIN <= self.segment_size
        if self._last is None:
            segment = self._take_segment(self.tail - self.tail % self.segment_size)
            self.segments.append(segment)
            self._use(segment)
            if self.tail + size + BLANK_SIZE_MIN <= segment.end:
                return
        last = self._last
        assert last is not None
        segment = self._take_segment(last.end)
        rest = last.end - self.tail
        if rest:
            self.end.pieces.append(blank_record(rest))
        try:
            self._write_pieces()
        except OSError as error:
            self._next = segment
            raise StoreError(f"write to {last.path} failed: {error}") from error
        self.segments.append(segment)
        self.end.tail = self._pieces_start = segment.start
        self._use(segment)

    def _use(self, segment: Segment) -> None:
        self._last = segment
        self.end.segment_end = segment.end

    def _take_segment(self, start: int) -> Segment:
        """The prepared segment, or a new one made now."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared.start == start:
            return prepared
        assert prepared is None
        try:
            segment = self.segments.create(start)
        except OSError:
            self.lacks_room = True
            path = self.segments.path_of(start)
            if self._disk.exists(path):
                self._disk.unlink(path)
            raise
        self.lacks_room = False
        return segment

    def _write_pieces(self) -> None:
        pieces = self.end.pieces
        if not pieces:
            return
        last = self._last
        assert last is not None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        last.file.pwritev((data,), self._pieces_start - last.start)
        self._written, self._written_start = data, self._pieces_start
        self._pieces_start += len(data)
        pieces.clear()

    def write_pending(self) -> int:
        """Write what is pending and return the new end; `appended` is the caller's to advance.

        Raises OSError; call `discard_pending` then.
        """
        self._write_pieces()
        assert self._pieces_start == self.tail
        self.check()
        return self.tail

    def check(self) -> None:
        """The invariants, as far as they are cheap: asked once a turn, and after every cut."""
        tail, last = self.end.tail, self._last
        assert self.flushed.value <= self.appended.value, (self.flushed.value, self.appended.value)
        assert self.appended.value <= tail, (self.appended.value, tail)
        assert last is None or last.start <= tail <= last.end, (last.start, tail, last.end)
        assert self.end.segment_end == (last.end if last is not None else 0)

    def discard_pending(self, reason: str) -> None:
        """A write failed: nothing of this turn is in the log. Its bytes are made zero again.

        When even that fails the store is broken: stale bytes behind the end might come back as
        records after the next crash.
        """
        end = self.appended.value
        self.end.pieces.clear()
        self._written_start = -1
        try:
            while (last := self._last) is not None and last.start > end:
                zero_data(last.file, 0, last.size)
                self.segments.segments.pop()
                if self._next is not None:
                    self._drop_spare(self._next)
                self._next = last
                self._last = self.segments.segments[-1] if self.segments.segments else None
            if last is not None:
                zero_data(last.file, end - last.start, last.size)
        except OSError as error:
            self.break_down(f"{reason}; writing zeros over them failed too: {error}")
        self.end.segment_end = self._last.end if self._last else 0
        self.end.tail = self._pieces_start = end
        self.check()

    def break_down(self, reason: str) -> None:
        """Nothing more is written by this process."""
        if not self.broken_reason:
            self.broken_reason = reason
            _LOG.error("store broken reason=%s", reason)
        self.flushed.fail_above(self.flushed.value, reason)
        self.appended.fail_above(self.appended.value, reason)

    def append_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Append bytes of the master's log as they are (slave). Never across a segment.

        Raises StoreError when `offset` is not the end, or the bytes do not fit the segment.
        """
        self.write_raw(offset, data)
        if data:
            self.announce_raw()

    def announce_raw(self) -> None:
        """Tell those who follow the log of what `write_raw` wrote."""
        self.appended.tell_first()
        self.appended.release()

    def write_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """As `append_raw`, without telling: a slave acknowledges first, `announce_raw` follows."""
        if self.broken_reason:
            raise StoreBrokenError(self.broken_reason)
        if offset != self.tail:
            raise OffsetOutOfRangeError(f"bytes for offset {offset}, the log ends at {self.tail}")
        if not data and self._last is not None:
            return
        last = self._last
        if last is None or offset == last.end:
            segment = self._take_segment(offset - offset % self.segment_size)
            self.segments.append(segment)
            self._use(segment)
            last = segment
        if offset + len(data) > last.end:
            raise StoreError(
                f"{len(data)} bytes at {offset} cross the end of {last.path}: "
                "the master's mappedFileSizeCommitLog differs from ours"
            )
        if not data:
            return
        try:
            last.file.pwritev((data,), offset - last.start)
        except OSError as error:
            self.discard_pending(f"write to {last.path} failed: {error}")
            raise
        end = offset + len(data)
        self.end.tail = self._pieces_start = end
        self.appended.move(end)

    def start_at(self, offset: int) -> None:
        """An empty log begins at `offset` (slave whose master no longer has the older files).

        A file without a byte, left by a crash right after it was made, does not count.
        """
        if self.tail > self.min_offset:
            raise StoreError(f"the log is not empty, it ends at {self.tail}")
        self.cut_count += 1
        if self._next is not None:
            self._drop_spare(self._next)
            self._next = None
        while self.segments.segments:
            self._drop_spare(self.segments.segments.pop())
        self._last = None
        self.end.segment_end = 0
        write_atomically(self._disk, self._start_path, str(offset).encode())
        self.end.tail = self._pieces_start = self._first_offset = offset
        self.appended.reset(offset, "the log starts elsewhere")
        self.flushed.reset(offset, "the log starts elsewhere")
        self.append_raw(offset, b"")
        if self.on_truncate is not None:
            self.on_truncate(offset)

    # Preparing the next segment

    @property
    def needs_next(self) -> bool:
        """Whether the next segment should be prepared now."""
        last = self._last
        return (
            last is not None
            and self._next is None
            and self._preparing_start != last.end
            and self.tail - last.start >= self.segment_size // _PREPARE_FRACTION
        )

    async def prepare_next(self) -> None:
        """Make the next segment in a thread. A full disk is not an error yet: a put will say so."""
        assert self._last is not None
        start = self._last.end
        self._preparing_start = start
        path = self.segments.path_of(start)
        try:
            segment = await self._disk.run(self.segments.create, start)
        except OSError as error:
            _LOG.warning("next segment not prepared path=%s error=%s", path, error)
            if self.segments.find(start) is None and self._disk.exists(path):
                self._disk.unlink(path)
            await self._clock.sleep_ms(1000)  # A full disk does not get free in a hurry.
            return
        finally:
            self._preparing_start = -1
        self.lacks_room = False
        is_wanted = self._last is not None and self._last.end == start and self._next is None
        if is_wanted:
            self._next = segment
        elif self.segments.find(start) is not None:
            segment.file.close()  # The loop could not wait and opened the same file itself.
        else:
            self._drop_spare(segment)

    # Reading

    def read(self, offset: int, size_max: int) -> bytes:
        """Bytes from `offset` on, at most `size_max`, never across a segment or the end."""
        if offset == self._written_start:
            data = self._written
            if len(data) <= size_max and offset + len(data) == self.appended.value:
                return data
        segment, size = self._readable(offset, size_max)
        return segment.file.pread(size, offset - segment.start) if size > 0 else b""

    def read_to_check(self, offset: int, size_max: int) -> bytes:
        """`read` for who checks what he gets: zeros where the disk cannot read, or the file is
        shorter than it was. Never for replication, which would pass them on."""
        segment, size = self._readable(offset, size_max)
        try:
            data = self.read(offset, size)
        except OSError as error:
            self._tell_unreadable(segment, error)
            data = read_pages(segment.file, size, offset - segment.start)
        return data.ljust(size, b"\0")

    def _tell_unreadable(self, segment: Segment, error: OSError) -> None:
        """Once for a segment."""
        if segment.start not in self._unreadable:
            self._unreadable.add(segment.start)
            _LOG.error("the disk cannot read all of path=%s error=%s", segment.path, error)

    def map_at(self, offset: int) -> tuple[FileBytes, int] | None:
        """The segment that holds `offset` and its first offset; None when it cannot be mapped.

        To be dropped before the turn ends: a segment may be removed. What lies behind the end of
        the log in it means nothing.
        """
        segment, _ = self._readable(offset, 0)
        data = segment.file.map()
        return None if data is None else (data, segment.start)

    def _readable(self, offset: int, size_max: int) -> tuple[Segment, int]:
        segment = self.segments.find(offset)
        end = self.appended.value
        if segment is None or offset > end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the log [{self.min_offset}, {end})"
            )
        return segment, min(size_max, segment.end - offset, end - offset)

    # Syncing

    def unsynced(self, target: int) -> list[Segment]:
        """The segments that hold [flushed, target), oldest first."""
        start = self.flushed.value
        return [s for s in self.segments.segments if s.end > start and s.start < target]

    def sync_directories(self) -> None:
        """Make the names of all segments durable."""
        for directory in self._directories:
            self._disk.fsync_directory(directory)

    # Cutting

    def remove_first(self) -> Segment:
        """Retention: the oldest segment goes, never the last. Readers may hold it a while.

        The caller syncs its directory before anything else is removed: a segment that comes
        back after a power cut must find its queues and its index, and its neighbour.
        """
        segments = self.segments.segments
        assert len(segments) > 1, "the last segment is never removed"
        segment = segments[0]
        self._disk.unlink(segment.path)
        segments.pop(0)
        self._retired.append(segment)
        self._clock.call_later_ms(_RETIRE_DELAY_MS, self._close_retired, segment)
        return segment

    def _close_retired(self, segment: Segment) -> None:
        if segment in self._retired:
            self._retired.remove(segment)
            segment.file.close()

    def truncate_to(self, offset: int, *, reason: str) -> None:
        """Cut everything from `offset` on. The bytes are moved aside, never destroyed."""
        if not self.min_offset <= offset <= self.appended.value:
            raise OffsetOutOfRangeError(
                f"cannot truncate to {offset}, the log is [{self.min_offset}, {self.max_offset})"
            )
        self.discard_pending(reason)
        if self.on_truncating is not None:
            self.on_truncating()
        flushed = self.flushed.value
        self.cut(offset, reason)
        # What is kept is as durable as it was, not more: a slave acknowledges by it.
        self.flushed.reset(min(flushed, offset), "the log was truncated")
        self.check()
        if self.on_truncate is not None:
            self.on_truncate(offset)

    def cut(self, offset: int, reason: str) -> int:
        """Move aside what is on disk at and after `offset`; the number of bytes that were there.

        Order: everything that needs room on the disk, which are the copies and the note about the
        zeros; then the rest of the segment made zero; then later segments from the last to the
        first (a crash in between leaves no hole). So a full disk leaves the log as it was, and
        doing it again is safe.
        """
        if self._next is not None:
            self._drop_spare(self._next)
            self._next = None
        segments = self.segments.segments
        aside = posixpath.join(
            self._aside_directory, f"cut-{segment_name(offset)}-{self._clock.now_ms()}"
        )
        count = 0
        ranges: Sequence[tuple[int, int]] = ()
        for segment in reversed([segment for segment in segments if segment.end > offset]):
            ranges = data_ranges(segment.file, max(0, offset - segment.start), segment.size)
            if ranges:
                count += self._copy_aside(segment, ranges, aside)
        # What is left of the first of them, unless all of it goes.
        kept = next((s for s in segments if s.end > offset), None)
        if kept is not None and kept.start >= offset and kept is not segments[0]:
            kept = None
        if kept is not None and ranges:
            self._make_zero(kept, ranges[0][0], offset)
        else:
            self._drop_behind(offset)
        self.cut_count += 1
        self.set_end(offset)
        if count:
            _LOG.warning(
                "log cut offset=%d bytes=%d aside=%s reason=%s", offset, count, aside, reason
            )
        return count

    def _make_zero(self, segment: Segment, start: int, offset: int) -> None:
        """The rest of the segment; until all of it is, a note says that none of it counts.

        Of zeros that are not synced a power cut keeps some: records that follow a hole look like
        damage, and a broker does not start on that.
        """
        write_atomically(self._disk, self._cutting_path, str(offset).encode())
        zero_data(segment.file, start, segment.size)
        segment.file.fdatasync()
        self._drop_behind(offset)
        self._disk.unlink(self._cutting_path)
        self._disk.fsync_directory(self._aside_directory)

    def _drop_behind(self, offset: int) -> None:
        """Remove the segments that begin at `offset` or behind it; the first of all stays."""
        segments = self.segments.segments
        while len(segments) > 1 and segments[-1].start >= offset:
            self._drop_spare(segments.pop())

    def _finish_cut(self) -> None:
        """A cut was cut off. What it was to remove is aside already: what is left of it goes."""
        offset = number_or_none(self._disk.read_bytes(self._cutting_path))
        offset = -1 if offset is None else offset
        segment = self.segments.find(offset)
        if segment is not None:
            _LOG.warning("log cut, begun before the last crash offset=%d", offset)
            zero_data(segment.file, offset - segment.start, segment.size)
            segment.file.fdatasync()
            self._drop_behind(offset)
        self._disk.unlink(self._cutting_path)
        self._disk.fsync_directory(self._aside_directory)

    def _copy_aside(self, segment: Segment, ranges: Sequence[tuple[int, int]], aside: str) -> int:
        """Copy from the first to the last byte that is not zero; name = its physical offset."""
        start, end = ranges[0][0], ranges[-1][1]
        self._disk.make_directories(aside)
        target = self._disk.open(
            posixpath.join(aside, segment_name(segment.start + start)), create=True
        )
        try:
            for position in range(start, end, _COPY_SIZE):
                data = segment.file.pread(min(_COPY_SIZE, end - position), position)
                target.pwritev((data,), position - start)
            target.fdatasync()
        finally:
            target.close()
        self._disk.fsync_directory(aside)
        self._disk.fsync_directory(self._aside_directory)
        return end - start

    def close(self, *, remove_spare: bool) -> None:
        """Close every file; a clean stop removes the prepared segment, as Apache does."""
        spare, self._next = self._next, None
        if spare is not None:
            if remove_spare:
                self._drop_spare(spare)
            else:
                spare.file.close()
        for segment in tuple(self._retired):
            self._close_retired(segment)
        self.segments.close()
        self._last = None

    def disk_full_reason(self, error: OSError) -> str:
        """A sentence for a producer whose message found no room."""
        directory = self._directories[0]
        if error.errno != errno.ENOSPC:
            return f"no new segment in {directory}: {error}"
        space = self._disk.space(directory)
        return (
            f"disk full: no new segment of {self.segment_size} bytes in {directory}, "
            f"used {space.used} bytes ({space.ratio:.0%}), free {space.usable} bytes"
        )
