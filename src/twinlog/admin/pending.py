"""What waits inside the brokers: delayed messages and transactions without a decision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from twinlog.admin.brokers import broker_config
from twinlog.admin.client import Admin, Gathered, gather
from twinlog.admin.messages import query_by_key, read_queue
from twinlog.client.errors import BrokerTopicNotFoundError, ClientError, TopicNotFoundError
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.net.answers import body_as
from twinlog.client.queues import MessageQueue
from twinlog.message.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP
from twinlog.message.properties import PROPERTY_REAL_TOPIC
from twinlog.remoting.bodies.offsets import DelayOffsets
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.numbers import number_or_none

SHOWN_MAX = 100
SCAN_MAX = 5_000


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """One level of one broker: what waits in it."""

    broker: str
    level: int
    delay: str
    delivered: int
    end: int

    @property
    def waiting(self) -> int:
        return max(0, self.end - self.delivered)


@dataclass(frozen=True, slots=True)
class PendingTransactions:
    """Half messages of one broker that nobody committed or rolled back yet."""

    broker: str
    messages: list[ReceivedMessage] = field(default_factory=list)
    is_cut: bool = False


async def delay_levels(admin: Admin) -> Gathered[list[DelayLevel]]:
    """Every level that has a message, by master."""
    info = await admin.cluster()
    names = {a: name for name, broker in info.brokers.items() if (a := broker.master_address)}

    async def read(address: str) -> list[DelayLevel]:
        answer = await admin.ask(address, RequestCode.GET_ALL_DELAY_OFFSET, action="delay offsets")
        table = body_as(answer, DelayOffsets).offset_table
        config = await broker_config(admin, address)
        delays = config.get("messageDelayLevel", "").split()
        levels = []
        for level, delay in enumerate(delays, 1):
            queue = MessageQueue(SCHEDULE_TOPIC, names[address], level - 1)
            await admin.instance.route(SCHEDULE_TOPIC)
            end = await calls.max_offset(admin.instance, queue)
            if end:
                delivered = table.get(level, 0)
                levels.append(DelayLevel(names[address], level, delay, delivered, end))
        return levels

    return await gather(names, read)


async def delayed_messages(
    admin: Admin, broker: str, level: int, delivered: int, *, limit: int = SHOWN_MAX
) -> list[ReceivedMessage]:
    """The messages of a level that wait longest."""
    queue = MessageQueue(SCHEDULE_TOPIC, broker, level - 1)
    return (await read_queue(admin, queue, delivered, max_count=32))[:limit]


async def pending_transactions(admin: Admin) -> list[PendingTransactions]:
    """Half messages without a decision, by group of brokers."""
    route = await admin.route(HALF_TOPIC)
    return [await _pending(admin, queue) for queue in route.read_queues(HALF_TOPIC)]


async def _pending(admin: Admin, half: MessageQueue) -> PendingTransactions:
    """From where the broker's own check is, without those that are known to be decided.

    A broker that does not show its operations leaves a rolled back one in the list until its next
    check has passed it, half a minute later at most by default.
    """
    decided = await _decided(admin, half)
    found: list[ReceivedMessage] = []
    looked_at = 0
    async for message in _read(admin, half, await _checked(admin, half)):
        looked_at += 1
        if message.queue_offset not in decided:
            found.append(message)
        if len(found) == SHOWN_MAX:
            break
    committed = await asyncio.gather(*(_is_committed(admin, message) for message in found))
    waiting = [message for message, is_done in zip(found, committed, strict=True) if not is_done]
    is_cut = len(found) == SHOWN_MAX or looked_at == SCAN_MAX
    return PendingTransactions(half.broker_name, waiting, is_cut)


async def _decided(admin: Admin, half: MessageQueue) -> set[int]:
    """Offsets of half messages that an operation names, where the broker lets them be read."""
    ops = MessageQueue(OP_HALF_TOPIC, half.broker_name, half.queue_id)
    decided: set[int] = set()
    try:
        await admin.instance.route(OP_HALF_TOPIC)
        async for entry in _read(admin, ops, await _checked(admin, ops)):
            texts = entry.body.decode("utf-8", "replace").split(",")
            decided |= {n for text in texts if (n := number_or_none(text)) is not None}
    except (TopicNotFoundError, BrokerTopicNotFoundError):
        return decided
    return decided


async def _is_committed(admin: Admin, message: ReceivedMessage) -> bool:
    """Whether the message is in the topic that it was meant for."""
    topic = message.properties.get(PROPERTY_REAL_TOPIC)
    if topic is None:
        return False
    try:
        return bool(await query_by_key(admin, topic, message.message_id, is_unique_key=True))
    except ClientError:
        return False


async def _checked(admin: Admin, queue: MessageQueue) -> int:
    offset = await calls.query_consumer_offset(admin.instance, TRANSACTION_GROUP, queue)
    return await calls.min_offset(admin.instance, queue) if offset is None else offset


async def _read(admin: Admin, queue: MessageQueue, offset: int) -> AsyncIterator[ReceivedMessage]:
    end = await calls.max_offset(admin.instance, queue)
    left = SCAN_MAX
    while offset < end and left > 0:
        batch = await read_queue(admin, queue, offset)
        if not batch:
            return
        for message in batch:
            left -= 1
            yield message
        offset = batch[-1].queue_offset + 1
