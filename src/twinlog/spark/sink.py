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

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from twinlog.client import Message, MessageQueue, Producer
from twinlog.client.errors import (
    ClientError,
    IdempotenceNotSupportedError,
    InvalidMessageError,
    RouteError,
    TransportError,
)
from twinlog.client.message import RESERVED_PROPERTIES
from twinlog.message.once import is_producer_id
from twinlog.spark import faults
from twinlog.spark.brokerread import settings_of
from twinlog.spark.errors import OptionError, PipelineError, UnreachableError, nearest
from twinlog.spark.options import WRITE_OPTIONS, bad, fold, parse_bool, parse_count

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
}
ORIGIN_BORN_TIME = "ORIGIN_BORN_TIME"  # ms; the broker's own field is the time of this send
ORIGIN_UNIQ_KEY = "ORIGIN_UNIQ_KEY"
LINGER_MS = 1
FAULT_ROW = 10  # Where tests stop a task in the middle of its rows.
NO_PRODUCER_ID = (
    "a batch write needs the option producerId: a name by which its rows are known when it is run "
    "again (a stream has its query's id)"
)


class SinkError(PipelineError):
    """A row was not taken: ROW_ILLEGAL, NOT_ACKNOWLEDGED."""

    exit_code = 1


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

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check all options of a write.

        Raises:
            OptionError: with the option, its value and what it may be.
        """
        given = fold(options, WRITE_OPTIONS, {})
        if "nameServer" not in given:
            raise OptionError("BAD_OPTION", "a write needs nameServer (host:port)")
        once = parse_bool("exactlyOnce", given.get("exactlyOnce", "false"))
        producer_id = given.get("producerId")
        if producer_id is not None and not once:
            raise bad("producerId", producer_id, "it is for exactlyOnce=true")
        if producer_id is not None and not is_producer_id(f"{producer_id}:000000"):
            raise bad("producerId", producer_id, "up to 113 letters, digits and _ . : - are taken")
        rate = given.get("ratePerSecond")
        return cls(
            name_server=given["nameServer"],
            topic=given.get("topic"),
            group=given.get("group", "twinlog-spark"),
            timeout_ms=parse_count("sendTimeoutMs", given.get("sendTimeoutMs", "3000")),
            retries=parse_count("sendRetries", given.get("sendRetries", "3"), least=0),
            in_flight=parse_count("maxInFlight", given.get("maxInFlight", "1000")),
            rate=None if rate is None else parse_count("ratePerSecond", rate),
            settings=settings_of(given),
            is_once=once,
            producer_id=producer_id,
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
                "BAD_COLUMN", f"a write has no column {field.name!r}{hint}; leave it out by select"
            )
        if field.dataType.simpleString() not in kinds:
            found = field.dataType.simpleString()
            raise OptionError(
                "BAD_COLUMN", f"column {field.name} must be {' or '.join(kinds)}, it is {found}"
            )
    if "body" not in names:
        raise OptionError("BAD_COLUMN", "a write needs a column body")
    if "topic" not in names and options.topic is None:
        raise OptionError("BAD_COLUMN", "a write needs a column topic or the option topic")
    if {"queue_id", "sharding_key"} <= set(names):
        raise OptionError("BAD_COLUMN", "give queue_id or sharding_key, not both")


def message_of(row: Mapping[str, Any], options: SinkOptions) -> Message:
    """Make the message of one row.

    Raises:
        InvalidMessageError: the row has no body or no topic.
    """
    body = row["body"]
    if body is None:
        raise InvalidMessageError("it has no body")
    topic = options.topic or row.get("topic")
    if not topic:
        raise InvalidMessageError("it has no topic")
    properties = dict(row.get("properties") or ())
    kept = {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}
    if row.get("born_ts") is not None:
        kept[ORIGIN_BORN_TIME] = str(round(row["born_ts"].timestamp() * 1000))
    if row.get("msg_id") is not None:
        kept[ORIGIN_UNIQ_KEY] = row["msg_id"]
    keys = row.get("keys") or ()
    return Message(
        topic,
        body.encode() if isinstance(body, str) else bytes(body),
        tags=row.get("tags"),
        keys=keys.split() if isinstance(keys, str) else keys,
        properties=kept,
        delay_level=row.get("delay_level") or 0,
        sharding_key=row.get("sharding_key"),
        flag=row.get("flag") or 0,
    )


@dataclass
class Sent(WriterCommitMessage):
    """How many rows a task sent."""

    rows: int


@dataclass(frozen=True)
class Task:
    """Which rows these are: what is the same when they are sent again."""

    partition: int = 0
    query: str | None = None
    batch: int = 0

    @classmethod
    def current(cls) -> Task:
        """The task that this process runs."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return cls()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return cls(context.partitionId(), query, int(batch or 0))

    def producer(self, options: SinkOptions) -> dict[str, Any]:
        """The arguments that make the producer of this task drop repeats.

        Raises:
            OptionError: there is nothing by which the rows would be known again.
        """
        if not options.is_once:
            return {"linger_ms": LINGER_MS}
        name = options.producer_id or self.query
        if name is None:
            raise bad("exactlyOnce", "true", NO_PRODUCER_ID)
        return {
            "idempotent": True,
            "producer_id": f"{name}:{self.partition}",
            "epoch": self.batch,
        }


class RowSender:
    """Sends the rows of one task."""

    def __init__(self, options: SinkOptions, task: Task) -> None:
        self.options, self.task = options, task
        self.rows = 0
        self.queues: dict[str, dict[int, MessageQueue]] = {}
        self.pending: list[tuple[int, asyncio.Future[Any]]] = []
        self.begin = time.monotonic()

    async def run(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Send all rows and wait for every acknowledgement."""
        options = self.options
        async with Producer(
            options.group,
            name_server=options.name_server,
            send_timeout_ms=options.timeout_ms,
            retry_count=options.retries,
            retry_when_not_ok=True,
            in_flight_max=max(10_000, options.in_flight * 2),
            **self.task.producer(options),
            **options.settings,
        ) as producer:
            for batch in batches:
                for row in batch.to_pylist():
                    await self._one(producer, row)
                    if self.rows == FAULT_ROW:
                        await self._drain()
                        faults.point("rows-sending")
            await self._drain()
        if self.rows:
            faults.point("rows-sent")
        return self.rows

    async def _one(self, producer: Producer, row: Mapping[str, Any]) -> None:
        try:
            message = message_of(row, self.options)
            queue = None
            if row.get("queue_id") is not None:
                queue = await self._queue(producer, message.topic, row["queue_id"])
            self.pending.append((self.rows, producer.send_nowait(message, queue=queue)))
        except InvalidMessageError as error:
            await self._drain()
            raise SinkError("ROW_ILLEGAL", f"{self._name(self.rows)}: {error}") from error
        self.rows += 1
        if len(self.pending) >= self.options.in_flight:
            await self._drain()
        if self.options.rate is not None:
            ahead = self.rows / self.options.rate - (time.monotonic() - self.begin)
            if ahead > 0:
                await asyncio.sleep(ahead)

    def _name(self, number: int) -> str:
        return f"row {number} of task {self.task.partition}"

    async def _queue(self, producer: Producer, topic: str, queue_id: int) -> MessageQueue:
        if topic not in self.queues:
            found: Sequence[MessageQueue] = await producer.queues(topic)
            self.queues[topic] = {queue.queue_id: queue for queue in reversed(found)}
        queue = self.queues[topic].get(queue_id)
        if queue is None:
            raise InvalidMessageError(f"topic {topic!r} has no queue {queue_id}")
        return queue

    async def _drain(self) -> None:
        """Wait for all that is under way; the first failure names its row."""
        numbers = [number for number, _ in self.pending]
        receipts = await asyncio.gather(*(f for _, f in self.pending), return_exceptions=True)
        self.pending.clear()
        for number, receipt in zip(numbers, receipts, strict=True):
            if isinstance(receipt, InvalidMessageError):
                raise SinkError("ROW_ILLEGAL", f"{self._name(number)}: {receipt}") from receipt
            if isinstance(receipt, IdempotenceNotSupportedError):
                detail = f"exactlyOnce=true: {receipt}; leave it out to write at least once"
                raise SinkError("NOT_SUPPORTED", detail) from receipt
            if isinstance(receipt, TransportError | RouteError):
                raise UnreachableError("BROKER_UNREACHABLE", str(receipt)) from receipt
            if isinstance(receipt, BaseException):
                name = self._name(number)
                raise SinkError("NOT_ACKNOWLEDGED", f"{name}: {receipt}") from receipt
            if not receipt.is_acknowledged:
                detail = f"{self._name(number)}: {receipt.status.name} after all retries"
                raise SinkError("NOT_ACKNOWLEDGED", detail)


def send_rows(options: SinkOptions, batches: Iterator[pa.RecordBatch], task: Task) -> int:
    """Send all rows of a task; return how many.

    Raises:
        SinkError: a row was refused or not acknowledged.
        UnreachableError: no broker answered.
    """
    try:
        return asyncio.run(RowSender(options, task).run(batches))
    except (TransportError, RouteError) as error:
        raise UnreachableError("BROKER_UNREACHABLE", str(error)) from error
    except ClientError as error:
        raise SinkError("NOT_ACKNOWLEDGED", str(error)) from error


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
