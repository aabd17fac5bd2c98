"""Where a consumer is in its queues: what push and pull consumers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from twinlog.client.consumer.consumer_core import ConsumerCore
from twinlog.client.consumer.queue_reader import QueueReader
from twinlog.client.errors import ClientError, UsageError
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance
from twinlog.client.queues import MessageQueue, sorted_queues
from twinlog.runtime.numbers import INT64_MAX


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """How a consumer is, as data: for health endpoints and logs."""

    is_ok: bool
    """Running, a member of its group, and no queue failing."""
    reason: str
    """Why it is not, in one sentence; empty when it is."""
    queues: int
    """How many queues this member has."""
    held_messages: int
    """Messages that were pulled and are not done."""
    running_handlers: int
    """Handlers at work."""
    behind: int
    """Messages between what was pulled and the ends of the queues, as of the last pulls."""
    failing_queues: tuple[MessageQueue, ...]
    """Queues whose last pull failed."""


def check_offset(offset: int) -> None:
    """Raise when it is no offset: a broker would refuse it again and again."""
    if not isinstance(offset, int) or offset > INT64_MAX:
        raise UsageError(f"an offset must be a whole number from 0 to {INT64_MAX}, not {offset!r}")
    if offset < 0:
        raise UsageError(f"an offset must be a whole number from 0 to {INT64_MAX}, not {offset}")


def check_time(timestamp_ms: int) -> None:
    """Raise when it is no time: `time.time() * 1000` is not a whole number."""
    if not isinstance(timestamp_ms, int) or abs(timestamp_ms) > INT64_MAX:
        raise UsageError(
            f"a time must be a whole number of milliseconds since 1970, not {timestamp_ms!r}; "
            "the present time is int(time.time() * 1000)"
        )


class Positions:
    """Offsets, seeking, lag and health. Mixed into the two consumers."""

    group: str
    _core: ConsumerCore
    _instance: ClientInstance

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        return sorted_queues(self._core.readers)

    def _reader(self, queue: MessageQueue) -> QueueReader:
        reader = self._core.readers.get(queue)
        if reader is None:
            raise UsageError(f"{queue} is not assigned to this consumer")
        return reader

    def _sought(self, reader: QueueReader) -> None:
        """A queue goes on elsewhere: what was read of it before is not handed out any more."""

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` of an assigned queue."""
        check_offset(offset)
        reader = self._reader(queue)
        reader.seek(offset)
        self._core.offsets.update(queue, offset)
        self._sought(reader)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of these queues, of all without arguments."""
        for queue in queues or self.assignment:
            self.seek(queue, await calls.min_offset(self._instance, queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with what comes from now on, in these queues or in all."""
        for queue in queues or self.assignment:
            self.seek(queue, await calls.max_offset(self._instance, queue))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after the time, in these queues or in all."""
        check_time(timestamp_ms)
        for queue in queues or self.assignment:
            offset = await calls.offset_for_time(self._instance, queue, timestamp_ms)
            self.seek(queue, offset)

    async def begin_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there."""
        await self._instance.route(queue.topic)
        return await calls.min_offset(self._instance, queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """One above the newest offset."""
        await self._instance.route(queue.topic)
        return await calls.max_offset(self._instance, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after the time, else the end."""
        check_time(timestamp_ms)
        await self._instance.route(queue.topic)
        return await calls.offset_for_time(self._instance, queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset; None when there is none."""
        await self._instance.route(queue.topic)
        return await calls.query_consumer_offset(self._instance, self.group, queue)

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each assigned queue are not done yet, asked of the brokers."""
        queues = self.assignment
        ends = await asyncio.gather(*(calls.max_offset(self._instance, q) for q in queues))
        found = {}
        for queue, end in zip(queues, ends, strict=True):
            reader = self._core.readers.get(queue)
            if reader is not None:
                found[queue] = max(0, end - reader.process.commit_offset)
        return found

    def health(self) -> ConsumerHealth:
        """How this consumer is, without asking anybody."""
        readers = list(self._core.readers.values())
        failing = tuple(reader.queue for reader in readers if reader.is_failing)
        reason = self._ill_because(failing)
        return ConsumerHealth(
            is_ok=not reason,
            reason=reason,
            queues=len(readers),
            held_messages=sum(reader.process.count for reader in readers),
            running_handlers=sum(reader.running for reader in readers),
            behind=sum(max(0, reader.max_offset - reader.next_offset) for reader in readers),
            failing_queues=failing,
        )

    def _ill_because(self, failing: tuple[MessageQueue, ...]) -> str:
        try:
            self._instance.check_usable()
        except ClientError as error:
            return str(error)
        if failing:
            return f"{len(failing)} queues cannot be pulled, the first is {failing[0]}"
        if not self._core.subscriptions and not self._core.readers:
            return "nothing is subscribed to"
        return ""
