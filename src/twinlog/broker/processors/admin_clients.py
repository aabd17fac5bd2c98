"""Connections, and what is relayed to consumers: 203, 204, 222, 223, 307, 309, 328.

Corresponds to the client codes of RocketMQ's AdminBrokerProcessor and to Broker2Client.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from twinlog.broker.errors import BrokerError
from twinlog.broker.processors.admin_topics import UNSET_REMARK
from twinlog.broker.tables.clients import ClientChannelInfo
from twinlog.broker.tables.consumer_offset import UNKNOWN_OFFSET
from twinlog.message.ids import parse_offset_message_id
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import (
    ConsumerConnection,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from twinlog.remoting.bodies.common import MessageQueue, queue_from_request
from twinlog.remoting.codes import RequestCode, ResponseCode, version_description
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError, RequestTimeoutError
from twinlog.remoting.headers.base import GroupHeader
from twinlog.remoting.headers.clients import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from twinlog.remoting.headers.offsets import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from twinlog.remoting.server import ServerConnection, in_steps
from twinlog.remoting.signing import SIGNING_FIELDS
from twinlog.runtime.numbers import number_of
from twinlog.store.errors import RecordDamagedError

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_VERSION_RESET = 28  # 3.0.7-SNAPSHOT: older clients do not know 220 and 221.
_VERSION_RUNNING_INFO = 62  # 3.1.8-SNAPSHOT: nor 307 and 309.
_STATUS_TIMEOUT_MS = 5_000
_RELAY_TIMEOUT_MS = 10_000


class AdminClientsProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._store = broker.store
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._producers = broker.producers
        self._consumers = broker.consumers
        self._tasks = broker.tasks
        self._clock = broker.clock

    # Lists

    def consumer_connections(self, connection: ServerConnection, request: Request) -> None:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        group = request.header(GroupHeader).consumer_group
        info = self._consumers.find(group)
        if info is None:
            remark = f"the consumer group[{group}] not online"
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        body = ConsumerConnection(
            connection_set=[channel.info() for channel in info.channels.values()],
            subscription_table={t: data.to_json() for t, data in info.subscriptions.items()},
            consume_type=info.consume_type,
            message_model=info.message_model,
            consume_from_where=info.consume_from_where,
        )
        connection.reply(request, body=fastjson.dumps(body))

    def producer_connections(self, connection: ServerConnection, request: Request) -> None:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        group = request.header(GetProducerConnectionListRequestHeader).producer_group
        channels = self._producers.groups.get(group)
        if channels is None:
            remark = f"the producer group[{group}] not exist"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        body = ProducerConnection([channel.info() for channel in channels.values()])
        connection.reply(request, body=fastjson.dumps(body))

    def all_producers(self, connection: ServerConnection, request: Request) -> None:
        """GET_ALL_PRODUCER_INFO (328)."""
        skew = self._clock.now_ms() - self._clock.monotonic_ms()
        data = {
            group: [
                ProducerInfo(
                    client_id=channel.client_id,
                    remote_ip=f"/{channel.address}",
                    language=channel.language,
                    version=channel.version,
                    last_update_timestamp=channel.last_update_ms + skew,
                )
                for channel in channels.values()
            ]
            for group, channels in self._producers.groups.items()
        }
        connection.reply(request, body=fastjson.dumps(ProducerTableInfo(data)))

    # Reset

    @in_steps
    def reset_offset(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): the members move, and commit where they are."""
        header = request.header(ResetOffsetRequestHeader)
        table = yield from self._reset_table(header)
        info = self._consumers.find(header.group)
        if info is None or not info.channels:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}"
            )
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
        for channel in info.channels.values():
            _check_version(channel, _VERSION_RESET)
        ext = {
            "topic": header.topic,
            "group": header.group,
            "timestamp": header.timestamp,
            "isForce": False,
        }
        bodies = yield from _reset_bodies(table)
        for channel in list(info.channels.values()):
            body = bodies["CPP" if channel.language == "CPP" else "JAVA"]
            channel.connection.oneway(
                RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
            )
            yield
        connection.reply(request, remark=UNSET_REMARK, body=bodies["JAVA"])

    def _reset_table(
        self, header: ResetOffsetRequestHeader
    ) -> Generator[None, None, dict[MessageQueue, int]]:
        topic = self._topics.select(header.topic)
        if topic is None:
            remark = (
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            committed = self._offsets.query(header.group, header.topic, queue_id)
            if committed == UNKNOWN_OFFSET:
                remark = f"THe consumer group <{header.group}> not exist"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
            if header.timestamp == -1:
                target = self._store.max_offset_in_queue(header.topic, queue_id)
            else:
                target = self._store.offset_in_queue_by_time(
                    header.topic, queue_id, header.timestamp
                )
            target = max(0, target)
            queue = MessageQueue(header.topic, self._config.broker_name, queue_id)
            table[queue] = target if header.is_force else min(target, committed)
            yield
        return table

    # Questions to the members

    def consumer_status(self, connection: ServerConnection, request: Request) -> None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223)."""
        header = request.header(GetConsumerStatusRequestHeader)
        info = self._consumers.find(header.group)
        if info is None or not info.channels:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        chosen = []
        for channel in info.channels.values():
            _check_version(channel, _VERSION_RESET)
            if not header.client_addr or header.client_addr == channel.client_id:
                chosen.append(channel)
        self._tasks.job(
            "consumer-status", self._ask_status(connection, request, header, chosen),
            about=header.group, failed=connection.refuse(request),
        )  # fmt: skip

    async def _ask_status(
        self,
        connection: ServerConnection,
        request: Request,
        header: GetConsumerStatusRequestHeader,
        channels: list[ClientChannelInfo],
    ) -> None:
        table: dict[str, dict[MessageQueue, int]] = {}
        for channel in channels:
            command = RemotingCommand.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                {"topic": header.topic, "group": header.group},
            )
            try:
                answer = await channel.connection.invoke(command, _STATUS_TIMEOUT_MS)
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    table[channel.client_id] = _queue_table(answer.body)
            except (RemotingError, ValueError, TypeError, AttributeError):
                continue  # A member that does not answer, or oddly, is left out, as in Apache.
        body = fastjson.dumps(GetConsumerStatusBody(table))
        connection.reply(request, remark=UNSET_REMARK, body=body)

    def running_info(self, connection: ServerConnection, request: Request) -> None:
        """GET_CONSUMER_RUNNING_INFO (307): relayed as it is."""
        header = request.header(GetConsumerRunningInfoRequestHeader)
        self._relay(connection, request, header.consumer_group, header.client_id, request.body)

    def consume_directly(self, connection: ServerConnection, request: Request) -> None:
        """CONSUME_MESSAGE_DIRECTLY (309): a member is handed one record."""
        header = request.header(ConsumeMessageDirectlyResultRequestHeader)
        try:
            offset = parse_offset_message_id(header.msg_id or "").physical_offset
        except ValueError as error:
            remark = f"the msgId {header.msg_id!r} is not an offset message id: {error}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None
        try:
            record = self._store.message_by_offset(offset)
        except RecordDamagedError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if record is None:
            remark = f"can not find message by the offset, {offset}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        request.ext()["brokerName"] = self._config.broker_name
        self._relay(connection, request, header.consumer_group, header.client_id or "", record)

    def _relay(
        self,
        connection: ServerConnection,
        request: Request,
        group: str,
        client_id: str,
        body: bytes,
    ) -> None:
        channel = self._consumers.find_channel(group, client_id)
        if channel is None:
            remark = f"The Consumer <{group}> <{client_id}> not online"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if channel.version < _VERSION_RUNNING_INFO:
            version = version_description(channel.version)
            remark = (
                f"The Consumer <{client_id}> Version <{version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        # Not the signature: the consumer could send the request again in its sender's name.
        ext = {k: v for k, v in request.ext().items() if k not in SIGNING_FIELDS}
        command = RemotingCommand.request(request.code, ext, body)

        def answered(answer: Request | None, error: RemotingError | None) -> None:
            if answer is not None:
                connection.reply(
                    request,
                    answer.code,
                    remark=answer.remark,
                    header=answer.ext() or None,
                    body=answer.body,
                )
            elif isinstance(error, RequestTimeoutError):
                remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
                connection.reply(request, ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
            else:
                remark = f"invoke consumer <{group}> <{client_id}> Exception: {error}"
                connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)

        try:
            channel.connection.submit(command, _RELAY_TIMEOUT_MS, answered)
        except RemotingError as error:
            answered(None, error)


def _check_version(channel: ClientChannelInfo, needed: int) -> None:
    if channel.version < needed:
        version = version_description(channel.version)
        remark = f"the client does not support this feature. version={version}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)


def _reset_bodies(table: dict[MessageQueue, int]) -> Generator[None, None, dict[str, bytes]]:
    """The C++ client reads a list and no map with objects as keys; Java the other way round."""
    java, cpp = fastjson.MapText(), fastjson.ListText()
    for queue, offset in table.items():
        java.add(queue, offset)
        row = {
            "brokerName": queue.broker_name,
            "offset": offset,
            "queueId": queue.queue_id,
            "topic": queue.topic,
        }
        cpp.add(row)
        yield
    return {
        "JAVA": fastjson.dumps({"offsetTable": java.text}),
        "CPP": fastjson.dumps({"offsetTable": cpp.text}),
    }


def _queue_table(body: bytes) -> dict[MessageQueue, int]:
    """messageQueueTable of a member's answer; its keys are objects."""
    table = fastjson.loads(body).get("messageQueueTable") or {}
    return {
        queue_from_request(fastjson.loads(key)): number_of(value) for key, value in table.items()
    }
