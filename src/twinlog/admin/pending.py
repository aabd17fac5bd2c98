"""What waits inside the brokers: delayed messages and transactions without a decision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from twinlog.admin.brokers import broker_config
from twinlog.admin.client import Admin, Gathered, gather
from twinlog.admin.messages import read_queue
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.net.calls import json_object
from twinlog.client.queues import MessageQueue
from twinlog.message.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.numbers import number_of, number_or_none

SHOWN_MAX = 200
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
        table = json_object(answer).get("offsetTable") or {}
        config = await broker_config(admin, address)
        delays = config.get("messageDelayLevel", "").split()
        levels = []
        for level, delay in enumerate(delays, 1):
            queue = MessageQueue(SCHEDULE_TOPIC, names[address], level - 1)
            await admin.instance.route(SCHEDULE_TOPIC)
            end = await calls.max_offset(admin.instance, queue)
            if end:
                delivered = number_of(table.get(str(level), 0))
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
    """From where the broker's own check is, without those that an operation names."""
    ops = MessageQueue(OP_HALF_TOPIC, half.broker_name, half.queue_id)
    await admin.instance.route(OP_HALF_TOPIC)
    begin = await _checked(admin, half)
    decided = set()
    async for entry in _read(admin, ops, await _checked(admin, ops)):
        decided |= {
            number
            for part in entry.body.decode("utf-8", "replace").split(",")
            if (number := number_or_none(part)) is not None
        }
    found: list[ReceivedMessage] = []
    looked_at = 0
    async for message in _read(admin, half, begin):
        looked_at += 1
        if message.queue_offset not in decided:
            found.append(message)
        if len(found) == SHOWN_MAX:
            break
    return PendingTransactions(
        half.broker_name, found, len(found) == SHOWN_MAX or looked_at == SCAN_MAX
    )


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
