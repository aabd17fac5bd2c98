"""What is in a log, read by nobody's code but this: the judge does not ask the accused. Pure.

The layout is RocketMQ's (`docs/STORE.md`); addresses are of four bytes in every simulated world.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

MESSAGE_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
_HEAD = struct.Struct(">IIIiiqqi")  # Size to system flag.
_SIZE_AND_MAGIC = struct.Struct(">II")
_BODY_SIZE_AT = 84
_ENTRY = struct.Struct(">qiq")
_FILLER = 0x7FFFFFFF  # The size in entries before the first of a queue.
METADATA_TOPIC = "rmq_sys_twinlog_metadata"


class Found(NamedTuple):
    """One record."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


class LogImage:
    """The files of a log by their names, as they are on one disk at one moment."""

    def __init__(self, files: Mapping[int, bytes], segment_size: int) -> None:
        self._files = files
        self._segment_size = segment_size
        self.start = min(files, default=0)
        self.records: list[Found] = []
        self.end = self._walk()

    def _walk(self) -> int:
        position, size = self.start, self._segment_size
        while (data := self._files.get(base := self._base(position))) is not None:
            records, position = _walk_segment(data, base, position - base, size)
            self.records += records
            if position < base + size:
                break
        return position

    def _base(self, position: int) -> int:
        return position - position % self._segment_size

    def read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            base = self._base(start)
            stop = min(end, base + self._segment_size)
            parts.append(self._files.get(base, b"")[start - base : stop - base])
            start = stop
        return b"".join(parts)


@lru_cache(maxsize=128)
def _walk_segment(
    data: bytes, base: int, index: int, segment_size: int
) -> tuple[tuple[Found, ...], int]:
    """Its records from `index` on, and where they end: in the next segment, if it is whole. All
    but the last segments of a log are asked for again and again, by every replica."""
    records: list[Found] = []
    while index < segment_size and index + 8 <= len(data):
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, index)
        if magic == BLANK_MAGIC and size == segment_size - index:
            return tuple(records), base + segment_size
        record = parse_record(data, index, base + index)
        if record is None:
            break
        records.append(record)
        index += record.size
    return tuple(records), base + index


def parse_record(data: bytes, index: int, position: int) -> Found | None:
    """The record at `index`, if it is one that belongs at `position`."""
    if index + _BODY_SIZE_AT + 4 > len(data):
        return None
    size, magic, crc, queue_id, _, queue_offset, physical, _ = _HEAD.unpack_from(data, index)
    if magic != MESSAGE_MAGIC or index + size > len(data) or physical != position:
        return None
    (body_size,) = struct.unpack_from(">I", data, index + _BODY_SIZE_AT)
    at = index + _BODY_SIZE_AT + 4
    body = data[at : at + body_size]
    at += body_size
    if at >= len(data) or (crc & 0x7FFFFFFF) != (crc32(body) & 0x7FFFFFFF if body else 0):
        return None
    topic_end = at + 1 + data[at]
    topic = data[at + 1 : topic_end].decode("utf-8", "replace")
    (property_size,) = struct.unpack_from(">H", data, topic_end)
    if topic_end + 2 + property_size - index != size:
        return None
    if property_size and not data[index + size - 1]:
        return None  # No broker's properties end so: the rest of the record was never written.
    return Found(position, size, topic, queue_id, queue_offset, body)


def messages(data: bytes) -> Iterator[Found]:
    """The records of an answer to a pull."""
    index = 0
    while index + 36 <= len(data):
        (physical,) = struct.unpack_from(">q", data, index + 28)
        record = parse_record(data, index, physical)
        if record is None:
            return
        yield record
        index += record.size


def queue_entries(files: Mapping[int, bytes]) -> dict[int, tuple[int, int]]:
    """(physical offset, size) by queue offset, of the files of one consume queue."""
    found = {}
    for name, data in files.items():
        for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
            offset, size, _ = _ENTRY.unpack_from(data, at)
            if 0 < size < _FILLER and offset >= 0:
                found[(name + at) // _ENTRY.size] = (offset, size)
    return found


def topics_in_log(image: LogImage) -> set[str]:
    """The topics that the metadata in a log names."""
    names: set[str] = set()
    for record in image.records:
        if record.topic == METADATA_TOPIC:
            change = json.loads(record.body)
            if change.get("kind") == "topics":
                names.update(change.get("put", {}))
    return names


def committed_in_log(image: LogImage) -> dict[tuple[str, int], int]:
    """The consumer offsets that the metadata in a log ends with, by "topic@group" and queue."""
    table: dict[tuple[str, int], int] = {}
    for record in image.records:
        if record.topic != METADATA_TOPIC:
            continue
        change: dict[str, Any] = json.loads(record.body)
        if change.get("kind") != "offsets":
            continue
        for way in ("forward", "back"):
            for key, queues in change.get(way, {}).items():
                for queue_id, offset in queues.items():
                    place = (key, int(queue_id))
                    table[place] = offset if way == "back" else max(offset, table.get(place, -1))
    return table
