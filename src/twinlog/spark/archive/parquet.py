"""Rows to Parquet files, one per topic and day, staged under names that no reader looks at."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinlog.message.crc import crc32
from twinlog.spark.archive.manifest import ArchivedFile
from twinlog.spark.columns import arrow_schema

DAY_MS = 86_400_000
CRC_CHUNK = 1 << 20
DICTIONARY_COLUMNS = [
    "topic", "broker", "tags", "born_host", "store_host", "properties.key_value.key",
]  # fmt: skip


def directory_of(topic: str, day: int) -> str:
    """Return the directory of a topic's day; `%` and the like are escaped as Hive does."""
    date = datetime.fromtimestamp(day * DAY_MS / 1000, UTC).strftime("%Y-%m-%d")
    return f"topic={urllib.parse.quote(topic, safe='')}/date={date}"


def file_crc(path: Path) -> int:
    """Return the checksum of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CRC_CHUNK):
            value = crc32(chunk, value)
    return value


@dataclass(frozen=True, slots=True)
class Staged:
    """A finished file that is not published yet."""

    temporary: str
    final: ArchivedFile


@dataclass(slots=True)
class _Open:
    writer: pq.ParquetWriter
    path: Path
    rows: int = 0
    store_ms: list[int] = field(default_factory=list)
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    def note(self, batch: pa.RecordBatch) -> None:
        """Take down the extremes of a batch."""
        self.rows += batch.num_rows
        times = pc.min_max(batch.column("store_ts").cast(pa.int64())).as_py()
        known = [*self.store_ms, times["min"] // 1000, times["max"] // 1000]
        self.store_ms = [min(known), max(known)]
        keys = pa.Table.from_batches([batch.select(["broker", "queue_id", "queue_offset"])])
        found = keys.group_by(["broker", "queue_id"]).aggregate(
            [("queue_offset", "min"), ("queue_offset", "max")]
        )
        for row in found.to_pylist():
            key = (row["broker"], row["queue_id"])
            known = [*self.queues.get(key, ()), row["queue_offset_min"], row["queue_offset_max"]]
            self.queues[key] = [min(known), max(known)]


class PartitionedWriter:
    """Writes batches into one staged file per topic and day."""

    def __init__(self, root: Path, prefix: str, suffix: str, compression: str) -> None:
        self.root, self.prefix, self.suffix = root, prefix, suffix
        self.compression = compression
        self.open: dict[tuple[str, int], _Open] = {}
        (root / "_staging").mkdir(parents=True, exist_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of all columns."""
        for key, part in split_by_day(batch):
            target = self.open.get(key) or self._start(key)
            target.note(part)
            target.writer.write_batch(part)

    def _start(self, key: tuple[str, int]) -> _Open:
        path = self.root / "_staging" / f"{self.prefix}-{len(self.open)}.{self.suffix}"
        writer = pq.ParquetWriter(
            path,
            arrow_schema(),
            compression=self.compression,
            use_dictionary=DICTIONARY_COLUMNS,
        )
        self.open[key] = _Open(writer, path)
        return self.open[key]

    def finish(self) -> list[Staged]:
        """Close and sync all files."""
        staged = []
        for number, ((topic, day), target) in enumerate(self.open.items()):
            target.writer.close()
            with target.path.open("rb") as file:
                os.fsync(file.fileno())
            folder = directory_of(topic, day)
            final = ArchivedFile(
                name=f"{folder}/{self.prefix}-{number}.parquet",
                topic=topic,
                date=folder[-10:],
                rows=target.rows,
                size=target.path.stat().st_size,
                crc=file_crc(target.path),
                store_ms=target.store_ms,
                queues=[[*queue, *ends] for queue, ends in sorted(target.queues.items())],
            )
            staged.append(Staged(str(target.path), final))
        return staged

    def discard(self) -> None:
        """Remove what was written, after an error."""
        for target in self.open.values():
            target.writer.close()
            target.path.unlink(missing_ok=True)


def split_by_day(batch: pa.RecordBatch) -> Iterable[tuple[tuple[str, int], pa.RecordBatch]]:
    """Split a batch by topic and UTC day of the store time, keeping the order of rows."""
    if batch.num_rows == 0:
        return []
    topics = batch.column("topic").dictionary_encode()
    days = batch.column("store_ts").cast(pa.int64()).to_numpy() // (DAY_MS * 1000)
    first = int(days.min())
    span = int(days.max()) - first + 1
    labels = topics.indices.to_numpy().astype(np.int64) * span + (days - first)
    found: list[Any] = []
    for label in np.unique(labels).tolist():
        key = (topics.dictionary[label // span].as_py(), first + label % span)
        rows = np.flatnonzero(labels == label)
        part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
        found.append((key, part))
    return found
