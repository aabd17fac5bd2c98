"""One file of the hash index. Answers to RocketMQ's IndexFile and IndexHeader.

| position | type | content |
|---|---|---|
| 0 | i64 | begin timestamp (store time of the first entry) |
| 8 | i64 | end timestamp |
| 16 | i64 | begin physical offset |
| 24 | i64 | end physical offset |
| 32 | i32 | hash slot count: slots that became non-empty |
| 36 | i32 | index count: entries + 1 |
| 40 | i32 x slots | number of the newest entry of each slot, 0 = none |
| 40 + 4*slots + 20*n | 20 | entry n (from 1): i32 hash, i64 offset, i32 seconds, i32 previous |

Entries and header are written in batches; the slots stay in memory and are written when the file
is full, at each thorough flush and at a clean stop. They follow from the entries, so that a crash
costs nothing but counting them again. With numpy a batch is a handful of array operations; without
it the same result comes from a loop.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from twinlog.runtime.disk import DiskFile
from twinlog.store.segment import zero_data

numpy: Any = None
with contextlib.suppress(ImportError):
    import numpy

HEADER: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
SLOT_SIZE: Final = 4
SECONDS_MAX: Final = 0x7FFFFFFF
_PAGE_SLOTS: Final = 1024
_BATCH_MIN: Final = 16  # Below this the loop is cheaper than the array operations.
_READ_ENTRIES: Final = 65536
_ENTRY_FIELDS: Final = [("h", ">i4"), ("o", ">i8"), ("s", ">i4"), ("p", ">i4")]


def index_file_size(slots_max: int, index_max: int) -> int:
    return HEADER.size + SLOT_SIZE * slots_max + ENTRY.size * index_max


def _new_slots(count: int) -> Any:
    """Zeroed slots; numpy's are not touched until they are used."""
    if numpy is not None:
        return numpy.zeros(count, dtype=numpy.int32)
    return array.array("i", bytes(4 * count))


def touched_slots(count: int) -> Any:
    """Zeroed slots whose memory is there already: 20 MB of page faults, made in a thread."""
    slots = _new_slots(count)
    if numpy is not None:
        slots.fill(0)
    return slots


class IndexFile:
    """Header, slots (of the file that is being written) and entries."""

    def __init__(self, path: str, file: DiskFile, slots_max: int, index_max: int) -> None:
        self.path = path
        self.file = file
        self.slots_max = slots_max
        self.index_max = index_max
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.slot_count = 0
        self.index_count = 1
        self.is_unsynced = False
        self._entries_at = HEADER.size + SLOT_SIZE * slots_max
        self._slots: Any = None
        # One for each page of slots: whether it changed since it was written.
        self._dirty_pages = bytearray(slots_max // _PAGE_SLOTS + 1)

    # Loading

    def load_header(self) -> None:
        values = HEADER.unpack(self.file.pread(HEADER.size, 0))
        self.begin_timestamp, self.end_timestamp = values[0], values[1]
        self.begin_offset, self.end_offset = values[2], values[3]
        self.slot_count = values[4]
        self.index_count = max(1, values[5])

    def start(self, timestamp: int, physical_offset: int, slots: Any = None) -> None:
        """A new file: it takes over where the full one before it ended.

        `slots` are zeroed ones that somebody has to spare.
        """
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = physical_offset
        self._slots = _new_slots(self.slots_max) if slots is None else slots
        self._write_header()

    def _load_slots(self) -> Any:
        """Slots of a file that was closed cleanly."""
        if self._slots is None:
            self._slots = self.read_slots()
        return self._slots

    def read_slots(self) -> Any:
        """The slots on disk; changes nothing, so that a thread may do it."""
        data = self.file.pread(SLOT_SIZE * self.slots_max, HEADER.size)
        if numpy is not None:
            return numpy.frombuffer(data, dtype=">i4").astype(numpy.int32)
        slots = _new_slots(0)
        slots.frombytes(data)
        slots.byteswap()
        return slots

    def offer_slots(self, slots: Any) -> None:
        """What `read_slots` gave. Nothing is written to the file before they are loaded, so they
        are still right when nobody else has loaded them meanwhile."""
        if self._slots is None:
            self._slots = slots

    @property
    def is_full(self) -> bool:
        return self.index_count >= self.index_max

    @property
    def entry_count(self) -> int:
        return self.index_count - 1

    # Appending

    def put_many(
        self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]
    ) -> int:
        """Append keys until the file is full; the number that fitted. One write of entries."""
        count = min(len(hashes), self.index_max - self.index_count)
        if count <= 0:
            return 0
        self._load_slots()
        first = self.index_count
        done = 0
        parts: list[bytes] = []
        if first <= 1 or numpy is None or count < _BATCH_MIN:
            done = count if numpy is None or count < _BATCH_MIN else 1
            parts += [
                self._put_one(int(hashes[i]), int(offsets[i]), int(timestamps[i]))
                for i in range(done)
            ]
        if done < count:
            parts.append(
                self._put_array(hashes[done:count], offsets[done:count], timestamps[done:count])
            )
        self.file.pwritev((b"".join(parts),), self._entries_at + ENTRY.size * first)
        self._write_header()
        return count

    def _put_one(self, key_hash: int, offset: int, timestamp: int) -> bytes:
        slots = self._slots
        slot = key_hash % self.slots_max
        number = self.index_count
        previous = int(slots[slot])
        if previous <= 0 or previous > number:
            previous = 0
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max(0, (timestamp - self.begin_timestamp) // 1000), SECONDS_MAX)
        slots[slot] = number
        self._dirty_pages[slot // _PAGE_SLOTS] = 1
        if number <= 1:
            self.begin_offset = offset
            self.begin_timestamp = timestamp
        if previous == 0:
            self.slot_count += 1
        self.index_count = number + 1
        self.end_offset = offset
        self.end_timestamp = timestamp
        return ENTRY.pack(key_hash, offset, seconds, previous)

    def _put_array(
        self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]
    ) -> bytes:
        np = numpy
        assert np is not None
        slots = self._slots
        key_hash = np.array(hashes, dtype=np.int64)
        count = len(key_hash)
        slot = key_hash % self.slots_max
        numbers = np.arange(self.index_count, self.index_count + count, dtype=np.int32)
        # Chains within the batch: sorted by slot, each entry's previous is its neighbour.
        order = np.argsort(slot, kind="stable")
        slot_sorted = slot[order]
        number_sorted = numbers[order]
        is_first = np.empty(count, dtype=bool)
        is_first[0] = True
        np.not_equal(slot_sorted[1:], slot_sorted[:-1], out=is_first[1:])
        before = slots[slot_sorted[is_first]]
        before[(before <= 0) | (before > self.index_count)] = 0
        previous_sorted = np.empty(count, dtype=np.int32)
        previous_sorted[1:] = number_sorted[:-1]
        previous_sorted[is_first] = before
        is_last = np.empty(count, dtype=bool)
        is_last[-1] = True
        is_last[:-1] = is_first[1:]
        slots[slot_sorted[is_last]] = number_sorted[is_last]
        self.slot_count += int(np.count_nonzero(before == 0))
        np.frombuffer(self._dirty_pages, dtype=np.uint8)[slot // _PAGE_SLOTS] = 1
        entries = np.empty(count, dtype=_ENTRY_FIELDS)
        entries["h"] = key_hash
        entries["o"] = offsets
        entries["s"] = self._seconds(np.array(timestamps, dtype=np.int64))
        entries["p"][order] = previous_sorted
        self.index_count += count
        self.end_offset = int(offsets[-1])
        self.end_timestamp = int(timestamps[-1])
        data: bytes = entries.tobytes()
        return data

    def _seconds(self, timestamps: Any) -> Any:
        if self.begin_timestamp <= 0:
            return 0
        return ((timestamps - self.begin_timestamp) // 1000).clip(0, SECONDS_MAX)

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.slot_count, self.index_count,
        )  # fmt: skip
        self.file.pwritev((header,), 0)
        self.is_unsynced = True

    def write_slots(self) -> None:
        """Write the slots that changed, neighbours together."""
        dirty = [page for page, is_dirty in enumerate(self._dirty_pages) if is_dirty]
        if not dirty:
            return
        for first, last in _runs(dirty):
            data = self._slot_bytes(first * _PAGE_SLOTS, (last + 1) * _PAGE_SLOTS)
            self.file.pwritev((data,), HEADER.size + SLOT_SIZE * _PAGE_SLOTS * first)
        self._dirty_pages[:] = bytes(len(self._dirty_pages))
        self.is_unsynced = True

    # Recovery

    def rebuild(self, offset_end: int, end_timestamp: Callable[[int], int]) -> None:
        """After a crash: keep the entries of records before `offset_end`, count everything again.

        Stops at the first entry that cannot be one: what was not synced may be missing.
        `end_timestamp` gives the store time of the record at an offset.
        """
        self._slots = _new_slots(self.slots_max)
        self.slot_count = 0
        self.index_count = 1
        self.end_offset = -1
        while self.index_count < self.index_max:
            count = min(_READ_ENTRIES, self.index_max - self.index_count)
            data = self.file.pread(
                ENTRY.size * count, self._entries_at + ENTRY.size * self.index_count
            )
            keep = self._rebuild_array if numpy is not None else self._rebuild_loop
            if keep(data, offset_end) < count:
                break
        if self.entry_count:
            self.end_timestamp = end_timestamp(self.end_offset)
        zero_data(
            self.file,
            self._entries_at + ENTRY.size * self.index_count,
            self._entries_at + ENTRY.size * self.index_max,
        )
        self._mark_changed_pages()
        self._write_header()

    def _rebuild_loop(self, data: bytes, offset_end: int) -> int:
        first = self.index_count
        for key_hash, offset, seconds, previous in ENTRY.iter_unpack(data):
            number = self.index_count
            is_valid = key_hash >= 0 and seconds >= 0 and 0 <= previous < number
            is_valid = is_valid and (key_hash or offset or seconds or previous) != 0
            if not is_valid or not self._follows(offset) or offset >= offset_end:
                break
            self._slots[key_hash % self.slots_max] = number
            self.slot_count += previous == 0
            self.index_count = number + 1
            self.end_offset = offset
        return self.index_count - first

    def _follows(self, offset: int) -> bool:
        """Offsets only grow; 0 is that of a record only in the file that begins with it."""
        return offset >= self.end_offset and (offset > 0 or self.begin_offset == 0)

    def _rebuild_array(self, data: bytes, offset_end: int) -> int:
        np = numpy
        assert np is not None
        entries = np.frombuffer(data, dtype=_ENTRY_FIELDS)
        offsets = entries["o"].astype(np.int64)
        numbers = np.arange(self.index_count, self.index_count + len(entries))
        is_bad = (entries["h"] < 0) | (entries["s"] < 0) | (entries["p"] < 0)
        is_bad |= (entries["p"] >= numbers) | (offsets >= offset_end)
        is_bad[0] |= not self._follows(int(offsets[0]))
        is_bad[1:] |= offsets[1:] < offsets[:-1]
        is_zero = offsets == 0
        if self.begin_offset == 0:
            # Keys of the very first record; an entry that is all zero was never written.
            is_zero &= (entries["h"] == 0) & (entries["s"] == 0) & (entries["p"] == 0)
        is_bad |= is_zero
        count = int(is_bad.argmax()) if is_bad.any() else len(entries)
        if count == 0:
            return 0
        slot = entries["h"][:count].astype(np.int64) % self.slots_max
        self._slots[slot] = numbers[:count]  # Of equal slots the last one stays.
        self.slot_count += int(np.count_nonzero(entries["p"][:count] == 0))
        self.index_count += count
        self.end_offset = int(offsets[count - 1])
        return count

    def _mark_changed_pages(self) -> None:
        """Find the slots on disk that are not as counted."""
        data = self.file.pread(SLOT_SIZE * self.slots_max, HEADER.size)
        page = SLOT_SIZE * _PAGE_SLOTS
        counted = self._slot_bytes(0, self.slots_max)
        for at in range(0, len(data), page):
            self._dirty_pages[at // page] = data[at : at + page] != counted[at : at + page]

    def _slot_bytes(self, first: int, end: int) -> bytes:
        part = self._slots[first:end]
        if numpy is not None:
            data: bytes = part.astype(">i4").tobytes()
            return data
        part.byteswap()
        swapped: bytes = part.tobytes()
        return swapped

    # Query

    def is_time_matched(self, begin: int, end: int) -> bool:
        """RocketMQ's three cases: covered strictly, begin inside, end inside."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def select(self, key_hash: int, count_max: int, begin: int, end: int) -> list[int]:
        """Offsets of entries with this hash in [begin, end], newest first."""
        found: list[int] = []
        number = self._slot_value(key_hash % self.slots_max)
        if number <= 0 or number > self.index_count or self.index_count <= 1:
            return found
        while len(found) < count_max:
            data = self.file.pread(ENTRY.size, self._entries_at + ENTRY.size * number)
            entry_hash, offset, seconds, previous = ENTRY.unpack(data)
            if seconds < 0:
                break
            time = self.begin_timestamp + 1000 * seconds
            if entry_hash == key_hash and begin <= time <= end:
                found.append(offset)
            if previous <= 0 or previous > self.index_count or previous == number or time < begin:
                break
            number = previous
        return found

    def _slot_value(self, slot: int) -> int:
        if self._slots is not None:
            return int(self._slots[slot])
        return int.from_bytes(
            self.file.pread(SLOT_SIZE, HEADER.size + SLOT_SIZE * slot), "big", signed=True
        )

    def release_slots(self) -> Any:
        """A full file is only read: its slots are on disk. Returns the memory, zeroed, if any."""
        self.write_slots()
        slots, self._slots = self._slots, None
        if numpy is None or slots is None:
            return None
        slots.fill(0)
        return slots


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as (first, last)."""
    runs: list[tuple[int, int]] = []
    for _, group in itertools.groupby(enumerate(pages), lambda pair: pair[1] - pair[0]):
        members = [page for _, page in group]
        runs.append((members[0], members[-1]))
    return runs
