"""Format "twinlog_delta": a stream of any rows into a Delta table, without a jar.

PySpark from PyPI has no Delta of its own. Tasks write Parquet, the driver commits by the package
`deltalake`; a batch is one commit that carries the query and the number of the batch as Delta's
transaction identifier, so a batch that is done again adds nothing. Columns that are new are added.

Spark imports this module in every process that looks for a format: what tasks need is imported
where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twinlog.spark.errors import OptionError
from twinlog.spark.options import fold

if TYPE_CHECKING:
    import pyarrow as pa

# The last two come from Spark itself: where the query keeps its offsets, and what it is called.
OPTIONS = ("path", "compression", "checkpointLocation", "queryName")


@dataclass
class Part(WriterCommitMessage):
    """The file that a task wrote, if it had rows."""

    query: str
    name: str
    size: int
    rows: int


class DeltaSink(DataSource):
    """Rows of a stream as a Delta table."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog_delta"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make the writer of one batch."""
        from pyspark.sql.pandas.types import to_arrow_schema

        given = fold(self.options, OPTIONS, {})
        if "path" not in given:
            raise OptionError("BAD_OPTION", "a Delta table needs the option path")
        if overwrite:
            raise OptionError(
                "BAD_OPTION", "rows can only be appended to a Delta table: use outputMode append"
            )
        return DeltaWriter(given, to_arrow_schema(schema, timezone="UTC"))


class DeltaWriter(DataSourceStreamArrowWriter):
    """Writes files in tasks, commits them in `commit`. Spark makes a new one for every batch."""

    def __init__(self, options: dict[str, str], shape: pa.Schema) -> None:
        self.place, self.shape = options["path"], shape
        self.compression = options.get("compression", "zstd")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Write the rows of this task to one file."""
        import pyarrow.parquet as pq
        from pyspark import TaskContext

        from twinlog.spark.archive.lake import publish, staging_of

        context = TaskContext.get()
        assert context is not None
        query = str(context.getLocalProperty("sql.streaming.queryId"))
        batch = int(str(context.getLocalProperty("streaming.sql.batchId")))
        part = f"{batch:08d}-{query[:8]}-{context.partitionId()}-{os.urandom(4).hex()}"
        done = Part(query, f"{part}.{self.compression}.parquet", 0, 0)
        with staging_of(self.place) as staging:
            target = staging / done.name
            with pq.ParquetWriter(target, self.shape, compression=self.compression) as writer:
                for rows in iterator:
                    writer.write_batch(rows.cast(self.shape))
                    done.rows += rows.num_rows
            done.size = target.stat().st_size
            if done.rows:
                publish(target, self.place, done.name)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, once."""
        from twinlog.spark.archive.delta import Delta, add_action
        from twinlog.spark.archive.lake import commit_once

        done = _written(messages)
        if not done:
            return
        query = done[0].query
        actions = [add_action(part.name, part.size, {"numRecords": part.rows}) for part in done]

        def add(table: Delta) -> None:
            table.append(self.shape, actions, transaction=(query, batchId))

        def is_there(table: Delta) -> bool:
            return table.last_batch(query) >= batchId

        if not commit_once(lambda: Delta(self.place), is_there, add):
            self._remove(done)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove files, unless a commit may name them."""
        from twinlog.spark.archive.delta import Delta
        from twinlog.spark.archive.lake import may_be_committed

        done = _written(messages)
        if may_be_committed(messages) or not done:
            return
        if Delta(self.place).last_batch(done[0].query) < batchId:
            self._remove(done)

    def _remove(self, parts: list[Part]) -> None:
        from twinlog.spark.archive.lake import remove

        remove(self.place, [part.name for part in parts])


def _written(messages: list[WriterCommitMessage | None]) -> list[Part]:
    return [part for part in messages if isinstance(part, Part) and part.rows]
