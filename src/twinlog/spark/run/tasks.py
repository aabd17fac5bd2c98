"""Python functions as Spark tasks: a data source whose partitions are calls.

Spark's own ways to run a Python function on workers either need the driver's context (which a
Connect session does not have) or pandas. A data source needs neither: the function is named, its
arguments are pickled into options.
"""

from __future__ import annotations

import base64
import importlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[[Any], list[dict[str, Any]]]


class Call(InputPartition):
    """One call: the argument."""

    def __init__(self, argument: Any) -> None:
        super().__init__(None)
        self.argument = argument


class TaskReader(DataSourceReader):
    """Runs the calls."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.options, self.schema = options, schema

    def partitions(self) -> Sequence[Call]:
        """Return one partition per call."""
        arguments = pickle.loads(base64.b64decode(self.options["tasks"]))
        return [Call(argument) for argument in arguments]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Make one call on the worker."""
        assert isinstance(partition, Call)
        module, _, name = self.options["function"].partition(":")
        function: Function = getattr(importlib.import_module(module), name)
        rows = function(partition.argument)
        yield pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(self.schema))


class TaskSource(DataSource):
    """Format "twinlog_tasks", used by jobs only."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "twinlog_tasks"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader; the schema is always given."""
        return TaskReader(dict(self.options), schema)


def task_frame(
    spark: SparkSession, function: Function, tasks: Sequence[Any], schema: str
) -> DataFrame:
    """Return the rows that `function` makes of all tasks; it must be importable on workers."""
    spark.dataSource.register(TaskSource)
    packed = base64.b64encode(pickle.dumps(list(tasks))).decode()
    place = f"{function.__module__}:{function.__qualname__}"
    reader = spark.read.format("twinlog_tasks").schema(schema)
    return reader.option("function", place).option("tasks", packed).load()
