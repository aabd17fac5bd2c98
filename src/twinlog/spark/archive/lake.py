"""An archive as a lakehouse table: Parquet by the tasks, the commit by the table's own log.

Each batch is one commit that carries the query and the number of the batch, so a batch that is done
again finds itself and adds nothing. It carries where each queue ends too: a batch must begin there,
and when the checkpoint is lost the next run starts there. Files that a crash leaves behind are in
no commit; the table's own cleaning removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twinlog.spark.archive.manifest import ArchivedFile, check_next, check_replay, merge_ranges
from twinlog.spark.errors import ArchiveError, OptionError, PipelineError
from twinlog.spark.options import SourceOptions
from twinlog.spark.places import is_local, open_place
from twinlog.spark.plan.offsets import Offsets
from twinlog.spark.run.faults import point

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("delta", "iceberg")
# About ten seconds. The pauses are random, so that a compaction that changes the table at the same
# time is not met at every attempt.
COMMIT_TRIES, COMMIT_PAUSE_S = 12, 0.3
REMEDY = "remove the checkpoint: the table itself knows where to continue"
T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """What one batch adds."""

    query: str
    batch: int
    files: list[ArchivedFile]
    ends: Offsets


class LakeTable(Protocol):
    """A table of a lakehouse format, as it is when it is first asked.

    A commit after `last_batch` is one step with it: the format refuses it when the same batch was
    committed in between, by a driver that was thought dead.
    """

    def last_batch(self, query: str) -> int:
        """Return the last batch of a query that is committed; -1 when there is none."""

    def ends(self) -> Offsets:
        """Return where each queue ends."""

    def rows(self) -> int:
        """Count the rows."""

    def commit(self, commit: Commit) -> None:
        """Add the files of a batch, all or nothing."""

    def compact(self, expire_days: float | None, grace_seconds: float) -> dict[str, Any]:
        """Merge small files, forget old rows and files that no version names."""


def open_table(kind: str, place: str, settings: Mapping[str, str]) -> LakeTable:
    """Open a table; it is made by the first commit.

    Raises:
        OptionError: the format is not known, or its package is not installed.
    """
    try:
        if kind == "delta":
            from twinlog.spark.archive.delta import Delta

            return Delta(place)
        if kind == "iceberg":
            from twinlog.spark.archive.iceberg import Iceberg

            return Iceberg(place, settings)
    except ImportError as error:
        raise OptionError(
            "BAD_OPTION",
            f"format {kind} needs the extra 'lakehouse': "
            f"run pip install 'twinlog[lakehouse]' ({error})",
        ) from error
    raise OptionError("BAD_OPTION", f"the format must be parquet, delta or iceberg, not {kind!r}")


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    query: str
    batch: int
    ranges: list[list[Any]]
    files: list[ArchivedFile]


class LakeWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, commits them in `commit`. Spark makes a new one for every batch."""

    def __init__(self, options: dict[str, str]) -> None:
        folded = {key.lower(): value for key, value in options.items()}
        self.place, self.kind = folded["path"], folded["kind"]
        self.settings: dict[str, str] = json.loads(folded["settings"])
        self.source: dict[str, str] = json.loads(folded["source"])
        self.compression = folded.get("compression", "zstd")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Read the windows of this task and write their rows to files of the table."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = str(context.getLocalProperty("sql.streaming.queryId"))
        batch = int(str(context.getLocalProperty("streaming.sql.batchId")))
        prefix = f"{batch:08d}-{query[:8]}-{context.partitionId()}-{os.urandom(4).hex()}"
        done = Written(query, batch, [], [])
        with staging_of(self.place) as staging:
            for rows in iterator:
                for number, row in enumerate(rows.to_pylist()):
                    self.add_window(json.loads(row["window"]), f"{prefix}-{number}", staging, done)
        point("staged")
        return done

    def add_window(self, window: Any, prefix: str, staging: Path, done: Written) -> None:
        """Write the rows of one window."""
        from twinlog.spark.archive.parquet import PartitionedWriter
        from twinlog.spark.archive.stage import stage_window
        from twinlog.spark.plan.windows import Range

        writer = PartitionedWriter(staging, prefix, str(os.getpid()), self.compression)
        ranges = tuple(Range(*r) for r in window)
        staged, _ = stage_window(SourceOptions.parse(self.source), ranges, writer)
        for file in staged:
            publish(Path(file.temporary), self.place, file.final.name)
            done.files.append(file.final)
        done.ranges += [list(r) for r in ranges]

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, once."""
        done = [message for message in messages if isinstance(message, Written)]
        files = [file for message in done for file in message.files]
        ranges = [r for message in done for r in message.ranges]
        if not ranges:
            return
        query = done[0].query

        def add(table: LakeTable) -> None:
            ends = self._chained(table.ends(), ranges)
            point("before-rename")
            table.commit(Commit(query, batchId, files, ends))

        def is_there(table: LakeTable) -> bool:
            if table.last_batch(query) < batchId:
                return False
            check_replay(table.ends(), ranges, REMEDY)
            return True

        if commit_once(self._open, is_there, add):
            point("published")
        else:
            remove(self.place, [file.name for file in files])

    def _open(self) -> LakeTable:
        return open_table(self.kind, self.place, self.settings)

    def _chained(self, ends: Offsets, ranges: list[list[Any]]) -> Offsets:
        """Demand that the batch begins where the table ends; return where it ends then."""
        after = dict(ends)
        for key, (low, high) in merge_ranges(ranges).items():
            try:
                check_next(key, ends.get(key, low), low)
            except ArchiveError as error:
                if SourceOptions.parse(self.source).fail_on_data_loss or low < ends[key]:
                    raise ArchiveError(error.condition, f"{error.message}: {REMEDY}") from error
            after[key] = high
        return after

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove files, unless a commit may name them."""
        done = [message for message in messages if isinstance(message, Written)]
        if may_be_committed(messages) or not done:
            return
        if self._open().last_batch(done[0].query) < batchId:
            remove(self.place, [file.name for message in done for file in message.files])


def commit_once(
    look: Callable[[], T], is_there: Callable[[T], bool], add: Callable[[T], None]
) -> bool:
    """Commit a batch to a table unless it is there.

    The format refuses a commit when the same batch was committed after the look, by a driver that
    was thought dead. Whatever else fails (a change by somebody else, an object store that is away,
    an answer that was lost) is found out by the next look.

    Returns:
        Whether a commit of ours was tried, so that files of ours may be named by it.
    """
    for attempt in range(COMMIT_TRIES):
        table = look()
        if is_there(table):
            return attempt > 0
        try:
            add(table)
        except PipelineError:
            raise
        except Exception:
            if attempt + 1 == COMMIT_TRIES and not is_there(look()):
                raise
            time.sleep(random.uniform(0.5, 1.0) * COMMIT_PAUSE_S * min(attempt + 1, 5))
        else:
            break
    return True


def may_be_committed(messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Say whether a batch that is aborted was tried to commit: then all its tasks were done.

    A commit that failed may still be on its way to an object store. Its files stay; where no commit
    names them, the table's own cleaning removes them.
    """
    return None not in messages


@contextlib.contextmanager
def staging_of(place: str) -> Iterator[Path]:
    """Make a directory for files under way, on the same disk where there is one."""
    parent = None
    if is_local(place):
        parent = Path(open_place(place)[1]) / "_staging"
        parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix="twinlog-", dir=parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish(local: Path, place: str, name: str) -> None:
    """Put a finished file into its place."""
    from pyarrow import fs

    target, root = open_place(place)
    path = f"{root}/{name}"
    if is_local(place):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(local, path)
        return
    fs.copy_files(
        str(local), path, source_filesystem=fs.LocalFileSystem(), destination_filesystem=target
    )


def remove(place: str, names: Iterable[str]) -> None:
    """Remove files that no commit names."""
    target, root = open_place(place)
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            target.delete_file(f"{root}/{name}")


class LakeSink(DataSource):
    """Format "twinlog_lake", used by the archive job only."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog_lake"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make the writer of one batch."""
        return LakeWriter(dict(self.options))
