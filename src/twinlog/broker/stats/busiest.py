"""The busiest topics and groups of a broker, for `twinlog top`: request 10024."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from twinlog.broker.stats.broker_stats import (
    GROUP_GET_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    StatsItem,
)
from twinlog.message.names import is_system_group, is_system_topic
from twinlog.remoting.bodies.busiest import Busiest, BusyGroup, BusyTopic
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import ServerConnection

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

SHOWN = 30


def _order(entry: tuple[str, StatsItem]) -> tuple[int, int]:
    """By what was counted in the last minute, then by all that was."""
    item = entry[1]
    return (item.value - item.minute[0][1] if item.minute else item.value, item.value)


class BusiestProcessor:
    """Looks through the statistics when somebody asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def answer(self, connection: ServerConnection, request: Request) -> None:
        body = msgspec.json.encode(self.busiest())
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    def busiest(self) -> Busiest:
        stats = self._broker.stats
        topics = (
            (topic, item)
            for topic, item in stats.items(TOPIC_PUT_NUMS)
            if not is_system_topic(topic)
        )
        groups = (
            (key, item)
            for key, item in stats.items(GROUP_GET_NUMS)
            if not is_system_group(key.partition("@")[2])
        )
        return Busiest(
            topics=[self._topic(*entry) for entry in heapq.nlargest(SHOWN, topics, key=_order)],
            groups=[self._group(*entry) for entry in heapq.nlargest(SHOWN, groups, key=_order)],
        )

    def _topic(self, topic: str, item: StatsItem) -> BusyTopic:
        size = self._broker.stats.find(TOPIC_PUT_SIZE, topic)
        return BusyTopic(
            topic=topic,
            total=item.value,
            tps=item.tps,
            bytes_total=0 if size is None else size.value,
            bytes_per_second=0.0 if size is None else size.tps,
        )

    def _group(self, key: str, item: StatsItem) -> BusyGroup:
        topic, _, group = key.partition("@")
        queue_end = self._broker.store.max_offset_in_queue
        offsets = self._broker.offsets.table.get(key, {})
        lag = sum(max(0, queue_end(topic, queue) - offset) for queue, offset in offsets.items())
        return BusyGroup(topic=topic, group=group, total=item.value, tps=item.tps, lag=lag)
