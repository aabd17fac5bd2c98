"""The `broker` transport: the same rows pulled over the network, from whichever replica answers.

Corresponds to RocketMQ's pull protocol. Many pulls are kept in flight and their answers are joined
before they are decoded: Apache's brokers answer with 32 messages at most. A read goes to
the master and, when that cannot be reached, to a slave of the same name; offsets stay valid because
a replica's log is the same log.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from twinlog.client.errors import (
    BrokerError,
    ClientError,
    RouteError,
    TopicNotFoundError,
    TransportError,
)
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance
from twinlog.client.net.routes import ReadAddress
from twinlog.client.queues import MessageQueue
from twinlog.client.settings import resolve
from twinlog.message.crc import crc32
from twinlog.message.layout import PHYSICAL_OFFSET_AT, PLACE_SIZE, QUEUE_OFFSET_AT
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.spark.decode.records import (
    HEX_BYTES,
    Decoder,
    Expected,
    Layout,
    LogSlice,
    bad_crcs,
    chain,
    lay_out,
)
from twinlog.spark.decode.vector import I64
from twinlog.spark.errors import DataLossError, OptionError, RecordCorruptError, UnreachableError
from twinlog.spark.options import SourceOptions, parse_count
from twinlog.spark.plan.offsets import Offsets, QueueKey, limit_rows
from twinlog.spark.plan.windows import Range, by_queue, split_rows
from twinlog.spark.read.access import as_pipeline_errors, settings_of
from twinlog.spark.read.bulk import BulkConnection, BulkReader
from twinlog.spark.read.choice import Choice
from twinlog.spark.read.pulled import (
    PULL_CODES,
    chosen_below,
    examined,
    is_damaged,
    readable_part,
    refuses_filter,
)
from twinlog.spark.read.store_view import HEADER_BYTES
from twinlog.spark.read.survey import Survey
from twinlog.spark.read.transport import (
    ADVICE,
    VANISHED,
    Heads,
    LossPolicy,
    Skip,
    Window,
    queue_tasks,
)

log = logging.getLogger("twinlog.spark")
# Queue offsets asked for by one worker at a time: first few, then by the size that they turn out
# to have. 2,048 where the broker leaves out what does not match.
CHUNK_FIRST, CHUNK_MOST, CHOSEN_MOST = 64, 1024, 2048
CHUNK_BYTES = 1 << 20
IN_FLIGHT = 8
BULK_DIALS_MAX = 3  # Dialled again so often in a task; the careful way needs no second look.
ROWS_PER_TASK_MIN, ROWS_PER_TASK_MAX = 20_000, 500_000
RETRY_MS_MAX = 1000
T = TypeVar("T")
Piece = tuple[int, int, list[bytes]]  # offsets [low, high) and the bytes of their records
# Offsets [low, high), high None where the broker chose among them; the bytes, where records begin.
Part = tuple[int, int | None, LogSlice, I64]
Fetch = Callable[[Range, int, int], Coroutine[Any, Any, list[Piece]]]


class QueueGoneError(UnreachableError):
    """A queue cannot be read, and its master says why: it is gone. Who plans looks again."""


class BrokerTransport:
    """Reads topics through name server and brokers. Has an event loop of its own."""

    def __init__(self, options: SourceOptions, *, patience_ms: int = 0) -> None:
        assert options.name_server is not None
        self.options = options
        self.patience_ms = patience_ms  # how long a read waits for a cluster that is down
        self.policy = LossPolicy(options.fail_on_data_loss)
        self.choice = Choice(options)
        self.filters_rows: dict[str, bool] = {}  # brokers that were asked to by properties
        raw = options.raw
        self.retries = parse_count("fetchRetries", raw.get("fetchRetries", "3"), least=0)
        self.retry_ms = parse_count("fetchRetryMs", raw.get("fetchRetryMs", "200"))
        self.bulk: dict[str, BulkReader] = {}
        self.bulk_dials = 0
        self.loop = asyncio.new_event_loop()
        self.instance: ClientInstance | None = None
        try:
            self._run(self._open(options.name_server, settings_of(raw)))
        except BaseException:
            self.loop.close()
            raise

    async def _open(self, name_server: str, settings: Mapping[str, Any]) -> None:
        instance = ClientInstance(name_server, resolve(**settings), name="spark")
        await instance.start()
        self.instance = instance
        self.survey = Survey(instance, self.options, self._pull)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with as_pipeline_errors():
            return self.loop.run_until_complete(work)

    @property
    def client(self) -> ClientInstance:
        """The client, which must be open."""
        assert self.instance is not None
        return self.instance

    def close(self) -> None:
        """Close connections and the loop."""
        if self.loop.is_closed():
            return
        for reader in self.bulk.values():
            reader.close()
        try:
            if self.instance is not None:
                self._run(self.instance.stop())
            self._run(self.loop.shutdown_asyncgens())
            self._run(asyncio.sleep(0))  # closed connections let go of their sockets in this turn
        finally:
            self.loop.close()

    def queues(self) -> list[QueueKey]:
        """Return the queues of the topics that the options may mean, on every broker there is."""
        return self._run(self.survey.all_queues())

    def bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return first and end offset of queues."""
        return self._run(self.survey.bounds(list(keys)))

    def heads(self, known: Mapping[QueueKey, int]) -> Heads:
        """Look at the queues, at those that are known too."""
        return self._run(self.survey.heads(known))

    async def _know(self, topics: Iterable[str]) -> None:
        for topic in topics:
            await self._through_outage(functools.partial(self.client.route, topic))

    async def _through_outage(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again while nobody answers and patience lasts."""
        deadline = self.loop.time() + self.patience_ms / 1000
        while True:
            try:
                return await ask()
            except (RouteError, TransportError):
                if self.loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_MS_MAX / 1000)

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first offset stored at or after a time."""
        queue = MessageQueue(*key)
        found = self._run(calls.offset_for_time(self.client, queue, timestamp_ms))
        return found if found < self.bounds([key])[key][1] else None

    def group_offsets(self, group: str) -> Offsets:
        """Ask the brokers for a group's offsets."""
        return self._run(self._group_offsets(group))

    async def _group_offsets(self, group: str) -> Offsets:
        keys = await self.survey.queues()
        asked = (calls.query_consumer_offset(self.client, group, MessageQueue(*k)) for k in keys)
        answers = await asyncio.gather(*asked)
        return {k: n for k, n in zip(keys, answers, strict=True) if n is not None}

    def with_keys(self, ranges: list[Range], keys: Collection[str]) -> list[Range]:
        """Read all: a broker answers a question about a key with its newest messages only."""
        return ranges

    def commit_group(self, group: str, offsets: Offsets) -> None:
        """Report progress, for lag tools."""
        self._run(self._commit(group, offsets))

    async def _commit(self, group: str, offsets: Offsets) -> None:
        """Commit what can be; the first error is raised after that."""
        errors: dict[str, ClientError] = {}
        for topic in sorted({key[0] for key in offsets}):
            try:
                await self._know([topic])
            except ClientError as error:
                errors[topic] = error
        work = (
            calls.commit_offset(self.client, group, MessageQueue(*key), number, wait=True)
            for key, number in offsets.items()
            if key[0] not in errors
        )
        done = await asyncio.gather(*work, return_exceptions=True)
        for failed in (*errors.values(), *done):
            if isinstance(failed, BaseException):
                raise failed

    def limit_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """Limit by the mean size of records at the start: a pull has no sizes in advance."""
        keys = [key for key, high in end.items() if high > start.get(key, high)]
        if not keys:
            return dict(end)
        sizes = self._run(self._sizes([(key, start[key]) for key in keys]))
        mean = max(1, sum(sizes) // max(1, len(sizes)))
        return limit_rows(start, end, max(1, bytes_max // mean))

    async def _sizes(self, places: Sequence[tuple[QueueKey, int]]) -> list[int]:
        answers = await asyncio.gather(*(self._pull(MessageQueue(*k), n, 32) for k, n in places))
        found: list[int] = []
        for answer in answers:
            data = LogSlice.over(answer.body, 0)
            positions = np.array([*chain(data), len(answer.body)], np.int64)
            found += np.diff(positions).tolist()
        return found or [1024]

    def marks(self, offsets: Offsets) -> dict[str, Any]:
        """Fingerprint the furthest record of each broker behind these offsets."""
        return self._run(self._marks(offsets))

    async def _marks(self, offsets: Offsets) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, head in (await self._last_heads(offsets)).items():
            size = int.from_bytes(head[:4], "big")
            last = _place(head)
            if last >= found.get(key[1], {"last": -1})["last"]:
                found[key[1]] = {"crc": crc32(head), "epoch": 0, "last": last, "phys": last + size}
        return found

    async def _last_heads(self, offsets: Offsets) -> dict[QueueKey, bytes]:
        """Return the head of the last record before each offset, unless it has expired."""
        await self._know({key[0] for key in offsets})
        keys = [key for key, end in offsets.items() if end > 0]
        asked = (self._pull(MessageQueue(*key), offsets[key] - 1, 1) for key in keys)
        answers = zip(keys, await asyncio.gather(*asked), strict=True)
        return {key: bytes(answer.body[:HEADER_BYTES]) for key, answer in answers if answer.body}

    def places(self, offsets: Offsets) -> Offsets:
        """Return the physical offset of the last record before each offset."""
        heads = self._run(self._last_heads(offsets))
        return {key: _place(head) for key, head in heads.items()}

    def check_marks(self, marks: Mapping[str, Any]) -> None:
        """Compare the logs of the brokers with what was there when the offsets were made."""
        for broker, mark in marks.items():
            head = self._run(self._header_at(broker, int(mark["last"])))
            if head is not None and crc32(head) != int(mark["crc"]):
                raise DataLossError(
                    "LOG_DIVERGED",
                    f"broker {broker}: the record at physical offset {mark['last']} is not the "
                    "one that was read before: a failover has cut the log, or this checkpoint "
                    "belongs to another cluster; start with a new checkpoint",
                )

    async def _header_at(self, broker: str, physical_offset: int) -> bytes | None:
        if broker not in self.client.brokers:
            await self.survey.queues()
        if broker not in self.client.brokers:
            return None
        target = calls.readable(self.client, broker, 0)
        try:
            answer = await self.client.transport.call(
                target.address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset},
                timeout_ms=self.client.settings.request_timeout_ms, action="mark",
            )  # fmt: skip
        except BrokerError:
            return None  # retention has removed it, or the log is shorter: offsets will tell
        except TransportError as error:
            self.client.connection_failed(target.address, error)
            return None
        return bytes(answer.body[:HEADER_BYTES])

    def cuts(self, ranges: Sequence[Range]) -> dict[str, Any]:
        """Cut by rows: over the network nothing is gained by physical windows."""
        total = sum(r.rows for r in ranges)
        options = self.options
        if options.keep_order:
            return {"queues": queue_tasks(ranges, options)}
        count = max(options.min_partitions, -(-total // ROWS_PER_TASK_MAX))
        count = min(count, max(1, total // ROWS_PER_TASK_MIN))
        if options.max_partitions:
            count = min(count, options.max_partitions)
        rows_max = max(1, -(-total // count))
        if options.max_records_per_partition:
            rows_max = min(rows_max, options.max_records_per_partition)
        return {"rows": rows_max}

    def plan(self, ranges: Sequence[Range], cuts: Mapping[str, Any]) -> list[Window]:
        """Cut by rows."""
        if "queues" in cuts:
            return by_queue(ranges, int(cuts["queues"]))
        if "phys" in cuts:
            raise OptionError(
                "LAYOUT_CHANGED",
                "the batch that is repeated was planned from a store's files: give path instead of "
                "nameServer until it is done",
            )
        return split_rows(tuple(ranges), int(cuts["rows"])) if ranges else []

    def read(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a window, each queue in its order."""
        wanted = self.choice.needed(columns)
        for r in window:
            decoder = Decoder(wanted, r.broker, self.options.decompress)
            for low, high, data, starts in self._present_parts(r):
                if len(layout := self._rows(r, low, high, data, starts)):
                    yield self.choice.chosen(decoder.batch(layout), columns)

    def _present_parts(self, r: Range) -> Iterator[Part]:
        """Yield the records of stretches; of a queue that is gone meanwhile the rest is lost."""
        at = r.low
        try:
            self._run(self._through_outage(functools.partial(self._find, r)))
            for part in self._parts(r):
                yield part
                numbers = part[2].ints(">i8", part[3][-1:] + QUEUE_OFFSET_AT)
                at = max([at, *(numbers + 1).tolist()])
        except QueueGoneError:
            self.policy.lost(Skip(r.topic, r.broker, r.queue_id, at, r.high, VANISHED), ADVICE)

    async def _find(self, r: Range) -> None:
        """Learn where a topic is.

        Raises:
            QueueGoneError: nowhere.
        """
        try:
            await self.client.route(r.topic)
        except TopicNotFoundError as error:
            if await self.survey.is_gone((r.topic, r.broker, r.queue_id)):
                raise QueueGoneError("BROKER_UNREACHABLE", str(error)) from error
            raise

    def _parts(self, r: Range) -> Iterator[Part]:
        """Yield the records of stretches in order: the quick way while it lasts, then the other."""
        at = r.low
        if self.choice.subscription(r.topic) is None and (reader := self._bulk_reader(r)):
            queue = MessageQueue(r.topic, r.broker, r.queue_id)
            for part in reader.stretches(queue, r.low, r.high):
                yield part.low, part.high, part.log, part.starts
                at = part.high
        if at >= r.high:
            return
        answers = self._answers(r._replace(low=at))
        try:
            while (found := self._run(_next(answers))) is not None:
                low, high, body, is_whole = found
                data = LogSlice.over(body, 0)
                starts = chain(data)
                if is_whole and len(starts) != high - low:
                    raise DataLossError(
                        "OFFSET_AHEAD",
                        f"{r.topic} broker {r.broker} queue {r.queue_id}: offsets {low} to {high} "
                        f"returned {len(starts)} messages",
                    )
                yield low, high if is_whole else None, data, starts
        finally:
            self._run(answers.aclose())

    def _bulk_reader(self, r: Range) -> BulkReader | None:
        """Return the reader of a broker; None when it cannot be had, or has failed too often."""
        try:
            address = calls.readable(self.client, r.broker, 0).address
            known = self.bulk.get(address)
            if known is not None and not known.is_over:
                return known
            if self.bulk_dials >= BULK_DIALS_MAX:
                return None
            self.bulk_dials += known is not None  # a first connection is nobody's failure
            settings = self.client.settings
            connection = BulkConnection(
                address, settings.tls, settings.tls_server_name, int(settings.request_timeout_ms)
            )
        except (ClientError, OSError, ValueError):
            self.bulk_dials = BULK_DIALS_MAX
            return None
        self.bulk[address] = BulkReader(
            connection, self.client.transport.remoting.prepare,
            rows_max=self.options.batch_rows, bytes_max=self.options.batch_bytes,
        )  # fmt: skip
        return self.bulk[address]

    def _rows(self, r: Range, low: int, high: int | None, data: LogSlice, starts: I64) -> Layout:
        """Check the records of [low, high), all of them or (None) those that were chosen."""
        numbers = np.arange(low, low + len(starts), dtype=np.int64)
        if high is None:
            numbers = data.ints(">i8", starts + QUEUE_OFFSET_AT)  # compared when they came
        layout = self._checked(r, numbers, data, starts)
        if self.options.verify_crc and (wrong := bad_crcs(layout)).any():
            for row in np.flatnonzero(wrong).tolist():
                number = int(layout.heads["queue_offset"][row])
                place = (r.topic, r.broker, r.queue_id, number, number + 1)
                self.policy.lost(Skip(*place, "CRC_MISMATCH the body is damaged"), ADVICE)
            layout = layout.rows(~wrong)
        return self.choice.matching(layout)

    def _checked(self, r: Range, numbers: I64, data: LogSlice, starts: I64) -> Layout:
        """Check records against what was asked for; leave bad ones out if the policy says so."""
        ids = np.full(len(starts), r.queue_id, np.int64)
        with contextlib.suppress(RecordCorruptError):
            return lay_out(data, starts, Expected(queue_ids=ids, queue_offsets=numbers))
        good = np.ones(len(starts), bool)
        for row in range(len(starts)):
            one = slice(row, row + 1)
            # An answer has no place in the log but what its records say of themselves.
            base = int(data.ints(">i8", starts[one] + PHYSICAL_OFFSET_AT)[0] - starts[row])
            named = LogSlice(data.data, data.view, base)
            try:
                lay_out(
                    named, starts[one], Expected(queue_ids=ids[one], queue_offsets=numbers[one])
                )
            except RecordCorruptError as error:
                good[row] = False
                self._corrupt(r, int(numbers[row]), error.message)
        kept = Expected(queue_ids=ids[good], queue_offsets=numbers[good])
        return lay_out(data, starts[good], kept)

    def _corrupt(self, r: Range, number: int, what: str) -> None:
        place = (r.topic, r.broker, r.queue_id, number, number + 1)
        self.policy.lost(Skip(*place, f"RECORD_CORRUPT {what}"), ADVICE)

    async def _answers(self, r: Range) -> AsyncGenerator[tuple[int, int, bytes, bool], None]:
        """Yield the records of stretches in order: (low, high, bytes, whether all are there)."""
        wanted = await self._asked_of(r)
        fetch = functools.partial(self._matching, wanted=wanted) if wanted else self._chunk
        # An answer with matches only reaches beyond a narrow chunk, into that of the next one.
        first, most = (CHOSEN_MOST, CHOSEN_MOST) if wanted else (CHUNK_FIRST, CHUNK_MOST)
        async for low, high, body in self._stretches(r, fetch, first, most):
            yield low, high, body, wanted is None

    async def _asked_of(self, r: Range) -> SubscriptionData | None:
        """Return what the broker chooses by; None when it cannot and all is asked for."""
        wanted = self.choice.subscription(r.topic)
        if wanted is None or wanted.is_tag_type:
            return wanted
        if r.broker not in self.filters_rows:
            queue = MessageQueue(r.topic, r.broker, r.queue_id)
            answer = await self._pull(queue, r.low, 1, wanted)
            self.filters_rows[r.broker] = not refuses_filter(answer)
            if refuses_filter(answer):
                log.warning(
                    "%s; the source reads all messages and filters them itself", answer.remark
                )
        return wanted if self.filters_rows[r.broker] else None

    async def _stretches(
        self, r: Range, fetch: Fetch, first_width: int, most: int
    ) -> AsyncGenerator[tuple[int, int, bytes], None]:
        """Yield (low, high, records) in order, with many chunks under way at once."""
        pending: list[asyncio.Task[list[Piece]]] = []
        begin, width = r.low, first_width
        low, held, rows, size = r.low, [b""], 0, 0
        try:
            while True:
                while begin < r.high and len(pending) < IN_FLIGHT:
                    work = fetch(r, begin, min(begin + width, r.high))
                    pending.append(self.loop.create_task(work))
                    begin += width
                if not pending:
                    break
                pieces = await pending.pop(0)
                width = _width(pieces, most)
                for first, end, bodies in pieces:
                    if first != low + rows:
                        if rows:
                            yield low, low + rows, b"".join(held)
                        low, held, rows, size = first, [b""], 0, 0
                    held += bodies
                    rows += end - first
                    size += sum(map(len, bodies))
                    if rows >= self.options.batch_rows or size >= self.options.batch_bytes:
                        yield low, low + rows, b"".join(held)
                        low, held, rows, size = low + rows, [b""], 0, 0
            if rows:
                yield low, low + rows, b"".join(held)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _chunk(self, r: Range, low: int, high: int) -> list[Piece]:
        """Fetch offsets [low, high), in as many pieces as gaps (that are allowed) make of it."""
        queue = MessageQueue(r.topic, r.broker, r.queue_id)
        pieces: list[Piece] = []
        first, at, bodies = low, low, []
        while at < high:
            answer = await self._pull(queue, at, high - at)
            count, size = readable_part(answer.body) if answer.body else (0, 0)
            if count:
                bodies.append(bytes(answer.body[:size]))
                at += count
                continue
            pieces.append((first, at, bodies))
            first = at = self._gap(r, at, high, answer)
            bodies = []
        return [piece for piece in [*pieces, (first, at, bodies)] if piece[2]]

    async def _matching(
        self, r: Range, low: int, high: int, wanted: SubscriptionData
    ) -> list[Piece]:
        """Fetch those of the offsets [low, high) that the broker chooses."""
        queue = MessageQueue(r.topic, r.broker, r.queue_id)
        pieces: list[Piece] = []
        at = low
        while at < high:
            answer = await self._pull(queue, at, high - at, wanted)
            end = examined(answer, at)
            if end is None:
                at = self._gap(r, at, high, answer)
                continue
            stop = min(end, high)
            body = chosen_below(stop, at, answer.body)
            if body is None:  # a damaged record is named by reading one after the other
                pieces += await self._chunk(r, at, stop)
            else:
                pieces.append((at, stop, [body]))
            at = stop
        return pieces

    def _gap(self, r: Range, at: int, high: int, answer: Any) -> int:
        """Apply the loss rule to an answer without a readable record; return where to go on."""
        if is_damaged(answer):
            # With a filter it may come behind others that were looked at and left out.
            after = answer.code != ResponseCode.SYSTEM_ERROR
            number: int = max(at, int(answer.ext().get("nextBeginOffset", at)) - after)
            if number < high:
                self._corrupt(r, number, str(answer.remark))
            return number + 1
        if answer.body:
            head = bytes(answer.body[:HEX_BYTES]).hex()
            self._corrupt(r, at, f"no record begins where it should; bytes there: {head}")
            return at + 1
        begin = int(answer.ext().get("minOffset", 0))
        if begin <= at:
            raise DataLossError(
                "OFFSET_AHEAD",
                f"{r.topic} broker {r.broker} queue {r.queue_id}: no message at {at}; the "
                f"queue ends at {answer.ext().get('maxOffset')}",
            )
        end = min(begin, high)
        reason = f"OFFSET_EXPIRED retention removed these messages; the queue now begins at {begin}"
        self.policy.lost(Skip(r.topic, r.broker, r.queue_id, at, end, reason), ADVICE)
        return end

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, wanted: SubscriptionData | None = None
    ) -> Any:
        """Pull once, from the other replica when one cannot be reached or is behind.

        A master is waited for as well: one that has just been elected shows what it has only when
        it knows that to be confirmed, and somebody has seen `offset` before.
        """
        last: Exception | None = None
        short: Any = None
        deadline = self.loop.time() + self.patience_ms / 1000
        key = (queue.topic, queue.broker_name, queue.queue_id)
        for attempt in itertools.count():
            request = calls.pull_command(
                queue, offset, group=TOOLS_GROUP, count_max=count, suspend_ms=0,
                subscription=wanted, posts_subscription=True, commit_offset=None,
            )  # fmt: skip
            target: ReadAddress | None = None
            try:
                target = calls.readable(self.client, queue.broker_name, 0)
                timeout = self.client.settings.request_timeout_ms
                answer = await self.client.transport.invoke(target.address, request, timeout)
            except TransportError as error:
                if target is not None:
                    self.client.connection_failed(target.address, error)
                last = error
            else:
                ext = answer.ext() if answer.code in PULL_CODES else {}
                behind = bool(ext) and int(ext.get("maxOffset", 0)) <= offset
                short = answer if behind and not target.is_slave else None
                if (answer.code in PULL_CODES and not behind) or is_damaged(answer):
                    return answer
                if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                    raise OptionError(
                        "BAD_OPTION", f"option sql: {target.address}: {answer.remark}"
                    )
                if refuses_filter(answer):
                    return answer
                last = ClientError(
                    f"{target.address}: code {answer.code} {answer.remark or 'it is behind'}"
                )
                if not ext and attempt >= self.retries and await self.survey.is_gone(key):
                    raise QueueGoneError("BROKER_UNREACHABLE", f"{key[0]} is gone: {last}")
            if attempt >= self.retries:
                if self.loop.time() >= deadline:
                    break
                with contextlib.suppress(ClientError):  # the replicas may have other addresses
                    await self.client.refresh_route(queue.topic)
            await asyncio.sleep(min(self.retry_ms * (attempt + 1), RETRY_MS_MAX) / 1000)
        if short is not None:
            return short
        raise UnreachableError(
            "BROKER_UNREACHABLE",
            f"no replica of broker {queue.broker_name} returned {queue.topic} queue "
            f"{queue.queue_id} offset {offset} in {attempt + 1} attempts: {last}",
        )


def _place(head: bytes) -> int:
    """Return the physical offset of a record."""
    return int.from_bytes(head[PHYSICAL_OFFSET_AT:PLACE_SIZE], "big")


def _width(pieces: Sequence[Piece], most: int) -> int:
    """Return how many offsets to ask for at once, by the size of those that came."""
    rows = sum(high - low for low, high, _ in pieces)
    size = sum(len(body) for _, _, bodies in pieces for body in bodies)
    return max(1, min(most, CHUNK_BYTES * rows // size)) if size else most


async def _next(answers: AsyncGenerator[T, None]) -> T | None:
    try:
        return await anext(answers)
    except StopAsyncIteration:
        return None
