"""One file of a set whose name is the offset of its first byte. Corresponds to RocketMQ's
MappedFile.

Never mapped for writing: pwrite makes a full disk an error of the call. The length is the
configured one from creation on; what is not written is zero.
"""

from __future__ import annotations

import posixpath
from typing import Final

from twinlog.runtime.disk import Disk, DiskFile
from twinlog.runtime.numbers import is_number

NAME_LENGTH: Final = 20
_ZERO_CHUNK: Final = bytes(1 << 20)
_PAGE_SIZE: Final = 4096  # What a disk reads or does not, at the least.


def segment_name(start: int) -> str:
    """20 decimal digits."""
    assert start >= 0
    return f"{start:020d}"


def parse_segment_name(name: str) -> int | None:
    """The start offset, None when the name is not that of a segment."""
    if len(name) == NAME_LENGTH and is_number(name):
        return int(name)
    return None


class Segment:
    """One open file of `size` bytes that begins at offset `start` of its set."""

    __slots__ = ("end", "file", "path", "size", "start")

    def __init__(self, path: str, start: int, size: int, file: DiskFile) -> None:
        assert start % size == 0, f"{path}: start {start} is not a multiple of {size}"
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.file = file


def create_segment(disk: Disk, path: str, start: int, size: int) -> Segment:
    """A new zero-filled file with its blocks reserved, safe with its name and its length.

    Synced before it is used: of two new segments a power cut could otherwise leave only the
    second, or the first with no length, and a log with a hole does not load.
    On OSError the empty file stays: this may run in a thread, while the loop has opened the same
    file because it could not wait. The caller on the loop removes it.
    """
    file = disk.open(path, create=True)
    try:
        file.allocate(size)
        file.fdatasync()
        disk.fsync_directory(posixpath.dirname(path))
    except OSError:
        file.close()
        raise
    return Segment(path, start, size, file)


def data_ranges(file: DiskFile, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of [start, end) that are not zero, to the MiB at most. Holes are not read."""
    ranges: list[tuple[int, int]] = []
    position = start
    while position < end:
        data_at = file.next_data(position)
        if data_at is None or data_at >= end:
            break
        position = max(position, data_at)
        chunk = file.pread(min(len(_ZERO_CHUNK), end - position), position)
        if not chunk:
            break
        if chunk != _ZERO_CHUNK[: len(chunk)]:
            used = len(chunk.rstrip(b"\0"))
            if ranges and ranges[-1][1] == position:
                ranges[-1] = (ranges[-1][0], position + used)
            else:
                ranges.append((position, position + used))
        position += len(chunk)
    return ranges


def read_to_check(file: DiskFile, size: int, position: int) -> bytes:
    """For who checks what he gets: zeros where the disk cannot read, or the file is shorter."""
    try:
        data = file.pread(size, position)
    except OSError:
        data = read_pages(file, size, position)
    return data.ljust(size, b"\0")


def read_pages(file: DiskFile, size: int, position: int) -> bytes:
    """Bytes of a file page by page; zeros where the disk cannot read."""
    pages = []
    while size > 0:
        length = min(size, _PAGE_SIZE - position % _PAGE_SIZE)
        try:
            pages.append(file.pread(length, position).ljust(length, b"\0"))
        except OSError:
            pages.append(bytes(length))
        size, position = size - length, position + length
    return b"".join(pages)


def zero_range(file: DiskFile, start: int, end: int) -> None:
    """Write zeros over [start, end)."""
    for position in range(start, end, len(_ZERO_CHUNK)):
        file.pwritev([_ZERO_CHUNK[: min(len(_ZERO_CHUNK), end - position)]], position)


def zero_data(file: DiskFile, start: int, end: int) -> int:
    """Make [start, end) zero, touching only what is not; the number of bytes written."""
    ranges = data_ranges(file, start, end)
    for range_start, range_end in ranges:
        zero_range(file, range_start, range_end)
    return sum(range_end - range_start for range_start, range_end in ranges)
