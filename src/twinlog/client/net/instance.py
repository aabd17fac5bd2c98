"""One client of a cluster: its life, its connections, and what brokers ask of it.

Corresponds to MQClientInstance. Each producer or consumer owns one; nothing is shared through
module state, so that two clients of a process cannot disturb each other. Routes are the business of
`route_table.py`, heartbeats and reachability that of `presence.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from twinlog.client.errors import (
    ClientClosedError,
    ClientError,
    ClientForkedError,
    NameServerUnreachableError,
    UsageError,
)
from twinlog.client.net.name_servers import NameServers, discover, is_discovery, parse_name_servers
from twinlog.client.net.presence import GroupMember, MemberRole, Presence
from twinlog.client.net.route_table import RouteTable
from twinlog.client.net.routes import ReadAddress, TopicRoute, choose_read_address
from twinlog.client.net.transport import Transport
from twinlog.client.settings import ResolvedSettings
from twinlog.message.ids import UniqueIdGenerator
from twinlog.remoting.bodies.route import MASTER_ID, BrokerData
from twinlog.remoting.client import ClientConnection, RemotingClient
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.limits import CLIENT_LIMITS
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.process import is_ip_address, local_address, process_id
from twinlog.runtime.tasks import TaskOwner

__all__ = ["ClientInstance", "GroupMember", "MemberRole"]

_LOG = logging.getLogger("twinlog.client")
TASK_TRIES_MAX = 5  # Within 1.5 s; a task that fails as often will not work at all.
DISCOVERY_MS = 120_000  # Java's: every two minutes.
WRITE_BUFFER_MAX = 1 << 30
STOP_TIMEOUT_MS = 5000

RequestHandler = Callable[[Any, Request], None]


class ClientInstance:
    """Connections, routes and heartbeats of one producer or consumer."""

    def __init__(
        self,
        name_server: str | Sequence[str],
        settings: ResolvedSettings,
        *,
        name: str,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self._given_name_servers = parse_name_servers(name_server)
        self.name_servers = NameServers(
            [] if is_discovery(self._given_name_servers[0]) else self._given_name_servers
        )
        self.tasks = TaskOwner(
            f"twinlog-client-{name}", self._task_failed, clock=self.clock, tries_max=TASK_TRIES_MAX
        )
        self.client_id = settings.client_id or ""
        self._handlers: dict[int, RequestHandler] = {}
        self.failure: BaseException | None = None
        self.on_failure: list[Callable[[], None]] = []
        self._process_id = process_id()
        self._is_running = False
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._transport: Transport | None = None
        self._unique_ids: UniqueIdGenerator | None = None
        self._routes = RouteTable(self, self._routes_changed)
        self.ask_name_servers = self._routes.ask_name_servers
        self._presence = Presence(self, self._routes, self._routes_changed)

    def _routes_changed(self) -> None:
        self._presence.routes_changed()
        for member in self._presence.members:
            member.routes_changed()

    # Life

    @property
    def transport(self) -> Transport:
        self.check_usable()
        self.check_loop()
        assert self._transport is not None
        return self._transport

    def check_loop(self) -> None:
        """Raise in another loop than its own: connections made there would end with that loop.

        Code without a loop, as that of a Spark task, makes no connection: it prepares requests.
        """
        if asyncio._get_running_loop() not in (None, self._loop):
            raise UsageError(
                "this client belongs to another event loop: open a new client in this one"
            )

    def is_abandoned(self) -> bool:
        """Whether its loop has ended, so that it can only be dropped. Asked by whoever closes it.

        Raises UsageError when its loop is there and another one: only in its own can it be closed.
        """
        loop = self._loop
        if self._is_closed or loop is None or loop is asyncio.get_running_loop():
            return False
        if not loop.is_closed():
            raise UsageError("this client belongs to another event loop: close it there")
        return True

    def abandon(self) -> None:
        """Close the sockets. Nobody can be told goodbye, and no task of that loop runs any more."""
        self._is_running, self._is_closed = False, True
        if self._transport is not None:
            self._transport.remoting.abandon()
        with contextlib.suppress(RuntimeError):  # Whoever waited in that loop does not any more.
            self._stopped.set()

    def own_loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which this client was started, and which is running now."""
        if self._loop is None:
            self.check_usable()
        self.check_loop()
        return asyncio.get_running_loop()

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        assert self._unique_ids is not None
        return self._unique_ids

    @property
    def is_running(self) -> bool:
        return self._is_running

    def check_usable(self) -> None:
        """Raise unless started, not closed, and in the process that started it."""
        if self._is_running and self.failure is None and self._process_id == process_id():
            return
        if self._process_id != process_id():
            raise ClientForkedError(
                f"this client was opened by process {self._process_id} and cannot be used in its "
                f"child {process_id()}: open a new client after the fork"
            )
        if self._is_closed:
            raise ClientClosedError("this client is closed: open a new one")
        if self.failure is not None:
            raise ClientClosedError(
                f"this client has failed ({self.failure!r}): close it and open a new one"
            ) from self.failure
        raise ClientClosedError("this client is not started: use 'async with' or await start()")

    async def start(self) -> None:
        if self._is_closed:
            raise ClientClosedError("this client is closed: open a new one")
        if self._is_running:
            return
        self._process_id = process_id()
        if is_discovery(self._given_name_servers[0]):
            self.name_servers.replace(await discover(self._given_name_servers[0]))
        address = await self._local_address()
        now_ms = self.clock.now_ms()
        serial = id(self) & 0xFFFFFF
        if not self.client_id:
            self.client_id = f"{address}@{self._process_id}#{self.clock.monotonic_ms()}{serial}"
        self._unique_ids = UniqueIdGenerator(
            _address_bytes(address), self._process_id, (now_ms ^ (serial << 8)) & 0x7FFFFFFF,
            self.clock.now_ms,
        )  # fmt: skip
        self._transport = Transport(self._make_remoting())
        self._loop = asyncio.get_running_loop()
        self._is_running = True
        self.tasks.contained("routes", self._routes.poll)
        self.tasks.contained("heartbeats", self._presence.beat)
        if is_discovery(self._given_name_servers[0]):
            self.tasks.contained("discovery", self._discover)

    def _make_remoting(self) -> RemotingClient:
        settings = self.settings
        hooks = []
        if settings.access_key is not None and settings.secret_key is not None:
            from twinlog.remoting.signing import AclSigner  # With OpenSSL's hashes: not for all.

            hooks.append(
                AclSigner(settings.access_key, settings.secret_key, settings.security_token)
            )
        return RemotingClient(
            clock=self.clock,
            tls=settings.tls,
            tls_server_name=settings.tls_server_name,
            request_handler=self._handle_request,
            hooks=hooks,
            limits=replace(
                CLIENT_LIMITS,
                connect_timeout_ms=settings.connect_timeout_ms,
                # Producers bound their own bytes; being cut off for them would be no help.
                write_buffer_max=WRITE_BUFFER_MAX,
            ),
            failures=self.tasks.failures,
            name=self.client_id,
        )

    async def _local_address(self) -> str:
        host, _, port = self.name_servers.in_order()[0].rpartition(":")
        host = host.strip("[]")
        if is_ip_address(host):  # Nothing to resolve, and no thread to do it in.
            return local_address(host, int(port))
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port))
        except OSError:
            return "127.0.0.1"
        return local_address(str(found[0][4][0]), int(port))

    async def stop(self) -> None:
        """Say goodbye to the brokers, then close the connections."""
        if self._is_closed:
            return
        if self.is_abandoned():
            self.abandon()
            return
        try:
            await self._stop()
        finally:
            self._stopped.set()

    async def wait_stopped(self) -> None:
        """Until whoever stops it is done. A handler does not wait: it is what is waited for."""
        if not self.tasks.runs_current():
            await self._stopped.wait()

    async def _stop(self) -> None:
        if self._process_id != process_id():
            # The sockets belong to the parent: touching them would end its connections.
            self._is_running, self._is_closed = False, True
            return
        try:
            if self._is_running:
                await self._presence.unregister_all()
        finally:  # Also when the caller is cancelled: nothing may stay open.
            self._is_running, self._is_closed = False, True
            try:
                await self._stop_tasks()
            finally:
                if self._transport is not None:
                    await self._transport.remoting.close()

    async def _stop_tasks(self) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                await self.tasks.stop()
        except TimeoutError:
            _LOG.error(
                "a handler ignores its cancellation and still runs client=%s", self.client_id
            )

    def _task_failed(self, name: str, error: BaseException) -> None:
        """A bug of ours. Nobody may wait for a client that no longer works."""
        _LOG.critical(
            "a task of the client failed, so the client no longer works name=%s error=%r",
            name,
            error,
        )
        self.failure = error
        for callback in self.on_failure:
            callback()

    # Name servers and routes

    async def _discover(self) -> None:
        while True:
            await self.clock.sleep_ms(DISCOVERY_MS)
            try:
                self.name_servers.replace(await discover(self._given_name_servers[0]))
            except ClientError as error:
                _LOG.warning("name server discovery failed, the old list is kept reason=%s", error)

    def cached_route(self, topic: str) -> TopicRoute | None:
        return self._routes.cached(topic)

    def routed_topics(self) -> list[str]:
        """The topics whose route is known, in their order."""
        return self._routes.topics()

    async def route(self, topic: str, *, create: bool = False) -> TopicRoute:
        """The route of a topic, asked for if it is not known yet (see RouteTable.get)."""
        return await self._routes.get(topic, create=create)

    async def refresh_route(self, topic: str, *, create: bool = False) -> TopicRoute:
        """Ask for a route now."""
        return await self._routes.refresh(topic, create=create)

    async def cluster_brokers(self) -> dict[str, BrokerData]:
        """Every broker that is registered, by name."""
        return await self._routes.cluster_brokers()

    # Brokers

    @property
    def brokers(self) -> dict[str, BrokerData]:
        """Brokers of the routes that are known, by name."""
        return self._routes.brokers

    def master_address(self, broker_name: str) -> str | None:
        broker = self.brokers.get(broker_name)
        return None if broker is None else broker.master_address

    async def look_for_master(self, broker_name: str, topic: str) -> None:
        """Where the master is missing, see whether it is back: in the route, and to be reached."""
        if self.master_address(broker_name) is None:
            await self.refresh_route(topic)
        address = self.master_address(broker_name)
        if address is not None:
            await self._presence.look_again(address)

    def read_address(self, broker_name: str, suggested_id: int = MASTER_ID) -> ReadAddress | None:
        """Where to read: the suggested replica, or another one while that cannot be reached."""
        broker = self.brokers.get(broker_name)
        if broker is None:
            return None
        return choose_read_address(broker, suggested_id, self._presence.is_reachable)

    def add_member(self, member: GroupMember) -> None:
        self._presence.members.append(member)

    async def heartbeat(self) -> None:
        """Tell every broker of our routes who we are."""
        await self._presence.heartbeat()

    def check_admitted(self) -> None:
        """Raise AccessDeniedError when every broker refuses our heartbeats for the account."""
        self._presence.check_admitted()

    def connection_failed(self, address: str, error: ClientError) -> None:
        """Somebody could not reach `address`: set it aside and look after it."""
        if not self._is_running:
            return
        self._presence.connection_failed(address, error)

    def is_reachable(self, address: str) -> bool:
        """Whether the last connection to the address was not refused."""
        return self._presence.is_reachable(address)

    def is_announced(self, address: str) -> bool:
        """Whether the broker got our heartbeat over the connection that is open now."""
        return self._presence.is_announced(address)

    def announce_soon(self, address: str) -> None:
        """A connection was opened by another request: the broker must hear who we are."""
        self._presence.announce_soon(address)

    # Requests of brokers

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """What to do when a broker sends `code`. Handlers are synchronous and must be quick."""
        self._handlers[code] = handler

    def _handle_request(self, connection: ClientConnection, request: Request) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            connection.reply(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {request.code} not supported",
            )
            return
        handler(connection, request)


def no_answer(instance: ClientInstance, topic: str) -> ClientError:
    """The error of who waited for a route until its time was up."""
    asked = ", ".join(instance.name_servers.in_order())
    return NameServerUnreachableError(
        f"no name server answers: {asked} did not answer about topic {topic!r} in time"
    )


def _address_bytes(address: str) -> bytes:
    try:
        return ipaddress.ip_address(address).packed
    except ValueError:
        return b"\x7f\0\0\1"
