"""Messages that a consumer could not handle: 36. To the retry topic, at last to dead letters.

Corresponds to SendMessageProcessor.asyncConsumerSendMsgBack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.broker.delay.levels import delayed
from twinlog.broker.errors import BrokerError, see_faq
from twinlog.broker.processors.send import VERSION_MAX_RECONSUME_TIMES
from twinlog.broker.rng import Rng
from twinlog.broker.stats.broker_stats import DLQ_PUT_NUMS, SNDBCK_PUT_NUMS
from twinlog.message import names, perm
from twinlog.message.model import PutMessage, Record
from twinlog.message.properties import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT_STORE_MSG_OK,
    encode_properties,
    tags_and_keys,
)
from twinlog.message.record import RecordError, decode_record
from twinlog.remoting.bodies.common import TOPIC_FLAG_UNIT_SUB
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.send import ConsumerSendMsgBackRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.store.errors import RecordDamagedError
from twinlog.store.status import PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_FIRST_RETRY_LEVEL = 3  # 10 s: what `0` in the request means for the first failure.


class SendBackProcessor:
    """Handler of CONSUMER_SEND_MSG_BACK."""

    def __init__(self, broker: Broker, *, rng: Rng) -> None:
        self._config = broker.config
        self._role = broker.role
        self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._replies = broker.replies
        self._stats = broker.stats
        self._delay_levels = broker.config.delay_levels
        self._rng = rng

    def send_back(self, connection: ServerConnection, request: Request) -> None:
        """CONSUMER_SEND_MSG_BACK (36)."""
        header = request.header(ConsumerSendMsgBackRequestHeader)
        group = self._check(header)
        if group.retry_queue_nums <= 0:
            connection.reply(request)
            return
        retry_topic = names.retry_topic(header.group)
        topic = self._topics.create_in_send_back(
            retry_topic,
            queue_count=group.retry_queue_nums,
            sys_flag=TOPIC_FLAG_UNIT_SUB if header.unit_mode else 0,
        )
        self._topics.saver.hold(retry_topic)
        if not perm.is_writeable(topic.perm):
            remark = f"the topic[{retry_topic}] sending message is forbidden"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        record = self._read(header.offset)
        times_max = group.retry_max_times
        if (
            request.version >= VERSION_MAX_RECONSUME_TIMES
            and header.max_reconsume_times is not None
        ):
            times_max = header.max_reconsume_times
        message = self._next_message(record, header, group, times_max)
        self._put(connection, request, header.group, record, message)

    def _check(self, header: ConsumerSendMsgBackRequestHeader) -> SubscriptionGroupConfig:
        if self._role.is_slave:
            remark = "messages cannot be sent back to a slave, send them to the master"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        group = self._groups.find(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group} {see_faq()}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not perm.is_writeable(self._config.broker_permission):
            remark = f"the broker[{self._config.broker_ip1}] sending message is forbidden"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        return group

    def _read(self, offset: int) -> Record:
        try:
            data = self._store.message_by_offset(offset)
        except RecordDamagedError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if data is not None:
            try:
                return decode_record(data)
            except RecordError:
                data = None
        remark = f"look message by offset failed, {offset}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def _next_message(
        self,
        record: Record,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        times_max: int,
    ) -> PutMessage:
        properties = dict(record.property_map)
        properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
        properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
        level = header.delay_level
        if record.reconsume_times >= times_max or level < 0:
            topic, queue_id, level = names.dlq_topic(header.group), 0, 0
            self._topics.create_in_send_back(topic, queue_count=1)
            self._topics.saver.hold(topic)
        else:
            topic = names.retry_topic(header.group)
            queue_id = self._rng.randrange(group.retry_queue_nums)
            level = level or _FIRST_RETRY_LEVEL + record.reconsume_times
        properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
        if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
            properties[PROPERTY_ORIGIN_MESSAGE_ID] = record.message_id
        message = record.to_put()
        message.topic = topic
        message.queue_id = queue_id
        message.reconsume_times = record.reconsume_times + 1
        message.prepared_transaction_offset = 0
        message.properties = encode_properties(properties)
        message.tags_code, message.keys = tags_and_keys(message.properties)
        if level > 0:
            return delayed(message, properties, level, self._delay_levels)
        return message

    def _put(
        self,
        connection: ServerConnection,
        request: Request,
        group: str,
        record: Record,
        message: PutMessage,
    ) -> None:
        result = self._store.put(message)
        if result.status is not PutMessageStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, result.status.name)

        def stored(status: PutMessageStatus, reason: str) -> None:
            if status is PutMessageStatus.PUT_OK:
                origin = record.property_map.get(PROPERTY_RETRY_TOPIC, record.topic)
                self._stats.item(SNDBCK_PUT_NUMS, f"{origin}@{group}").add(1)
                if message.topic.startswith(names.DLQ_PREFIX):
                    self._stats.item(DLQ_PUT_NUMS, f"{origin}@{group}").add(1)
                connection.reply(request)
            else:
                connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=status.name)

        # Stored with WAIT=false: it is not lost when the master is, only retried from its origin.
        self._replies.add(result, stored, False)
