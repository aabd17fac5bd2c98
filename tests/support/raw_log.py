"""What a commit log holds, read from its files by the plain record decoder: no broker, no index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from twinlog.message.layout import MAGIC_V1, MAGIC_V2
from twinlog.message.model import Record
from twinlog.message.record import decode_record


def raw_records(store: Path, topic: str) -> Iterator[Record]:
    """Every record of a topic, in the order of the log."""
    for path in sorted((store / "commitlog").iterdir()):
        if not path.name.isdigit():
            continue
        data, position = path.read_bytes(), 0
        while int.from_bytes(data[position + 4 : position + 8], "big") in (MAGIC_V1, MAGIC_V2):
            record = decode_record(data, position)
            if record.topic == topic:
                yield record
            position += record.total_size


def raw_bodies(store: Path, topic: str) -> Counter[bytes]:
    """How often each body is in the log."""
    return Counter(record.body for record in raw_records(store, topic))


def raw_origins(store: Path, topic: str) -> Counter[str]:
    """How often each message that was copied is in the log, by the id it had before."""
    return Counter(record.property_map["ORIGIN_UNIQ_KEY"] for record in raw_records(store, topic))
