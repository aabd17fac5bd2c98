"""The stream that the archive job reads: one row per planned window, saying what to archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import is_symbol
from twinlog.spark.run.faults import point
from twinlog.spark.source import StreamReader, WindowPartition


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
        yield (json.dumps(partition.part), json.dumps(partition.marks))


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
