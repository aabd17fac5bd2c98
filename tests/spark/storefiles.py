"""Writes store directories for tests: commit log and consume queues in Apache's layout."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from twinlog.message.hashing import jhash
from twinlog.message.model import PutMessage
from twinlog.message.properties import decode_properties, encode_properties
from twinlog.message.record import blank_record, encode_record

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
HOST = bytes([10, 0, 0, 1]) + struct.pack(">i", 10911)
BORN = bytes([10, 0, 0, 9]) + struct.pack(">i", 50000)
BEGIN_MS = 1_700_000_000_000


def unpack_vectors(target: Path) -> Path:
    """Copy the captured store of an Apache master, with the trailing zeros put back."""
    source = VECTORS / "store"
    for line in (source / "MANIFEST.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("length") is None or not (source / entry["path"]).is_file():
            (target / entry["path"]).mkdir(parents=True, exist_ok=True)
            continue
        data = (source / entry["path"]).read_bytes()
        place = target / entry["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.ljust(entry["length"], b"\0"))
    for config in (source / "config").iterdir():
        (target / "config").mkdir(exist_ok=True)
        (target / "config" / config.name).write_bytes(config.read_bytes())
    return target


class StoreFiles:
    """A small broker without a broker: appends records and queue entries to files."""

    def __init__(
        self, root: Path, *, segment_size: int = 1 << 16, queue_entries: int = 1000, base: int = 0
    ) -> None:
        self.root, self.segment_size, self.queue_size = root, segment_size, queue_entries * 20
        self.end = base
        self.heads: dict[tuple[str, int], int] = {}
        self.rows: list[dict[str, Any]] = []
        self.now = BEGIN_MS
        (root / "commitlog").mkdir(parents=True)
        (root / "consumequeue").mkdir()
        (root / "config").mkdir()
        self.write_topics("broker-a")

    def write_topics(self, broker: str) -> None:
        """Write a topic table that names the broker."""
        table = {broker: {"perm": 1, "writeQueueNums": 1, "readQueueNums": 1, "topicName": broker}}
        text = json.dumps({"topicConfigTable": table})
        (self.root / "config" / "topics.json").write_text(text)

    def put(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        body: bytes = b"body",
        properties: dict[str, str] | bytes | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Append one message and return what it must decode to."""
        packed = (
            properties if isinstance(properties, bytes) else encode_properties(properties or {})
        )
        message = PutMessage(
            topic=topic, queue_id=queue_id, body=body, properties=packed,
            born_timestamp=self.now - 3, born_host=fields.pop("born_host", BORN),
            store_host=fields.pop("store_host", HOST), **fields,
        )  # fmt: skip
        self.now += 1
        queue_offset = self.heads.get((topic, queue_id), 0)
        record = encode_record(message, queue_offset, self.end, self.now)
        room = self.segment_size - self.end % self.segment_size
        if len(record) + 8 > room:
            self._write("commitlog", self.end, self.segment_size, blank_record(room))
            self.end += room
            record = encode_record(message, queue_offset, self.end, self.now)
        self._write("commitlog", self.end, self.segment_size, record)
        known = decode_properties(packed)
        tags = known.get("TAGS", "")
        entry = struct.pack(">qiq", self.end, len(record), jhash(tags) if tags else 0)
        where = f"consumequeue/{topic}/{queue_id}"
        self._write(where, queue_offset * 20, self.queue_size, entry)
        row = {
            "topic": topic, "queue_id": queue_id, "queue_offset": queue_offset,
            "phys_offset": self.end, "store_size": len(record), "body": body,
            "properties": known, "tags": known.get("TAGS"), "keys": known.get("KEYS"),
            "msg_id": known.get("UNIQ_KEY"), "store_ms": self.now,
        }  # fmt: skip
        self.rows.append(row)
        self.heads[topic, queue_id] = queue_offset + 1
        self.end += len(record)
        return row

    def fill(
        self, count: int, *, topics: tuple[str, ...] = ("orders", "events"), padding: int = 0
    ) -> None:
        """Append messages round robin over topics and four queues."""
        for number in range(len(self.rows), len(self.rows) + count):
            self.put(
                topics[number % len(topics)],
                number // len(topics) % 4,
                b'{"id": %d, "amount": %d}' % (number, number % 97)
                + b" " * (padding + number % 50),
                {"KEYS": f"k{number}", "TAGS": "abc"[number % 3], "UNIQ_KEY": f"{number:032X}"},
            )

    def _write(self, where: str, position: int, file_size: int, data: bytes) -> None:
        base = position // file_size * file_size
        path = self.root / where / f"{base:020d}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(file_size)
        with path.open("r+b") as file:
            file.seek(position - base)
            file.write(data)
