"""Routes: who has which queues of a topic, and where."""

from __future__ import annotations

import msgspec

from twinlog.remoting.bodies.common import Body

MASTER_ID = 0


class QueueData(Body):
    """Queues of one topic on one broker name."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Body):
    """Addresses of one broker name by broker id; 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)

    @property
    def master_address(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)


class TopicRouteData(Body):
    """Answer to GET_ROUTEINFO_BY_TOPIC."""

    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None


class ClusterInfo(Body):
    """Answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def brokers(self) -> dict[str, BrokerData]:
        """By name; the addresses of each in the order of the ids."""
        return {
            name: BrokerData(data.cluster, name, dict(sorted(data.broker_addrs.items())))
            for name, data in self.broker_addr_table.items()
        }

    def addresses_of(self, broker_name: str) -> dict[int, str]:
        """Of a group by broker id, in the order of the ids; empty when nobody is registered."""
        found = self.broker_addr_table.get(broker_name)
        return {} if found is None else dict(sorted(found.broker_addrs.items()))
