"""Which records belong to one queue of a topic. Corresponds to RocketMQ's ConsumeQueue.

| position | type | field |
|---|---|---|
| 0 | i64 | physical offset of the record |
| 8 | i32 | size of the record |
| 12 | i64 | tags code: hash of the tags, or the deliver time in the schedule topic |

Entry k is at logic offset 20k, in sparse files of a fixed size. A queue whose first known record
has a higher number begins with pre-blank entries (0, 2147483647, 0) from the start of that file.

Entries are kept in `tail` and written a little later, many at a time: the log is the truth, and
recovery makes what was not written. Readers are served from both. Invariant: written_end +
len(tail) == 20 * next_offset; max_offset <= next_offset; entries behind written_end are zero on
disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twinlog.message.layout import ENTRY, ENTRY_SIZE, PRE_BLANK_SIZE
from twinlog.message.names import SCHEDULE_TOPIC
from twinlog.runtime.disk import Disk
from twinlog.store.log.file_pool import FilePool
from twinlog.store.log.segment import read_to_check, segment_name, zero_data

PRE_BLANK: Final = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
_BLANKS_AT_ONCE: Final = 4096  # Read together by who looks past entries that are blank.


class ConsumeQueue:
    """Entries of one (topic, queue id): in files up to `written_end`, then in `tail`."""

    __slots__ = (
        "_min_log_offset",
        "_min_offset",
        "directory",
        "dirty_offset",
        "dirty_since_ms",
        "file_size",
        "first_start",
        "is_schedule",
        "key",
        "last_physical_end",
        "max_offset",
        "next_offset",
        "queue_id",
        "tail",
        "topic",
        "turn",
        "turn_offset",
        "unsynced",
        "written_end",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, file_size: int) -> None:
        assert file_size % ENTRY_SIZE == 0
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.directory = directory
        self.file_size = file_size
        self.is_schedule = topic == SCHEDULE_TOPIC
        self.first_start = -1  # Logic offset of the first file; -1: there is no file.
        self.written_end = 0
        self.tail = bytearray()
        self.next_offset = 0  # Of the next record that is put.
        self.max_offset = 0  # What consumers may see, exclusive.
        self.last_physical_end = -1  # RocketMQ's maxPhysicOffset.
        self.turn = -1  # The turn of the loop that last put here,
        self.turn_offset = 0  # and next_offset before it: where a failed write goes back to.
        self.dirty_since_ms = -1  # Monotonic time of the oldest entry that is not written.
        self.dirty_offset = 0  # Physical offset of its record.
        self.unsynced: set[int] = set()  # Starts of the files written since the last sync.
        self._min_offset = 0
        self._min_log_offset = -1

    # Appending

    def add(self, physical_offset: int, size: int, tags_code: int) -> None:
        """One entry at the end. The appender does the same inline."""
        self.tail += ENTRY.pack(physical_offset, size, tags_code)
        self.next_offset += 1
        self.last_physical_end = physical_offset + size

    def add_many(self, entries: bytes, physical_end: int) -> None:
        """Entries of records that lie one behind the other and end at `physical_end`."""
        self.tail += entries
        self.next_offset += len(entries) // ENTRY_SIZE
        self.last_physical_end = physical_end

    def begin_at(self, queue_offset: int, *, is_alone: bool = False) -> None:
        """The first known record has this number: pre-blank entries come before it. `is_alone`:
        there is no record yet, so at least one of them must say where the queue is."""
        assert self.first_start < 0
        assert self.next_offset == 0
        assert not self.tail
        start = queue_offset * ENTRY_SIZE
        self.written_end = start - start % self.file_size
        if is_alone and self.written_end == start:
            self.written_end -= self.file_size
        self.tail = bytearray(PRE_BLANK * ((start - self.written_end) // ENTRY_SIZE))
        self.next_offset = queue_offset
        self.max_offset = queue_offset
        self._min_offset = queue_offset

    def fill_gap(self, queue_offset: int) -> None:
        """Entries are missing before this number: pre-blank, so that numbers stay positions."""
        assert self.next_offset < queue_offset
        self.tail += PRE_BLANK * (queue_offset - self.next_offset)
        self.next_offset = queue_offset

    def path_of(self, start: int) -> str:
        return f"{self.directory}/{segment_name(start)}"

    def write(self, disk: Disk, pool: FilePool) -> int:
        """Write the tail; the number of bytes. Raises OSError with the tail kept as it was."""
        tail = self.tail
        position = 0
        while position < len(tail):
            at = self.written_end + position
            start = at - at % self.file_size
            size = min(len(tail) - position, start + self.file_size - at)
            file = pool.get(self.path_of(start)) if self._has_file(start) else None
            if file is None:
                if self.first_start < 0:
                    disk.make_directories(self.directory)
                file = pool.create(self.path_of(start), self.file_size)
            file.pwritev((memoryview(tail)[position : position + size],), at - start)
            if self.first_start < 0:
                self.first_start = start
            self.unsynced.add(start)
            position += size
        self.written_end += position
        self.tail = bytearray()
        self.dirty_since_ms = -1
        self.check()
        return position

    def check(self) -> None:
        """The invariants of places: asked whenever entries are written or cut."""
        places = self.written_end + len(self.tail)
        assert places == ENTRY_SIZE * self.next_offset, (self.key, places, self.next_offset)
        assert self.max_offset <= self.next_offset, (self.key, self.max_offset, self.next_offset)
        assert self.first_start <= self.written_end, (self.key, self.first_start, self.written_end)

    def _has_file(self, start: int) -> bool:
        if self.first_start < 0:
            return False
        # The last file exists as soon as one entry of it was written.
        return start < self.written_end or start in self.unsynced

    # Reading

    def read(self, pool: FilePool, queue_offset: int, count: int, *, is_seen: bool = True) -> bytes:
        """Up to `count` entries from `queue_offset` on, only those that consumers see unless told
        otherwise; never across a file."""
        at = queue_offset * ENTRY_SIZE
        last = self.max_offset if is_seen else self.next_offset
        end = min((queue_offset + count), last) * ENTRY_SIZE
        if at >= end:
            return b""
        if at >= self.written_end:
            position = at - self.written_end
            return bytes(self.tail[position : position + end - at])
        start = at - at % self.file_size
        if start < self.first_start:
            return b""
        end = min(end, start + self.file_size)
        file = pool.get(self.path_of(start))
        data = read_to_check(file, min(end, self.written_end) - at, at - start)
        if end > self.written_end:
            data += self.tail[: end - self.written_end]
        return data

    def entry(self, pool: FilePool, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code) of one entry, visible or not."""
        at = queue_offset * ENTRY_SIZE
        if at < max(self.first_start, 0) or queue_offset >= self.next_offset:
            return None
        if at >= self.written_end:
            values: tuple[int, int, int] = ENTRY.unpack_from(self.tail, at - self.written_end)
            return values
        start = at - at % self.file_size
        return ENTRY.unpack(read_to_check(pool.get(self.path_of(start)), ENTRY_SIZE, at - start))

    @property
    def first_offset(self) -> int:
        """Number of the first entry that has a place, pre-blank or not."""
        if self.first_start < 0:
            return self.written_end // ENTRY_SIZE
        return self.first_start // ENTRY_SIZE

    def min_offset(self, pool: FilePool, log_min_offset: int) -> int:
        """Number of the first entry whose record is still in the log."""
        if log_min_offset != self._min_log_offset:
            found = self._first_at_or_after(pool, log_min_offset)
            self._min_offset = found
            if self.next_offset:
                self._min_log_offset = log_min_offset
        return self._min_offset

    def forget_minimum(self) -> None:
        """An entry was mended: the first one may be another."""
        self._min_log_offset = -1

    def _first_at_or_after(self, pool: FilePool, physical_offset: int) -> int:
        """Binary search: pre-blank entries count as gone, physical offsets only grow.

        One damaged entry may lead it astray, to the place right next to itself: then the entries
        beyond say so, and the search goes on there.
        """
        low, high = self._next_written(pool, self.first_offset), self.next_offset
        found = self._search(pool, physical_offset, low, high)
        if found - 2 >= low and not self._is_before(pool, found - 2, physical_offset):
            found = self._search(pool, physical_offset, low, found - 2)
        elif found + 1 < high and self._is_before(pool, found + 1, physical_offset):
            found = self._search(pool, physical_offset, found + 2, high)
        return self._next_written(pool, found)

    def _is_before(self, pool: FilePool, number: int, physical_offset: int) -> bool:
        entry = self.entry_from(pool, number)
        return entry is not None and entry[0] < physical_offset

    def entry_from(self, pool: FilePool, number: int) -> tuple[int, int, int] | None:
        """The first that is not blank at or behind a number: offsets grow over those that are
        blank because their records were lost. None behind the last one."""
        return self.entry(pool, self._next_written(pool, number))

    def _next_written(self, pool: FilePool, number: int) -> int:
        """The first number at or behind this one whose entry is not blank, or the next one that
        is put. A log that begins inside a queue, and lost records, leave many blank."""
        entry = self.entry(pool, number)
        while entry is not None and entry[1] == PRE_BLANK_SIZE:
            data = self.read(pool, number, _BLANKS_AT_ONCE, is_seen=False)
            written = _written_in(data)
            if written:
                return number + written[0]
            number += len(data) // ENTRY_SIZE
            entry = self.entry(pool, number)
        return min(number, self.next_offset)

    def _last_written(self, pool: FilePool) -> int:
        """The last number whose entry is not blank; -1 without one."""
        end = self.next_offset
        while end > self.first_offset:
            per_file = self.file_size // ENTRY_SIZE
            start = max(self.first_offset, end - _BLANKS_AT_ONCE, (end - 1) // per_file * per_file)
            written = _written_in(self.read(pool, start, end - start, is_seen=False))
            if written:
                return start + written[-1]
            end = start
        return -1

    def find_last_end(self, pool: FilePool) -> int:
        """Where the record of the last entry that is not blank ends; -1 without one."""
        last = self.entry(pool, self.next_offset - 1) if self.next_offset else None
        if last is not None and last[1] == PRE_BLANK_SIZE:
            number = self._last_written(pool)
            last = self.entry(pool, number) if number >= 0 else None
        return -1 if last is None else last[0] + last[1]

    def _search(self, pool: FilePool, physical_offset: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if self._is_before(pool, middle, physical_offset):
                low = middle + 1
            else:
                high = middle
        return low

    # Cutting

    def truncate(self, disk: Disk, pool: FilePool, physical_offset: int) -> None:
        """Drop the entries of records at or behind `physical_offset`, and all behind a zero one.

        After a power cut what was not synced may be zero in any place: a zero entry is never
        one of a record before `physical_offset`.
        """
        is_kept = lambda entry: entry[0] < physical_offset and entry[1] > 0  # noqa: E731
        self.truncate_entries(disk, pool, self._end_of(pool, is_kept))

    def entries_up_to(self, pool: FilePool, physical_end: int) -> int:
        """Number behind the last entry whose record ends at or before `physical_end`."""
        return self._end_of(pool, lambda entry: entry[0] + entry[1] <= physical_end)

    def _end_of(self, pool: FilePool, is_kept: Callable[[tuple[int, int, int]], bool]) -> int:
        """Number behind the last entry that is kept, as those before it are. Blank ones behind the
        last of all go with it: their numbers were given, and their records lost."""
        low, end = self._next_written(pool, self.first_offset), self._last_written(pool) + 1
        high = end
        while low < high:
            middle = (low + high) // 2
            entry = self.entry_from(pool, middle)
            if entry is None or is_kept(entry):
                low = middle + 1
            else:
                high = middle
        return low if low < end else self.next_offset

    def truncate_entries(self, disk: Disk, pool: FilePool, next_offset: int) -> None:
        """Keep the entries below `next_offset`; a queue with nothing left starts again at 0."""
        assert next_offset <= self.next_offset
        at = next_offset * ENTRY_SIZE
        if at >= self.written_end:
            del self.tail[at - self.written_end :]
        else:
            self._truncate_files(disk, pool, at)
            self.tail = bytearray()
            self.written_end = at
        self.next_offset = next_offset
        self.max_offset = min(self.max_offset, next_offset)
        if next_offset <= self.first_offset:
            self._restart(disk, pool)
        self.last_physical_end = self.find_last_end(pool)
        if not self.tail:
            self.dirty_since_ms = -1
        self._min_log_offset = -1
        self.check()

    def _truncate_files(self, disk: Disk, pool: FilePool, at: int) -> None:
        """Remove files behind `at` from the last on, make zero what is left behind it."""
        last_start = (self.written_end - 1) // self.file_size * self.file_size
        for start in range(last_start, self.first_start - 1, -self.file_size):
            if start >= at and start > self.first_start:
                self._remove_file(disk, pool, start)
                continue
            if start < at or start == self.first_start:
                file = pool.get(self.path_of(start))
                if zero_data(file, max(0, at - start), self.file_size):
                    self.unsynced.add(start)
            if start < at:
                break

    def clear_behind(self, disk: Disk, pool: FilePool) -> None:
        """After a crash: a power cut may leave entries behind one that it took. Those that are
        written next would join them to the queue."""
        start = self.written_end - self.written_end % self.file_size
        if self.first_start >= 0 and disk.exists(self.path_of(start)):
            file = pool.get(self.path_of(start))
            if zero_data(file, self.written_end - start, self.file_size):
                self.unsynced.add(start)

    def _restart(self, disk: Disk, pool: FilePool) -> None:
        if self.first_start >= 0:
            self._remove_file(disk, pool, self.first_start)
        self.first_start = -1
        self.written_end = self.next_offset = self.max_offset = 0
        self.tail = bytearray()

    def _remove_file(self, disk: Disk, pool: FilePool, start: int) -> None:
        path = self.path_of(start)
        pool.forget(path)
        if disk.exists(path):
            disk.unlink(path)
        self.unsynced.discard(start)

    def remove_expired_files(self, disk: Disk, pool: FilePool, log_min_offset: int) -> int:
        """Delete leading files, never the last, whose newest record is gone from the log.

        Its last entry says so first, which is cheap, and may be damaged or blank; the search among
        the others decides.
        """
        count = 0
        while self.first_start >= 0 and self.first_start + self.file_size < self.written_end:
            last_number = (self.first_start + self.file_size) // ENTRY_SIZE - 1
            entry = self.entry(pool, last_number)
            assert entry is not None
            end = self.first_start + self.file_size
            if (
                entry[0] >= log_min_offset
                or self.min_offset(pool, log_min_offset) < end // ENTRY_SIZE
            ):
                break
            self._remove_file(disk, pool, self.first_start)
            self.first_start += self.file_size
            count += 1
        return count

    def destroy(self, disk: Disk, pool: FilePool) -> None:
        """Remove every file and the directory."""
        if self.first_start >= 0:
            for start in range(self.first_start, self.written_end, self.file_size):
                self._remove_file(disk, pool, start)
        if disk.exists(self.directory) and not disk.list(self.directory):
            disk.remove_directory(self.directory)
        self.first_start = -1
        self.tail = bytearray()
        self.unsynced.clear()


def _written_in(data: bytes) -> list[int]:
    """Which of these entries are not blank, counted from the first."""
    if data == PRE_BLANK * (len(data) // ENTRY_SIZE):
        return []
    sizes = enumerate(ENTRY.iter_unpack(data))
    return [number for number, (_, size, _) in sizes if size != PRE_BLANK_SIZE]
