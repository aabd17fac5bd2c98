"""What is on disk: logs compared byte for byte, messages counted, consume queues checked."""

from __future__ import annotations

import struct
from pathlib import Path

from twinlog.message.record import ScanStop, decode_record, scan

ENTRY = struct.Struct(">qiq")


class LogFiles:
    """The commit log of a store, as files."""

    def __init__(self, store: Path) -> None:
        self.store = store
        directory = store / "commitlog"
        self.segments = {int(path.name): path for path in sorted(directory.iterdir())}
        self.start = min(self.segments, default=0)
        self.segment_size = next(iter(self.segments.values())).stat().st_size
        self.end = self.start
        self.bodies: dict[int, bytes] = {}
        """physical offset -> body"""
        self.places: dict[tuple[str, int, int], int] = {}
        """(topic, queue, queue offset) -> physical offset"""
        self._walk()

    def _walk(self) -> None:
        for start, path in sorted(self.segments.items()):
            if start != self.start and start != self.end:
                break
            data = path.read_bytes()
            result = scan(data, 0, start)
            for entry in result.entries:
                self._note(data, start, entry[0])
            self.end = start + result.position
            assert result.stop is not ScanStop.DAMAGED, (path, result.reason)
            if result.stop is ScanStop.BLANK:
                self.end = start + len(data)

    def _note(self, data: bytes, start: int, offset: int) -> None:
        record = decode_record(data, offset - start)
        self.bodies[offset] = bytes(record.body)
        self.places[(record.topic, record.queue_id, record.queue_offset)] = offset

    def read(self, start: int, end: int) -> bytes:
        parts = []
        for segment, path in sorted(self.segments.items()):
            if segment < end and segment + self.segment_size > start:
                data = path.read_bytes()
                parts.append(data[max(0, start - segment) : max(0, end - segment)])
        return b"".join(parts)


def assert_identical(a: LogFiles, b: LogFiles) -> int:
    """Equal bytes on the common range; its size."""
    start, end = max(a.start, b.start), min(a.end, b.end)
    assert end >= start
    left, right = a.read(start, end), b.read(start, end)
    if left != right:
        where = next(i for i, (x, y) in enumerate(zip(left, right, strict=True)) if x != y)
        raise AssertionError(f"logs differ at {start + where} of [{start}, {end})")
    return end - start


def assert_queues_dense(log: LogFiles) -> int:
    """Every record of the log from its first on is in its consume queue, at its place."""
    queues: dict[tuple[str, int], dict[int, bytes]] = {}
    root = log.store / "consumequeue"
    for (topic, queue_id, queue_offset), physical_offset in log.places.items():
        files = queues.get((topic, queue_id))
        if files is None:
            directory = root / topic / str(queue_id)
            files = {int(path.name): path.read_bytes() for path in directory.iterdir()}
            queues[(topic, queue_id)] = files
        file_size = len(next(iter(files.values())))
        position = queue_offset * ENTRY.size
        start = position - position % file_size
        offset, _, _ = ENTRY.unpack_from(files[start], position - start)
        assert offset == physical_offset, (topic, queue_id, queue_offset, offset, physical_offset)
    return len(log.places)


def numbers_in(log: LogFiles) -> set[int]:
    """The numbers of the load's messages that the log holds."""
    return {int(body[:10]) for body in log.bodies.values() if body[:10].isdigit()}
