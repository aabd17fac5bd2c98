"""Looking into a replica's files with nothing but the file format: no broker is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinlog.message.compression import CompressionError, inflate_body
from twinlog.message.layout import MAGIC_BLANK, RECORD_SIZE_MIN, SIZE_MAGIC
from twinlog.message.record import RecordError, decode_record


@dataclass(frozen=True, slots=True)
class Found:
    """One message of the demo in a store."""

    number: int
    physical_offset: int
    size: int


def messages_in_store(store: Path, topic: str) -> Iterator[Found]:
    """Every whole and undamaged record of `topic` in the commit log, oldest first.

    Ends a file at the first bytes that are no record: the end of the log, or damage.
    """
    for path in sorted((store / "commitlog").iterdir()):
        data = memoryview(path.read_bytes())
        position, start = 0, int(path.name)
        while position + SIZE_MAGIC.size <= len(data):
            size, magic = SIZE_MAGIC.unpack_from(data, position)
            if magic == MAGIC_BLANK or size < RECORD_SIZE_MIN or position + size > len(data):
                break
            try:
                record = decode_record(data, position, check_crc=True)
                body = inflate_body(record.body, record.sys_flag)
            except (RecordError, CompressionError):
                position += size
                continue
            if record.topic == topic and record.physical_offset == start + position:
                yield Found(int(body[:10]), record.physical_offset, size)
            position += size
