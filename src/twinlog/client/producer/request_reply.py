"""Request and reply over a broker. Corresponds to RequestFutureHolder and MessageUtil.

The requester names itself in the request; the consumer's reply goes to a broker, which pushes it
over the requester's own connection. So the broker must know the requester before the reply comes:
a heartbeat to every broker precedes the first request.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from twinlog.client.errors import (
    ClientClosedError,
    ClientError,
    InvalidMessageError,
    RequestReplyTimeoutError,
    SendOutcome,
    with_outcome,
)
from twinlog.client.message import Message, ReceivedMessage, SendReceipt
from twinlog.client.net.instance import ClientInstance
from twinlog.client.producer.waiting_room import find_queues_until
from twinlog.message import properties as names
from twinlog.message.ids import pack_host
from twinlog.message.model import Record
from twinlog.message.names import reply_topic
from twinlog.remoting.addresses import split_address
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.runtime.numbers import number_of


class RequestReply:
    """Requests that wait for their replies, by correlation id."""

    def __init__(
        self, instance: ClientInstance, send: Callable[..., asyncio.Future[SendReceipt]]
    ) -> None:
        self._instance = instance
        self._send = send
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._is_announced = False

    def start(self) -> None:
        self._instance.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply_came)

    async def request(self, message: Message, timeout_ms: int) -> ReceivedMessage:
        self._instance.check_usable()
        deadline_ms = self._instance.clock.monotonic_ms() + timeout_ms
        await self._announce(message.topic, deadline_ms)
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        properties = {
            names.PROPERTY_CORRELATION_ID: correlation_id,
            names.PROPERTY_MESSAGE_REPLY_TO_CLIENT: self._instance.client_id,
            names.PROPERTY_MESSAGE_TTL: str(timeout_ms),
        }
        try:
            await self._deliver(message, properties, deadline_ms, reply)
            left_ms = max(1, deadline_ms - self._instance.clock.monotonic_ms())
            async with asyncio.timeout(left_ms / 1000):
                return await reply
        except TimeoutError:
            error = RequestReplyTimeoutError(
                f"no reply to the request on topic {message.topic!r} within {timeout_ms} ms: "
                f"is a consumer running that replies?"
            )
            raise with_outcome(error, SendOutcome.STORED) from None
        finally:
            del self._waiting[correlation_id]

    async def _deliver(
        self,
        message: Message,
        properties: dict[str, str],
        deadline_ms: float,
        reply: asyncio.Future[ReceivedMessage],
    ) -> None:
        """Send it. A failed send is told as what it is, not as a reply that did not come."""
        left_ms = max(1, int(deadline_ms - self._instance.clock.monotonic_ms()))
        try:
            await self._send(message, properties=properties, timeout_ms=left_ms)
        except ClientError:
            # With a reply only the broker's word is lost.
            if not reply.done() or reply.exception() is not None:
                raise

    def fail_all(self) -> None:
        """The producer is closed: no reply can reach those that wait."""
        for reply in self._waiting.values():
            if not reply.done():
                error = ClientClosedError("the producer was closed before a reply came")
                reply.set_exception(with_outcome(error, SendOutcome.STORED))

    async def _announce(self, topic: str, deadline_ms: float) -> None:
        if self._is_announced:
            return
        await find_queues_until(self._instance, topic, deadline_ms)
        self._instance.brokers.update(await self._instance.cluster_brokers())
        await self._instance.heartbeat()
        self._is_announced = True

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendReceipt:
        properties = request.properties
        cluster = properties.get(names.PROPERTY_CLUSTER)
        correlation_id = properties.get(names.PROPERTY_CORRELATION_ID)
        reply_to = properties.get(names.PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        if not cluster or not correlation_id or not reply_to:
            raise InvalidMessageError(
                "this message is not a request: only messages sent with request() can be answered"
            )
        answer = {
            names.PROPERTY_MESSAGE_TYPE: "reply",
            names.PROPERTY_CORRELATION_ID: correlation_id,
            names.PROPERTY_MESSAGE_REPLY_TO_CLIENT: reply_to,
            names.PROPERTY_MESSAGE_TTL: properties.get(names.PROPERTY_MESSAGE_TTL, "3000"),
        }
        message = Message(reply_topic(cluster), body)
        return await self._send(message, properties=answer, code=RequestCode.SEND_REPLY_MESSAGE_V2)

    def _reply_came(self, connection: Any, request: Request) -> None:
        record = _record_of_push(request)
        reply = self._waiting.get(record.property_map.get(names.PROPERTY_CORRELATION_ID, ""))
        if reply is not None and not reply.done():
            reply.set_result(ReceivedMessage(record, ""))
        # Late replies are answered too: the broker must not send them again.
        connection.reply(request, 0)


def _record_of_push(request: Request) -> Record:
    """The pushed message in the form of a stored one."""
    ext = request.ext()
    properties = ext.get("properties", "").encode()
    return Record(
        total_size=0, magic=0, body_crc=0,
        queue_id=number_of(ext.get("queueId", 0)), flag=number_of(ext.get("flag", 0)),
        queue_offset=0, physical_offset=0, sys_flag=number_of(ext.get("sysFlag", 0)),
        born_timestamp=number_of(ext.get("bornTimestamp", 0)),
        born_host=_host(ext.get("bornHost", "")),
        store_timestamp=number_of(ext.get("storeTimestamp", 0)),
        store_host=_host(ext.get("storeHost", "")),
        reconsume_times=number_of(ext.get("reconsumeTimes", 0)), prepared_transaction_offset=0,
        body=request.body, topic=ext.get("topic", ""), properties=properties,
    )  # fmt: skip


def _host(text: str) -> bytes:
    try:
        return pack_host(*split_address(text))
    except ValueError:
        return pack_host("0.0.0.0", 0)
