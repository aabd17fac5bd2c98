"""Whole files for tools: copied, written, read. Blocks are shared where the file system can."""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import Final

from twinlog.runtime.disk import Disk

_COPY_SIZE: Final = 4 << 20
_FICLONE: Final = 0x40049409  # ioctl of Linux: the copy shares its blocks until one is written.


def copy_file(source: str, target: str) -> None:
    """A durable copy. Never a hard link: whoever has the source open may still write into it."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, _COPY_SIZE)
        writer.flush()
        os.fsync(writer.fileno())


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
