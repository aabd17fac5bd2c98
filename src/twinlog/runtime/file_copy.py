"""Whole files for tools: written and read."""

from __future__ import annotations

from twinlog.runtime.disk import Disk


def write_file(
    disk: Disk, path: str, data: bytes, mode: int | None = None, *, size: int | None = None
) -> None:
    """A new file, durable; with `size` it is that long, zeros behind `data`."""
    file = disk.open(path, create=True, mode=mode)
    try:
        file.truncate(len(data) if size is None else size)
        if data:
            file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()


def read_part(disk: Disk, path: str, position: int, size: int) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.pread(size, position)
    finally:
        file.close()
