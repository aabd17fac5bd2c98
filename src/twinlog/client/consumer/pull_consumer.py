"""Messages at the caller's pace. Corresponds to DefaultLitePullConsumer.

    async with PullConsumer("group", name_server="127.0.0.1:9876") as consumer:
        await consumer.subscribe("orders")
        async for message in consumer: ...

A message counts as done when the next one is asked for (`async for`, `poll`), at `commit`, and when
the block is left without an exception. Offsets are committed every `commit_ms` and at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, Unpack

from twinlog.client.consumer.consumer_core import ConsumeFrom, ConsumerCore, ConsumerSettings
from twinlog.client.consumer.consumer_requests import ConsumerRequests
from twinlog.client.consumer.listener import RebalanceListener
from twinlog.client.consumer.positions import Positions, check_offset
from twinlog.client.consumer.process_queue import ProcessQueue
from twinlog.client.consumer.push_consumer import choose_strategy
from twinlog.client.consumer.queue_reader import QueueReader, ReadLimits
from twinlog.client.consumer.rebalance import AllocateStrategy
from twinlog.client.consumer.subscription import parse_subscription
from twinlog.client.errors import ClientClosedError, UsageError
from twinlog.client.lifetime import Lifetime
from twinlog.client.message import ReceivedMessage, check_group
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance, MemberRole
from twinlog.client.queues import MessageQueue
from twinlog.client.serializers import Serializer
from twinlog.client.settings import ClientSettings, resolve
from twinlog.remoting.bodies.subscription import SubscriptionData


class PullConsumer(Positions, Lifetime):
    """Consumes topics by iteration or polling.

    Args:
        group: Name of the consumer group.
        name_server: As for Producer.
        auto_commit: Commit by itself what counts as done.
        consume_from, consume_timestamp_ms: Where a group without offsets starts.
        strategy: As for PushConsumer.
        pull_count: Messages asked for at a time.
        queue_count_max, queue_size_max: How much of one queue is read ahead.
        serializer: Reads bodies: `message.value`.
        listener: Is told which queues come and go.
        revoke_timeout_ms: How long the listener may take.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        auto_commit: bool = True,
        commit_ms: int = 5000,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int = 0,
        strategy: str | AllocateStrategy = "AVG",
        pull_count: int = 32,
        queue_count_max: int = 1000,
        queue_size_max: int = 32 * 1024 * 1024,
        serializer: Serializer | None = None,
        listener: RebalanceListener | None = None,
        revoke_timeout_ms: int = 5000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.group = check_group(group)
        if pull_count < 1:
            raise UsageError("pull_count must be at least 1")
        self._instance = ClientInstance(name_server, resolve(**settings), name=group)
        self._auto_commit = auto_commit
        limits = ReadLimits(
            pull_count=pull_count, count_max=queue_count_max, size_max=queue_size_max,
            span_max=1 << 40, serializer=serializer,
        )  # fmt: skip
        self._core = ConsumerCore(
            group,
            self._instance,
            ConsumerSettings(
                is_push=False, consume_from=consume_from, commit_ms=commit_ms,
                consume_timestamp_ms=consume_timestamp_ms, strategy=choose_strategy(strategy),
                limits=limits, commits_by_timer=auto_commit,
                listener=listener, revoke_timeout_ms=revoke_timeout_ms,
            ),
            deliver=self._deliver, released=self._queue_released,
        )  # fmt: skip
        ConsumerRequests(self._core)
        self._buffer: deque[tuple[QueueReader, ProcessQueue, ReceivedMessage]] = deque()
        self._in_hand: list[tuple[QueueReader, ProcessQueue, ReceivedMessage]] = []
        self._arrived = asyncio.Event()
        self._instance.on_failure.append(self._arrived.set)
        self._is_closed = False

    # Life

    async def start(self) -> Self:
        """Connect; the `async with` block does it."""
        await self._core.start()
        return self

    async def close(self) -> None:
        """Commit (unless `auto_commit` is off), leave the group, disconnect."""
        if self._is_closed:
            await self._instance.wait_stopped()
            return
        if self._instance.is_abandoned():
            self._instance.abandon()
        self._is_closed = True
        self._arrived.set()
        if self._auto_commit:
            self._finish_in_hand()
        await self._core.stop(0)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            # What was in hand when it happened is not done: it comes again.
            self.forget_in_hand()
        await super().__aexit__(kind, error, traceback)

    def forget_in_hand(self) -> None:
        """What was handed out last does not count as done: it comes again."""
        self._in_hand.clear()

    @property
    def client_id(self) -> str:
        """The name under which brokers list this member."""
        return self._instance.client_id

    # What to consume

    async def subscribe(
        self, topic: str, expression: str | None = "*", *, sql: bool = False
    ) -> None:
        """Share the queues of a topic with the other members of the group."""
        if self._core.readers and self._core.role is MemberRole.UNLISTED:
            raise UsageError("subscribe() and assign() exclude each other")
        await self._core.subscribe(topic, expression, sql=sql)

    async def unsubscribe(self, topic: str) -> None:
        """Give the queues of a topic back to the group."""
        await self._core.unsubscribe(topic)

    async def assign(self, queues: Iterable[MessageQueue], *, expression: str = "*") -> None:
        """Read exactly these queues, whatever others do; takes no part in the group."""
        if self._core.role is MemberRole.CONSUMER:
            # Also when nothing is subscribed to any more: the group still counts on it.
            raise UsageError("subscribe() and assign() exclude each other")
        wanted = [MessageQueue(*queue) for queue in queues]
        for topic in {queue.topic for queue in wanted}:
            await self._instance.route(topic)
        await self._core.assign(wanted, lambda topic: parse_subscription(topic, expression))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, for `assign`."""
        return (await self._instance.route(topic)).read_queues(topic)

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._finish_in_hand()
        while True:
            if self._is_closed:
                raise StopAsyncIteration
            item = self._next()
            if item is not None:
                self._in_hand.append(item)
                return item[2]
            self._check_reading()
            self._arrived.clear()
            await self._arrived.wait()

    def _check_reading(self) -> None:
        """Nothing can come to one that has nothing to read: say so instead of waiting."""
        self._instance.check_usable()
        self._instance.check_loop()
        if not self._core.subscriptions and not self._core.readers:
            raise UsageError(
                "this consumer has no subscription: call subscribe() or assign() first"
            )

    async def poll(self, timeout_ms: float = 5000, max_count: int = 32) -> list[ReceivedMessage]:
        """Up to `max_count` messages; an empty list when none came in time."""
        if self._is_closed:
            raise ClientClosedError("this consumer is closed: open a new one")
        self._check_reading()
        self._finish_in_hand()
        batch = self._take(max_count)
        if not batch and timeout_ms > 0:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    while not batch and not self._is_closed:
                        self._arrived.clear()
                        await self._arrived.wait()
                        self._instance.check_usable()
                        batch = self._take(max_count)
            except TimeoutError:
                return []
        self._in_hand.extend(batch)
        return [item[2] for item in batch]

    def _take(self, max_count: int) -> list[tuple[QueueReader, ProcessQueue, ReceivedMessage]]:
        batch: list[tuple[QueueReader, ProcessQueue, ReceivedMessage]] = []
        while len(batch) < max_count and (item := self._next()) is not None:
            batch.append(item)
        return batch

    def _next(self) -> tuple[QueueReader, ProcessQueue, ReceivedMessage] | None:
        while self._buffer:
            item = self._buffer.popleft()
            if not item[1].is_dropped:
                return item
        return None

    def _deliver(self, reader: QueueReader, messages: list[ReceivedMessage]) -> None:
        process = reader.process
        self._buffer.extend([(reader, process, message) for message in messages])
        self._arrived.set()

    def _finish_in_hand(self) -> None:
        for reader, process, message in self._in_hand:
            offset = reader.finish(process, message.queue_offset)
            if not reader.is_released and reader.process is process:
                self._core.offsets.update(reader.queue, offset)
        self._in_hand.clear()

    def _queue_released(self, reader: QueueReader) -> None:
        """Its messages in the buffer are skipped: their process queue is dropped."""

    @asynccontextmanager
    async def batch(
        self, timeout_ms: float = 5000, max_count: int = 32
    ) -> AsyncIterator[list[ReceivedMessage]]:
        """Up to `max_count` messages that are committed when the block ends.

        An exception in the block commits nothing: the same messages are handed out again.

            async with consumer.batch() as messages:
                await store(messages)
        """
        messages = await self.poll(timeout_ms, max_count)
        taken = list(self._in_hand)
        try:
            yield messages
        except BaseException:
            self._hand_back(taken)
            raise
        if messages:
            await self.commit()

    def hand_back(self) -> None:
        """What was handed out last is handed out again."""
        self._hand_back(list(self._in_hand))

    def _hand_back(self, taken: list[tuple[QueueReader, ProcessQueue, ReceivedMessage]]) -> None:
        """Go back to the first message of each queue that was in hand."""
        self.forget_in_hand()
        first: dict[QueueReader, int] = {}
        for reader, process, message in taken:
            if reader.process is process and not process.is_dropped:
                first[reader] = min(first.get(reader, message.queue_offset), message.queue_offset)
        for reader, offset in first.items():
            reader.seek(offset)

    async def drain(self) -> None:
        """Pull no more and commit what was handed out; what was only read ahead comes again."""
        self._core.is_draining = True  # Queues that come from now on wait as well.
        self.pause()
        await self.commit()

    # Positions

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was handed out so far, or these offsets, and wait for the brokers."""
        self._instance.check_usable()
        if offsets is not None:
            await self._commit_these(offsets)
            return
        self._finish_in_hand()
        await self._core.offsets.commit(wait=True)

    async def _commit_these(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            check_offset(offset)
            if queue in self._core.readers:
                self._core.offsets.update(queue, offset)
        # At once and not from the store: a queue of somebody else must not stay in there.
        commits = [
            calls.commit_offset(self._instance, self.group, queue, offset, wait=True)
            for queue, offset in offsets.items()
        ]
        for result in await asyncio.gather(*commits, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def position(self, queue: MessageQueue) -> int:
        """The next offset that will be handed out."""
        reader = self._reader(queue)
        for other, process, message in self._buffer:
            if other is reader and not process.is_dropped:
                return message.queue_offset
        return reader.next_offset

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out no more messages of these queues (of all without arguments)."""
        for queue in queues or self.assignment:
            reader = self._reader(queue)
            reader.pause()
            # Only what was read ahead comes again: what is in hand is done when the caller says so.
            reader.read_again(self.position(queue))
            self._buffer = deque(item for item in self._buffer if item[0] is not reader)

    def resume(self, *queues: MessageQueue) -> None:
        """Hand out messages of these queues (of all without arguments) again."""
        if not queues:
            self._core.is_draining = False
        for queue in queues or self.assignment:
            self._reader(queue).resume()

    # One pull, without assignment

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        suspend_ms: int = 0,
        expression: str | SubscriptionData = "*",
    ) -> calls.PullResult:
        """One request to the broker: for tools and for those who keep offsets themselves."""
        await self._instance.route(queue.topic)
        subscription = (
            expression
            if isinstance(expression, SubscriptionData)
            else parse_subscription(queue.topic, expression)
        )
        return await calls.pull(
            self._instance, queue, offset, group=self.group, count_max=max_count,
            suspend_ms=suspend_ms, subscription=subscription,
        )  # fmt: skip
