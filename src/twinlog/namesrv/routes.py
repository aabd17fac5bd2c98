"""The route table of a name server. Pure: time and connections are passed in.

Corresponds to RocketMQ's RouteInfoManager. Invariants: a broker name has at least one address or is
not there; an address belongs to one broker id of one name; a topic has queues on at least one
broker name or is not there; only a master's topics count; a topic missing from a later
registration stays, unless the broker says that it names all it has (twinlog's do).

A broker is out of the route when its connection is gone, when it has not registered for
`EXPIRED_MS`, or when it had begun to send heartbeats (twinlog's do, every second) and none came for
`HEARTBEAT_EXPIRED_MS`.

A broker id belongs to the address that took it, as long as that lives. A second address that
registers under the same name and id is a *rival*: known, reported, not in the route. RocketMQ's
table takes whoever registered last, so two masters of one name alternate in the route and
producers write to both. A rival gets the place in the moment in which the holder is gone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass

from twinlog.message.perm import PERM_READ_WRITE, PERM_WRITE
from twinlog.remoting.bodies.common import (
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
from twinlog.remoting.bodies.topic import DIGEST_MASK, TopicConfig, topic_digest

EXPIRED_MS = 120_000  # BROKER_CHANNEL_EXPIRED_TIME of 4.9.
HEARTBEAT_EXPIRED_MS = 3_000
# So long a broker without heartbeats keeps its place against a rival: a little more than the
# longest period in which brokers register (60 s), so that one that lives is never displaced.
HELD_MS = 65_000
BROKERS_MAX = 10_000
ADDRESSES_MAX = 20_000
TOPICS_MAX = 200_000  # Names of all of them are an answer of 20 ms.


class TopicScope(enum.Enum):
    """What the topics of a registration are."""

    BY_VERSION = "by version"  # RocketMQ's: news if the data version differs.
    SOME = "some"  # Changed ones, whatever the version says.
    ALL = "all"  # All that the broker has: others of its name are gone.


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
    """Who registers. `lineage` tells a controlled group from another one of the same name; empty
    where nobody says it."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    ha_server_addr: str = ""
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class _Elected:
    """The newest epoch of a controlled group, and whose number that is."""

    cluster_name: str
    lineage: str
    epoch: int

    def is_of(self, broker: BrokerIdentity) -> bool:
        """Whether epochs of that broker can be compared with this one."""
        if broker.cluster_name != self.cluster_name:
            return False
        return not broker.lineage or not self.lineage or broker.lineage == self.lineage


@dataclass(frozen=True, slots=True)
class RegisterBrokerResult:
    """For a slave whose master is alive: where the master replicates and serves.

    `rival` is another living address with the same name and id; `is_in_route` says which of the
    two has the place. `topics_digest` is that of the topics which are known of the broker's name.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    rival: str | None = None
    is_in_route: bool = True
    topics_digest: int = 0
    newer_epoch: int | None = None  # Of the master that has replaced the one that registers.


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """How many brokers, topics and groups without a master are in the route."""

    masters: int
    slaves: int
    topics: int
    groups_without_master: int


@dataclass(frozen=True, slots=True)
class Rival:
    """An address that is not in the route because another one has its place."""

    broker_name: str
    broker_id: int
    address: str
    holder: str


class RouteInfoManager:
    """Topics, brokers, clusters and signs of life."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, BrokerLiveInfo] = {}
        self._filter_servers: dict[str, list[str]] = {}
        # Of the topics of each broker name; see `topic_digest`.
        self._digests: dict[str, int] = {}
        # The newest epoch of each controlled group: a master of an older one is refused.
        self._elected: dict[str, _Elected] = {}

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
        scope: TopicScope = TopicScope.BY_VERSION,
    ) -> RegisterBrokerResult:
        """Take or refresh a broker; of a master in the route also its topics."""
        epoch = (data_version.state_version or 0) if broker.broker_id == MASTER_ID else 0
        known = self._elected.get(broker.broker_name)
        if epoch and known is not None and known.is_of(broker):
            if epoch < known.epoch:
                holder = self._holder(broker.broker_name, MASTER_ID)
                return RegisterBrokerResult(
                    rival=holder, is_in_route=False, newer_epoch=known.epoch
                )
            if epoch > known.epoch:
                self._depose(broker)
        elif epoch and known is None:
            self._depose(broker)
        is_new_holder = self._place(broker, now_ms)
        previous = self._live.get(broker.address)
        is_changed = previous is None or previous.data_version != data_version
        is_in_route = self._holder(broker.broker_name, broker.broker_id) == broker.address
        if epoch and is_in_route:
            self._elected[broker.broker_name] = _Elected(broker.cluster_name, broker.lineage, epoch)
        is_news = is_new_holder or is_changed
        is_master = broker.broker_id == MASTER_ID and is_in_route
        if is_master and (is_news or scope is not TopicScope.BY_VERSION):
            self._take_topics(
                broker.broker_name, topics, is_all=scope is TopicScope.ALL,
                # A permission that was edited here stays until the broker changes something.
                keeps_known=scope is TopicScope.ALL and not is_news,
            )  # fmt: skip
        self._live[broker.address] = BrokerLiveInfo(
            address=broker.address,
            broker_name=broker.broker_name,
            broker_id=broker.broker_id,
            last_update_ms=now_ms,
            # A rival's topics were not taken: whatever it sends next is news.
            data_version=data_version if is_in_route else DataVersion(),
            connection=connection,
            ha_server_addr=broker.ha_server_addr,
            heartbeat_ms=now_ms if previous is not None and previous.heartbeat_ms else None,
        )
        if filter_servers:
            self._filter_servers[broker.address] = filter_servers
        elif filter_servers is not None:
            self._filter_servers.pop(broker.address, None)
        self.check()
        return self._result(broker, is_in_route=is_in_route)

    def take_topics(self, broker: BrokerIdentity, topics: Iterable[TopicConfig]) -> bool:
        """A part of the topics of a master in the route; its registration follows.

        False: it is not in the route, or no master; nothing was taken.

        Raises:
            RouteTableFullError: there are too many.
        """
        is_master = self._holder(broker.broker_name, MASTER_ID) == broker.address
        if is_master:
            self._take_topics(broker.broker_name, topics)
        return is_master

    def _depose(self, successor: BrokerIdentity) -> None:
        """A master of a newer epoch has the place of the one before, whether that lives or not:
        a process that stands still sends nothing, and is in the way of all clients."""
        holder = self._holder(successor.broker_name, MASTER_ID)
        if holder is None or holder == successor.address:
            return
        if self._brokers[successor.broker_name].cluster == successor.cluster_name:
            del self._brokers[successor.broker_name].broker_addrs[MASTER_ID]
            self._live.pop(holder, None)

    def _place(self, broker: BrokerIdentity, now_ms: int) -> bool:
        """Put the address in its place, unless another one has it. True: it is there again."""
        if broker.address not in self._live and len(self._live) >= ADDRESSES_MAX:
            raise RouteTableFullError(f"{ADDRESSES_MAX} addresses of brokers are registered")
        data = self._brokers.get(broker.broker_name)
        if data is None:
            if len(self._brokers) >= BROKERS_MAX:
                raise RouteTableFullError(f"{BROKERS_MAX} broker names are registered")
            data = BrokerData(broker.cluster_name, broker.broker_name, {})
            self._brokers[broker.broker_name] = data
        self._clusters.setdefault(broker.cluster_name, set()).add(broker.broker_name)
        holder = data.broker_addrs.get(broker.broker_id)
        is_held = holder not in (None, broker.address) and self._is_held(holder, now_ms)
        if not is_held:
            data.broker_addrs[broker.broker_id] = broker.address
        # A slave that became master: its address leaves the place it had.
        for broker_id, address in list(data.broker_addrs.items()):
            if address == broker.address and broker_id != broker.broker_id:
                self._vacate(data, broker_id, self._by_place())
        data.broker_addrs = dict(sorted(data.broker_addrs.items()))
        return not is_held and holder != broker.address

    def _is_held(self, holder: str | None, now_ms: int) -> bool:
        """Whether the holder of a place lives, as far as it can be known now."""
        live = None if holder is None else self._live.get(holder)
        if live is None or live.reason_to_expire(now_ms) is not None:
            return False
        return live.heartbeat_ms is not None or now_ms - live.last_update_ms <= HELD_MS

    def _holder(self, broker_name: str, broker_id: int) -> str | None:
        data = self._brokers.get(broker_name)
        return None if data is None else data.broker_addrs.get(broker_id)

    def _by_place(self) -> dict[tuple[str, int], list[str]]:
        """Addresses of the living, by the name and id that they gave."""
        found: dict[tuple[str, int], list[str]] = {}
        for live in self._live.values():
            found.setdefault((live.broker_name, live.broker_id), []).append(live.address)
        return found

    def _vacate(
        self, data: BrokerData, broker_id: int, living: dict[tuple[str, int], list[str]]
    ) -> None:
        """Take an address out of its place; a rival that waits for it gets it."""
        gone = data.broker_addrs.pop(broker_id)
        for address in living.get((data.broker_name, broker_id), ()):
            if address != gone:
                data.broker_addrs[broker_id] = address
                data.broker_addrs = dict(sorted(data.broker_addrs.items()))
                return

    def _take_topics(
        self,
        broker_name: str,
        topics: Iterable[TopicConfig],
        *,
        is_all: bool = False,
        keeps_known: bool = False,
    ) -> None:
        topics = list(topics)
        for topic in topics:
            name = topic.topic_name
            of_topic = self._topics.get(name)
            if of_topic is None:
                if len(self._topics) >= TOPICS_MAX:
                    raise RouteTableFullError(f"{TOPICS_MAX} topics are registered")
                of_topic = self._topics[name] = {}
            known = of_topic.get(broker_name)
            if (
                known is not None
                and known.read_queue_nums == topic.read_queue_nums
                and known.write_queue_nums == topic.write_queue_nums
                and (keeps_known or known.perm == topic.perm)
                and (keeps_known or known.topic_sys_flag == topic.topic_sys_flag)
            ):
                continue
            if known is not None:
                self._count(name, known, -1)
            of_topic[broker_name] = queues = QueueData(
                broker_name,
                topic.read_queue_nums,
                topic.write_queue_nums,
                topic.perm,
                topic.topic_sys_flag,
            )
            self._count(name, queues, 1)
        if is_all:
            named = {topic.topic_name for topic in topics}
            gone = [
                topic_name
                for topic_name, of_topic in self._topics.items()
                if broker_name in of_topic and topic_name not in named
            ]
            for topic_name in gone:
                self._drop_queues(topic_name, broker_name)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        of_topic = self._topics.get(topic, {})
        queues = of_topic.pop(broker_name, None)
        if queues is not None:
            self._count(topic, queues, -1)
            if not of_topic:
                del self._topics[topic]

    def _count(self, topic: str, queues: QueueData, sign: int) -> None:
        name = queues.broker_name
        digest = topic_digest(topic, queues.read_queue_nums, queues.write_queue_nums)
        self._digests[name] = (self._digests.get(name, 0) + sign * digest) & DIGEST_MASK

    def _result(self, broker: BrokerIdentity, *, is_in_route: bool) -> RegisterBrokerResult:
        others = [
            live.address
            for live in self._live.values()
            if live.broker_name == broker.broker_name
            and live.broker_id == broker.broker_id
            and live.address != broker.address
        ]
        holder = self._holder(broker.broker_name, broker.broker_id)
        master = self._master_of(broker)
        return RegisterBrokerResult(
            ha_server_addr=master.ha_server_addr,
            master_addr=master.master_addr,
            rival=(others[0] if others else None) if is_in_route else holder,
            is_in_route=is_in_route,
            topics_digest=self._digests.get(broker.broker_name, 0),
        )

    def rivals(self) -> list[Rival]:
        """Living addresses whose place another one has."""
        return [
            Rival(live.broker_name, live.broker_id, live.address, holder)
            for live in self._live.values()
            if (holder := self._holder(live.broker_name, live.broker_id)) is not None
            and holder != live.address
        ]

    def _master_of(self, broker: BrokerIdentity) -> RegisterBrokerResult:
        if broker.broker_id == MASTER_ID:
            return RegisterBrokerResult()
        master = self._brokers[broker.broker_name].broker_addrs.get(MASTER_ID)
        live = None if master is None else self._live.get(master)
        if live is None:
            return RegisterBrokerResult()
        return RegisterBrokerResult(live.ha_server_addr, master)

    def unregister(self, broker: BrokerIdentity) -> None:
        """A broker that says goodbye; unknown ones are no error.

        Only that address goes, in the name and id that it gave: a place that another address holds
        is not its own to leave.
        """
        live = self._live.get(broker.address)
        if live is not None and (live.broker_name, live.broker_id) == (
            broker.broker_name,
            broker.broker_id,
        ):
            self._remove_addresses([live])

    def _forget_brokers(self, names: set[str]) -> None:
        """Of names that have no address any more: what else is known of them, in one pass."""
        for name in names:
            del self._brokers[name]
            self._digests.pop(name, None)
        for cluster_name, members in list(self._clusters.items()):
            members -= names
            if not members:
                del self._clusters[cluster_name]
        theirs = [topic for topic, held in self._topics.items() if not names.isdisjoint(held)]
        for topic in theirs:
            of_topic = self._topics[topic]
            if names.issuperset(of_topic):
                del self._topics[topic]
            else:
                for name in names.intersection(of_topic):
                    del of_topic[name]

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

    def connection_lost(self, connection: Hashable, *, is_excused: bool = False) -> list[str]:
        """Remove every broker that registered last over this connection; return their addresses.

        `is_excused`: a missing heartbeat decides, of those that send them.
        """
        lost = [
            live
            for live in self._live.values()
            if live.connection == connection and not (is_excused and live.heartbeat_ms is not None)
        ]
        self._remove_addresses(lost)
        return [live.address for live in lost]

    def expire(self, now_ms: int) -> list[tuple[BrokerLiveInfo, str]]:
        """Remove brokers that gave no sign of life for too long; return them with the reason."""
        expired = [
            (live, reason)
            for live in self._live.values()
            if (reason := live.reason_to_expire(now_ms)) is not None
        ]
        self._remove_addresses([live for live, _ in expired])
        return expired

    def _remove_addresses(self, gone: Collection[BrokerLiveInfo]) -> None:
        empty = set()
        for live in gone:
            del self._live[live.address]
            self._filter_servers.pop(live.address, None)
        rivals = self._by_place()
        for live in gone:
            data = self._brokers.get(live.broker_name)
            if data is not None and data.broker_addrs.get(live.broker_id) == live.address:
                self._vacate(data, live.broker_id, rivals)
                if not data.broker_addrs:
                    empty.add(live.broker_name)
        if empty:
            self._forget_brokers(empty)
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

    def counts(self) -> RouteCounts:
        """How much there is, for metrics."""
        ids = [data.broker_addrs.keys() for data in self._brokers.values()]
        masters = sum(MASTER_ID in group for group in ids)
        return RouteCounts(
            masters=masters,
            slaves=sum(len(group) for group in ids) - masters,
            topics=len(self._topics),
            groups_without_master=sum(bool(group) and MASTER_ID not in group for group in ids),
        )

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
        return self._topics_by_flag(TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT)

    def unit_sub_topics(self) -> TopicList:
        return self._topics_by_flag(TOPIC_FLAG_UNIT_SUB, TOPIC_FLAG_UNIT_SUB)

    def unit_sub_ununit_topics(self) -> TopicList:
        both = TOPIC_FLAG_UNIT | TOPIC_FLAG_UNIT_SUB
        return self._topics_by_flag(both, TOPIC_FLAG_UNIT_SUB)

    def _topics_by_flag(self, mask: int, wanted: int) -> TopicList:
        return TopicList(
            [
                topic
                for topic, queues in self._topics.items()
                if next(iter(queues.values())).topic_sys_flag & mask == wanted
            ]
        )

    # Edits

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from every topic on a broker; return how many there are."""
        return self._edit_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Set read and write on every topic of a broker; return how many there are."""
        return self._edit_perm(broker_name, lambda _: PERM_READ_WRITE)

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
            self._drop_queues(topic, broker_name)

    def check(self) -> None:
        """Assert the cheap invariants."""
        assert all(data.broker_addrs for data in self._brokers.values()), "a name without address"
        assert sum(map(len, self._clusters.values())) >= len(self._brokers), "a name in no cluster"
