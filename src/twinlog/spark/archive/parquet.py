"""Rows to Parquet files, one per topic and day, staged under names that no reader looks at."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from twinlog.message.crc import crc32
from twinlog.spark.archive.manifest import ArchivedFile, Staged
from twinlog.spark.decode.columns import arrow_schema

DAY_MS = 86_400_000
CRC_CHUNK = 1 << 20
ROW_GROUP_BYTES = 32 << 20  # held back per file: a row group per Arrow batch would be too small
# What readers prune by; minimum and maximum of bodies would only cost.
STATISTICS_COLUMNS = [
    "topic", "broker", "queue_id", "queue_offset", "phys_offset", "born_ts", "store_ts", "keys",
    "msg_id", "tags",
]  # fmt: skip
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


@dataclass(slots=True)
class _Open:
    topic: str
    day: int
    writer: pq.ParquetWriter
    path: Path
    rows: int = 0
    store_ms: list[int] = field(default_factory=list)
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    synced: list[Future[None]] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take rows; say whether there were enough for a row group, which is written then."""
        self.note(batch)
        self.held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes < ROW_GROUP_BYTES:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write the rows that are held as one row group."""
        if self.held:
            table = pa.Table.from_batches(self.held)
            self.writer.write_table(table, row_group_size=table.num_rows)
        self.held, self.held_bytes = [], 0

    def note(self, batch: pa.RecordBatch) -> None:
        """Take down the extremes of a batch."""
        self.rows += batch.num_rows
        times = batch.column("store_ts").cast(pa.int64()).to_numpy()
        known = [*self.store_ms, int(times.min()) // 1000, int(times.max()) // 1000]
        self.store_ms = [min(known), max(known)]
        brokers = batch.column("broker").dictionary_encode()
        owners = brokers.indices.to_numpy()
        ids, offsets = (batch.column(n).to_numpy() for n in ("queue_id", "queue_offset"))
        for number, broker in enumerate(brokers.dictionary.to_pylist()):
            own = owners == number
            for queue in np.unique(ids[own]).tolist():
                found = offsets[own & (ids == queue)]
                key = (broker, queue)
                known = [*self.queues.get(key, ()), int(found.min()), int(found.max())]
                self.queues[key] = [min(known), max(known)]


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


class PartitionedWriter:
    """Writes batches into one staged file per topic and day.

    The disk takes what is written while the next rows are decoded: every row group is synced on a
    thread, and `finish` waits.
    """

    def __init__(self, root: Path, prefix: str, suffix: str, compression: str) -> None:
        self.root, self.prefix, self.suffix = root, prefix, suffix
        self.compression = compression
        self.open: dict[tuple[str, int], _Open] = {}
        self.files: list[_Open] = []  # the open ones too
        self._syncing = ThreadPoolExecutor(max_workers=2)
        (root / "_staging").mkdir(parents=True, exist_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of all columns."""
        for key, part in split_by_day(batch):
            target = self.open.get(key) or self._start(key)
            if target.add(part):
                self._sync(target)

    def _sync(self, target: _Open) -> None:
        target.synced.append(self._syncing.submit(sync_file, target.path))

    def close_files(self) -> None:
        """Close the files that are open; rows that come for them yet get another file."""
        for target in self.open.values():
            target.flush()
            target.writer.close()
            self._sync(target)
        self.open = {}

    def _start(self, key: tuple[str, int]) -> _Open:
        path = self.root / "_staging" / f"{self.prefix}-{len(self.files)}.{self.suffix}"
        writer = pq.ParquetWriter(
            path,
            arrow_schema(),
            compression=self.compression,
            use_dictionary=DICTIONARY_COLUMNS,
            write_statistics=STATISTICS_COLUMNS,
        )
        self.open[key] = _Open(*key, writer, path)
        self.files.append(self.open[key])
        return self.open[key]

    def finish(self) -> list[Staged]:
        """Close and sync all files."""
        self.close_files()
        staged = []
        for number, target in enumerate(self.files):
            folder = directory_of(target.topic, target.day)
            final = ArchivedFile(
                name=f"{folder}/{self.prefix}-{number}.parquet",
                topic=target.topic,
                date=folder[-10:],
                rows=target.rows,
                size=target.path.stat().st_size,
                crc=file_crc(target.path),
                store_ms=target.store_ms,
                queues=[[*queue, *ends] for queue, ends in sorted(target.queues.items())],
            )
            staged.append(Staged(str(target.path), final))
        for target in self.files:
            for synced in target.synced:
                synced.result()
        self._syncing.shutdown()
        return staged

    def discard(self) -> None:
        """Remove what was written, after an error."""
        self._syncing.shutdown(cancel_futures=True)
        for target in self.files:
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
