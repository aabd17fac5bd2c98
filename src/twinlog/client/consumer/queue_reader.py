"""One assigned queue: pulls ahead of whoever consumes, as far as flow control allows.

Corresponds to PullRequest, PullMessageService and the callback in DefaultMQPushConsumerImpl. One
task for each queue, one pull on its way at a time, held by the broker while there is nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from twinlog.client.consumer.process_queue import ProcessQueue
from twinlog.client.errors import (
    BrokerBusyError,
    ClientError,
    SubscriptionNotExistError,
    TransportError,
)
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance
from twinlog.client.queues import MessageQueue
from twinlog.client.serializers import Serializer
from twinlog.message.names import RETRY_PREFIX
from twinlog.message.properties import PROPERTY_RETRY_TOPIC
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codes import ResponseCode

_LOG = logging.getLogger("twinlog.client")
BUSY_PAUSE_MS = 20  # Java's pause after FLOW_CONTROL.
REFUSED_PAUSE_MS = 1000  # Java's pause after an error code.
LOST_PAUSES_MS = (0, 50, 100, 200, 500, 1000)
EMPTY_PAUSE_MS = 200  # Nothing to read and nothing held: a slave that lags.


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How far ahead a queue is read, and how bodies are."""

    pull_count: int = 32
    suspend_ms: int = 15_000
    count_max: int = 1000  # pullThresholdForQueue
    size_max: int = 100 * 1024 * 1024  # pullThresholdSizeForQueue
    span_max: int = 2000  # consumeConcurrentlyMaxSpan
    serializer: Serializer | None = None


class QueueReader:
    """Reads one queue from an offset on and hands what it gets to `deliver`."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        *,
        limits: ReadLimits,
        deliver: Callable[[QueueReader, list[ReceivedMessage]], None],
        skipped: Callable[[QueueReader], None],
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.process = ProcessQueue(offset)
        self.next_offset = offset
        self.max_offset = offset
        self.is_paused = False
        # No commit may follow: the queue belongs to another member.
        self.is_released = False
        self.running = 0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.locked_until_ms: int | None = None
        self._instance = instance
        self._group = group
        self._limits = limits
        self._deliver = deliver
        self._skipped = skipped
        self._suggested_id = MASTER_ID
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        self._task = self._instance.tasks.contained("pull", self._run, about=str(self.queue))

    def stop(self) -> None:
        """Pull no more, start no more handlers. Those that run go on."""
        self.process.is_dropped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def seek(self, offset: int) -> None:
        """Go on at another offset. What was read before counts no more."""
        old, self.process = self.process, ProcessQueue(offset)
        old.is_dropped = True
        self.next_offset = offset
        self._pull_again()

    def read_again(self, offset: int) -> None:
        """What was read from `offset` on was handed to nobody: it is read again, later."""
        self.process.forget_from(offset)
        self.next_offset = offset
        self._pull_again()

    def _pull_again(self) -> None:
        """Abandon the pull that is on its way: what it brings would not be taken."""
        if self._task is not None:
            self._task.cancel()
            self.start()

    def change(self, subscription: SubscriptionData) -> None:
        """Filter differently from now on. A held pull has the old filter: it is abandoned."""
        self.subscription = subscription
        self._pull_again()

    def pause(self) -> None:
        """A pull that the broker holds is abandoned, too: it would bring what comes later."""
        if not self.is_paused:
            self.is_paused = True
            self._pull_again()

    def resume(self) -> None:
        self.is_paused = False
        self._room.set()

    async def wait_idle(self, timeout_ms: float) -> bool:
        """Whether all handlers of this queue have ended within the time."""
        if not self.running:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def is_failing(self) -> bool:
        """Whether the last pull failed, and the one before."""
        return self._failures > 1

    # Called by whoever consumes

    def handler_started(self) -> None:
        self.running += 1

    def handler_ended(self) -> None:
        self.running -= 1
        self.last_consume_ms = self._instance.clock.now_ms()
        if not self.running:
            self._idle.set()

    def finish(self, process: ProcessQueue, offset: int) -> int:
        """A message is done. Returns the offset that may be committed."""
        result = process.finish(offset)
        if not self._room.is_set() and not self._is_full():
            self._room.set()
        return result

    # Reading

    def _is_full(self) -> bool:
        limits = self._limits
        return self.process.is_full(
            count_max=limits.count_max, size_max=limits.size_max, span_max=limits.span_max
        )

    async def _run(self) -> None:
        while not self.process.is_dropped:
            while self.is_paused or self._is_full():
                self._room.clear()
                await self._room.wait()
            try:
                result = await self._pull()
            except ClientError as error:
                await self._failed(error)
                continue
            self._failures = 0
            await self._take(result)

    async def _pull(self) -> calls.PullResult:
        subscription = self.subscription
        self.last_pull_ms = self._instance.clock.now_ms()
        return await calls.pull(
            self._instance, self.queue, self.next_offset, group=self._group,
            count_max=self._limits.pull_count,
            # After a failure the broker is not to hold it: its answer says that all is well again.
            suspend_ms=0 if self._failures else self._limits.suspend_ms,
            subscription=subscription,
            # A tag expression costs the broker nothing; an SQL92 one it would compile each time.
            posts_subscription=subscription.is_tag_type,
            suggested_id=self._suggested_id,
        )  # fmt: skip

    async def _take(self, result: calls.PullResult) -> None:
        self._suggested_id = result.suggested_id
        self.max_offset = result.max_offset
        if not self._instance.is_announced(result.address):
            self._instance.announce_soon(result.address)
        if result.code == ResponseCode.SUCCESS:
            self._found(result)
            return
        is_back = result.next_offset < self.next_offset
        if (result.is_offset_illegal or is_back) and not result.is_slave:
            await self._move(result)
            return
        is_stuck = result.next_offset == self.next_offset
        if result.next_offset > self.next_offset and not result.is_slave:
            self.next_offset = result.next_offset
            self.process.skip_to(result.next_offset)
            self._skipped(self)
        if is_stuck and result.code != ResponseCode.PULL_NOT_FOUND:
            # A slave that is behind answers at once: asking in a loop would not hasten it.
            await self._instance.clock.sleep_ms(EMPTY_PAUSE_MS)

    def _found(self, result: calls.PullResult) -> None:
        messages = result.messages
        subscription = self.subscription
        if subscription.tags_set:
            messages = [m for m in messages if subscription.accepts(m.tags)]
        if self.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.show_topic(message.properties.get(PROPERTY_RETRY_TOPIC))
        self.process.add(messages)
        self.next_offset = result.next_offset
        self.process.skip_to(result.next_offset)
        serializer = self._limits.serializer
        if serializer is not None:
            for message in messages:
                message.serializer = serializer
        if messages:
            self._deliver(self, messages)
        else:
            self._skipped(self)

    async def _move(self, result: calls.PullResult) -> None:
        _LOG.warning(
            "offset is outside the queue, continuing at another one queue=%s offset=%d new=%d "
            "first=%d end=%d",
            self.queue, self.next_offset, result.next_offset, result.min_offset, result.max_offset,
        )  # fmt: skip
        if result.next_offset >= self.process.end_offset:
            self.process.skip_to(result.next_offset)
        else:
            # The queue was made again or lost its tail: what we hold of that belongs to the old
            # one. What is before the new place is the same in both, and is not read again.
            while self.process.commit_offset < result.next_offset:
                self._room.clear()
                await self._room.wait()
            self.process.is_dropped = True
            self.process = ProcessQueue(result.next_offset)
        self.next_offset = result.next_offset
        self._skipped(self)

    async def _failed(self, error: ClientError) -> None:
        clock = self._instance.clock
        self._failures += 1
        pause_ms = LOST_PAUSES_MS[min(self._failures - 1, len(LOST_PAUSES_MS) - 1)]
        if isinstance(error, TransportError):
            _LOG.info("pull lost queue=%s reason=%s", self.queue, error)
        elif isinstance(error, BrokerBusyError):
            pause_ms = BUSY_PAUSE_MS
        elif isinstance(error, SubscriptionNotExistError):
            # The broker restarted, or our heartbeat is still on its way.
            await self._instance.heartbeat()
            pause_ms = max(pause_ms, 50)
        else:
            _LOG.warning("pull failed queue=%s reason=%s", self.queue, error)
            pause_ms = REFUSED_PAUSE_MS
        if error.refresh_route and self._failures > 1:
            await self._refresh_route()
        if pause_ms:
            await clock.sleep_ms(pause_ms)

    async def _refresh_route(self) -> None:
        try:
            await self._instance.refresh_route(self.queue.topic)
        except ClientError as error:
            _LOG.info("route not refreshed topic=%s reason=%s", self.queue.topic, error)
