"""How much was put and consumed: 28, 208, 303, 308, 314, 315, 317, 321, and 43, 45 for slaves.

Corresponds to the statistics codes of RocketMQ's AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from twinlog.broker import names
from twinlog.broker.errors import BrokerError
from twinlog.broker.processors.admin_topics import UNSET_REMARK
from twinlog.broker.stats.store_view import queue_entries
from twinlog.broker.tables import offset_json
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import KVTable, MessageQueue
from twinlog.remoting.bodies.offsets import (
    ConsumeQueueData,
    CorrectionOffsets,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
    QueueTimeSpan,
)
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from twinlog.remoting.headers.offsets import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
)
from twinlog.remoting.headers.pull import QueryConsumeQueueRequestHeader
from twinlog.remoting.server import ServerConnection, in_steps

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LONG_MAX = (1 << 63) - 1
_ENTRIES_MAX = 4096  # More entries than a screen holds; one answer stays small.


class AdminStatsProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker, *, runtime_table: Callable[[], dict[str, str]]) -> None:
        self._config = broker.config
        self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._offsets = broker.offsets
        self._consumers = broker.consumers
        self._stats = broker.stats
        self._schedule = broker.schedule
        self._runtime_table = runtime_table
        self._broker_address = broker.address
        self._clock = broker.clock

    def runtime_info(self, connection: ServerConnection, request: Request) -> None:
        """GET_BROKER_RUNTIME_INFO (28)."""
        connection.reply(request, body=fastjson.dumps(KVTable(self._runtime_table())))

    @in_steps
    def all_consumer_offsets(
        self, connection: ServerConnection, request: Request
    ) -> Iterator[None]:
        """GET_ALL_CONSUMER_OFFSET (43), asked by slaves."""
        parts = []
        for part in offset_json.parts(self._offsets.table):
            parts.append(part)
            yield
        connection.reply(request, body=b"".join(parts))

    def all_delay_offsets(self, connection: ServerConnection, request: Request) -> None:
        """GET_ALL_DELAY_OFFSET (45), asked by slaves."""
        connection.reply(request, body=fastjson.dumps(self._schedule.to_json()))

    # Consumption

    @in_steps
    def consume_stats(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """GET_CONSUME_STATS (208): one group, per read queue."""
        header = request.header(GetConsumeStatsRequestHeader)
        group, topics = header.consumer_group, {header.topic or ""}
        if not header.topic:
            topics = yield from self._offsets.topics_of_group(group)
        table = fastjson.MapText()
        tps = 0.0
        for topic in self._consumed_topics(group, topics):
            for queue_id in range(topic.read_queue_nums):
                table.add(*self._progress(group, topic.topic_name, queue_id))
                yield
            tps += self._stats.group_get_tps(group, topic.topic_name)
        body = {"consumeTps": tps, "offsetTable": table.text}
        connection.reply(request, body=fastjson.dumps(body))

    @in_steps
    def broker_consume_stats(
        self, connection: ServerConnection, request: Request
    ) -> Iterator[None]:
        """GET_BROKER_CONSUME_STATS (317): all groups, per write queue."""
        is_order = request.header(GetConsumeStatsInBrokerHeader).is_order
        groups = fastjson.ListText()
        total = 0
        topics = yield from self._offsets.topics_by_group()
        for group in list(self._groups.table):
            entries = []
            for topic in self._consumed_topics(group, topics.get(group, set())):
                if is_order and not topic.order:
                    continue
                table = fastjson.MapText()
                for queue_id in range(topic.write_queue_nums):
                    queue, entry = self._progress(group, topic.topic_name, queue_id)
                    total += entry.broker_offset - entry.consumer_offset
                    table.add(queue, entry)
                    yield
                tps = self._stats.group_get_tps(group, topic.topic_name)
                entries.append({"consumeTps": tps, "offsetTable": table.text})
            groups.add({group: entries})
            yield
        body = {
            "brokerAddr": self._broker_address,
            "consumeStatsList": groups.text,
            "totalDiff": total,
        }
        connection.reply(request, body=fastjson.dumps(body))

    def _consumed_topics(self, group: str, topics: set[str]) -> list[TopicConfig]:
        """Topics that exist and, when the group is online, that it subscribes to."""
        info = self._consumers.find(group)
        online = info is not None and bool(info.subscriptions)
        found = []
        for name in sorted(topics):
            topic = self._topics.select(name)
            if topic is None or (online and self._consumers.find_subscription(group, name) is None):
                continue
            found.append(topic)
        return found

    def _progress(
        self, group: str, topic: str, queue_id: int
    ) -> tuple[MessageQueue, OffsetWrapper]:
        """The member of an offset table for one queue."""
        consumed = max(0, self._offsets.query(group, topic, queue_id))
        last = 0
        if consumed > 0:
            last = max(0, self._store.message_store_time(topic, queue_id, consumed - 1))
        end = max(0, self._store.max_offset_in_queue(topic, queue_id))
        queue = MessageQueue(topic, self._config.broker_name, queue_id)
        return queue, OffsetWrapper(end, consumed, last)

    @in_steps
    def consume_time_span(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """QUERY_CONSUME_TIME_SPAN (303)."""
        header = request.header(QueryConsumeTimeSpanRequestHeader)
        topic = self._topics.select(header.topic)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        spans = fastjson.ListText()
        for queue_id in range(topic.write_queue_nums):
            spans.add(self._time_span(header.group, header.topic, queue_id))
            yield
        connection.reply(request, body=fastjson.dumps({"consumeTimeSpanSet": spans.text}))

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        oldest = store.earliest_message_time(topic, queue_id)
        end = store.max_offset_in_queue(topic, queue_id)
        newest = store.message_store_time(topic, queue_id, end - 1)
        consumed = self._offsets.query(group, topic, queue_id)
        consumed_at = oldest
        if consumed > 0:
            consumed_at = store.message_store_time(topic, queue_id, consumed - 1)
        delay = 0
        if consumed < end:
            delay = self._clock.now_ms() - store.message_store_time(topic, queue_id, consumed)
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, self._config.broker_name, queue_id).wire(),
            min_time_stamp=oldest,
            min_time_stamp_str=_human_time(oldest),
            max_time_stamp=newest,
            max_time_stamp_str=_human_time(newest),
            consume_time_stamp=consumed_at,
            consume_time_stamp_str=_human_time(consumed_at),
            delay_time=delay,
        )

    @in_steps
    def correction_offset(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """QUERY_CORRECTION_OFFSET (308): per queue the smallest offset of all groups."""
        header = request.header(QueryCorrectionOffsetHeader)
        excluded = [g for g in (header.filter_groups or "").split(",") if g]
        result = yield from self._offsets.min_offsets(header.topic, excluded)
        compared = self._offsets.query_all(header.compare_group, header.topic) or {}
        for queue_id, offset in compared.items():
            smallest = result.get(queue_id, offset)
            result[queue_id] = _LONG_MAX if smallest > offset else smallest
        body = CorrectionOffsets(dict(sorted(result.items())))
        connection.reply(request, body=fastjson.dumps(body))

    @in_steps
    def clone_offset(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """CLONE_GROUP_OFFSET (314). A blank topic means all: 4.9 then copies nothing, a bug."""
        header = request.header(CloneGroupOffsetRequestHeader)
        topics = {header.topic or ""}
        fault = names.group_fault(header.dest_group) or names.own_fault(header.dest_group)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        if not header.topic:
            topics = yield from self._offsets.topics_of_group(header.src_group)
        for topic in topics:
            info = self._consumers.find(header.src_group)
            is_foreign = (
                not header.offline
                and info is not None
                and bool(info.subscriptions)
                and topic not in info.subscriptions
            )
            if self._topics.select(topic) is not None and not is_foreign:
                self._offsets.clone(header.src_group, header.dest_group, topic)
            yield
        connection.reply(request)

    # Items

    def stats_data(self, connection: ServerConnection, request: Request) -> None:
        """VIEW_BROKER_STATS_DATA (315)."""
        header = request.header(ViewBrokerStatsDataRequestHeader)
        item = self._stats.find(header.stats_name, header.stats_key)
        if item is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        connection.reply(request, body=fastjson.dumps(item.told()))

    def consume_queue(self, connection: ServerConnection, request: Request) -> None:
        """QUERY_CONSUME_QUEUE (321): entries as they are."""
        header = request.header(QueryConsumeQueueRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        config = self._topics.select(topic)
        if config is None or not (
            0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
            or (topic, queue_id) in self._store.queues
        ):
            remark = f"{queue_id}@{topic} is not exist!"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        end = self._store.max_offset_in_queue(topic, queue_id)
        start = max(0, self._store.min_offset_in_queue(topic, queue_id))
        if not start <= header.index < end:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
            connection.reply(request, remark=remark)
            return
        count = max(0, min(header.count, _ENTRIES_MAX))
        entries = queue_entries(self._store, topic, queue_id, header.index, count)
        body = QueryConsumeQueueResponseBody(
            queue_data=[ConsumeQueueData(*entry) for entry in entries],
            max_queue_index=end,
            min_queue_index=start,
        )
        if header.consumer_group:
            self._add_subscription(body, header.consumer_group, topic)
        connection.reply(request, remark=UNSET_REMARK, body=fastjson.dumps(body))

    def _add_subscription(
        self, body: QueryConsumeQueueResponseBody, group: str, topic: str
    ) -> None:
        data = self._consumers.find_subscription(group, topic)
        if data is None:
            body.filter_data = f"{group}@{topic} is not online!"
        else:
            body.filter_data = "null"
            body.subscription_data = data.to_json()


def _human_time(timestamp_ms: int) -> str:
    """Apache's `yyyy-MM-dd#HH:mm:ss:SSS`."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"
