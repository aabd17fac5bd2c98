"""The files of a store, as somebody sees them who has not opened it: for verification and backups.

Nothing is written and no lock is taken: a broker may serve from the same files.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twinlog.message.layout import BLANK_SIZE_MIN, ENTRY, ENTRY_SIZE
from twinlog.message.record import ScanStop
from twinlog.runtime.disk import Disk, DiskFile
from twinlog.runtime.file_copy import read_part
from twinlog.runtime.numbers import is_number, number_or_none
from twinlog.store.errors import StoreLayoutError
from twinlog.store.integrity.walk import Walked, walk
from twinlog.store.log.segment import Segment, parse_segment_name, segment_name
from twinlog.store.recovery.resync import find_record

STEP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The segments of a log, oldest first, and the size that they have but for a short last one."""

    directory: str
    size: int
    starts: tuple[int, ...]

    def path(self, start: int) -> str:
        return posixpath.join(self.directory, segment_name(start))


class NoLogError(StoreLayoutError):
    """There is no file of a log at all."""


def find_log(disk: Disk, directory: str) -> LogFiles:
    """Raises NoLogError when there is no log, StoreLayoutError when its files are not those of one
    log."""
    sizes: dict[int, int] = {}
    if disk.exists(directory) and not disk.is_directory(directory):
        raise NoLogError(f"{directory} is a file, not the directory of a commit log")
    for name in disk.list(directory):
        start = parse_segment_name(name)
        path = posixpath.join(directory, name)
        if start is not None and not disk.is_directory(path):
            sizes[start] = disk.file_size(path)
    if not sizes:
        raise NoLogError(f"no commit log in {directory}")
    starts = tuple(sorted(sizes))
    if len(starts) > 1:
        size = min(after - before for before, after in itertools.pairwise(starts))
    else:
        size = sizes[starts[0]]
    if size > (whole := max(sizes.values())):
        missing = posixpath.join(directory, segment_name(starts[0] + whole))
        raise StoreLayoutError(f"{missing} is missing, or in another directory")
    if not size:
        raise StoreLayoutError(f"{posixpath.join(directory, segment_name(starts[0]))} is empty")
    if odd := next((start for start in starts if start % size), None):
        path = posixpath.join(directory, segment_name(odd))
        raise StoreLayoutError(f"{path} is not a file of this log: its files have {size} bytes")
    return LogFiles(directory, size, starts)


def log_start_of(disk: Disk, root: str, log: LogFiles) -> int:
    """A slave's log may begin inside its first segment."""
    path = posixpath.join(root, "twinlog", "log-start")
    if disk.exists(path):
        start = number_or_none(disk.read_bytes(path))
        if start is not None and log.starts[0] <= start < log.starts[0] + log.size:
            return start
    return log.starts[0]


class Fault(Exception):
    """No sound record begins at an offset; the walk goes on at `next_offset`."""

    def __init__(self, offset: int, reason: str, next_offset: int) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason
        self.next_offset = next_offset


def walk_log(
    disk: Disk, log: LogFiles, start: int, faults: list[Fault], *, is_last_open: bool = True
) -> Iterator[tuple[int, Walked]]:
    """All records from `start` on, piece by piece, each with the offset where it began."""
    last_used = _last_used(disk, log)
    for segment_start in log.starts:
        if segment_start + log.size <= start:
            continue
        file = disk.open(log.path(segment_start), read_only=True)
        try:
            segment = Segment(log.path(segment_start), segment_start, log.size, file)
            is_last = is_last_open and segment_start >= last_used
            at = max(start, segment_start)
            yield from _walk_segment(segment, at, faults, is_last=is_last)
        finally:
            file.close()


def _last_used(disk: Disk, log: LogFiles) -> int:
    """The last segment that holds a record; one that was prepared for the next ones is zeros."""
    for start in reversed(log.starts):
        if any(read_part(disk, log.path(start), 0, BLANK_SIZE_MIN)):
            return start
    return log.starts[0]


def _walk_segment(
    segment: Segment, at: int, faults: list[Fault], *, is_last: bool
) -> Iterator[tuple[int, Walked]]:
    size = STEP
    while at < segment.end:
        data = segment.file.pread(min(size, segment.end - at), at - segment.start)
        found = walk(data, at, {})
        seen = data[found.end - at :][: max(found.size, BLANK_SIZE_MIN)]
        if found.end > at:
            yield at, found
            at, size = found.end, STEP
        if found.stop is ScanStop.BLANK:
            return
        is_cut = found.stop in (ScanStop.INCOMPLETE, ScanStop.END) and len(data) >= size
        if is_cut and size < segment.size:
            size = max(size * 2, found.size) if found.end == at else STEP
            continue
        if found.stop in (ScanStop.INCOMPLETE, ScanStop.END) and found.end > at:
            continue
        next_at = _next_record(segment, at)
        if found.stop is ScanStop.EMPTY and next_at is None and is_last:
            return
        if found.stop is ScanStop.END and at >= segment.end - 8:
            return
        if segment.file.pread(len(seen), at - segment.start) != seen:
            continue  # A broker has written there since.
        reason = found.reason or "zeros where a record must begin"
        faults.append(Fault(at, reason, segment.end if next_at is None else next_at))
        if next_at is None:
            return
        at, size = next_at, STEP


def _next_record(segment: Segment, at: int) -> int | None:
    found = find_record(segment, at + 1 - segment.start, segment.size)
    return None if found is None else segment.start + found


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """One queue: its files and how many entries they hold."""

    topic: str
    queue_id: int
    directory: str
    file_size: int
    starts: tuple[int, ...]
    end: int  # Number behind the last entry.

    def read(self, disk: Disk, number: int, count: int) -> bytes:
        """Entries from `number` on, of one file."""
        at = number * ENTRY_SIZE
        start = at - at % self.file_size if self.file_size else -1
        if start not in self.starts:
            return b""
        count = min(count, self.end - number, (start + self.file_size - at) // ENTRY_SIZE)
        file = disk.open(posixpath.join(self.directory, segment_name(start)), read_only=True)
        try:
            return file.pread(max(0, count) * ENTRY_SIZE, at - start)
        finally:
            file.close()


def find_queues(disk: Disk, root: str) -> list[QueueFiles]:
    base = posixpath.join(root, "consumequeue")
    found = []
    for topic in disk.list(base):
        path = posixpath.join(base, topic)
        for number in disk.list(path) if disk.is_directory(path) else ():
            directory = posixpath.join(path, number)
            if is_number(number) and disk.is_directory(directory):
                queue = _queue(disk, topic, int(number), directory)
                if queue is not None:
                    found.append(queue)
    return found


def _queue(disk: Disk, topic: str, queue_id: int, directory: str) -> QueueFiles | None:
    names = disk.list(directory)
    starts = tuple(start for name in names if (start := parse_segment_name(name)) is not None)
    if not starts:
        return None
    path = posixpath.join(directory, segment_name(starts[-1]))
    size = starts[1] - starts[0] if len(starts) > 1 else disk.file_size(path)
    file = disk.open(path, read_only=True)
    try:
        end = starts[-1] // ENTRY_SIZE + _entries_used(file, size)
    finally:
        file.close()
    return QueueFiles(topic, queue_id, directory, size, starts, end)


def _entries_used(file: DiskFile, size: int) -> int:
    """Entries up to the last that is not zero."""
    low, high = 0, size // ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        data = file.pread(ENTRY_SIZE, middle * ENTRY_SIZE)
        if len(data) == ENTRY_SIZE and ENTRY.unpack(data)[1] > 0:
            low = middle + 1
        else:
            high = middle
    return low
