"""How far the store is durable: Apache's `checkpoint`, and our own `twinlog/recovery`.

`checkpoint` (4096 bytes; RocketMQ's StoreCheckpoint):

| position | type | field |
|---|---|---|
| 0 | i64 | physicMsgTimestamp: newest store time known flushed in the log |
| 8 | i64 | logicsMsgTimestamp: newest store time whose consume-queue entry is durable |
| 16 | i64 | indexMsgTimestamp: end of the newest full and synced index file |

`twinlog/recovery` (one sector, ours): the same as physical offsets, so that recovery reads what
was written since, not a whole segment. It counts only while `checkpoint` still has the numbers
that were written with it: another broker that ran on the store in between changes them.

| position | type | field |
|---|---|---|
| 0 | 8 bytes | magic and version |
| 8 | i64 | flushed: every byte of the log below is durable |
| 16 | i64 | dispatched: every consume-queue and index entry of records below is durable |
| 24 | 24 | `checkpoint` as it was before |
| 48 | 24 | `checkpoint` as it is after |
| 72 | u32 | CRC-32 of the above |
"""

from __future__ import annotations

import posixpath
import struct
import threading
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from twinlog.runtime.disk import Disk, DiskFile

CHECKPOINT_SIZE: Final = 4096
_TIMES: Final = struct.Struct(">qqq")
_MAGIC: Final = b"TWINREC1"
_RECOVERY: Final = struct.Struct(">8sqq24s24s")
_CRC: Final = struct.Struct(">I")
_SLACK_MS: Final = 3000  # RocketMQ's: the times may run ahead of what was synced by this much.


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Physical offsets below which everything is durable."""

    flushed: int
    dispatched: int


class StoreCheckpoint:
    """Both files. Times never go back; `save` writes and syncs."""

    def __init__(self, disk: Disk, root: str, own_directory: str) -> None:
        self._disk = disk
        self._path = posixpath.join(root, "checkpoint")
        self._own_directory = own_directory
        self._own_path = posixpath.join(own_directory, "recovery")
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.index_timestamp = 0
        self._saved = bytes(_TIMES.size)
        self.saved_point: RecoveryPoint | None = None
        """What this process saved last, None before it has, and after a cut of the log."""
        # How often the log was cut: a point that was gathered before a cut must not be saved then.
        self.cut_count = 0
        # `save` runs in a thread; the loop must not cut the log in the middle of it.
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read `checkpoint`; a file that is missing or short counts as all zero."""
        data = self._disk.read_bytes(self._path) if self._disk.exists(self._path) else b""
        if len(data) >= _TIMES.size:
            self._saved = data[: _TIMES.size]
            times = _TIMES.unpack(self._saved)
            self.physic_timestamp, self.logics_timestamp, self.index_timestamp = times

    @property
    def min_timestamp(self) -> int:
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - _SLACK_MS)

    @property
    def min_timestamp_index(self) -> int:
        return min(self.min_timestamp, self.index_timestamp)

    def load_point(self) -> RecoveryPoint | None:
        """Our own recovery point, None when it cannot be trusted."""
        if not self._disk.exists(self._own_path):
            return None
        data = self._disk.read_bytes(self._own_path)
        if len(data) < _RECOVERY.size + _CRC.size:
            return None
        magic, flushed, dispatched, before, after = _RECOVERY.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _RECOVERY.size)
        if magic != _MAGIC or crc != crc32(data[: _RECOVERY.size]):
            return None
        if self._saved not in (before, after):
            return None
        return RecoveryPoint(flushed, dispatched)

    def forget_point(self) -> None:
        """The log will be cut below it: it must not be believed after a crash."""
        with self._lock:
            self.cut_count += 1
            if self._disk.exists(self._own_path):
                self._disk.unlink(self._own_path)
                self._disk.fsync_directory(self._own_directory)
            self.saved_point = None

    def reset(self) -> None:
        """Nothing is known to be durable: a recovery from now on starts at the first record."""
        self.forget_point()
        self.physic_timestamp = self.logics_timestamp = self.index_timestamp = 0
        self._saved = bytes(_TIMES.size)
        self._write(self._path, self._saved, CHECKPOINT_SIZE)

    def save(self, point: RecoveryPoint, *, cut_count: int | None = None) -> bool:
        """Write and sync both files; false when the log was cut since `cut_count` was read.

        Ours first: it names both states of the other.
        """
        with self._lock:
            if cut_count is not None and cut_count != self.cut_count:
                return False
            times = _TIMES.pack(self.physic_timestamp, self.logics_timestamp, self.index_timestamp)
            if point != self.saved_point or times != self._saved:
                own = _RECOVERY.pack(_MAGIC, point.flushed, point.dispatched, self._saved, times)
                self._write(self._own_path, own + _CRC.pack(crc32(own)), 512)
                self._write(self._path, times, CHECKPOINT_SIZE)
                self._saved = times
                self.saved_point = point
            return True

    def _write(self, path: str, data: bytes, size: int) -> None:
        is_new = not self._disk.exists(path)
        file: DiskFile = self._disk.open(path, create=True)
        try:
            if is_new or file.size() != size:
                file.truncate(size)
            file.pwritev((data,), 0)
            file.fdatasync()
        finally:
            file.close()
        if is_new:
            self._disk.fsync_directory(posixpath.dirname(path))
