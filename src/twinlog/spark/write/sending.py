"""The rows of one task on their way to brokers.

Batches of columns leave as batch requests that are encoded without a Python object per row
(`encode`). What does not fit that, and every row that is wrong, goes row by row through the client,
which checks each and says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from twinlog.client import Message, MessageQueue
from twinlog.client.errors import (
    BrokerTopicNotFoundError,
    ClientError,
    IdempotenceNotSupportedError,
    InvalidMessageError,
    NotANameServerError,
    RouteError,
    TopicNotFoundError,
    TransportError,
)
from twinlog.client.message import RESERVED_PROPERTIES
from twinlog.client.producer.column_producer import ColumnProducer
from twinlog.message.properties import ORIGIN_PLACE, ORIGIN_TOPIC
from twinlog.spark.dead_letters import bury
from twinlog.spark.errors import NotFoundError, PipelineError, UnreachableError
from twinlog.spark.options import bad
from twinlog.spark.read.absent import absent_brokers
from twinlog.spark.run import faults
from twinlog.spark.write.encode import (
    ORIGIN_BORN_TIME,
    ORIGIN_UNIQ_KEY,
    Chunk,
    Prepared,
    chunks,
    members,
    prepare,
)

if TYPE_CHECKING:
    from twinlog.spark.write.sink import SinkOptions

LINGER_MS = 1
CHUNK_SIZE_MAX = 128 * 1024
CHUNKS_IN_FLIGHT = 4  # So many requests share maxInFlight.
# A broker that was stopped in order counts as away for this time, as it does for a read.
AWAY_RECENT_MS = 600_000
AWAY_PAUSE_S = 0.5
AWAY_ADVICE = (
    "Start it again; if it is to leave for good, stop it in order then, and it is not waited for "
    "after ten minutes"
)
FAULT_ROW = 10  # Where tests stop a task in the middle of its rows.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_PRODUCER_ID = (
    "a batch write needs the option producerId, a name that stays the same when the write is run "
    "again (a stream uses the id of its query)"
)


class SinkError(PipelineError):
    """A row was not taken: ROW_ILLEGAL, NOT_ACKNOWLEDGED."""

    exit_code = 1


def message_of(row: Mapping[str, Any], options: SinkOptions) -> Message:
    """Make the message of one row.

    Raises:
        InvalidMessageError: the row has no body or no topic.
    """
    body = row["body"]
    if body is None:
        raise InvalidMessageError("its body is null: every message needs a body")
    topic = options.topic or row.get("topic")
    if not topic:
        raise InvalidMessageError("it has no topic: fill the column topic, or set the option topic")
    properties = dict(row.get("properties") or ())
    kept = {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}
    if row.get("born_ts") is not None:
        microseconds = (row["born_ts"] - _EPOCH) // timedelta(microseconds=1)
        kept[ORIGIN_BORN_TIME] = str((microseconds + 500) // 1000)
    if row.get("msg_id") is not None:
        kept[ORIGIN_UNIQ_KEY] = row["msg_id"]
    if row.get("origin") is not None:
        kept[ORIGIN_PLACE] = row["origin"]
    if row.get("origin_topic") is not None:
        kept[ORIGIN_TOPIC] = row["origin_topic"]
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
        self.rows = self.dead = 0
        self.queues: dict[str, dict[int, MessageQueue]] = {}
        self.layouts: dict[str, list[MessageQueue]] = {}
        # (first row, last row, how many, outcome) of what is not acknowledged yet.
        self.pending: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self.pending_rows = 0
        self.last_of_queue: dict[MessageQueue, asyncio.Future[Any]] = {}
        self.begin = time.monotonic()

    async def run(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Send all rows and wait for every acknowledgement."""
        options = self.options
        async with ColumnProducer(
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
                if producer.once is not None and not self.rows:
                    await self._wait_for_all(producer)
                prepared = None
                if options.rate is None:
                    prepared = prepare(batch, options.topic, producer.unique_ids)
                if prepared is None or not await self._by_chunks(producer, prepared):
                    await self._by_rows(producer, batch)
                    continue
                self.rows += batch.num_rows
            await self._drain()
        if self.rows:
            faults.point("rows-sent")
        return self.rows - self.dead

    # By chunks

    async def _by_chunks(self, producer: ColumnProducer, prepared: list[Prepared]) -> bool:
        """Send a batch as requests that are encoded here; false when a row names no queue."""
        parts = []
        for rows in prepared:
            try:
                found = await self._by_queue(producer, rows)
            except ClientError as error:
                await self._drain()
                raise self._failure(self._name(self.rows + int(rows.rows[0])), error) from error
            if found is None:
                return False
            parts += found
        sequences = [self._encode(producer, queue, rows) for queue, rows in parts]
        # In turn, because each queue takes one request at a time where order counts.
        for queue, chunk in _interleaved(sequences):
            await self._one_chunk(producer, queue, chunk)
        return True

    async def _by_queue(
        self, producer: ColumnProducer, rows: Prepared
    ) -> list[tuple[MessageQueue | None, Prepared]] | None:
        """The rows of each queue; the client chooses where it is None."""
        if rows.queue_ids is not None:
            queues = await self._queues_of(producer, rows.topic)
            wanted = np.unique(rows.queue_ids).tolist()
            if any(number not in queues for number in wanted):
                return None
            return [
                (queues[number], rows.take(np.flatnonzero(rows.queue_ids == number)))
                for number in wanted
            ]
        if producer.once is None:
            return [(None, rows)]
        layout = await self._layout(producer, rows.topic)
        count = len(rows.rows)
        first = producer.once.take_turns(rows.topic, count) % len(layout)
        spread = [
            (queue, np.arange((number - first) % len(layout), count, len(layout)))
            for number, queue in enumerate(layout)
        ]
        return [(queue, rows.take(chosen)) for queue, chosen in spread if len(chosen)]

    def _encode(
        self, producer: ColumnProducer, queue: MessageQueue | None, rows: Prepared
    ) -> Iterator[tuple[MessageQueue | None, Chunk]]:
        mark = None
        if producer.once is not None:
            assert queue is not None
            number = producer.once.next_number(queue)
            mark = (producer.once.producer_id, self.task.batch, number, queue.queue_id)
        count_max = max(1, self.options.in_flight // CHUNKS_IN_FLIGHT)
        joined = members(rows, mark=mark)
        pieces = chunks(rows, joined, size_max=CHUNK_SIZE_MAX, count_max=count_max)
        return ((queue, chunk) for chunk in pieces)

    async def _one_chunk(
        self, producer: ColumnProducer, queue: MessageQueue | None, chunk: Chunk
    ) -> None:
        while self.pending and self.pending_rows + chunk.count > self.options.in_flight:
            await self._drain_oldest()
        if queue is not None and producer.once is None:
            # A retry must not be overtaken by what comes after it.
            before = self.last_of_queue.get(queue)
            if before is not None:
                await asyncio.wait([before])
        topic = queue.topic if queue is not None else chunk.topic
        future = await producer.send_members(topic, chunk.data, chunk.count, queue=queue)
        if queue is not None:
            self.last_of_queue[queue] = future
        first, last = self.rows + chunk.first, self.rows + chunk.last
        self.pending.append((first, last, chunk.count, future))
        self.pending_rows += chunk.count
        if faults.is_watched() and first == 0:
            await self._drain()
            faults.point("rows-sending")

    # By rows

    async def _by_rows(self, producer: ColumnProducer, batch: pa.RecordBatch) -> None:
        first, dead = self.rows, dict[int, str]()
        for number, row in enumerate(batch.to_pylist()):
            try:
                await self._one(producer, row)
            except SinkError as error:
                if error.condition != "ROW_ILLEGAL" or self.options.dead_letters is None:
                    raise
                dead[number] = error.message
                self.rows += 1
            if self.rows == FAULT_ROW:
                await self._drain()
                faults.point("rows-sending")
        if dead and self.options.dead_letters is not None:
            rows = pa.Table.from_batches([batch]).take(pa.array(list(dead)))
            identity = repr((self.options.producer_id, self.task, first, rows.to_pylist()))
            bury(self.options.dead_letters, rows, list(dead.values()), identity)
            self.dead += len(dead)

    async def _one(self, producer: ColumnProducer, row: Mapping[str, Any]) -> None:
        try:
            message = message_of(row, self.options)
            queue = None
            if row.get("queue_id") is not None:
                queue = await self._queue(producer, message.topic, row["queue_id"])
            future = producer.send_nowait(message, queue=queue)
        except ClientError as error:
            await self._drain()
            raise self._failure(self._name(self.rows), error) from error
        self.pending.append((self.rows, self.rows, 1, future))
        self.pending_rows += 1
        self.rows += 1
        if self.pending_rows >= self.options.in_flight:
            await self._drain()
        if self.options.rate is not None:
            ahead = self.rows / self.options.rate - (time.monotonic() - self.begin)
            if ahead > 0:
                await asyncio.sleep(ahead)

    async def _queue(self, producer: ColumnProducer, topic: str, queue_id: int) -> MessageQueue:
        queue = (await self._queues_of(producer, topic)).get(queue_id)
        if queue is None:
            await self._wait_for_all(producer, 0)  # it may be a queue of a broker that is away
            raise InvalidMessageError(f"topic {topic!r} has no queue {queue_id}")
        return queue

    async def _queues_of(self, producer: ColumnProducer, topic: str) -> dict[int, MessageQueue]:
        if topic not in self.queues:
            found = await self._layout(producer, topic)
            self.queues[topic] = {queue.queue_id: queue for queue in reversed(found)}
        return self.queues[topic]

    async def _layout(self, producer: ColumnProducer, topic: str) -> list[MessageQueue]:
        """The queues of a topic as they always are: what is away now is missing for a while only.

        Where repeats are dropped each broker must be there, or what it has would go to others.
        """
        if topic not in self.layouts:
            found = await producer.all_queues(topic, self.options.timeout_ms)
            if producer.once is not None:  # somebody may have left since the task began
                await self._wait_for_all(producer, 0)
            self.layouts[topic] = found
        return self.layouts[topic]

    async def _wait_for_all(self, producer: ColumnProducer, timeout_ms: int | None = None) -> None:
        """Wait until no broker is away.

        Raises:
            UnreachableError: one stays away.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + (self.options.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        while True:
            try:
                away = await absent_brokers(producer.instance, AWAY_RECENT_MS)
            except NotANameServerError:
                return  # it does not know; whoever asks for a route tells what it is
            except ClientError:
                if clock() >= deadline:
                    raise
            else:
                if not away:
                    return
                if clock() >= deadline:
                    text = "; ".join(f"broker {name} is away: {why}" for name, why in away.items())
                    raise UnreachableError("BROKER_UNREACHABLE", f"{text}. {AWAY_ADVICE}")
            await asyncio.sleep(AWAY_PAUSE_S)

    # Outcomes

    def _name(self, first: int, last: int | None = None) -> str:
        if last is None or first == last:
            return f"row {first} of task {self.task.partition}"
        return f"rows {first} to {last} of task {self.task.partition}"

    async def _drain_oldest(self) -> None:
        _, _, count, future = self.pending[0]
        await asyncio.wait([future])
        if future.exception() is not None or not future.result().is_acknowledged:
            await self._drain()  # Raises: it names the first row that failed.
        self.pending.popleft()
        self.pending_rows -= count

    async def _drain(self) -> None:
        """Wait for all that is under way; the first failure names its row."""
        pending = sorted(self.pending, key=lambda entry: entry[0])
        self.pending.clear()
        self.pending_rows = 0
        outcomes = await asyncio.gather(*(entry[3] for entry in pending), return_exceptions=True)
        for (first, last, _, _), receipt in zip(pending, outcomes, strict=True):
            if isinstance(receipt, BaseException):
                raise self._failure(self._name(first, last), receipt) from receipt
            if not receipt.is_acknowledged:
                detail = f"{self._name(first, last)}: {receipt.status.name} after all retries"
                raise SinkError("NOT_ACKNOWLEDGED", detail)

    def _failure(self, name: str, error: BaseException) -> PipelineError:
        if isinstance(error, InvalidMessageError):
            return SinkError("ROW_ILLEGAL", f"{name}: {error}")
        if isinstance(error, IdempotenceNotSupportedError):
            detail = f"exactlyOnce=true: {error}; leave it out to write at least once"
            return SinkError("NOT_SUPPORTED", detail)
        if isinstance(error, TopicNotFoundError | BrokerTopicNotFoundError):
            return NotFoundError("TOPIC_NOT_FOUND", f"{name}: {error}")
        if isinstance(error, TransportError | RouteError):
            return UnreachableError("BROKER_UNREACHABLE", f"{name}: {error}")
        return SinkError("NOT_ACKNOWLEDGED", f"{name}: {error}")


_Piece = tuple[MessageQueue | None, Chunk]


def _interleaved(sequences: Iterable[Iterator[_Piece]]) -> Iterator[_Piece]:
    """One of each in turn."""
    for group in itertools.zip_longest(*sequences):
        for piece in group:
            if piece is not None:
                yield piece


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
