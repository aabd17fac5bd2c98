"""Calls a handler for each message. Corresponds to DefaultMQPushConsumer.

    async with PushConsumer("group", name_server="127.0.0.1:9876") as consumer:
        await consumer.subscribe("orders", "a || b", handler)
        await consumer.run_forever()

    async def handler(message): ...          # return: done; raise: deliver again later

Delivery is at least once. A message counts as done when its handler returned, or when the broker
took it back for another attempt. Handlers run in a fixed number of workers, so a message costs no
task. In ordered mode each queue is handled by one worker at a time, under the broker's lock.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar, Unpack

from twinlog.client.consumer.consumer_core import ConsumeFrom, ConsumerCore, ConsumerSettings
from twinlog.client.consumer.consumer_requests import ConsumerRequests
from twinlog.client.consumer.listener import RebalanceListener
from twinlog.client.consumer.offset_store import LocalOffsetStore, OffsetStore
from twinlog.client.consumer.positions import Positions
from twinlog.client.consumer.process_queue import ProcessQueue
from twinlog.client.consumer.queue_reader import QueueReader, ReadLimits
from twinlog.client.consumer.rebalance import STRATEGIES, AllocateStrategy
from twinlog.client.consumer.return_path import ReturnPath
from twinlog.client.errors import ClientError, InvalidHandlerError, UsageError
from twinlog.client.hooks import guarded
from twinlog.client.lifetime import Lifetime
from twinlog.client.message import ReceivedMessage, check_group
from twinlog.client.net.instance import ClientInstance
from twinlog.client.queues import MessageQueue
from twinlog.client.serializers import Serializer
from twinlog.client.settings import ClientSettings, resolve
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.process import home_directory

_LOG = logging.getLogger("twinlog.client")
Handler = Callable[[ReceivedMessage], Awaitable[None]]
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[None]]
AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Awaitable[None]])
UNLIMITED = -1
DRAIN_CHECK_MS = 10
ORDERED_TURN = 16  # Messages of one queue before another queue gets the worker.
YIELD_EVERY = 16  # Handlers that never wait must not keep the loop from reading.


class RetryLater(Exception):
    """Raise in a handler to choose when the message comes again.

    Args:
        delay_level: 1 to 18; 0 lets the broker choose by the number of attempts; -1 sends the
            message to the dead letters at once.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"delivered again with delay level {delay_level}")
        self.delay_level = delay_level


def check_handler(handler: object) -> Callable[..., Awaitable[None]]:
    """An async function of one argument, or an error that says what was given instead."""
    if not callable(handler):
        raise InvalidHandlerError(f"the handler must be an async function, not {handler!r}")
    candidates = (handler, type(handler).__call__)
    if not any(inspect.iscoroutinefunction(candidate) for candidate in candidates):
        raise InvalidHandlerError(
            f"the handler {getattr(handler, '__qualname__', handler)!r} is not async: write "
            f"'async def', or use twinlog.client.blocking for plain functions"
        )
    return handler


_Item = tuple[QueueReader, ProcessQueue, ReceivedMessage]


@dataclass(frozen=True, slots=True)
class _Handling:
    """What is called for the messages of a topic: with one of them, or with up to `count`."""

    handler: Callable[..., Awaitable[None]]
    count: int | None = None

    def call(self, messages: list[ReceivedMessage]) -> Awaitable[None]:
        return self.handler(messages[0] if self.count is None else messages)


def _batch_count(count: int) -> int:
    if count < 1:
        raise UsageError(f"a batch must have at least 1 message, not {count}")
    return count


def choose_strategy(strategy: str | AllocateStrategy) -> AllocateStrategy:
    if callable(strategy):
        return strategy
    if strategy not in STRATEGIES:
        raise UsageError(
            f"the strategy must be {', '.join(STRATEGIES)} or a function, not {strategy!r}"
        )
    return STRATEGIES[strategy]


class PushConsumer(Positions, Lifetime):
    """Consumes topics by calling handlers.

    Args:
        group: Name of the consumer group; members share the queues.
        name_server: As for Producer.
        concurrency: How many handlers run at the same time.
        ordered: Handle each queue's messages one after the other, in order.
        broadcast: Every member gets every message; offsets are kept in `offset_file`.
        consume_from: Where a group without offsets starts.
        consume_timestamp_ms: For ConsumeFrom.TIMESTAMP.
        max_attempts: Deliveries after which a message goes to the dead letters; -1 in ordered
            mode: never.
        consume_timeout_ms: A handler that takes longer is cancelled and counts as failed.
        suspend_ms: Ordered mode: pause of a queue after its handler failed.
        shutdown_timeout_ms: How long `close` waits for running handlers.
        strategy: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH or a function; the same in the whole group.
        pull_count: Messages asked for at a time.
        queue_count_max, queue_size_max: How much of one queue is held before pulling pauses.
        serializer: Reads bodies: `message.value`.
        listener: Is told which queues come and go.
        revoke_timeout_ms: How long the listener may take.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        concurrency: int = 20,
        ordered: bool = False,
        broadcast: bool = False,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        max_attempts: int | None = None,
        consume_timeout_ms: int = 15 * 60 * 1000,
        suspend_ms: int = 1000,
        shutdown_timeout_ms: int = 10_000,
        strategy: str | AllocateStrategy = "AVG",
        pull_count: int = 32,
        queue_count_max: int = 1000,
        queue_size_max: int = 100 * 1024 * 1024,
        commit_ms: int = 5000,
        offset_file: str | None = None,
        serializer: Serializer | None = None,
        listener: RebalanceListener | None = None,
        revoke_timeout_ms: int = 5000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.group = check_group(group)
        if concurrency < 1 or pull_count < 1:
            raise UsageError("concurrency and pull_count must be at least 1")
        self._instance = ClientInstance(name_server, resolve(**settings), name=group)
        self._is_ordered = ordered
        self._is_broadcast = broadcast
        self._max_attempts = max_attempts if max_attempts is not None else -1 if ordered else 16
        self._consume_timeout_ms = consume_timeout_ms
        self._suspend_ms = suspend_ms
        self._shutdown_timeout_ms = shutdown_timeout_ms
        self._hooks = self._instance.settings.hooks
        self._handlers: dict[str, _Handling] = {}
        self._waiting: list[tuple[str, str | None, bool, _Handling]] = []  # Until the start.
        self._core = ConsumerCore(
            group,
            self._instance,
            ConsumerSettings(
                is_broadcast=broadcast, is_ordered=ordered, consume_from=consume_from,
                consume_timestamp_ms=consume_timestamp_ms, strategy=choose_strategy(strategy),
                limits=ReadLimits(
                    pull_count=pull_count, count_max=queue_count_max, size_max=queue_size_max,
                    serializer=serializer,
                ),
                commit_ms=commit_ms, listener=listener, revoke_timeout_ms=revoke_timeout_ms,
            ),
            deliver=self._deliver, released=self._queue_released,
            offsets=self._local_offsets(offset_file) if broadcast else None,
        )  # fmt: skip
        self._returns = ReturnPath(self._instance, group)
        ConsumerRequests(self._core, self._call_now, concurrency)
        self._workers = [_Worker(self) for _ in range(concurrency)]
        self._ready: deque[tuple[QueueReader, ProcessQueue, ReceivedMessage]] = deque()
        # Ordered mode: messages stay with their queue, and queues take turns.
        self._backlogs: dict[QueueReader, deque[ReceivedMessage]] = {}
        self._ready_queues: deque[QueueReader] = deque()
        self._scheduled: set[QueueReader] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._ended = asyncio.Event()
        self._instance.on_failure.append(self._ended.set)
        self._is_closed = False

    def _local_offsets(self, offset_file: str | None) -> OffsetStore:
        path = offset_file or f"{home_directory()}/.rocketmq_offsets/twinlog/{self.group}.json"
        store = LocalOffsetStore(PosixDisk(), path)
        store.load()
        return store

    # Life

    async def start(self) -> Self:
        """Connect and begin with what `on` has registered; the `async with` block does it."""
        if not await self._core.start():
            return self
        for index, worker in enumerate(self._workers):
            # Vital: the message that it had in hand would never be handled nor committed.
            worker.task = self._instance.tasks.vital(f"worker {index}", worker.run)
        self._instance.tasks.contained("watch handlers", self._watch_handlers)
        try:
            await self._subscribe_waiting()
        except BaseException:
            # Nobody closes what did not start: it would stay a member of its group.
            await self.close()
            raise
        return self

    async def _subscribe_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for topic, expression, sql, handling in waiting:
            await self._subscribe(topic, expression, sql, handling)

    async def close(self) -> None:
        """Pull no more, let running handlers end, commit, leave the group.

        A handler that calls it is waited for as well, so that takes `shutdown_timeout_ms`: it had
        better let another task do it.
        """
        if self._is_closed:
            await self._instance.wait_stopped()
            return
        if self._instance.is_abandoned():
            self._instance.abandon()
        self._is_closed = True
        self._ready.clear()
        self._ready_queues.clear()
        try:
            await self._core.stop(self._shutdown_timeout_ms)
        finally:
            self._ended.set()

    async def run_forever(self) -> None:
        """Wait until the consumer is closed. Raises when it can no longer work."""
        await self._ended.wait()
        if not self._is_closed:
            self._instance.check_usable()

    @property
    def client_id(self) -> str:
        """The name under which brokers list this member."""
        return self._instance.client_id

    # Subscriptions

    async def subscribe(
        self, topic: str, expression: str | None, handler: Handler, *, sql: bool = False
    ) -> None:
        """Call `handler` for the messages of a topic.

        Args:
            topic: The topic; it may appear later.
            expression: `*` or None for all, tags as in `a || b`, or with `sql` a condition.
            handler: `async def handler(message) -> None`; raise to have it delivered again.
            sql: The expression is SQL92 over properties, as in `price > 3 AND kind = 'a'`.

        All members of a group must have the same subscriptions: RocketMQ keeps one list for each
        group.
        """
        await self._subscribe(topic, expression, sql, _Handling(check_handler(handler)))

    async def subscribe_batch(
        self,
        topic: str,
        expression: str | None,
        handler: BatchHandler,
        *,
        max_count: int = 32,
        sql: bool = False,
    ) -> None:
        """Call `handler` with a list of messages: as many as are there, up to `max_count`.

        Args:
            topic, expression, sql: As for `subscribe`.
            handler: `async def handler(messages) -> None`; raise to have all of them delivered
                again. In ordered mode the list has consecutive messages of one queue.
            max_count: The longest list.
        """
        handling = _Handling(check_handler(handler), _batch_count(max_count))
        await self._subscribe(topic, expression, sql, handling)

    def on(
        self,
        topic: str,
        expression: str | None = "*",
        *,
        batch_max: int | None = None,
        sql: bool = False,
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Register a handler before the start, as a decorator.

            @consumer.on("orders", "paid || shipped")
            async def handle(message): ...

        Args:
            topic, expression, sql: As for `subscribe`.
            batch_max: The handler takes lists of up to so many messages.
        """
        if self._instance.is_running:
            raise UsageError(
                "on() must be called before the consumer starts: use await subscribe() now"
            )

        def register(handler: AnyHandler) -> AnyHandler:
            count = None if batch_max is None else _batch_count(batch_max)
            handling = _Handling(check_handler(handler), count)
            self._waiting.append((topic, expression, sql, handling))
            return handler

        return register

    async def _subscribe(
        self, topic: str, expression: str | None, sql: bool, handling: _Handling
    ) -> None:
        before = self._handlers.get(topic)
        self._handlers[topic] = handling
        try:
            await self._core.subscribe(topic, expression, sql=sql)
        except BaseException:
            if self._handlers.get(topic) is handling:
                self._restore_handler(topic, before)
            raise

    def _restore_handler(self, topic: str, before: _Handling | None) -> None:
        if before is None:
            self._handlers.pop(topic, None)
        else:
            self._handlers[topic] = before

    async def unsubscribe(self, topic: str) -> None:
        """Give the queues of a topic back to the group."""
        handling = self._handlers.get(topic)
        await self._core.unsubscribe(topic)
        if self._handlers.get(topic) is handling:  # Not that of a subscription made meanwhile.
            self._handlers.pop(topic, None)

    def pause(self, *queues: MessageQueue) -> None:
        """Pull no more of these queues (of all without arguments); what was pulled is handled."""
        for queue in queues or self.assignment:
            self._reader(queue).pause()

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues (all without arguments) again."""
        if not queues:
            self._core.is_draining = False
        for queue in queues or self.assignment:
            self._reader(queue).resume()

    async def commit(self) -> None:
        """Commit what is done by now and wait for the brokers, instead of for the timer."""
        self._instance.check_usable()
        await self._core.commit(wait=True)

    async def drain(self) -> None:
        """Pull no more, wait until everything that was pulled is done, and commit.

        Messages that a broker holds for another attempt do not count. `resume` goes on.
        """
        self._core.is_draining = True  # Queues that come from now on wait as well.
        self.pause()
        while any(reader.process.count for reader in self._core.readers.values()):
            self._instance.check_usable()
            await self._instance.clock.sleep_ms(DRAIN_CHECK_MS)
        await self.commit()

    def _sought(self, reader: QueueReader) -> None:
        # Still in line, or in the hands of its worker: a second one would handle it next to that.
        self._backlogs.pop(reader, None)

    # From readers to workers

    def _deliver(self, reader: QueueReader, messages: list[ReceivedMessage]) -> None:
        if self._is_ordered:
            self._backlogs.setdefault(reader, deque()).extend(messages)
            self._schedule(reader)
            return
        process = reader.process
        self._ready.extend([(reader, process, message) for message in messages])
        self._wake(len(messages))

    def _schedule(self, reader: QueueReader) -> None:
        """Put an ordered queue in line, unless it is there or being handled."""
        if reader in self._scheduled or not self._backlogs.get(reader):
            return
        self._scheduled.add(reader)
        self._ready_queues.append(reader)
        self._wake(1)

    def _wake(self, count: int) -> None:
        idle = self._idle
        while idle and count > 0:
            waiter = idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def wait_for_work(self) -> bool:
        """False when it is closed: only the worker whose handler closed it is there to ask."""
        if self._ended.is_set():
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
        return True

    def _queue_released(self, reader: QueueReader) -> None:
        self._backlogs.pop(reader, None)
        self._scheduled.discard(reader)

    def now_ms(self) -> int:
        """The clock by which handlers are timed."""
        return self._instance.clock.monotonic_ms()

    # Work

    async def work(self, worker: _Worker) -> bool:
        """Handle one message, or one turn of an ordered queue. False when there is nothing."""
        if self._ready:
            batch = self._next_batch()
            if batch:
                await self._handle_concurrent(worker, batch)
            return True
        if self._ready_queues:
            await self._handle_ordered(worker, self._ready_queues.popleft())
            return True
        return False

    def _next_batch(self) -> list[_Item]:
        """The next message, and where its handler takes lists those of its topic behind it."""
        ready = self._ready
        first = ready.popleft()
        if first[1].is_dropped:
            return []
        handling = self._handlers.get(first[2].topic)
        batch = [first]
        if handling is None or handling.count is None:
            return batch
        while ready and len(batch) < handling.count and ready[0][2].topic == first[2].topic:
            item = ready.popleft()
            if not item[1].is_dropped:
                batch.append(item)
        return batch

    async def _handle_concurrent(self, worker: _Worker, batch: list[_Item]) -> None:
        for reader, _, _ in batch:
            reader.handler_started()
        try:
            error = await self._call(worker, [message for _, _, message in batch])
            for reader, process, message in batch:
                if error is not None and not await self._give_back(message, error):
                    # Neither handled nor taken back: it must not count as done.
                    self._retry_here(reader, process, message)
                else:
                    self._finish(reader, process, message)
        finally:
            for reader, _, _ in batch:
                reader.handler_ended()

    async def _call(self, worker: _Worker, messages: list[ReceivedMessage]) -> BaseException | None:
        """Run the handler. Returns what it raised, None when it is done."""
        handling = self._handlers.get(messages[0].topic)
        if handling is None:
            return UsageError(f"there is no handler for topic {messages[0].topic!r}")
        hooks = self._hooks
        contexts = []
        if hooks is not None:
            contexts = [guarded(hooks.before_consume, m, self.group) for m in messages]
        error: BaseException | None = None
        worker.begin(messages[0])
        try:
            await handling.call(messages)
        except asyncio.CancelledError:
            error = self._why_cancelled(worker)
            if error is None:
                raise
        except Exception as failure:
            # The handler's own error: the message comes again, the consumer goes on.
            error = failure
        finally:
            worker.end()
        if hooks is not None:
            for context in contexts:
                guarded(hooks.after_consume, context, error)
        return error

    def _why_cancelled(self, worker: _Worker) -> Exception | None:
        """What a cancellation within a handler means; None when it is the worker's own end."""
        if worker.take_timeout():
            return TimeoutError(f"the handler did not finish within {self._consume_timeout_ms} ms")
        if worker.is_cancelled:
            return None
        return RuntimeError("the handler was cancelled by a task that it awaited")

    async def _call_now(self, message: ReceivedMessage) -> BaseException | None:
        """Handle a message that an administrator sent us, outside of its queue."""
        handling = self._handlers.get(message.topic)
        if handling is None:
            return UsageError(f"there is no handler for topic {message.topic!r}")
        try:
            await handling.call([message])
        except Exception as error:
            # The handler's own error, shown to whoever asked.
            return error
        return None

    async def _give_back(self, message: ReceivedMessage, error: BaseException) -> bool:
        """Whether the broker took the message for another attempt."""
        level = error.delay_level if isinstance(error, RetryLater) else 0
        if not isinstance(error, RetryLater):
            _LOG.warning(
                "handler failed group=%s queue=%s offset=%d attempts=%d error=%r",
                self.group, message.queue, message.queue_offset, message.reconsume_times + 1,
                error, exc_info=error,
            )  # fmt: skip
        if self._is_broadcast:
            return True
        try:
            await self._returns.give_back(message, level, self._max_attempts)
        except ClientError as failure:
            _LOG.warning(
                "the broker did not accept the message back, so it is handled here again"
                " queue=%s offset=%d reason=%s",
                message.queue, message.queue_offset, failure,
            )  # fmt: skip
            return False
        return True

    def _retry_here(
        self, reader: QueueReader, process: ProcessQueue, message: ReceivedMessage
    ) -> None:
        def again() -> None:
            if not process.is_dropped and not self._is_closed:
                self._ready.append((reader, process, message))
                self._wake(1)

        self._instance.clock.call_later_ms(5000, again)

    def _finish(self, reader: QueueReader, process: ProcessQueue, message: ReceivedMessage) -> None:
        offset = reader.finish(process, message.queue_offset)
        if not reader.is_released and reader.process is process:
            self._core.offsets.update(reader.queue, offset)

    # Ordered mode

    async def _handle_ordered(self, worker: _Worker, reader: QueueReader) -> None:
        pause_ms = 0.0
        reader.handler_started()
        try:
            for _ in range(ORDERED_TURN):
                process = reader.process
                backlog = self._backlogs.get(reader)  # Another one after a seek.
                if not backlog or process.is_dropped or not self._core.is_locked(reader):
                    break
                messages = self._ordered_batch(backlog)
                error = await self._call(worker, messages)
                if error is not None and not await self._give_up_ordered(messages, error):
                    pause_ms = self._suspend_ms
                    break
                for message in messages:
                    if backlog and backlog[0] is message:
                        backlog.popleft()
                    self._finish(reader, process, message)
        finally:
            reader.handler_ended()
            self._scheduled.discard(reader)
        if pause_ms:
            self._instance.clock.call_later_ms(pause_ms, self._schedule, reader)
        elif self._core.is_locked(reader) and not reader.process.is_dropped:
            self._schedule(reader)

    def _ordered_batch(self, backlog: deque[ReceivedMessage]) -> list[ReceivedMessage]:
        handling = self._handlers.get(backlog[0].topic)
        count = 1 if handling is None else handling.count or 1
        return list(islice(backlog, count))

    async def _give_up_ordered(self, messages: list[ReceivedMessage], error: BaseException) -> bool:
        """Whether to go on past them: their attempts are used up and they are dead letters."""
        first = messages[0]
        for message in messages:
            message.record.reconsume_times += 1
        _LOG.warning(
            "handler failed, queue waits group=%s queue=%s offset=%d attempts=%d error=%r",
            self.group, first.queue, first.queue_offset, first.reconsume_times, error,
            exc_info=error,
        )  # fmt: skip
        if self._max_attempts == UNLIMITED or first.reconsume_times < self._max_attempts:
            return False
        if self._is_broadcast:
            return True
        try:
            for message in messages:
                await self._returns.to_dead_letters(message, self._max_attempts)
        except ClientError as failure:
            _LOG.warning("dead letter not sent queue=%s reason=%s", first.queue, failure)
            return False
        return True

    # Handlers that take too long

    async def _watch_handlers(self) -> None:
        interval_ms = min(1000.0, self._consume_timeout_ms / 4)
        while True:
            await self._instance.clock.sleep_ms(interval_ms)
            now_ms = self._instance.clock.monotonic_ms()
            for worker in self._workers:
                worker.check(now_ms, self._consume_timeout_ms)


class _Worker:
    """One handler at a time."""

    __slots__ = ("_consumer", "_is_timed_out", "_started_ms", "message", "task")

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self.task: asyncio.Task[Any] | None = None
        self.message: ReceivedMessage | None = None
        self._started_ms = 0
        self._is_timed_out = False

    async def run(self) -> None:
        count = 0
        while True:
            if not await self._consumer.work(self) and not await self._consumer.wait_for_work():
                return
            count += 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def begin(self, message: ReceivedMessage) -> None:
        self.message = message
        self._started_ms = self._consumer.now_ms()

    def end(self) -> None:
        self.message = None

    def check(self, now_ms: int, limit_ms: int) -> None:
        """Cancel the handler when it has run too long. The worker itself goes on."""
        if self.message is None or now_ms - self._started_ms < limit_ms or self._is_timed_out:
            return
        assert self.task is not None
        self._is_timed_out = True
        self.task.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody ends this worker; else a handler raised CancelledError by itself."""
        return self.task is None or self.task.cancelling() > 0

    def take_timeout(self) -> bool:
        """Whether the cancellation that just arrived was ours."""
        if not self._is_timed_out:
            return False
        self._is_timed_out = False
        assert self.task is not None
        self.task.uncancel()
        return True
