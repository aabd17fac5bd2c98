"""Copies of queues in another cluster, message by message and in order.

The target is its own checkpoint: each copy says where its original is (`ORIGIN_PLACE`), and the
last one in a queue says where to go on. A send whose answer was lost is found there too, so that
nothing is copied twice, however often the copying is begun again. Nobody else may write there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinlog.admin.client import Admin
from twinlog.admin.messages import read_queue, send_stored_to
from twinlog.client.errors import ClientError
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue
from twinlog.message.names import RETRY_PREFIX
from twinlog.message.once import ONCE_PROPERTY
from twinlog.message.properties import (
    ORIGIN_PLACE,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_TRANSACTION_PREPARED,
)
from twinlog.runtime.numbers import number_or_none

# What would make the target do something with a copy: delay it, hold it back, or drop it.
_DROPPED: Final = frozenset(
    (
        PROPERTY_DELAY_TIME_LEVEL, PROPERTY_TRANSACTION_PREPARED, PROPERTY_MIN_OFFSET,
        PROPERTY_MAX_OFFSET, ONCE_PROPERTY,
    )
)  # fmt: skip
_TRIES: Final = 20
_RETRY_SECONDS: Final = 0.5
_AT_ONCE: Final = 32  # Queues that are copied at the same time.


class CopyError(Exception):
    """A queue cannot be copied; the text says why."""


@dataclass(frozen=True, slots=True)
class QueuePair:
    """A queue and the one that gets its messages."""

    source: MessageQueue
    target: MessageQueue


def pair_queues(
    topic: str, counts: Mapping[str, int], targets: Sequence[str]
) -> dict[MessageQueue, MessageQueue]:
    """Brokers in the order of their names, one after the other; where several share one broker of
    the target, the queues of the next come behind those of the one before."""
    used = dict.fromkeys(targets, 0)
    pairs = {}
    for number, broker in enumerate(sorted(counts)):
        target = sorted(targets)[number % len(targets)]
        for queue in range(counts[broker]):
            place = MessageQueue(topic, target, used[target] + queue)
            pairs[MessageQueue(topic, broker, queue)] = place
        used[target] += counts[broker]
    return pairs


def origin_of(message: ReceivedMessage, pair: QueuePair) -> int | None:
    """The offset of its original; None when it is no copy out of this queue."""
    queue, _, offset = message.properties.get(ORIGIN_PLACE, "").rpartition(",")
    if queue != f"{pair.source.broker_name},{pair.source.queue_id}":
        return None
    return number_or_none(offset)


def queue_text(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


async def next_offset(target: Admin, pair: QueuePair) -> int:
    """The first offset of the source that has no copy. Raises CopyError when others write there."""
    return (await _ends(target, pair))[1]


async def _ends(target: Admin, pair: QueuePair) -> tuple[int, int]:
    """The end of the target's queue, and the first offset of the source that has no copy."""
    await target.instance.route(pair.target.topic)
    end = await calls.max_offset(target.instance, pair.target)
    if end == 0:
        return 0, 0
    last = await read_queue(target, pair.target, end - 1, max_count=1)
    offset = origin_of(last[0], pair) if last else None
    if offset is None:
        raise CopyError(
            f"{queue_text(pair.target)} ends with a message that is not a copy from "
            f"{queue_text(pair.source)}: the position of the copy is unknown"
        )
    return end, offset + 1


async def copy_queue(
    source: Admin, target: Admin, pair: QueuePair, tell: Callable[[int], None] = lambda _: None
) -> int:
    """Until it has everything that is there when it gets there; how many messages were copied."""
    copied, failures = 0, 0
    while True:
        try:
            end, at = await _ends(target, pair)
            async for count in _copy_from(source, target, pair, at, end):
                copied += count
                failures = 0
                tell(count)
            return copied
        except ClientError as error:
            failures += 1  # Whether it arrived is seen at the end of the target's queue.
            if failures == _TRIES:
                raise CopyError(f"{queue_text(pair.source)} is not copied: {error}") from error
            await asyncio.sleep(_RETRY_SECONDS)


async def _copy_from(
    source: Admin, target: Admin, pair: QueuePair, at: int, end: int
) -> AsyncIterator[int]:
    await source.instance.route(pair.source.topic)
    at = max(at, await calls.min_offset(source.instance, pair.source))
    reconsumes = pair.source.topic.startswith(RETRY_PREFIX)
    while at < await calls.max_offset(source.instance, pair.source):
        messages = await read_queue(source, pair.source, at)
        if not messages:
            at = max(at + 1, await calls.min_offset(source.instance, pair.source))
            continue
        for message in messages:
            place = f"{pair.source.broker_name},{pair.source.queue_id},{message.queue_offset}"
            receipt = await send_stored_to(
                target, pair.target, message, _DROPPED, added={ORIGIN_PLACE: place},
                reconsume_times=message.record.reconsume_times if reconsumes else 0,
            )  # fmt: skip
            if receipt.queue_offset != end:
                raise CopyError(
                    f"somebody else writes to {queue_text(pair.target)}: let one `twinlog migrate` "
                    "run at a time, and keep clients away; `migrate verify --deep` shows what is "
                    "there twice"
                )
            end += 1
            yield 1
        at = messages[-1].queue_offset + 1


async def copy_all(
    source: Admin,
    target: Admin,
    pairs: Sequence[QueuePair],
    tell: Callable[[int], None] = lambda _: None,
) -> int:
    """All queues, many at the same time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(pair: QueuePair) -> int:
        async with gate:
            return await copy_queue(source, target, pair, tell)

    return sum(await asyncio.gather(*map(one, pairs)))


async def translate(target: Admin, pair: QueuePair, offset: int) -> int:
    """The place in the target at which a consumer goes on that has `offset` in the source."""
    await target.instance.route(pair.target.topic)
    low = await calls.min_offset(target.instance, pair.target)
    high = await calls.max_offset(target.instance, pair.target)
    while low < high:
        middle = (low + high) // 2
        found = await read_queue(target, pair.target, middle, max_count=1)
        origin = origin_of(found[0], pair) if found else None
        if origin is None:
            raise CopyError(
                f"{queue_text(pair.target)} has a message at {middle} that is not a copy"
            )
        if origin < offset:
            low = middle + 1
        else:
            high = middle
    return low
