"""What changed and why, as JSON lines in two files of bounded size: `events` and `events.1`.

Kept by controllers and brokers in the same form, so that the lines of a cluster merge by time. A
line that cannot be written is logged and left out: events explain, nothing depends on them.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator
from typing import Any

import msgspec

from twinlog.runtime.disk import Disk, DiskFile

_LOG = logging.getLogger("twinlog.events")
FILE_SIZE_MAX = 4 * 1024 * 1024
LINE_MAX = 16 * 1024


class EventJournal:
    """Appends and reads. The older half is dropped when both files are full."""

    def __init__(self, disk: Disk, directory: str, *, size_max: int = FILE_SIZE_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._path = posixpath.join(directory, "events")
        self._size_max = size_max
        self._file: DiskFile | None = None
        self._size = 0

    def write(self, time_ms: int, kind: str, **details: Any) -> None:
        """`details` are JSON values; their order is kept."""
        line = msgspec.json.encode({"time": time_ms, "event": kind, **details}) + b"\n"
        if len(line) > LINE_MAX:
            line = msgspec.json.encode({"time": time_ms, "event": kind, "cut": True}) + b"\n"
        try:
            file = self._opened(len(line))
            file.pwritev([line], self._size)
        except OSError as error:
            _LOG.warning("event not written path=%s error=%s line=%r", self._path, error, line)
            return
        self._size += len(line)

    def _opened(self, room: int) -> DiskFile:
        if self._file is None:
            self._disk.make_directories(self._directory)
            self._file = self._disk.open(self._path, create=True)
            self._size = self._file.size()
        if self._size + room > self._size_max:
            self.close()
            self._disk.rename(self._path, self._path + ".1")
            self._file = self._disk.open(self._path, create=True)
            self._size = 0
        return self._file

    def read(self) -> Iterator[dict[str, Any]]:
        """All events that are kept, oldest first. A line that was cut by a crash is left out."""
        for path in (self._path + ".1", self._path):
            if not self._disk.exists(path):
                continue
            for line in self._disk.read_bytes(path).splitlines():
                try:
                    event = msgspec.json.decode(line)
                except msgspec.DecodeError:
                    continue
                if isinstance(event, dict):
                    yield event

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
