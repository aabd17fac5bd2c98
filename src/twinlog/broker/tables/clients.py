"""Who is connected: producers and consumers by group (RocketMQ's ProducerManager, ConsumerManager).

Tables are keyed by connection, because one client may speak on the service and the VIP port. A
connection leaves when it closes, when it unregisters, or 120 s after its last heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from twinlog.broker.errors import BrokerError
from twinlog.remoting.bodies.clients import ConnectionInfo
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codes import ResponseCode

_LOG = logging.getLogger("twinlog.broker")

GROUPS_MAX = 1_024  # Of one connection, as consumer and as producer.
MEMBERSHIPS_MAX = 500_000  # Of all connections: half a KB each, for names that cost nothing.
CHANNEL_EXPIRED_MS = 120_000  # Apache's CHANNEL_EXPIRED_TIMEOUT.
CLIENT_SCAN_INTERVAL_MS = 10_000  # And how often it looks.


class Connection(Protocol):
    """What these tables need of a connection."""

    remote_address: tuple[str, int]

    @property
    def is_closed(self) -> bool: ...

    def close(self, reason: str) -> None: ...


class ClientChannelInfo:
    """One connection of one client, as its heartbeat described it."""

    __slots__ = ("client_id", "connection", "language", "last_update_ms", "version")

    def __init__(self, connection: Any, client_id: str, language: str, version: int) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_update_ms = 0

    @property
    def address(self) -> str:
        host, port = self.connection.remote_address[:2]
        return f"{host}:{port}"

    def info(self) -> ConnectionInfo:
        """For the lists of who is connected."""
        return ConnectionInfo(self.client_id, self.address, self.language, self.version)


Channels = dict[Any, ClientChannelInfo]


class Memberships:
    """The groups of each connection, so that one that ends is not looked for in all groups."""

    def __init__(self) -> None:
        self._groups: dict[Any, dict[str, None]] = {}
        self._count = 0

    def join(self, connection: Any, group: str) -> None:
        """Raises BrokerError (2, SYSTEM_BUSY): it is in too many, or there are too many of all."""
        groups = self._groups.get(connection, {})
        if group in groups:
            return
        if len(groups) >= GROUPS_MAX or self._count >= MEMBERSHIPS_MAX:
            remark = (
                f"[REJECTREQUEST]system busy, a client is in at most {GROUPS_MAX} groups, "
                f"and all clients together in {MEMBERSHIPS_MAX}"
            )
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)
        groups[group] = None
        self._groups[connection] = groups
        self._count += 1

    def leave(self, connection: Any, group: str) -> None:
        groups = self._groups.get(connection, {})
        if group in groups:
            del groups[group]
            self._count -= 1
            if not groups:
                del self._groups[connection]

    def of(self, connection: Any) -> list[str]:
        return list(self._groups.get(connection, ()))


class ProducerManager:
    """Producer groups and the connection of each producer's client id."""

    def __init__(self) -> None:
        self.on_joined: Callable[[str], None] = lambda group: None
        self.groups: dict[str, Channels] = {}
        self._memberships = Memberships()
        self._by_client_id: dict[str, Any] = {}
        self._turns: dict[str, int] = {}

    def register(self, group: str, info: ClientChannelInfo, now_ms: int) -> None:
        channels = self.groups.get(group, {})
        known = channels.get(info.connection)
        if known is None:
            self._memberships.join(info.connection, group)
            self.groups[group] = channels
            channels[info.connection] = known = info
            self._by_client_id[info.client_id] = info.connection
            _LOG.info("producer joined group=%s client=%s", group, info.client_id)
            self.on_joined(group)
        known.last_update_ms = now_ms

    def unregister(self, group: str, connection: Any) -> None:
        channels = self.groups.get(group)
        info = None if channels is None else channels.pop(connection, None)
        if info is None or channels is None:
            return
        self._memberships.leave(connection, group)
        if self._by_client_id.get(info.client_id) is connection:
            del self._by_client_id[info.client_id]
        if not channels:
            del self.groups[group]
            self._turns.pop(group, None)

    def connection_closed(self, connection: Any) -> None:
        for group in self._memberships.of(connection):
            self.unregister(group, connection)

    def find_connection(self, client_id: str) -> Any | None:
        return self._by_client_id.get(client_id)

    def available_connection(self, group: str) -> Any | None:
        """Some live producer of `group`, one after the other."""
        alive = [c for c in self.groups.get(group, {}) if not c.is_closed]
        if not alive:
            return None
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return alive[turn % len(alive)]

    def expired(self, now_ms: int) -> list[Any]:
        return [
            connection
            for channels in self.groups.values()
            for connection, info in channels.items()
            if now_ms - info.last_update_ms > CHANNEL_EXPIRED_MS
        ]


class ConsumerGroupInfo:
    """One consumer group: how it consumes, what, and through which connections."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.channels: Channels = {}
        self.subscriptions: dict[str, SubscriptionData] = {}

    @property
    def client_ids(self) -> list[str]:
        return [info.client_id for info in self.channels.values()]

    def find_channel(self, client_id: str) -> ClientChannelInfo | None:
        return next((i for i in self.channels.values() if i.client_id == client_id), None)

    def update_channel(self, info: ClientChannelInfo, now_ms: int) -> bool:
        """Note a heartbeat; true when the connection is new."""
        known = self.channels.get(info.connection)
        is_new = known is None
        if known is None or known.client_id != info.client_id:
            self.channels[info.connection] = known = info
        known.last_update_ms = now_ms
        return is_new

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Merge a heartbeat's subscriptions; true when a topic came or went."""
        wanted = {s.topic: s for s in subscriptions}
        changed = False
        for topic, data in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            if known is None or data.sub_version > known.sub_version:
                self.subscriptions[topic] = data
        for topic in [t for t in self.subscriptions if t not in wanted]:
            del self.subscriptions[topic]
            changed = True
        return changed


class ConsumerManager:
    """Consumer groups. `on_members_changed(group)` is called when one comes or goes."""

    def __init__(self, on_members_changed: Callable[[ConsumerGroupInfo], None]) -> None:
        self.groups: dict[str, ConsumerGroupInfo] = {}
        self._memberships = Memberships()
        self._on_members_changed = on_members_changed

    def find(self, group: str) -> ConsumerGroupInfo | None:
        return self.groups.get(group)

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        info = self.groups.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def find_channel(self, group: str, client_id: str) -> ClientChannelInfo | None:
        info = self.groups.get(group)
        return None if info is None else info.find_channel(client_id)

    def groups_of_topic(self, topic: str) -> set[str]:
        return {g for g, info in self.groups.items() if topic in info.subscriptions}

    def register(
        self,
        group: str,
        channel: ClientChannelInfo,
        subscriptions: Iterable[SubscriptionData],
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
        must_notify: bool,
        now_ms: int,
    ) -> bool:
        """Note a heartbeat for `group`; true when members or topics changed."""
        self._memberships.join(channel.connection, group)
        info = self.groups.get(group)
        if info is None:
            info = self.groups[group] = ConsumerGroupInfo(group)
        info.consume_type = consume_type
        info.message_model = message_model
        info.consume_from_where = consume_from_where
        is_new = info.update_channel(channel, now_ms)
        if is_new:
            _LOG.info("consumer joined group=%s client=%s", group, channel.client_id)
        changed = info.update_subscriptions(subscriptions) or is_new
        if changed and must_notify:
            self._on_members_changed(info)
        return changed

    def unregister(self, group: str, connection: Any, *, must_notify: bool) -> None:
        info = self.groups.get(group)
        if info is None or info.channels.pop(connection, None) is None:
            return
        self._memberships.leave(connection, group)
        _LOG.info("consumer left group=%s remaining=%d", group, len(info.channels))
        if not info.channels:
            del self.groups[group]
        if must_notify:
            self._on_members_changed(info)

    def connection_closed(self, connection: Any) -> Iterator[None]:
        """In steps: the members of each of its groups are told."""
        for group in self._memberships.of(connection):
            self.unregister(group, connection, must_notify=True)
            yield

    def expire(self, now_ms: int) -> list[Any]:
        """Forget members without a heartbeat for too long; the caller closes their connections."""
        dead = []
        for group, info in list(self.groups.items()):
            for connection, channel in list(info.channels.items()):
                if now_ms - channel.last_update_ms > CHANNEL_EXPIRED_MS:
                    # As in Apache nobody is told: closing the connection tells them.
                    self.unregister(group, connection, must_notify=False)
                    dead.append(connection)
        return dead
