"""Giving up what only lost replicas have: the mark of what is confirmed and the counted slaves.

A master whose mark lies beyond its log, or that lost power and misses slaves that it counted, takes
no sends. If they never return, a person decides: the two files of `mark.py` are moved aside, and
the master continues with what it has. Offline: the store of a stopped broker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from twinlog.ha.twin.mark import MARK_NAME, REPLICAS_NAME, ConfirmedMark
from twinlog.message.record import ScanStop, scan
from twinlog.runtime.disk import Disk
from twinlog.runtime.numbers import number_of

_READ_SIZE = 1 << 20
_NAME_SIZE = 20  # Digits in the name of a file of the log.


@dataclass(frozen=True, slots=True)
class Known:
    """What a store says of itself and its group."""

    log_end: int
    confirmed: int
    replicas: tuple[int, ...]
    is_in_doubt: bool

    @property
    def missing_bytes(self) -> int:
        """Confirmed, so acknowledged perhaps, and not here."""
        return max(self.confirmed - self.log_end, 0)

    @property
    def is_something(self) -> bool:
        return bool(self.replicas or self.confirmed or self.is_in_doubt)


def look(disk: Disk, root: str, log_paths: Iterable[str]) -> Known:
    """Changes nothing. Raises OSError."""
    mark = ConfirmedMark(disk, root)
    confirmed, is_in_doubt, replicas = mark.peek()
    return Known(_log_end(disk, log_paths), confirmed, replicas, is_in_doubt)


def forget(disk: Disk, root: str, now_ms: int) -> str:
    """Move the two files aside; where they are. The store must not be in use."""
    own = posixpath.join(root, "twinlog")
    aside = posixpath.join(own, f"forgotten-{now_ms}")
    disk.make_directories(aside)
    for name in (REPLICAS_NAME, MARK_NAME):
        if disk.exists(posixpath.join(own, name)):
            disk.rename(posixpath.join(own, name), posixpath.join(aside, name))
    disk.fsync_directory(aside)
    disk.fsync_directory(own)
    return aside


def _log_end(disk: Disk, log_paths: Iterable[str]) -> int:
    """Where the records of the last file end."""
    files = [
        (number_of(name), posixpath.join(path, name))
        for path in log_paths
        if disk.exists(path)
        for name in disk.list(path)
        if len(name) == _NAME_SIZE
    ]
    if not files:
        return 0
    position, path = max(files)
    start, size, wanted = position, disk.file_size(path), _READ_SIZE
    file = disk.open(path, read_only=True)
    try:
        while position < start + size:
            data = file.pread(wanted, position - start)
            result = scan(data, 0, position, check_crc=False)
            position += result.position if result.entries else 0
            if result.stop is ScanStop.INCOMPLETE and result.size > wanted:
                wanted = result.size
            elif result.stop is not ScanStop.INCOMPLETE or not result.entries:
                break
    finally:
        file.close()
    return position
