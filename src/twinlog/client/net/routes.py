"""Where the queues of a topic are: what the name server's answer means.

Corresponds to TopicRouteData, TopicPublishInfo and MQClientInstance.findBrokerAddressInSubscribe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from twinlog.client.queues import MessageQueue, java_order
from twinlog.message.perm import PERM_INHERIT, PERM_READ, PERM_WRITE
from twinlog.remoting.bodies.route import MASTER_ID, BrokerData, QueueData
from twinlog.runtime.numbers import number_of


class TopicRoute(msgspec.Struct, frozen=True):
    """All brokers that have the topic."""

    brokers: Mapping[str, BrokerData]
    queue_data: tuple[QueueData, ...]
    order_topic_conf: str | None = None
    is_template: bool = False  # No broker has the topic yet; the first send to each creates it.

    def write_queues(self, topic: str, *, with_master_only: bool = True) -> list[MessageQueue]:
        """Queues to send to, in the order of Java's producers.

        With `with_master_only` off, queues whose master is gone stay in the list, so that a
        sharding key keeps its queue through a failover.
        """
        queues: list[MessageQueue] = []
        for data in self._sorted():
            broker = self.brokers.get(data.broker_name)
            if broker is None or not data.perm & PERM_WRITE:
                continue
            if with_master_only and broker.master_address is None:
                continue
            queues += (
                MessageQueue(topic, data.broker_name, number)
                for number in range(data.write_queue_nums)
            )
        return queues

    def read_queues(self, topic: str) -> list[MessageQueue]:
        """Queues to consume, whether or not their master is there."""
        return [
            MessageQueue(topic, data.broker_name, number)
            for data in self._sorted()
            if data.perm & PERM_READ and data.broker_name in self.brokers
            for number in range(data.read_queue_nums)
        ]

    def _sorted(self) -> list[QueueData]:
        return sorted(self.queue_data, key=lambda data: java_order(data.broker_name))

    def as_template_for_new_topic(self, queue_count: int) -> TopicRoute:
        """The route of TBW102 as that of a topic that will be created by the first send."""
        return TopicRoute(
            self.brokers,
            tuple(
                QueueData(
                    data.broker_name,
                    min(queue_count, data.read_queue_nums),
                    min(queue_count, data.write_queue_nums),
                    data.perm & ~PERM_INHERIT,
                )
                for data in self.queue_data
            ),
            is_template=True,
        )


def parse_broker_data(data: Mapping[str, Any]) -> BrokerData:
    addresses = {
        number_of(key): str(value) for key, value in (data.get("brokerAddrs") or {}).items()
    }
    return BrokerData(
        cluster=str(data.get("cluster") or ""),
        broker_name=str(data["brokerName"]),
        broker_addrs=dict(sorted(addresses.items())),
    )


def parse_route(data: Mapping[str, Any]) -> TopicRoute:
    """The body of GET_ROUTEINFO_BY_TOPIC, already read as JSON."""
    brokers = [parse_broker_data(item) for item in data.get("brokerDatas") or ()]
    queue_data = tuple(
        QueueData(
            broker_name=str(item["brokerName"]),
            read_queue_nums=number_of(item.get("readQueueNums", 0)),
            write_queue_nums=number_of(item.get("writeQueueNums", 0)),
            perm=number_of(item.get("perm", 0)),
            topic_sys_flag=number_of(item.get("topicSysFlag", item.get("topicSynFlag", 0)) or 0),
        )
        for item in data.get("queueDatas") or ()
    )
    return TopicRoute(
        {broker.broker_name: broker for broker in brokers}, queue_data, data.get("orderTopicConf")
    )


class ReadAddress(msgspec.Struct, frozen=True):
    """Where to read from."""

    address: str
    is_slave: bool


def choose_read_address(
    broker: BrokerData,
    suggested_id: int,
    is_reachable: Callable[[str], bool] = lambda _: True,
) -> ReadAddress | None:
    """The replica that was suggested, else the next one, else any that can be reached.

    An unreachable replica is chosen only when there is no other: its connection may come back.
    """
    wanted = [suggested_id] if suggested_id == MASTER_ID else [suggested_id, suggested_id + 1]
    order = [replica for replica in wanted if replica in broker.broker_addrs]
    order += [replica for replica in broker.broker_addrs if replica not in order]
    for replica in order:
        if is_reachable(broker.broker_addrs[replica]):
            return ReadAddress(broker.broker_addrs[replica], replica != MASTER_ID)
    if not order:
        return None
    return ReadAddress(broker.broker_addrs[order[0]], order[0] != MASTER_ID)
