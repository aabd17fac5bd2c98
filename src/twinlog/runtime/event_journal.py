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
from typing import TYPE_CHECKING, Any

import msgspec

from twinlog.runtime.sealed import BrokenSealError, decode_saved

if TYPE_CHECKING:  # Whoever only reads the lines of others needs no disk.
    from twinlog.runtime.disk import Disk, DiskFile

_LOG = logging.getLogger("twinlog.events")
FILE_SIZE_MAX = 4 * 1024 * 1024
LINE_MAX = 16 * 1024
TEXT_MAX = 1_000
"""Characters of one value: peers have a hand in some of them, for instance in settings."""
EVENTS_MAX = 1_000
"""Events in one answer."""
RECENT_BYTES_MAX = 1024 * 1024
"""Bytes of all events that are kept in memory, and so of one answer."""


class EventJournal:
    """Appends and reads. The older half is dropped when both files are full."""

    def __init__(self, disk: Disk, directory: str, *, size_max: int = FILE_SIZE_MAX) -> None:
        self._disk = disk
        self._directory = directory
        self._path = posixpath.join(directory, "events")
        self._size_max = size_max
        self._file: DiskFile | None = None
        self._size = 0

    def write(self, time_ms: int, kind: str, **details: Any) -> bytes:
        """The line that was written. `details` are JSON values; their order is kept."""
        line = msgspec.json.encode({"time": time_ms, "event": kind, **_shortened(details)}) + b"\n"
        if len(line) > LINE_MAX:
            line = msgspec.json.encode({"time": time_ms, "event": kind, "cut": True}) + b"\n"
        try:
            file = self._opened(len(line))
            file.pwritev([line], self._size)
        except OSError as error:
            _LOG.warning("event not written path=%s error=%s line=%r", self._path, error, line)
        else:
            self._size += len(line)
        return line

    def _opened(self, room: int) -> DiskFile:
        if self._file is None:
            self._disk.make_directories(self._directory)
            self._file = self._disk.open(self._path, create=True)
            self._size = self._file.size()
            self._end_line(self._file)
        if self._size + room > self._size_max:
            self.close()
            self._disk.rename(self._path, self._path + ".1")
            self._file = self._disk.open(self._path, create=True)
            self._size = 0
        return self._file

    def _end_line(self, file: DiskFile) -> None:
        """A line that a crash cut must not take the next one with it."""
        if self._size and file.pread(1, self._size - 1) != b"\n":
            file.pwritev([b"\n"], self._size)
            self._size += 1

    def read(self) -> Iterator[bytes]:
        """The lines of all events that are kept, oldest first."""
        for path in (self._path + ".1", self._path):
            if self._disk.exists(path):
                yield from self._disk.read_bytes(path).splitlines()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _shortened(value: Any) -> Any:
    match value:
        case str() if len(value) > TEXT_MAX:
            return value[:TEXT_MAX] + "..."
        case dict():
            return {key: _shortened(each) for key, each in value.items()}
        case list() | tuple():
            return [_shortened(each) for each in value]
    return value


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
    """A journal and its newest events in memory, for those who ask: as many as fit an answer."""

    def __init__(self, journal: EventJournal) -> None:
        self._journal = journal
        self._recent: deque[tuple[int, dict[str, Any]]] = deque()
        self._bytes = 0
        self.is_closed = False

    def load(self) -> None:
        """Read what earlier processes wrote; a journal that cannot be read is told and left."""
        try:
            for line in self._journal.read():
                self._add(line)
        except OSError as error:
            _LOG.warning("events not read error=%s", error)

    def write(self, time_ms: int, kind: str, **details: Any) -> None:
        self._add(self._journal.write(time_ms, kind, **details))

    def _add(self, line: bytes) -> None:
        """A line that was cut by a crash, or is no event, is left out."""
        try:
            event = decode_saved(line, dict[str, Any])
        except BrokenSealError:
            return
        self._recent.append((len(line), event))
        self._bytes += len(line)
        while len(self._recent) > EVENTS_MAX or self._bytes > RECENT_BYTES_MAX:
            size, _ = self._recent.popleft()
            self._bytes -= size

    def select(
        self, group: str | None = None, since_ms: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        return select((event for _, event in self._recent), group, since_ms, limit)

    def close(self) -> None:
        """The server has said its last word: what it looks at from now on only ends."""
        self.is_closed = True
        self._journal.close()
