"""Being known to brokers, and knowing which of them can be reached.

Corresponds to the heartbeat half of MQClientInstance. A broker knows a client by its connection, so
a new connection needs a new heartbeat. A broker that refuses connections is set aside and probed
until it answers; readers use another replica meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Any, Protocol

from twinlog.client.errors import (
    AccessDeniedError,
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    TransportError,
    broker_error,
)
from twinlog.client.net.route_table import Host, RouteTable
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.client import ClientConnection
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand

_LOG = logging.getLogger("twinlog.client")
PROBE_MS = (200, 500, 1000, 2000)
# At once, and when the name server has noticed too: it may hear of the end of a connection a moment
# after us, and of a broker that is only silent after three seconds.
_REFRESH_ATTEMPTS = (0, 2, 4)


class MemberRole(enum.Enum):
    """As what a member is known to brokers."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    UNLISTED = "unlisted"  # Reads chosen queues and takes no part in its group.


class GroupMember(Protocol):
    """A producer or consumer as its instance sees it."""

    group: str

    @property
    def role(self) -> MemberRole: ...

    def heartbeat_data(self) -> dict[str, Any]:
        """The entry of this member in the heartbeat."""
        ...

    def routes_changed(self) -> None: ...


class PresenceHost(Host, Protocol):
    """What presence needs of its client."""

    client_id: str

    @property
    def is_running(self) -> bool: ...


class Presence:
    """Heartbeats, watched connections, and addresses that are set aside."""

    def __init__(self, host: PresenceHost, routes: RouteTable, changed: Callable[[], None]) -> None:
        self._host = host
        self._routes = routes
        self._changed = changed
        self.members: list[GroupMember] = []
        self._unreachable: set[str] = set()
        self._watched: dict[str, ClientConnection] = {}
        self._probing: set[str] = set()
        self._denials: dict[str, AccessDeniedError] = {}
        self._masters: dict[str, str] = {}

    def is_reachable(self, address: str) -> bool:
        return address not in self._unreachable

    def connection_failed(self, address: str, error: ClientError) -> None:
        """Somebody could not reach `address`: set it aside and look after it."""
        if isinstance(error, BrokerUnreachableError):
            self._set_aside(address)
        else:
            self._probe_soon(address)

    def _set_aside(self, address: str) -> None:
        """Whatever is set aside is probed: nobody else would notice that it is back."""
        self._probe_soon(address)
        if address in self._unreachable:
            return
        self._unreachable.add(address)
        _LOG.warning("broker cannot be reached, other replicas are used address=%s", address)
        self._changed()

    async def look_again(self, address: str) -> None:
        """Find out now whether an address that was set aside is back."""
        if address in self._unreachable and await self._heartbeat_to(address):
            self._is_back(address)

    def _is_back(self, address: str) -> None:
        if address in self._unreachable:
            self._unreachable.discard(address)
            self._changed()

    def _probe_soon(self, address: str) -> None:
        if self._host.is_running and address not in self._probing:
            self._probing.add(address)
            self._host.tasks.contained("probe", lambda: self._probe(address), about=address)

    async def _probe(self, address: str) -> None:
        try:
            for attempt in range(1 << 30):
                if await self._heartbeat_to(address):
                    break
                if not self._routes.is_known(address):
                    break
                if attempt in _REFRESH_ATTEMPTS:
                    await self._routes.refresh_of_address(address)
                await self._host.clock.sleep_ms(PROBE_MS[min(attempt, len(PROBE_MS) - 1)])
        finally:
            self._probing.discard(address)
        self._is_back(address)

    async def heartbeat(self) -> None:
        """Tell every broker of our routes who we are, all at the same time."""
        addresses = self._heartbeat_addresses()
        if addresses:
            await asyncio.gather(*(self._heartbeat_to(address) for address in addresses))

    def check_admitted(self) -> None:
        """Raise the reason when access control of every broker refuses us: nothing would come."""
        addresses = self._heartbeat_addresses()
        if addresses and all(address in self._denials for address in addresses):
            raise self._denials[addresses[0]]

    def _heartbeat_addresses(self) -> list[str]:
        has_consumers = any(member.role is MemberRole.CONSUMER for member in self.members)
        return [
            address
            for broker in self._routes.brokers.values()
            for replica, address in broker.broker_addrs.items()
            if (has_consumers or replica == MASTER_ID) and address not in self._unreachable
        ]

    async def _heartbeat_to(self, address: str) -> bool:
        """Whether the broker took it. A failed one is a reason to look after the address."""
        body = fastjson.dumps(self._heartbeat_body())
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
        try:
            answer = await self._host.transport.invoke(
                address, command, self._host.settings.request_timeout_ms
            )
        except BrokerUnreachableError:
            self._set_aside(address)
            return False
        except (TransportError, ClientClosedError) as error:
            _LOG.warning("heartbeat failed address=%s reason=%s", address, error)
            return False
        self._denials.pop(address, None)
        if answer.code != 0:
            refusal = broker_error(answer.code, answer.remark, address=address, action="heartbeat")
            if isinstance(refusal, AccessDeniedError):
                self._denials[address] = refusal
            _LOG.warning(
                "heartbeat refused address=%s code=%d remark=%s",
                address, answer.code, answer.remark,
            )  # fmt: skip
        self.watch(address)
        return True

    def watch(self, address: str) -> None:
        """Notice at once when the connection to `address` ends."""
        connection = self._host.transport.remoting.connection(address)
        if connection is None or self._watched.get(address) is connection:
            return
        self._watched[address] = connection
        connection.on_close(lambda _: self._connection_ended(address, connection))

    def is_announced(self, address: str) -> bool:
        """Whether the broker got our heartbeat over the connection that is open now."""
        connection = self._watched.get(address)
        return connection is not None and not connection.is_closed

    def announce_soon(self, address: str) -> None:
        """A connection was opened by another request: the broker must hear who we are."""
        if not self.is_announced(address):
            self._probe_soon(address)

    def routes_changed(self) -> None:
        """Another replica leads a broker that knows us: it must know us, too. It has requests of
        its own, about open transactions, and nothing may be sent to it for a long time."""
        for name, broker in self._routes.brokers.items():
            address = broker.master_address
            before = self._masters.get(name)
            if address is None or address == before:
                continue
            self._masters[name] = address
            if before is not None and self.members:
                self.announce_soon(address)

    def _connection_ended(self, address: str, connection: ClientConnection) -> None:
        if self._watched.get(address) is connection:
            del self._watched[address]
        if self._routes.is_known(address):
            self._probe_soon(address)

    def _heartbeat_body(self) -> dict[str, Any]:
        entries: dict[MemberRole, list[dict[str, Any]]] = {role: [] for role in MemberRole}
        for member in self.members:
            entries[member.role].append(member.heartbeat_data())
        return {
            "clientID": self._host.client_id,
            "consumerDataSet": entries[MemberRole.CONSUMER],
            "producerDataSet": entries[MemberRole.PRODUCER],
        }

    async def beat(self) -> None:
        while True:
            await self._host.clock.sleep_ms(self._host.settings.heartbeat_ms)
            await self.heartbeat()

    async def unregister_all(self) -> None:
        calls = [
            self._unregister(address, member)
            for address in self._heartbeat_addresses()
            if self.is_announced(address)
            for member in self.members
            if member.role is not MemberRole.UNLISTED
        ]
        if calls:
            await asyncio.gather(*calls)

    async def _unregister(self, address: str, member: GroupMember) -> None:
        kind = "consumerGroup" if member.role is MemberRole.CONSUMER else "producerGroup"
        try:
            await self._host.transport.call(
                address, RequestCode.UNREGISTER_CLIENT,
                {"clientID": self._host.client_id, kind: member.group},
                timeout_ms=1000, action="unregister",
            )  # fmt: skip
        except ClientError as error:
            _LOG.debug("not unregistered address=%s reason=%s", address, error)
