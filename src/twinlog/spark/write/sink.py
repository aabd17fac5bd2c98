"""Rows into topics: `df.write.format("twinlog")` and `writeStream`, at least or exactly once.

A task ends only after the broker has acknowledged every one of its rows with SEND_OK; a status
that leaves replication or flush unknown is sent again and, when it stays so, fails the task.
Nothing is undone: a task that is run again sends its rows again, which is what "at least once"
means.

With `exactlyOnce=true` each task is an idempotent producer of its own: its id is the query's id and
the partition, the epoch is the number of the batch, and rows are numbered by their position. A task
or batch that is run again repeats the same numbers, and the broker drops what it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from twinlog.message.names import GROUP_LENGTH_MAX
from twinlog.message.once import is_producer_id
from twinlog.runtime.limits import TOPIC_LENGTH_MAX
from twinlog.spark.errors import OptionError, nearest
from twinlog.spark.options import (
    WRITE_OPTIONS,
    bad,
    check_name,
    fold,
    parse_bool,
    parse_count,
)
from twinlog.spark.places import is_local
from twinlog.spark.read.access import settings_of
from twinlog.spark.write.sending import Task, send_rows

COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "keys": ("string", "array<string>"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "bigint"),
    "sharding_key": ("string",),
    "delay_level": ("int", "bigint"),
    "flag": ("int", "bigint"),
    "born_ts": ("timestamp",),
    "msg_id": ("string",),
    "origin": ("string",),
    "origin_topic": ("string",),
}

TIMEOUT_MS, ONCE_TIMEOUT_MS = "3000", "120000"


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, checked."""

    name_server: str
    topic: str | None
    group: str
    timeout_ms: int
    retries: int
    in_flight: int
    rate: int | None
    settings: Mapping[str, Any]
    is_once: bool = False
    producer_id: str | None = None
    dead_letters: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check all options of a write.

        Raises:
            OptionError: with the option, its value and what it may be.
        """
        given = fold(options, WRITE_OPTIONS, {})
        if "nameServer" not in given:
            raise OptionError("BAD_OPTION", "a write needs the option nameServer (host:port)")
        once = parse_bool("exactlyOnce", given.get("exactlyOnce", "false"))
        producer_id = given.get("producerId")
        if producer_id is not None and not once:
            raise bad(
                "producerId",
                producer_id,
                "it has an effect only with exactlyOnce=true: set that too, or leave it out",
            )
        if producer_id is not None and not is_producer_id(f"{producer_id}:000000"):
            raise bad(
                "producerId",
                producer_id,
                "it must be 1 to 113 letters, digits or the characters _ . : -",
            )
        for name, length_max in (("topic", TOPIC_LENGTH_MAX), ("group", GROUP_LENGTH_MAX)):
            if name in given:  # else each row would be illegal, or go to the dead letters
                check_name(name, given[name], length_max)
        dead_letters = given.get("deadLetterPath")
        is_local(dead_letters or "")
        rate = given.get("ratePerSecond")
        # Repeats do no harm where they are dropped: a failover is waited for.
        patience = ONCE_TIMEOUT_MS if once else TIMEOUT_MS
        return cls(
            name_server=given["nameServer"],
            topic=given.get("topic"),
            group=given.get("group", "twinlog-spark"),
            timeout_ms=parse_count("sendTimeoutMs", given.get("sendTimeoutMs", patience)),
            retries=parse_count("sendRetries", given.get("sendRetries", "3"), least=0),
            in_flight=parse_count("maxInFlight", given.get("maxInFlight", "1000")),
            rate=None if rate is None else parse_count("ratePerSecond", rate),
            settings=settings_of(given),
            is_once=once,
            producer_id=producer_id,
            dead_letters=dead_letters,
        )


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Demand columns that can be sent.

    Raises:
        OptionError: a column is missing, unknown or of another type.
    """
    names = schema.fieldNames()
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None:
            hint = nearest(field.name, COLUMNS)
            raise OptionError(
                "BAD_COLUMN",
                f"a write has no column {field.name!r}{hint}; leave it out with select()",
            )
        if field.dataType.simpleString() not in kinds:
            found = field.dataType.simpleString()
            raise OptionError(
                "BAD_COLUMN", f"column {field.name} must be {' or '.join(kinds)}, but it is {found}"
            )
    if "body" not in names:
        raise OptionError("BAD_COLUMN", "a write needs the column body")
    if "topic" not in names and options.topic is None:
        raise OptionError("BAD_COLUMN", "a write needs the column topic or the option topic")
    if {"queue_id", "sharding_key"} <= set(names):
        raise OptionError(
            "BAD_COLUMN", "give either the column queue_id or the column sharding_key, not both"
        )


@dataclass
class Sent(WriterCommitMessage):
    """How many rows a task sent."""

    rows: int


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch into topics."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        return Sent(send_rows(SinkOptions.parse(self.options), iterator, Task.current()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: every row is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be undone: rows that were sent stay."""


class StreamTopicWriter(DataSourceStreamArrowWriter):
    """Writes a stream into topics."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        return Sent(send_rows(SinkOptions.parse(self.options), iterator, Task.current()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: every row is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be undone: rows that were sent stay."""
