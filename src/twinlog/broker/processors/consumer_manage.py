"""What consumers ask besides messages: members, locks, offsets (14, 15, 38, 41, 42, 29 to 32).

Corresponds to RocketMQ's ConsumerManageProcessor and to the offset and lock codes of
AdminBrokerProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.broker import names
from twinlog.broker.errors import BrokerError
from twinlog.broker.stats.store_view import is_on_disk
from twinlog.broker.tables.consumer_offset import PLACES_MAX, is_offset
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import ConsumerIdList, LockBatchResponseBody
from twinlog.remoting.bodies.common import MessageQueue, queue_from_request
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.base import QueueHeader
from twinlog.remoting.headers.clients import GetConsumerListByGroupRequestHeader
from twinlog.remoting.headers.offsets import (
    GetEarliestMsgStoretimeRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from twinlog.remoting.json_body import members, read_body, text
from twinlog.remoting.server import ServerConnection

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class ConsumerManageProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker, *, memory_size: int) -> None:
        self._role = broker.role
        self._is_surely_master = broker.is_surely_master
        self._skip_guard = broker.skip_guard
        self._committed = broker.pair.committed
        self._memory_size = memory_size
        self._store = broker.store
        self._offsets = broker.offsets
        self._consumers = broker.consumers
        self._locks = broker.locks
        self._clock = broker.clock

    def consumer_list(self, connection: ServerConnection, request: Request) -> None:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        group = request.header(GetConsumerListByGroupRequestHeader).consumer_group
        info = self._consumers.find(group)
        if info is None or not info.channels:
            remark = f"no consumer for this group, {group}"
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark, header={})
            return
        body = fastjson.dumps(ConsumerIdList(info.client_ids))
        connection.reply(request, header={}, body=body)

    def query_offset(self, connection: ServerConnection, request: Request) -> None:
        """QUERY_CONSUMER_OFFSET (14). An error here makes a 4.9 client start somewhere else."""
        header = request.header(QueryConsumerOffsetRequestHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if self._skip_guard.is_armed:
            self._skip_guard.asked(group, topic, queue_id, connection.attributes)
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0 and self._starts_at_zero(topic, queue_id):
            offset = 0
        if offset < 0:
            remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark=remark, header={})
            return
        connection.reply(request, header={"offset": offset})

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Whether a new group reads a queue from its start: it is there and still in memory."""
        if self._store.min_offset_in_queue(topic, queue_id) > 0:
            return False
        return not is_on_disk(self._store, topic, queue_id, 0, self._memory_size)

    def update_offset(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_CONSUMER_OFFSET (15): the last one wins."""
        header = request.header(UpdateConsumerOffsetRequestHeader)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        fault = names.offset_fault(group, topic)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        if not is_offset(header.commit_offset):
            remark = f"commitOffset={header.commit_offset} is not an offset"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if not self._offsets.commit(group, topic, queue_id, header.commit_offset):
            remark = f"offsets of {PLACES_MAX} queues are stored: delete groups that are not used"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)

        def answer() -> None:
            connection.reply(request, header={})

        self._committed(group, topic, queue_id, header.commit_offset, answer)

    def search_offset(self, connection: ServerConnection, request: Request) -> None:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the nearest, not the next."""
        header = request.header(SearchOffsetRequestHeader)
        offset = self._store.offset_in_queue_by_time(
            header.topic, header.queue_id, header.timestamp
        )
        connection.reply(request, header={"offset": offset})

    def max_offset(self, connection: ServerConnection, request: Request) -> None:
        """GET_MAX_OFFSET (30)."""
        header = request.header(QueueHeader)
        offset = self._store.max_offset_in_queue(header.topic, header.queue_id)
        connection.reply(request, header={"offset": offset})

    def min_offset(self, connection: ServerConnection, request: Request) -> None:
        """GET_MIN_OFFSET (31)."""
        header = request.header(QueueHeader)
        offset = self._store.min_offset_in_queue(header.topic, header.queue_id)
        connection.reply(request, header={"offset": max(0, offset)})

    def earliest_time(self, connection: ServerConnection, request: Request) -> None:
        """GET_EARLIEST_MSG_STORETIME (32)."""
        header = request.header(GetEarliestMsgStoretimeRequestHeader)
        timestamp = self._store.earliest_message_time(header.topic, header.queue_id)
        connection.reply(request, header={"timestamp": timestamp})

    def lock_batch(self, connection: ServerConnection, request: Request) -> None:
        """LOCK_BATCH_MQ (41)."""
        group, client_id, queues = _lock_body(request)
        self._check_leads()
        granted = self._locks.try_lock_batch(
            group,
            queues,
            client_id=client_id,
            now_ms=self._clock.monotonic_ms(),
            is_sure=self._is_surely_master(),
        )
        body = LockBatchResponseBody([queue.wire() for queue in granted])
        connection.reply(request, body=fastjson.dumps(body))

    def unlock_batch(self, connection: ServerConnection, request: Request) -> None:
        """UNLOCK_BATCH_MQ (42)."""
        group, client_id, queues = _lock_body(request)
        self._check_leads()
        self._locks.unlock_batch(group, queues, client_id=client_id)
        connection.reply(request)

    def _check_leads(self) -> None:
        """In a controlled group the master alone knows who has which queue."""
        if self._role.is_controlled and not self._role.is_master:
            remark = "queues are locked at the master of this group, and this broker is a slave"
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def _lock_body(request: Request) -> tuple[str, str, list[MessageQueue]]:
    body = read_body(request)
    group, client_id = text(body, "consumerGroup"), text(body, "clientId")
    if not group or not client_id:
        remark = "the body names no consumerGroup or no clientId"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    try:
        return group, client_id, [queue_from_request(value) for value in members(body, "mqSet")]
    except ValueError as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"queueId in mqSet: {error}") from None
