"""What changed and why, as JSON lines in two files of bounded size: `events` and `events.1`.

Kept by controllers, brokers and name servers in the same form, so that the lines of a cluster merge
by time. A line that cannot be written is logged and left out: events explain, nothing depends on
them.
"""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from twinlog.runtime.disk import Disk, DiskFile

_LOG = logging.getLogger("twinlog.events")
FILE_SIZE_MAX = 4 * 1024 * 1024
LINE_MAX = 16 * 1024
EVENTS_MAX = 1_000
"""Events in one answer."""


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


def event_time(event: dict[str, Any]) -> int:
    """When it happened; 0 where a line, which a person may have edited, does not say."""
    time = event.get("time")
    return time if isinstance(time, int) else 0


def select(
    events: Iterable[dict[str, Any]], group: str | None, since_ms: int | None, limit: int | None
) -> list[dict[str, Any]]:
    """The last of them that are about `group`, or about no group, and not before `since_ms`."""
    count = EVENTS_MAX if limit is None else min(max(limit, 1), EVENTS_MAX)
    found = [
        event
        for event in events
        if (not group or event.get("group") in (None, group))
        and (since_ms is None or event_time(event) >= since_ms)
    ]
    return found[-count:]


class RecentEvents:
    """A journal and its newest events in memory, for those who ask."""

    def __init__(self, journal: EventJournal) -> None:
        self._journal = journal
        self._recent: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def load(self) -> None:
        """Read what earlier processes wrote; a journal that cannot be read is told and left."""
        try:
            self._recent.extend(self._journal.read())
        except OSError as error:
            _LOG.warning("events not read error=%s", error)

    def write(self, time_ms: int, kind: str, **details: Any) -> None:
        self._journal.write(time_ms, kind, **details)
        self._recent.append({"time": time_ms, "event": kind, **details})

    def select(
        self, group: str | None = None, since_ms: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        return select(self._recent, group, since_ms, limit)

    def close(self) -> None:
        self._journal.close()
