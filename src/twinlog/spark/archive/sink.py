"""Exactly-once archive: ranges in, Parquet out; the rows never pass through the JVM.

The stream of `ranges` has one row per planned window: which offsets of which queues to archive. The
sink's tasks read those windows themselves, write Parquet with Arrow, and stage the files; `commit`
publishes a batch by renaming its files and linking one manifest file.

Spark starts two processes for every batch that only make a writer or publish. They import this
module, so what tasks need (Arrow, numpy, the decoder) is imported in `write`.

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
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twinlog.spark.archive.manifest import (
    Batch,
    Manifest,
    Staged,
    check_next,
    check_replay,
    merge_ranges,
    sync_directories,
)
from twinlog.spark.errors import ArchiveError
from twinlog.spark.options import SourceOptions
from twinlog.spark.run.faults import point

if TYPE_CHECKING:
    import pyarrow as pa

GAP = "GAP the rows no longer existed when the batch was planned"


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

    @property
    def _remedy(self) -> str:
        return f"remove {self.root / '_checkpoint'}: the archive itself knows where to continue"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Read the windows of this task and write their rows to staged files."""
        from pyspark import TaskContext

        from twinlog.spark.archive.parquet import PartitionedWriter
        from twinlog.spark.archive.stage import stage_window
        from twinlog.spark.plan.windows import Range

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
                staged, skipped = stage_window(SourceOptions.parse(self.source), window, writer)
                done.ranges += [list(r) for r in window]
                done.staged += staged
                done.skipped += skipped
        point("staged")
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, once."""
        done = [message for message in messages if isinstance(message, Done)]
        staged = [file for message in done for file in message.staged]
        if not any(message.ranges for message in done):
            return
        query = done[0].query
        manifest = Manifest(self.root)
        ranges = [r for message in done for r in message.ranges]
        if self.is_published(manifest, query, batchId):
            check_replay(manifest.ends(), ranges, self._remedy)
            self._drop(staged)
            return
        sequence = manifest.next_sequence()  # before the ends: see Manifest.publish
        skipped = [skip for message in done for skip in message.skipped]
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
            except ArchiveError as error:
                if SourceOptions.parse(self.source).fail_on_data_loss or low < end:
                    detail = f"{error.message}: {self._remedy}"
                    raise ArchiveError(error.condition, detail) from error
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
