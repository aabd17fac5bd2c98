"""The route table of a name server. Pure: time and connections are passed in.

Answers to RocketMQ's RouteInfoManager. Invariants: a broker name has at least one address or is
not there; an address belongs to one broker id of one name; a topic has queues on at least one
broker name or is not there; only a master's topics count; a topic missing from a later
registration stays.

A broker is out of the route when its connection is gone, when it has not registered for
`EXPIRED_MS`, or when it had begun to send heartbeats (twinlog's do, every second) and none came for
`HEARTBEAT_EXPIRED_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from twinlog.remoting.bodies.common import (
    PERM_READ,
    PERM_WRITE,
    TOPIC_FLAG_UNIT,
    TOPIC_FLAG_UNIT_SUB,
    DataVersion,
    TopicList,
)
from twinlog.remoting.bodies.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from twinlog.remoting.bodies.topic import TopicConfig

EXPIRED_MS = 120_000  # BROKER_CHANNEL_EXPIRED_TIME of 4.9.
HEARTBEAT_EXPIRED_MS = 3_000
BROKERS_MAX = 10_000
TOPICS_MAX = 500_000


class RouteTableFullError(Exception):
    """The table has as many entries as it may."""


@dataclass(slots=True)
class BrokerLiveInfo:
    """Sign of life of one broker address."""

    address: str
    broker_name: str
    broker_id: int
    last_update_ms: int
    data_version: DataVersion
    connection: Hashable
    ha_server_addr: str
    heartbeat_ms: int | None = None  # Of the last heartbeat; None: it has never sent one.

    def reason_to_expire(self, now_ms: int) -> str | None:
        if self.heartbeat_ms is not None and now_ms - self.heartbeat_ms > HEARTBEAT_EXPIRED_MS:
            return f"no heartbeat for {now_ms - self.heartbeat_ms} ms"
        if now_ms - self.last_update_ms > EXPIRED_MS:
            return f"no registration for {now_ms - self.last_update_ms} ms"
        return None


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who registers."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_server_addr: str = ""


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """For a slave whose master is alive: where the master replicates and serves."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RouteInfoManager:
    """Topics, brokers, clusters and signs of life."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, BrokerLiveInfo] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # Registration

    def register(
        self,
        broker: BrokerIdentity,
        *,
        data_version: DataVersion,
        topics: Iterable[TopicConfig],
        connection: Hashable,
        now_ms: int,
        filter_servers: list[str] | None = None,
    ) -> RegisterBrokerResult:
        """Take or refresh a broker; of a master also its topics, if they are not known yet."""
        is_first = self._place(broker)
        previous = self._live.get(broker.address)
        is_changed = previous is None or previous.data_version != data_version
        if broker.broker_id == MASTER_ID and (is_first or is_changed):
            self._take_topics(broker.broker_name, topics)
        self._live[broker.address] = BrokerLiveInfo(
            address=broker.address,
            broker_name=broker.broker_name,
            broker_id=broker.broker_id,
            last_update_ms=now_ms,
            data_version=data_version,
            connection=connection,
            ha_server_addr=broker.ha_server_addr,
            heartbeat_ms=now_ms if previous is not None and previous.heartbeat_ms else None,
        )
        if filter_servers:
            self._filter_servers[broker.address] = filter_servers
        elif filter_servers is not None:
            self._filter_servers.pop(broker.address, None)
        self.check()
        return self._master_of(broker)

    def _place(self, broker: BrokerIdentity) -> bool:
        """Put the address in its place. True: nobody was there."""
        data = self._brokers.get(broker.broker_name)
        if data is None:
            if len(self._brokers) >= BROKERS_MAX:
                raise RouteTableFullError(f"{BROKERS_MAX} broker names are registered")
            data = BrokerData(broker.cluster_name, broker.broker_name, {})
            self._brokers[broker.broker_name] = data
        self._clusters.setdefault(broker.cluster_name, set()).add(broker.broker_name)
        # A slave that became master: its address leaves the place it had.
        for broker_id, address in list(data.broker_addrs.items()):
            if address == broker.address and broker_id != broker.broker_id:
                del data.broker_addrs[broker_id]
        is_first = broker.broker_id not in data.broker_addrs
        data.broker_addrs[broker.broker_id] = broker.address
        data.broker_addrs = dict(sorted(data.broker_addrs.items()))
        return is_first

    def _take_topics(self, broker_name: str, topics: Iterable[TopicConfig]) -> None:
        for topic in topics:
            queues = self._topics.get(topic.topic_name)
            if queues is None:
                if len(self._topics) >= TOPICS_MAX:
                    raise RouteTableFullError(f"{TOPICS_MAX} topics are registered")
                queues = self._topics[topic.topic_name] = {}
            queues[broker_name] = QueueData(
                broker_name,
                topic.read_queue_nums,
                topic.write_queue_nums,
                topic.perm,
                topic.topic_sys_flag,
            )

    def _master_of(self, broker: BrokerIdentity) -> RegisterBrokerResult:
        if broker.broker_id == MASTER_ID:
            return RegisterBrokerResult()
        master = self._brokers[broker.broker_name].broker_addrs.get(MASTER_ID)
        live = None if master is None else self._live.get(master)
        if live is None:
            return RegisterBrokerResult()
        return RegisterBrokerResult(live.ha_server_addr, master)

    def unregister(self, broker: BrokerIdentity) -> None:
        """A broker that says goodbye; unknown ones are no error."""
        self._live.pop(broker.address, None)
        self._filter_servers.pop(broker.address, None)
        data = self._brokers.get(broker.broker_name)
        if data is not None and data.broker_addrs.get(broker.broker_id) == broker.address:
            # Only its own place: another broker may have it by now.
            del data.broker_addrs[broker.broker_id]
            self._remove_if_empty(data)
        self.check()

    def _remove_if_empty(self, data: BrokerData) -> None:
        if data.broker_addrs:
            return
        del self._brokers[data.broker_name]
        for cluster_name, names in list(self._clusters.items()):
            names.discard(data.broker_name)
            if not names:
                del self._clusters[cluster_name]
        for topic, queues in list(self._topics.items()):
            queues.pop(data.broker_name, None)
            if not queues:
                del self._topics[topic]

    # Signs of life

    def data_version(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return None if live is None else live.data_version

    def touch(self, address: str, now_ms: int) -> None:
        """The broker asked whether its topics are known: it lives."""
        live = self._live.get(address)
        if live is not None:
            live.last_update_ms = now_ms

    def heartbeat(self, address: str, now_ms: int) -> bool:
        """A fast heartbeat. False: the broker is not in the table and should register."""
        live = self._live.get(address)
        if live is None:
            return False
        live.heartbeat_ms = live.last_update_ms = now_ms
        return True

    def connection_lost(self, connection: Hashable) -> list[str]:
        """Remove every broker that registered last over this connection; return their addresses."""
        lost = [live for live in self._live.values() if live.connection == connection]
        for live in lost:
            self._remove_address(live)
        return [live.address for live in lost]

    def expire(self, now_ms: int) -> list[tuple[BrokerLiveInfo, str]]:
        """Remove brokers that gave no sign of life for too long; return them with the reason."""
        expired = [
            (live, reason)
            for live in self._live.values()
            if (reason := live.reason_to_expire(now_ms)) is not None
        ]
        for live, _ in expired:
            self._remove_address(live)
        return expired

    def _remove_address(self, live: BrokerLiveInfo) -> None:
        del self._live[live.address]
        self._filter_servers.pop(live.address, None)
        data = self._brokers.get(live.broker_name)
        if data is not None and data.broker_addrs.get(live.broker_id) == live.address:
            del data.broker_addrs[live.broker_id]
            self._remove_if_empty(data)
        self.check()

    # Look-ups

    def route(self, topic: str) -> TopicRouteData | None:
        """Route of a topic; None when nobody has it."""
        queues = self._topics.get(topic)
        if queues is None:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: self._filter_servers[address]
            for data in brokers
            for address in data.broker_addrs.values()
            if address in self._filter_servers
        }
        return TopicRouteData(list(queues.values()), brokers, filters)

    def cluster_info(self) -> ClusterInfo:
        clusters = {name: sorted(brokers) for name, brokers in self._clusters.items()}
        return ClusterInfo(self._brokers, clusters)

    def all_topics(self) -> TopicList:
        return TopicList(list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = self._clusters.get(cluster, set())
        return TopicList(
            [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]
        )

    def system_topics(self) -> TopicList:
        """Cluster and broker names, and one broker to be asked for the rest."""
        names: list[str] = []
        for cluster, brokers in self._clusters.items():
            names += [cluster, *sorted(brokers)]
        addresses = (
            address for data in self._brokers.values() for address in data.broker_addrs.values()
        )
        return TopicList(names, next(addresses, None))

    def unit_topics(self) -> TopicList:
        return self._topics_by_flag(lambda flag: flag & TOPIC_FLAG_UNIT != 0)

    def unit_sub_topics(self) -> TopicList:
        return self._topics_by_flag(lambda flag: flag & TOPIC_FLAG_UNIT_SUB != 0)

    def unit_sub_ununit_topics(self) -> TopicList:
        both = TOPIC_FLAG_UNIT | TOPIC_FLAG_UNIT_SUB
        return self._topics_by_flag(lambda flag: flag & both == TOPIC_FLAG_UNIT_SUB)

    def _topics_by_flag(self, is_wanted: Callable[[int], bool]) -> TopicList:
        return TopicList(
            [
                topic
                for topic, queues in self._topics.items()
                if is_wanted(next(iter(queues.values())).topic_sys_flag)
            ]
        )

    # Edits

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from every topic on a broker; return how many there are."""
        return self._edit_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Set read and write on every topic of a broker; return how many there are."""
        return self._edit_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _edit_perm(self, broker_name: str, edit: Callable[[int], int]) -> int:
        found = [queues[broker_name] for queues in self._topics.values() if broker_name in queues]
        for queue_data in found:
            queue_data.perm = edit(queue_data.perm)
        return len(found)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or only its queues on the brokers of one cluster."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        for broker_name in list(queues) if cluster is None else self._clusters.get(cluster, ()):
            queues.pop(broker_name, None)
        if not queues:
            del self._topics[topic]

    def check(self) -> None:
        """Assert the cheap invariants."""
        assert all(data.broker_addrs for data in self._brokers.values()), "a name without address"
        assert sum(map(len, self._clusters.values())) >= len(self._brokers), "a name in no cluster"
