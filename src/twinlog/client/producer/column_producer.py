"""A producer for programs that have columns instead of messages, such as the Spark sink.

They encode the members of batch requests themselves (`message/batch.py`) and hand them over as one
piece of bytes: no message, future or receipt for each.
"""

from __future__ import annotations

import asyncio

from twinlog.client.errors import InvalidMessageError
from twinlog.client.message import SendReceipt
from twinlog.client.net.instance import ClientInstance
from twinlog.client.producer.accumulator import LaneKey
from twinlog.client.producer.idempotent import IdempotentLanes
from twinlog.client.producer.producer import Producer
from twinlog.client.producer.waiting_room import find_queues_until
from twinlog.client.queues import MessageQueue
from twinlog.message.ids import UniqueIdGenerator


class ColumnProducer(Producer):
    """A producer that takes members of batches too."""

    async def send_members(
        self, topic: str, data: bytes, count: int, *, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Send `count` members of a batch that the caller has encoded (`message/batch.py`).

        Waits for room only; the future has the receipt of the first. Of an idempotent producer the
        members have their marks, and `queue` is theirs (see `once`).
        """
        self._check_open()
        if len(data) > self._message_size_max:
            raise InvalidMessageError(
                f"the batch has {len(data)} bytes; at most {self._message_size_max} are "
                "allowed: split it"
            )
        if self._is_over_limit():
            await self._wait_for_room(None)
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        if self._once is not None:
            assert queue is not None
            self._once.add_members(queue, data, count, (future, "", None))
        else:
            self._batching.send_batch(LaneKey(topic, queue, True), data, [(future, "", None)])
        return future

    async def all_queues(self, topic: str, timeout_ms: int) -> list[MessageQueue]:
        """The queues of a topic, whether or not their master is there now."""
        if self._once is not None:
            return await self._once.layout(topic)
        deadline_ms = self._instance.clock.monotonic_ms() + timeout_ms
        return await find_queues_until(self._instance, topic, deadline_ms)

    @property
    def instance(self) -> ClientInstance:
        """The client, for questions about the cluster."""
        return self._instance

    @property
    def once(self) -> IdempotentLanes | None:
        """Numbers and queues of an idempotent producer, for callers of `send_members`."""
        return self._once

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        """Makes the ids of this producer's messages."""
        return self._instance.unique_ids
