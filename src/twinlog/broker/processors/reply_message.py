"""Replies of request-reply: 324, 325. Corresponds to RocketMQ's ReplyMessageProcessor.

A reply is pushed to the client that asked (326) on the connection of its producer heartbeat; its
answer decides ours. The reply is stored, too, unless `storeReplyMessageEnable` says no.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinlog.broker.errors import BrokerError, see_faq
from twinlog.broker.host import store_host
from twinlog.broker.names import topic_fault
from twinlog.broker.tables.topic_config import java_text
from twinlog.message import names
from twinlog.message.ids import host_text
from twinlog.message.model import PutMessage
from twinlog.message.properties import (
    PROPERTY_MESSAGE_REPLY_TO_CLIENT,
    PROPERTY_PUSH_REPLY_TIME,
    decode_properties,
    encode_properties,
    tags_and_keys,
)
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.send import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from twinlog.remoting.server import ServerConnection
from twinlog.store.status import AppendResult, PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_PUSH_TIMEOUT_MS = 10_000  # Broker2Client.callClient of 4.9.
_Header = SendMessageRequestHeader | SendMessageRequestHeaderV2


class ReplyMessageProcessor:
    """Handlers of SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._store = broker.store
        self._topics = broker.topics
        self._producers = broker.producers
        self._replies = broker.replies
        self._clock = broker.clock
        self._host = store_host(broker.config)

    def reply(self, connection: ServerConnection, request: Request) -> None:
        """SEND_REPLY_MESSAGE (324)."""
        self._handle(connection, request, request.header(SendMessageRequestHeader))

    def reply_v2(self, connection: ServerConnection, request: Request) -> None:
        """SEND_REPLY_MESSAGE_V2 (325)."""
        self._handle(connection, request, request.header(SendMessageRequestHeaderV2))

    def _handle(self, connection: ServerConnection, request: Request, header: _Header) -> None:
        try:
            self._check(header)
        except BrokerError as refusal:
            self._refuse(connection, request, refusal.code, refusal.remark)
            return
        properties = decode_properties((header.properties or "").encode())
        client_id = properties.get(PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        target = None if client_id is None else self._producers.find_connection(client_id)
        if target is None:
            remark = f"push reply message fail, channel of <{client_id}> not found."
            if client_id is None:
                remark = f"reply message properties[{PROPERTY_MESSAGE_REPLY_TO_CLIENT}] is null"
            self._store_reply(connection, request, header, remark)
            return

        def pushed(answer: Request | None, error: RemotingError | None) -> None:
            remark = ""
            if answer is None:
                remark = f"push reply message to {client_id}fail. {error}"
            elif answer.code != ResponseCode.SUCCESS:
                remark = f"push reply message to {client_id}fail. {answer.remark or ''}".rstrip()
            self._store_reply(connection, request, header, remark)

        command = self._push(connection, request, header, properties)
        try:
            target.submit(command, _PUSH_TIMEOUT_MS, pushed)
        except RemotingError as error:
            pushed(None, error)

    def _check(self, header: _Header) -> None:
        fault = topic_fault(header.topic)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        if header.topic in names.SEND_FORBIDDEN_TOPICS:
            remark = f"Sending message to topic[{header.topic}] is forbidden."
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        topic = self._topics.select(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please!{see_faq()}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            remark = f"request queueId[{header.queue_id}] is illegal, {java_text(topic)}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def _push(
        self,
        connection: ServerConnection,
        request: Request,
        header: _Header,
        properties: dict[str, str],
    ) -> RemotingCommand:
        now = self._clock.now_ms()
        shown = encode_properties({**properties, PROPERTY_PUSH_REPLY_TIME: str(now)})
        pushed = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=shown.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=connection.remote_text,
            store_host=host_text(self._host),
            store_timestamp=now,
        )
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return RemotingCommand.request(code, pushed, bytes(request.body))

    def _store_reply(
        self, connection: ServerConnection, request: Request, header: _Header, remark: str
    ) -> None:
        """Store the reply if that is wanted, then answer: well only when it was pushed."""
        code = ResponseCode.SYSTEM_ERROR if remark else ResponseCode.SUCCESS
        queue_id = max(0, header.queue_id)
        ext: dict[str, Any] = {"msgId": "0", "queueId": queue_id, "queueOffset": 0}
        if self._config.store_reply_message_enable:
            result = self._put(connection, request, header, queue_id)
            if result.status is PutMessageStatus.PUT_OK:
                ext["msgId"] = self._replies.message_id(result.physical_offset)
                ext["queueOffset"] = result.queue_offset

                def stored(status: PutMessageStatus, reason: str) -> None:
                    connection.reply(request, code, remark=remark or None, header=self._ext(ext))

                self._replies.add(result, stored, True)
                return
        connection.reply(request, code, remark=remark or None, header=self._ext(ext))

    def _ext(self, ext: dict[str, Any]) -> dict[str, Any]:
        return {**ext, **self._replies.trace_header}

    def _put(
        self, connection: ServerConnection, request: Request, header: _Header, queue_id: int
    ) -> AppendResult:
        properties = (header.properties or "").encode()
        tags_code, keys = tags_and_keys(properties)
        message = PutMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            flag=header.flag,
            born_timestamp=header.born_timestamp,
            born_host=connection.remote_host,
            store_host=self._host,
            reconsume_times=header.reconsume_times,
            tags_code=tags_code,
            keys=keys,
        )
        return self._store.put(message)

    def _refuse(
        self, connection: ServerConnection, request: Request, code: int, remark: str
    ) -> None:
        connection.reply(request, code, remark=remark, header=self._replies.trace_header)
