"""Find a record among bytes that are none: behind damage, or before the start of a slave's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twinlog.message.layout import HEAD_SIZE, MAGIC_AT, MAGIC_V1, PHYSICAL_OFFSET_AT, PLACE_SIZE
from twinlog.message.record import RecordError, decode_record
from twinlog.store.log.segment import Segment

_CHUNK_SIZE: Final = 4 << 20
Read = Callable[[int, int], bytes]  # Size and position.


def find_record(segment: Segment, start: int, end: int, read: Read | None = None) -> int | None:
    """Position of the first record in [start, end) of a segment that is valid where it is.

    `read` instead of the file's own, for who goes on behind what the disk cannot read.
    """
    read = read or segment.file.pread
    magic = MAGIC_V1.to_bytes(4, "big")
    overlap = HEAD_SIZE
    for chunk_start in range(start, end, _CHUNK_SIZE):
        size = min(_CHUNK_SIZE + overlap, segment.size - chunk_start)
        data = read(size, chunk_start)
        at = data.find(magic)
        while at >= 0:
            position = chunk_start + at - MAGIC_AT
            if at >= MAGIC_AT and _is_record(segment, position, read):
                return position
            at = data.find(magic, at + 1)
    return None


def _is_record(segment: Segment, position: int, read: Read) -> bool:
    head = read(HEAD_SIZE, position)
    size = int.from_bytes(head[:MAGIC_AT], "big")
    own_offset = int.from_bytes(head[PHYSICAL_OFFSET_AT:PLACE_SIZE], "big")
    if own_offset != segment.start + position or not HEAD_SIZE <= size <= segment.size - position:
        return False
    try:
        decode_record(read(size, position))
    except RecordError:
        return False
    return True
