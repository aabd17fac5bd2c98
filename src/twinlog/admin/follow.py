"""A topic as it grows: what every queue gets, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from twinlog.admin.client import Admin
from twinlog.admin.messages import read_queue
from twinlog.client.errors import ClientError
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue

ROUND_SECONDS = 0.5
FIRST_COUNT = 10
BATCH_MAX = 50  # A tail shows; it does not transport.


async def tail_topic(admin: Admin, topic: str) -> AsyncIterator[list[ReceivedMessage]]:
    """The last messages of each queue, then what comes; more than can be shown is left out."""
    places: dict[MessageQueue, int] = {}
    for queue in (await admin.route(topic)).read_queues(topic):
        end = await calls.max_offset(admin.instance, queue)
        low = await calls.min_offset(admin.instance, queue)
        places[queue] = max(low, end - FIRST_COUNT)
    while True:
        found: list[ReceivedMessage] = []
        parts = await asyncio.gather(*(_next(admin, queue, at) for queue, at in places.items()))
        for queue, (messages, after) in zip(list(places), parts, strict=True):
            places[queue] = after
            found += messages
        found.sort(key=lambda message: message.store_timestamp)
        yield found[-BATCH_MAX:]
        await asyncio.sleep(ROUND_SECONDS)


async def _next(
    admin: Admin, queue: MessageQueue, offset: int
) -> tuple[list[ReceivedMessage], int]:
    """What a queue has from an offset on; near its end when it is far behind."""
    try:
        end = await calls.max_offset(admin.instance, queue)
        if end <= offset:
            return [], offset
        offset = max(offset, end - BATCH_MAX)
        messages = await read_queue(admin, queue, offset)
    except ClientError:
        return [], offset
    return messages, messages[-1].queue_offset + 1 if messages else offset
