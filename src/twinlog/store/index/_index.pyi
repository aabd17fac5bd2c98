"""Entries of an index file, compiled: `index_entries.py` has the Python form."""

from array import array

def put_entries(
    slots: array[int],
    dirty_pages: bytearray,
    hashes: array[int],
    offsets: array[int],
    timestamps: array[int],
    number: int,
    begin_timestamp: int,
) -> tuple[bytes, int]: ...
def count_entries(
    slots: array[int],
    data: bytes,
    number: int,
    begin_offset: int,
    end_offset: int,
    offset_limit: int,
) -> tuple[int, int, int]: ...
