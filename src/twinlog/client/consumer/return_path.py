"""The way back for messages whose handling failed: retry topic, then dead letters.

Corresponds to DefaultMQPushConsumerImpl.sendMessageBack. The broker that stored the message is
asked to deliver it again; if it cannot, a copy is sent to the group's retry topic.
"""

from __future__ import annotations

import asyncio

from twinlog.client.errors import ClientError
from twinlog.client.message import ReceivedMessage, SendReceipt
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance
from twinlog.client.producer.fault_strategy import FaultStrategy
from twinlog.client.producer.outgoing import SendRequest
from twinlog.client.producer.sender import Sender
from twinlog.message import properties as names
from twinlog.message.names import INNER_PRODUCER_GROUP, retry_topic
from twinlog.message.properties import encode_properties
from twinlog.message.sysflag import COMPRESSION_MASK

RETURN_TIMEOUT_MS = 5000
RETRY_LEVEL_FIRST = 3  # The broker's own choice begins here, too: 10 s.


class ReturnPath:
    """Gives messages back."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._sender = Sender(
            instance, INNER_PRODUCER_GROUP, _settle, attempts_max=3, retry_when_not_ok=False,
            faults=FaultStrategy(),
        )  # fmt: skip

    async def give_back(
        self, message: ReceivedMessage, delay_level: int, attempts_max: int
    ) -> None:
        """Have it delivered again later, or as a dead letter when its attempts are used up."""
        limit = 16 if attempts_max < 0 else attempts_max
        try:
            await calls.send_back(
                self._instance, self._group, message, delay_level=delay_level,
                reconsume_times_max=limit,
            )  # fmt: skip
        except ClientError:
            level = delay_level or RETRY_LEVEL_FIRST + message.reconsume_times
            await self._send_copy(message, level, message.reconsume_times + 1, limit)

    async def to_dead_letters(self, message: ReceivedMessage, attempts_max: int) -> None:
        """Send a copy whose attempts are used up: the broker makes it a dead letter."""
        await self._send_copy(message, 0, max(message.reconsume_times, attempts_max), attempts_max)

    async def _send_copy(
        self, message: ReceivedMessage, delay_level: int, reconsume_times: int, attempts_max: int
    ) -> None:
        properties = dict(message.properties)
        properties.setdefault(names.PROPERTY_RETRY_TOPIC, message.topic)
        properties.setdefault(names.PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        properties[names.PROPERTY_WAIT_STORE_MSG_OK] = "true"
        properties.pop(names.PROPERTY_TRANSACTION_PREPARED, None)
        if delay_level > 0:
            properties[names.PROPERTY_DELAY_TIME_LEVEL] = str(delay_level)
        clock = self._instance.clock
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        request = SendRequest(
            retry_topic(self._group), message.record.body, encode_properties(properties).decode(),
            tickets=[(future, message.message_id, None)], born_ms=clock.now_ms(),
            deadline_ms=clock.monotonic_ms() + RETURN_TIMEOUT_MS, flag=message.flag,
            sys_flag=message.sys_flag & COMPRESSION_MASK,
        )  # fmt: skip
        request.reconsume_times = reconsume_times
        request.reconsume_times_max = attempts_max
        self._sender.send(request)
        await future


def _settle(
    request: SendRequest, receipts: list[SendReceipt] | None, error: ClientError | None
) -> None:
    for index, (future, _, _) in enumerate(request.tickets):
        if future.done():
            continue
        if receipts is not None:
            future.set_result(receipts[index])
        else:
            future.set_exception(error)
