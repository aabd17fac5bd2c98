"""Where each epoch of this log began, on disk: `store/twinlog/epochs`, twice and with a checksum.

Written before the first byte of an epoch is appended: an entry at or beyond the end of the log did
not happen here, and is dropped when the file is read. RocketMQ 5's `epochFileCheckpoint` is written
next to it, in Apache's form, for whoever looks there.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable

import msgspec

from twinlog.ha.epochs import EpochEntry, EpochHistory
from twinlog.message.crc import crc32
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically

_LOG = logging.getLogger("twinlog.ha")
_CHECKSUM_SIZE = 4


class EpochFile:
    """The history in memory and in its files. Without a disk, in memory only."""

    def __init__(self, disk: Disk | None = None, root: str = "") -> None:
        self._disk = disk
        self._root = root
        path = posixpath.join(root, "twinlog", "epochs")
        self._paths = (path, path + ".bak")
        self._apache_path = posixpath.join(root, "epochFileCheckpoint")
        self._entries: tuple[EpochEntry, ...] = ()
        self.was_lost = False
        """Neither copy could be read: whoever has the log makes the list again."""

    def load(self) -> None:
        if self._disk is None:
            return
        found = [path for path in self._paths if self._disk.exists(path)]
        for path in found:
            entries = self._read(path)
            if entries is not None:
                self._entries = entries
                return
        self.was_lost = bool(found)

    def _read(self, path: str) -> tuple[EpochEntry, ...] | None:
        assert self._disk is not None
        data = self._disk.read_bytes(path)
        body = data[:-_CHECKSUM_SIZE]
        if crc32(body).to_bytes(_CHECKSUM_SIZE, "big") != data[-_CHECKSUM_SIZE:]:
            _LOG.warning("list of epochs damaged path=%s", path)
            return None
        try:
            return msgspec.json.decode(body, type=tuple[EpochEntry, ...])
        except msgspec.DecodeError as error:
            _LOG.warning("list of epochs not readable path=%s error=%s", path, error)
            return None

    def history(self, log_end: int) -> EpochHistory:
        """The epochs of a log that ends at `log_end`."""
        return EpochHistory(entry for entry in self._entries if entry.start < log_end)

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        """These are the epochs from now on. Raises OSError, and nothing has changed then."""
        following = tuple(entries)
        if following == self._entries:
            return
        if self._disk is not None:
            make_own_directory(self._disk, self._root)
            body = msgspec.json.encode(following)
            data = body + crc32(body).to_bytes(_CHECKSUM_SIZE, "big")
            for path in self._paths:
                write_atomically(self._disk, path, data)
            write_atomically(self._disk, self._apache_path, apache_text(following).encode())
        self._entries = following


def apache_text(entries: Iterable[EpochEntry]) -> str:
    """RocketMQ 5's CheckpointFile: how many lines, their CRC-32, then `epoch-startOffset` each."""
    lines = "".join(f"{entry.epoch}-{entry.start}\n" for entry in entries)
    return f"{lines.count(chr(10))}\n{crc32(lines.encode())}\n{lines}"
