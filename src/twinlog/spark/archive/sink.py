"""Exactly-once archive: ranges in, Parquet out; the rows never pass through the JVM.

`RangesSource` is a stream with one row per planned window: which offsets of which queues to
archive. The sink's tasks read those windows themselves, write Parquet with Arrow, and stage the
files; `commit` publishes a batch by renaming its files and linking one manifest file.

What happens when the process dies:

| after | left behind | next run |
|---|---|---|
| files staged | staged files | the batch is done again; compaction removes the old |
| files renamed | files that no manifest names | the batch is done again |
| manifest linked | a published batch | `commit` finds it and drops its own files |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from twinlog.spark.archive.manifest import (
    Batch,
    Manifest,
    check_next,
    merge_ranges,
    sync_directories,
)
from twinlog.spark.archive.parquet import PartitionedWriter, Staged
from twinlog.spark.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.errors import ArchiveError, RecordCorruptError
from twinlog.spark.faults import point
from twinlog.spark.offsets import is_symbol
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan import Range
from twinlog.spark.rows import read_window
from twinlog.spark.source import StreamReader, WindowPartition
from twinlog.spark.transport import Skip

GAP = "GAP rows were not there any more when the batch was planned"


def by_topic(window: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """Cut a window by topic: rows that go to one file are decoded together and not copied again."""
    names = sorted({r.topic for r in window})
    return [tuple(r for r in window if r.topic == name) for name in names]


class RangePartition(WindowPartition):
    """A window, with what the manifest keeps of the batch's end."""

    def __init__(self, window: Any, marks: dict[str, Any]) -> None:
        super().__init__(window)
        self.marks = marks


class RangesReader(StreamReader):
    """The stream of windows."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[WindowPartition]:
        """Plan one batch."""
        marks = {} if is_symbol(end) else dict(end.get("marks", {}))
        windows = self.planner.partitions(start, end)
        planned: list[WindowPartition] = [RangePartition(window, marks) for window in windows]
        point("planned" if planned else "pinned")
        return planned

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        found = super().latestOffset(start, limit)
        point("latest")
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the window itself."""
        assert isinstance(partition, RangePartition)
        yield (json.dumps(partition.window), json.dumps(partition.marks))


class RangesSource(DataSource):
    """Format "twinlog_ranges", used by the archive job only."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog_ranges"

    def schema(self) -> str:
        """Return the columns."""
        return "window STRING, marks STRING"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader."""
        SourceOptions.parse(self.options)
        return RangesReader(dict(self.options), arrow_schema())


@dataclass
class Done(WriterCommitMessage):
    """What a task staged."""

    query: str
    batch: int
    ranges: list[list[Any]]
    staged: list[Staged]
    marks: dict[str, Any]
    skipped: list[list[Any]]


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Stages files in tasks, publishes them in `commit`. Spark makes a new one for every batch."""

    def __init__(self, options: dict[str, str]) -> None:
        folded = {key.lower(): value for key, value in options.items()}
        self.root = Path(folded["path"])
        self.source: dict[str, str] = json.loads(folded["source"])
        self.compression = folded.get("compression", "zstd")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Read the windows of this task and write their rows to staged files."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = str(context.getLocalProperty("sql.streaming.queryId"))
        batch = int(str(context.getLocalProperty("streaming.sql.batchId")))
        # Names are never used twice: a process that outlived its driver must not replace a file
        # that was published meanwhile.
        prefix = f"{batch:08d}-{query[:8]}-{context.partitionId()}-{os.urandom(4).hex()}"
        suffix = f"{context.taskAttemptId()}.{os.getpid()}"
        done = Done(query, batch, [], [], {}, [])
        for rows in iterator:
            for number, row in enumerate(rows.to_pylist()):
                writer = PartitionedWriter(
                    self.root, f"{prefix}-{number}", suffix, self.compression
                )
                window = tuple(Range(*r) for r in json.loads(row["window"]))
                done.marks = json.loads(row["marks"])
                self._window(window, writer, done)
        point("staged")
        return done

    def _window(self, window: tuple[Range, ...], writer: PartitionedWriter, done: Done) -> None:
        options = SourceOptions.parse(self.source)
        skipped: list[Skip] = []
        count = 0
        try:
            for part in by_topic(window):
                for batch in read_window(options, part, ALL_COLUMNS, skipped):
                    count += batch.num_rows
                    writer.write(batch)
                writer.close_files()
            self._check_count(window, count, skipped, options)
            done.staged += writer.finish()
        except BaseException:
            writer.discard()
            raise
        done.ranges += [list(r) for r in window]
        done.skipped += [[s.topic, s.broker, s.queue_id, s.low, s.high, s.reason] for s in skipped]

    @staticmethod
    def _check_count(
        window: tuple[Range, ...], count: int, skipped: list[Skip], options: SourceOptions
    ) -> None:
        lost = sum(skip.high - skip.low for skip in skipped)
        wanted = sum(r.rows for r in window) - lost
        if count != wanted and not options.tags:
            raise RecordCorruptError(
                "RECORD_CORRUPT", f"a window of {wanted} rows gave {count}: {window}"
            )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, once."""
        done = [message for message in messages if isinstance(message, Done)]
        staged = [file for message in done for file in message.staged]
        if not any(message.ranges for message in done):
            return
        query = done[0].query
        manifest = Manifest(self.root)
        if self.is_published(manifest, query, batchId):
            self._drop(staged)
            return
        sequence = manifest.next_sequence()  # before the ends: see Manifest.publish
        skipped = [skip for message in done for skip in message.skipped]
        ranges = [r for message in done for r in message.ranges]
        skipped += self._check_chain(manifest, ranges)
        point("before-rename")
        self._rename(staged)
        point("renamed")
        manifest.publish(
            Batch(
                sequence=sequence,
                query=query,
                batch=batchId,
                ranges=[[*key, *ends] for key, ends in sorted(merge_ranges(ranges).items())],
                files=[file.final for file in staged],
                marks=done[0].marks,
                skipped=skipped,
            )
        )
        point("published")

    def is_published(self, manifest: Manifest, query: str, batch: int) -> bool:
        """Say whether this batch is in the archive already: a replay must not add it again."""
        return manifest.has(query, batch)

    def _check_chain(self, manifest: Manifest, ranges: list[list[Any]]) -> list[list[Any]]:
        """Demand that the batch begins where the archive ends; return gaps that are allowed."""
        ends = manifest.ends()
        gaps = []
        for key, (low, _) in merge_ranges(ranges).items():
            end = ends.get(key, low)
            try:
                check_next(key, end, low)
            except ArchiveError:
                if SourceOptions.parse(self.source).fail_on_data_loss or low < end:
                    raise
                gaps.append([*key, end, low, GAP])
        return gaps

    def _rename(self, staged: list[Staged]) -> None:
        folders = set()
        for file in staged:
            final = file.final.path(self.root)
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file.temporary, final)
            folders |= {final.parent, final.parent.parent}
        sync_directories([*folders, self.root])

    @staticmethod
    def _drop(staged: list[Staged]) -> None:
        for file in staged:
            Path(file.temporary).unlink(missing_ok=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove staged files only: this is also called after a commit that published."""
        for message in messages:
            if isinstance(message, Done):
                self._drop(message.staged)


class ArchiveSink(DataSource):
    """Format "twinlog_archive", used by the archive job only."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog_archive"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make the writer of one batch."""
        return ArchiveWriter(dict(self.options))
