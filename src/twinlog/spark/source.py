"""Format "twinlog" for Spark: thin classes of the Python data source interface.

Spark pickles these objects to planner and worker processes, so they hold options only and open
files or connections where they run. It starts a process to plan a batch read, which imports this
module: parts of Arrow that only tasks need are imported where they are used. A user's schema is the
column pruning: Spark's interface has no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import __version__ as version
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from twinlog.spark.decode.body import BodyDecoder, body_columns, with_schema
from twinlog.spark.decode.columns import ALL_COLUMNS, COLUMNS, check_columns, exact_ddl, shaped
from twinlog.spark.errors import OptionError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.predicates import filtered, is_exact
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import Part, open_stream, plan_batch, read_window

UNLIMITED = 1 << 62
TAG_OPTIONS = ("tags", "subexpression")


class WindowPartition(InputPartition):
    """What one task reads."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self.part = part


class TwinlogDataSource(DataSource):
    """Topics as tables: `spark.read.format("twinlog")`, `spark.readStream.format("twinlog")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog"

    def schema(self) -> str:
        """Return all columns."""
        options = SourceOptions.parse(self.options)
        extra = body_columns(with_schema(options.raw))
        if not extra:
            return exact_ddl()
        plain = exact_ddl(name for name in ALL_COLUMNS if name != "body")
        return f"{plain}, {', '.join(f'{name} {kind}' for name, kind in extra.items())}"

    def _shape(self, schema: StructType, options: Mapping[str, str]) -> pa.Schema:
        """Return the Arrow schema of the rows: only the driver can parse a Spark type's text."""
        extra = body_columns(options)
        check_columns([field.name for field in schema.fields], extra)
        if not extra:
            _check_types(schema)
        return to_arrow_schema(schema, timezone="UTC")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make a batch reader; only the push-down one has `pushFilters` (Spark refuses it else)."""
        options = SourceOptions.parse(self.options)
        if options.filter_pushdown:
            _check_pushdown()
        raw = with_schema(options.raw)
        kind = PushdownReader if options.filter_pushdown else BatchReader
        return kind(raw, self._shape(schema, raw))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make a stream reader."""
        options = SourceOptions.parse(self.options)
        if any(name.startswith("ending") for name in options.raw):
            raise OptionError(
                "BAD_OPTION",
                "a stream has no end: options for the end, such as endingOffsets, are for batches",
            )
        raw = with_schema(options.raw)
        return StreamReader(raw, self._shape(schema, raw))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Make a batch writer; the client is imported only for writes."""
        from twinlog.spark.write.sink import SinkOptions, TopicWriter, check_schema

        if overwrite:
            raise OptionError("BAD_OPTION", "a topic cannot be overwritten: use mode('append')")
        check_schema(schema, SinkOptions.parse(self.options))
        return TopicWriter(dict(self.options))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Make a stream writer."""
        from twinlog.spark.write.sink import SinkOptions, StreamTopicWriter, check_schema

        check_schema(schema, SinkOptions.parse(self.options))
        return StreamTopicWriter(dict(self.options))


def _check_pushdown() -> None:
    """Refuse push-down where Spark would read a frame's later queries with the filters of one.

    Up to 4.3 it keeps what was pushed with the frame, not with the query, and tells the source
    nothing of the next one. SPARK-58551 mends that, and is also what brings `pushLimit`.

    Raises:
        OptionError: this Spark is one of those.
    """
    if not hasattr(DataSourceReader, "pushLimit"):
        raise OptionError(
            "BAD_OPTION",
            f"filterPushdown=true gives wrong rows with Spark {version}, which keeps the filters "
            "of one query for the next query of the same frame: leave it out, and choose with "
            "subscribe, assign, startingOffsets, endingOffsets, tags or sql",
        )


def _check_types(schema: StructType) -> None:
    for field in schema.fields:
        wanted = COLUMNS[field.name][0].lower()
        if field.dataType.simpleString() != wanted:
            raise OptionError(
                "BAD_COLUMN",
                f"column {field.name} is {wanted.upper()}, but the schema says "
                f"{field.dataType.simpleString().upper()}; cast it in the query instead",
            )


class BatchReader(DataSourceReader):
    """Reads a fixed range."""

    def __init__(self, options: dict[str, str], shape: pa.Schema) -> None:
        self.options, self.shape = options, shape
        self.pushed = Pushed()

    def partitions(self) -> Sequence[WindowPartition]:
        """Plan the read."""
        options = SourceOptions.parse(self.options)
        planned = plan_batch(options, self.pushed)
        return [WindowPartition(part) for part in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's rows."""
        if not isinstance(partition, WindowPartition):
            return  # Spark makes one task, without a partition, of an empty plan.
        options = SourceOptions.parse(self.options)
        yield from _decoded(options, partition.part, self.shape)


class PushdownReader(BatchReader):
    """The same with filters that narrow the plan (the session must allow it)."""

    def __init__(self, options: dict[str, str], shape: pa.Schema) -> None:
        super().__init__(options, shape)
        self.filters: list[Filter] = []  # those that Spark leaves to us

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take what narrows the plan or can be tested here; give the others back to Spark."""
        for item in filters:
            self.pushed.take(item)
            if is_exact(item):
                self.filters.append(item)
            else:
                yield item

    def partitions(self) -> Sequence[WindowPartition]:
        """Plan the read, of the wanted tags only."""
        options = SourceOptions.parse(self.options)
        tags = self.pushed.narrowed_tags(options.tags)
        if tags is None:
            return []
        if tags != options.tags:
            kept = {k: v for k, v in self.options.items() if k.lower() not in TAG_OPTIONS}
            self.options = {**kept, "tags": " || ".join(tags)}
        return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's rows, and keep those that pass."""
        for batch in super().read(partition):
            yield filtered(batch, self.filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a growing range, batch by batch."""

    def __init__(self, options: dict[str, str], shape: pa.Schema) -> None:
        self.options, self.shape = options, shape
        self._planner: StreamPlanner | None = None

    @property
    def planner(self) -> StreamPlanner:
        """Open the planner in the process that plans."""
        if self._planner is None:
            options = SourceOptions.parse(self.options)
            self._planner = StreamPlanner(options, open_stream(options))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a symbol, see `offsets`."""
        return self.planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Anything but "all" means: our own limits apply (Spark knows no combined one)."""
        return ReadMaxRows(UNLIMITED)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch."""
        return self.planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the heads and how far behind them the query is, for its progress."""
        return self.planner.report()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run."""
        self.planner.fix_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[WindowPartition]:
        """Plan one batch."""
        return [WindowPartition(window) for window in self.planner.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's rows."""
        assert isinstance(partition, WindowPartition)
        options = SourceOptions.parse(self.options)
        patience_ms = options.outage_ms
        yield from _decoded(options, partition.part, self.shape, patience_ms=patience_ms)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for batches that are done; the planner reports them."""

    def stop(self) -> None:
        """Let go of connections."""
        if self._planner is not None:
            self._planner.transport.close()


def _decoded(
    options: SourceOptions, part: Part, shape: pa.Schema, *, patience_ms: int = 0
) -> Iterator[pa.RecordBatch]:
    columns = tuple(shape.names)
    if not body_columns(options.raw):
        for batch in read_window(options, part, columns, patience_ms=patience_ms):
            yield shaped(batch, shape)
        return
    body_type = shape.field("body").type if "body" in columns else None
    decoder = BodyDecoder(options.raw, columns, body_type)
    for batch in read_window(options, part, decoder.needed, patience_ms=patience_ms):
        yield shaped(decoder.decode(batch), shape)
