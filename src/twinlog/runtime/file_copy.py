"""Whole files for tools: written and read, at once or in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from twinlog.runtime.disk import Disk

_PIECE_SIZE: Final = 1 << 20


def write_file(disk: Disk, path: str, data: bytes, mode: int | None = None) -> None:
    """A new file, durable."""
    write_pieces(disk, path, [data], mode)


def write_pieces(
    disk: Disk,
    path: str,
    data: Iterable[bytes],
    mode: int | None = None,
    *,
    size: int | None = None,
) -> None:
    """A new file, durable; with `size` it is that long, zeros behind the data."""
    file = disk.open(path, create=True, mode=mode)
    try:
        file.truncate(0)
        end = 0
        for piece in filter(None, data):
            file.pwritev([piece], end)
            end += len(piece)
        file.truncate(end if size is None else size)
        file.fdatasync()
    finally:
        file.close()


def pieces(disk: Disk, path: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file."""
    file = disk.open(path, read_only=True)
    try:
        at = 0
        while at < size and (piece := file.pread(min(_PIECE_SIZE, size - at), at)):
            yield piece
            at += len(piece)
    finally:
        file.close()


def read_part(disk: Disk, path: str, position: int, size: int) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.pread(size, position)
    finally:
        file.close()
