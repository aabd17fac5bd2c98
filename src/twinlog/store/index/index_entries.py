"""Entries of an index file in batches, each with a compiled form (`_index.pyx`).

`index_file.py` has the layout. Slots hold the number of the newest entry of each chain, 0 for none,
as 32-bit numbers of this machine (an array of type "i").
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, TypeAlias

from twinlog.message.layout import INDEX_ENTRY, INDEX_SECONDS_MAX
from twinlog.runtime.compiled import load

ENTRY: Final = INDEX_ENTRY
PAGE_SLOTS: Final = 1024
Slots: TypeAlias = "array[int]"
_Numbers: TypeAlias = "array[int]"  # Of type "q".


def put_entries_in_python(
    slots: Slots,
    dirty_pages: bytearray,
    hashes: _Numbers,
    offsets: _Numbers,
    timestamps: _Numbers,
    number: int,
    begin_timestamp: int,
) -> tuple[bytes, int]:
    """The entries of all keys, the first of them being `number`.

    Returns their bytes, and how many of them are the first in their slot.
    """
    parts: list[bytes] = []
    add, pack, slots_max, new_slot_count = parts.append, ENTRY.pack, len(slots), 0
    time_before, seconds = begin_timestamp, 0
    for key_hash, offset, timestamp in zip(hashes, offsets, timestamps, strict=True):
        slot = key_hash % slots_max
        previous = slots[slot]
        if previous <= 0 or previous > number:
            previous = 0
            new_slot_count += 1
        if timestamp != time_before and begin_timestamp > 0:
            seconds = min(max(0, (timestamp - begin_timestamp) // 1000), INDEX_SECONDS_MAX)
            time_before = timestamp
        slots[slot] = number
        dirty_pages[slot // PAGE_SLOTS] = 1
        add(pack(key_hash, offset, seconds, previous))
        number += 1
    return b"".join(parts), new_slot_count


def count_entries_in_python(
    slots: Slots,
    data: bytes,
    number: int,
    begin_offset: int,
    end_offset: int,
    offset_limit: int,
) -> tuple[int, int, int]:
    """Put the entries in `data`, the first being `number`, into the slots, up to one that cannot
    be: offsets only grow, and 0 is that of a record only in the file that begins with it.

    Returns how many there were, how many of them are the first in their slot, and the last offset.
    """
    first, new_slot_count, slots_max = number, 0, len(slots)
    for key_hash, offset, seconds, previous in ENTRY.iter_unpack(data):
        is_valid = key_hash >= 0 and seconds >= 0 and 0 <= previous < number
        is_valid = is_valid and (key_hash or offset or seconds or previous) != 0
        is_valid = is_valid and end_offset <= offset < offset_limit
        if not is_valid or (offset <= 0 and begin_offset != 0):
            break
        slots[key_hash % slots_max] = number
        new_slot_count += previous == 0
        end_offset = offset
        number += 1
    return number - first, new_slot_count, end_offset


_compiled = load("twinlog.store.index._index")
put_entries: Callable[
    [Slots, bytearray, _Numbers, _Numbers, _Numbers, int, int], tuple[bytes, int]
] = put_entries_in_python if _compiled is None else _compiled.put_entries
count_entries: Callable[[Slots, bytes, int, int, int, int], tuple[int, int, int]] = (
    count_entries_in_python if _compiled is None else _compiled.count_entries
)
