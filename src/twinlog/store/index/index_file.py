"""One file of the hash index. Corresponds to RocketMQ's IndexFile and IndexHeader.

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
costs nothing but counting them again. Batches of entries are made in `index_entries.py`.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from twinlog.message.layout import INDEX_HEADER, INDEX_SLOT_SIZE
from twinlog.runtime.disk import DiskFile
from twinlog.store.index import index_entries
from twinlog.store.index.index_entries import ENTRY, PAGE_SLOTS, Slots
from twinlog.store.log.segment import zero_data

HEADER: Final = INDEX_HEADER
_READ_ENTRIES: Final = 65536
_FIRST_ENTRIES: Final = 8


def index_file_size(slots_max: int, index_max: int) -> int:
    return HEADER.size + INDEX_SLOT_SIZE * slots_max + ENTRY.size * index_max


def new_slots(count: int) -> Slots:
    """Zeroed slots: of a whole file 20 MB, whose page faults are better made in a thread."""
    return array("i", (0,)) * count


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
        self._entries_at = HEADER.size + INDEX_SLOT_SIZE * slots_max
        self._slots: Slots | None = None
        # One for each page of slots: whether it changed since it was written.
        self._dirty_pages = bytearray(slots_max // PAGE_SLOTS + 1)

    # Loading

    def load_header(self) -> None:
        values = HEADER.unpack(self.file.pread(HEADER.size, 0))
        self.begin_timestamp, self.end_timestamp = values[0], values[1]
        self.begin_offset, self.end_offset = values[2], values[3]
        self.slot_count = values[4]
        self.index_count = max(1, values[5])

    def start(self, timestamp: int, physical_offset: int, slots: Slots | None = None) -> None:
        """A new file: it takes over where the full one before it ended.

        `slots` are zeroed ones that somebody has to spare.
        """
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = physical_offset
        self._slots = new_slots(self.slots_max) if slots is None else slots
        self._write_header()

    def _load_slots(self) -> Slots:
        """Slots of a file that was closed cleanly."""
        if self._slots is None:
            self._slots = self.read_slots()
        return self._slots

    def read_slots(self) -> Slots:
        """The slots on disk; changes nothing, so that a thread may do it."""
        slots = array("i", self.file.pread(INDEX_SLOT_SIZE * self.slots_max, HEADER.size))
        slots.byteswap()
        return slots

    def offer_slots(self, slots: Slots) -> None:
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

    def put_many(self, hashes: array[int], offsets: array[int], timestamps: array[int]) -> int:
        """Append keys until the file is full; the number that fitted. One write of entries."""
        count = min(len(hashes), self.index_max - self.index_count)
        if count <= 0:
            return 0
        slots = self._load_slots()
        before = self._facts()
        first = self.index_count
        data = b""
        done = 0
        if first <= 1:
            # The first entry counts its seconds from the file before; the others from the first.
            data = self._put_some(slots, hashes[:1], offsets[:1], timestamps[:1])
            self.begin_offset, self.begin_timestamp = offsets[0], timestamps[0]
            done = 1
        data += self._put_some(
            slots, hashes[done:count], offsets[done:count], timestamps[done:count]
        )
        self.end_offset, self.end_timestamp = offsets[count - 1], timestamps[count - 1]
        try:
            self.file.pwritev((data,), self._entries_at + ENTRY.size * first)
            self._write_header()
        except OSError:
            self._take_back(slots, data, before)
            raise
        return count

    def _facts(self) -> tuple[int, int, int, int, int, int]:
        """The header's numbers, in its order."""
        return (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.slot_count, self.index_count,
        )  # fmt: skip

    def _take_back(self, slots: Slots, data: bytes, before: tuple[int, ...]) -> None:
        """The disk had no room: as if nothing had been put, so that the next try finds it so.

        Slots that led to entries which are not there would hide all older ones behind them.
        """
        for key_hash, _, _, previous in reversed(list(ENTRY.iter_unpack(data))):
            slots[key_hash % self.slots_max] = previous
        (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.slot_count, self.index_count,
        ) = before  # fmt: skip

    def _put_some(
        self, slots: Slots, hashes: array[int], offsets: array[int], timestamps: array[int]
    ) -> bytes:
        data, new_slot_count = index_entries.put_entries(
            slots, self._dirty_pages, hashes, offsets, timestamps,
            self.index_count, self.begin_timestamp,
        )  # fmt: skip
        self.slot_count += new_slot_count
        self.index_count += len(hashes)
        return data

    def _write_header(self) -> None:
        self.file.pwritev((HEADER.pack(*self._facts()),), 0)
        self.is_unsynced = True

    def write_slots(self) -> None:
        """Write the slots that changed, neighbours together."""
        dirty = [page for page, is_dirty in enumerate(self._dirty_pages) if is_dirty]
        if not dirty:
            return
        for first, last in _runs(dirty):
            data = self._slot_bytes(first * PAGE_SLOTS, (last + 1) * PAGE_SLOTS)
            self.file.pwritev((data,), HEADER.size + INDEX_SLOT_SIZE * PAGE_SLOTS * first)
        self._dirty_pages[:] = bytes(len(self._dirty_pages))
        self.is_unsynced = True

    # Checking

    def entry_position(self, number: int) -> int:
        """Where an entry (from 1 on) is in the file."""
        return self._entries_at + ENTRY.size * number

    def first_entries(self, count: int) -> list[tuple[int, int]]:
        """Hashes and physical offsets of the first few entries."""
        data = self.file.pread(ENTRY.size * min(count, _FIRST_ENTRIES), self.entry_position(1))
        return [(entry[0], entry[1]) for entry in ENTRY.iter_unpack(data)]

    def newest_offset(self) -> int:
        """Of the last record in it, as header and last entry say: either may be damaged."""
        data = self.file.pread(ENTRY.size, self.entry_position(self.entry_count))
        last = ENTRY.unpack(data)[1] if self.entry_count and len(data) == ENTRY.size else 0
        return max(self.end_offset, last)

    @property
    def has_slots(self) -> bool:
        """Whether they are in memory, where those on disk may be older."""
        return self._slots is not None

    def mend_slots(self, right: IndexFile, first: int, end: int, count: int) -> int:
        """Make slots in memory what they must be after `count` entries, unless newer ones have
        moved them since; how many were wrong."""
        assert self._slots is not None
        assert right._slots is not None  # Same class.
        wrong = 0
        for slot, (mine, its) in enumerate(
            zip(self._slots[first:end], right._slots[first:end], strict=True), first
        ):
            if mine != its and not count < mine < self.index_count:
                self._slots[slot] = its
                wrong += 1
        return wrong

    def write_all_slots(self) -> None:
        """Slots and header as they are in memory, whatever the disk holds."""
        if self._slots is None:
            return
        self._dirty_pages[:] = b"\x01" * len(self._dirty_pages)
        self.write_slots()
        self._write_header()

    # Recovery

    def rebuild(self, offset_end: int, end_timestamp: Callable[[int], int]) -> None:
        """After a crash: keep the entries of records before `offset_end`, count everything again.

        Stops at the first entry that cannot be one: what was not synced may be missing.
        `end_timestamp` gives the store time of the record at an offset.
        """
        slots = self._slots = new_slots(self.slots_max)
        self.slot_count = 0
        self.index_count = 1
        self.end_offset = -1
        while self.index_count < self.index_max:
            count = min(_READ_ENTRIES, self.index_max - self.index_count)
            data = self.file.pread(
                ENTRY.size * count, self._entries_at + ENTRY.size * self.index_count
            )
            found = index_entries.count_entries(
                slots, data, self.index_count, self.begin_offset, self.end_offset, offset_end
            )
            entry_count, new_slot_count, self.end_offset = found
            self.slot_count += new_slot_count
            self.index_count += entry_count
            if entry_count < count:
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

    def _mark_changed_pages(self) -> None:
        """Find the slots on disk that are not as counted."""
        data = self.file.pread(INDEX_SLOT_SIZE * self.slots_max, HEADER.size)
        page = INDEX_SLOT_SIZE * PAGE_SLOTS
        counted = self._slot_bytes(0, self.slots_max)
        for at in range(0, len(data), page):
            self._dirty_pages[at // page] = data[at : at + page] != counted[at : at + page]

    def _slot_bytes(self, first: int, end: int) -> bytes:
        assert self._slots is not None
        part = self._slots[first:end]
        part.byteswap()
        return part.tobytes()

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
            return self._slots[slot]
        return int.from_bytes(
            self.file.pread(INDEX_SLOT_SIZE, HEADER.size + INDEX_SLOT_SIZE * slot),
            "big",
            signed=True,
        )

    def release_slots(self) -> Slots | None:
        """A full file is only read: its slots are on disk. Returns the memory, zeroed, if any."""
        self.write_slots()
        slots, self._slots = self._slots, None
        if slots is not None:
            memoryview(slots).cast("B")[:] = bytes(INDEX_SLOT_SIZE * len(slots))
        return slots


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as (first, last)."""
    runs: list[tuple[int, int]] = []
    for _, group in itertools.groupby(enumerate(pages), lambda pair: pair[1] - pair[0]):
        members = [page for _, page in group]
        runs.append((members[0], members[-1]))
    return runs
