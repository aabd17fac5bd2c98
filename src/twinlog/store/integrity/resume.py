"""Where a walk over the log goes on behind damage."""

from __future__ import annotations

from twinlog.runtime.disk import Disk
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.integrity.record_check import structure_fault
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.log.segment import Segment
from twinlog.store.recovery.resync import find_record


async def behind_damage(log: CommitLog, disk: Disk, at: int, limit: int) -> int:
    """The next record or the next segment, when no sound record begins at `at`."""
    segment = _segment(log, at)
    head = log.read_to_check(at, 4)
    size = int.from_bytes(head, "big", signed=True)
    if 0 < size <= segment.end - at:
        data = log.read_to_check(at, size)
        if not structure_fault(data, 0, size, at):
            return at + size  # Only its body is damaged.
    return await next_record(log, disk, at + 1, limit)


async def next_record(log: CommitLog, disk: Disk, at: int, limit: int) -> int:
    """Where the first sound record of its segment begins that is not before `at`; without one the
    end of the segment or the limit, whichever comes first."""
    segment = _segment(log, at)
    end = min(limit, segment.end)
    position = at - segment.start
    read = lambda size, at: log.read_to_check(segment.start + at, size)  # noqa: E731
    found = await disk.run(find_record, segment, position, end - segment.start, read)
    return end if found is None else segment.start + found


def _segment(log: CommitLog, at: int) -> Segment:
    segment = log.segments.find(at)
    if segment is None:
        raise OffsetOutOfRangeError(f"offset {at} has expired")
    return segment
