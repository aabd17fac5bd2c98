"""What tests with clients need: waiting for facts, reading a topic from end to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from twinlog.admin import Admin, topics
from twinlog.client import MessageQueue, PullConsumer, ReceivedMessage
from twinlog.client.errors import TopicNotFoundError

DEADLINE_S = 30.0


class Seen:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)


async def make_topic(name_server: str, topic: str, queues: int = 4) -> None:
    async with Admin(name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=queues)).all_or_raise()


async def read_all(name_server: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Every message of a topic, queue after queue, once there are `count` of them.

    A topic that a send created is known to the name server a moment later, not at once.
    """
    async with PullConsumer("read-all", name_server=name_server) as consumer:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                messages = [
                    message
                    for queue in await consumer.queues(topic)
                    for message in await read_queue(consumer, queue)
                ]
            except TopicNotFoundError:
                messages = []
            if len(messages) >= count:
                return messages
            assert time.monotonic() < end, f"{len(messages)} of {count} messages in {topic}"
            await asyncio.sleep(0.05)


async def read_queue(consumer: PullConsumer, queue: MessageQueue) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    offset, end = await consumer.begin_offset(queue), await consumer.end_offset(queue)
    while offset < end:
        result = await consumer.pull(queue, offset)
        messages += result.messages
        assert result.next_offset > offset, "a pull below the end must make progress"
        offset = result.next_offset
    return messages


async def eventually(
    condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a fact; at the deadline an error that names it."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s in vain: {what}"
        await asyncio.sleep(0.02)


async def eventually_async(
    condition: Callable[[], Awaitable[object]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    end = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s in vain: {what}"
        await asyncio.sleep(0.05)
