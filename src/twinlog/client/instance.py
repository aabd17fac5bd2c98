"""One client of a cluster: connections, routes, heartbeats, and what brokers ask of it.

Answers to MQClientInstance. Each producer or consumer owns one; nothing is shared through module
state, so that two clients of a process cannot disturb each other.

Routes are kept by topic, asked for again every `route_poll_ms`, at once after an error, and every
second while they are provisional (topic not there yet). A broker address that refuses connections
is set aside and probed until it answers; readers use another replica meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from twinlog.client.errors import (
    BrokerError,
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    ClientForkedError,
    NameServerUnreachableError,
    NoBrokerError,
    NotANameServerError,
    TopicNotFoundError,
    TransportError,
    broker_error,
)
from twinlog.client.name_servers import NameServers, discover, is_discovery, parse_name_servers
from twinlog.client.routes import (
    MASTER_ID,
    BrokerData,
    ReadAddress,
    TopicRoute,
    choose_read_address,
    parse_broker_data,
    parse_route,
)
from twinlog.client.settings import ResolvedSettings
from twinlog.client.transport import Transport
from twinlog.message.ids import UniqueIdGenerator
from twinlog.remoting import fastjson
from twinlog.remoting.client import ClientConnection, RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.limits import DEFAULT_LIMITS
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.process import local_address, process_id
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.client")
DEFAULT_TOPIC = "TBW102"
DEFAULT_TOPIC_QUEUES = 4
PROVISIONAL_POLL_MS = 1000
PROBE_MS = (200, 500, 1000, 2000)
DISCOVERY_MS = 120_000  # Java's: every two minutes.
TOPICS_MAX = 65_536
WRITE_BUFFER_MAX = 1 << 30
STOP_TIMEOUT_MS = 5000

RequestHandler = Callable[[Any, Request], None]


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


class _Route:
    __slots__ = ("asked_at_ms", "is_provisional", "route")

    def __init__(self, route: TopicRoute | None, asked_at_ms: int, is_provisional: bool) -> None:
        self.route = route
        self.asked_at_ms = asked_at_ms
        self.is_provisional = is_provisional


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
        self.tasks = TaskOwner(f"twinlog-client-{name}", self._task_failed)
        self.client_id = settings.client_id or ""
        self.members: list[GroupMember] = []
        self.brokers: dict[str, BrokerData] = {}
        self._handlers: dict[int, RequestHandler] = {}
        self._routes: dict[str, _Route] = {}
        self._fetches: dict[str, asyncio.Task[TopicRoute | ClientError | None]] = {}
        self._unreachable: set[str] = set()
        self._watched: dict[str, ClientConnection] = {}
        self._probing: set[str] = set()
        self._process_id = process_id()
        self._is_running = False
        self._is_closed = False
        self._transport: Transport | None = None
        self._unique_ids: UniqueIdGenerator | None = None
        self._poll_wake = asyncio.Event()

    # Life

    @property
    def transport(self) -> Transport:
        self.check_usable()
        assert self._transport is not None
        return self._transport

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        assert self._unique_ids is not None
        return self._unique_ids

    @property
    def is_running(self) -> bool:
        return self._is_running

    def check_usable(self) -> None:
        """Raise unless started, not closed, and in the process that started it."""
        if self._is_running and self._process_id == process_id():
            return
        if self._process_id != process_id():
            raise ClientForkedError(
                f"this client was opened by process {self._process_id} and cannot be used in its "
                f"child {process_id()}: open a new client after the fork"
            )
        if self._is_closed:
            raise ClientClosedError("this client is closed: open a new one")
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
        self._is_running = True
        self.tasks.spawn("routes", self._poll_routes())
        self.tasks.spawn("heartbeats", self._beat())
        if is_discovery(self._given_name_servers[0]):
            self.tasks.spawn("discovery", self._discover())

    def _make_remoting(self) -> RemotingClient:
        settings = self.settings
        hooks = []
        if settings.access_key is not None and settings.secret_key is not None:
            hooks.append(
                AclSigner(settings.access_key, settings.secret_key, settings.security_token)
            )
        return RemotingClient(
            clock=self.clock,
            tls=settings.tls,
            request_handler=self._handle_request,
            hooks=hooks,
            limits=replace(
                DEFAULT_LIMITS,
                connect_timeout_ms=settings.connect_timeout_ms,
                # Producers bound their own bytes; being cut off for them would be no help.
                write_buffer_max=WRITE_BUFFER_MAX,
            ),
            name=self.client_id,
        )

    async def _local_address(self) -> str:
        host, _, port = self.name_servers.in_order()[0].rpartition(":")
        host = host.strip("[]")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port))
        except OSError:
            return "127.0.0.1"
        return local_address(str(found[0][4][0]), int(port))

    async def stop(self) -> None:
        """Say goodbye to the brokers, then close the connections."""
        if self._is_closed:
            return
        if self._process_id != process_id():
            # The sockets belong to the parent: touching them would end its connections.
            self._is_running, self._is_closed = False, True
            return
        if self._is_running:
            await self._unregister_all()
        self._is_running, self._is_closed = False, True
        try:
            async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                await self.tasks.stop()
        except TimeoutError:
            _LOG.error("a handler ignores its cancellation, left behind client=%s", self.client_id)
        if self._transport is not None:
            await self._transport.remoting.close()

    def _task_failed(self, name: str, error: BaseException) -> None:
        _LOG.critical("client task died, this client no longer works name=%s error=%r", name, error)

    # Name servers

    async def ask_name_servers(
        self,
        code: int,
        header: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        accepted: Iterable[int] = (0,),
        action: str,
    ) -> Request:
        """Ask the current name server, and the others if it does not answer."""
        reasons = []
        for address in self.name_servers.in_order():
            command = RemotingCommand.request(code, header, body)
            try:
                answer = await self.transport.invoke(
                    address, command, self.settings.request_timeout_ms
                )
            except TransportError as error:
                reasons.append(str(error))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotANameServerError(
                    f"{address} is not a name server: it does not know request {code}; "
                    f"is it a broker's port?"
                )
            self.name_servers.answered(address)
            if answer.code not in accepted:
                raise broker_error(answer.code, answer.remark, address=address, action=action)
            return answer
        raise NameServerUnreachableError(f"no name server answers: {'; '.join(reasons)}")

    async def _discover(self) -> None:
        while True:
            await self.clock.sleep_ms(DISCOVERY_MS)
            try:
                self.name_servers.replace(await discover(self._given_name_servers[0]))
            except ClientError as error:
                _LOG.warning("name server discovery failed, old list kept reason=%s", error)

    # Routes

    def cached_route(self, topic: str) -> TopicRoute | None:
        entry = self._routes.get(topic)
        return None if entry is None else entry.route

    async def route(self, topic: str, *, create: bool = False) -> TopicRoute:
        """The route of a topic, asked for if it is not known yet.

        Args:
            topic: The topic.
            create: For a producer: a topic that the first send will create counts as there.
        """
        route = self.cached_route(topic)
        return route if route is not None else await self.refresh_route(topic, create=create)

    async def refresh_route(self, topic: str, *, create: bool = False) -> TopicRoute:
        """Ask now. Several who ask for the same topic at the same time share one request."""
        fetch = self._fetches.get(topic)
        if fetch is None:
            fetch = self.tasks.spawn(f"route {topic}", self._fetch_route(topic))
            self._fetches[topic] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(topic, None))
        outcome = await asyncio.shield(fetch)
        if isinstance(outcome, ClientError):
            raise outcome
        if outcome is not None:
            return outcome
        return await self._route_of_missing_topic(topic, create=create)

    async def _fetch_route(self, topic: str) -> TopicRoute | ClientError | None:
        """None: the name server does not know the topic. Errors are values: tasks must not die."""
        header = {"topic": topic, "acceptStandardJsonOnly": True}
        try:
            answer = await self.ask_name_servers(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                header,
                accepted=(0, ResponseCode.TOPIC_NOT_EXIST),
                action=f"route of topic {topic!r}",
            )
            if answer.code != 0:
                self._remember(topic, None, is_provisional=True)
                return None
            route = parse_route(fastjson.loads(answer.body))
        except ClientError as error:
            return error
        except (ValueError, KeyError, TypeError) as error:
            return NotANameServerError(f"the answer about topic {topic!r} is unreadable: {error!r}")
        # Without its master a route is about to change: producers wait for the next one.
        has_masters = all(b.master_address is not None for b in route.brokers.values())
        self._remember(topic, route, is_provisional=not has_masters)
        return route

    def _remember(self, topic: str, route: TopicRoute | None, *, is_provisional: bool) -> None:
        old = self._routes.get(topic)
        if old is None and len(self._routes) >= TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = _Route(route, self.clock.monotonic_ms(), is_provisional)
        if is_provisional and (old is None or not old.is_provisional):
            self._poll_wake.set()
        if route is None:
            return
        self.brokers.update(route.brokers)
        if old is None or old.route != route:
            for member in self.members:
                member.routes_changed()

    async def _route_of_missing_topic(self, topic: str, *, create: bool) -> TopicRoute:
        if create:
            template = await self._fetch_route(DEFAULT_TOPIC)
            self._routes.pop(DEFAULT_TOPIC, None)
            if isinstance(template, TopicRoute):
                route = template.as_template_for_new_topic(DEFAULT_TOPIC_QUEUES)
                self._remember(topic, route, is_provisional=True)
                return route
        if not await self.cluster_brokers():
            raise NoBrokerError(
                f"name server {self.name_servers.in_order()[0]} knows no broker: none is running, "
                f"or it registers with another name server (namesrvAddr)"
            )
        hint = "autoCreateTopicEnable=false" if create else "nobody has sent to it yet"
        raise TopicNotFoundError(f"topic {topic!r} does not exist ({hint}): create it first")

    async def cluster_brokers(self) -> dict[str, BrokerData]:
        """Every broker that is registered, by name."""
        answer = await self.ask_name_servers(
            RequestCode.GET_BROKER_CLUSTER_INFO, action="list of brokers"
        )
        table = fastjson.loads(answer.body).get("brokerAddrTable") or {}
        return {name: parse_broker_data(data) for name, data in table.items()}

    async def _poll_routes(self) -> None:
        while True:
            try:
                async with asyncio.timeout(PROVISIONAL_POLL_MS / 1000):
                    await self._poll_wake.wait()
            except TimeoutError:
                pass  # The usual case: it is time to look.
            else:
                self._poll_wake.clear()
                await self.clock.sleep_ms(PROVISIONAL_POLL_MS)
            now_ms = self.clock.monotonic_ms()
            for topic, entry in list(self._routes.items()):
                wait_ms = (
                    PROVISIONAL_POLL_MS if entry.is_provisional else self.settings.route_poll_ms
                )
                if now_ms - entry.asked_at_ms >= wait_ms:
                    await self._poll_route(topic, entry)

    async def _poll_route(self, topic: str, entry: _Route) -> None:
        outcome = await self._fetch_route(topic)
        if isinstance(outcome, ClientError):
            entry.asked_at_ms = self.clock.monotonic_ms()
            _LOG.warning("route not refreshed topic=%s reason=%s", topic, outcome)
        elif outcome is None and entry.route is not None:
            # Brokers may be restarting: a known route is better than none.
            self._routes[topic] = _Route(entry.route, self.clock.monotonic_ms(), True)

    # Addresses

    def master_address(self, broker_name: str) -> str | None:
        broker = self.brokers.get(broker_name)
        return None if broker is None else broker.master_address

    def read_address(self, broker_name: str, suggested_id: int = MASTER_ID) -> ReadAddress | None:
        """Where to read: the suggested replica, or another one while that cannot be reached."""
        broker = self.brokers.get(broker_name)
        if broker is None:
            return None
        return choose_read_address(broker, suggested_id, self.is_reachable)

    def is_reachable(self, address: str) -> bool:
        return address not in self._unreachable

    def connection_failed(self, address: str, error: ClientError) -> None:
        """Somebody could not reach `address`: set it aside and look after it."""
        if isinstance(error, BrokerUnreachableError):
            self._set_aside(address)
        if self._is_running:
            self._probe_soon(address)

    def _set_aside(self, address: str) -> None:
        if address in self._unreachable:
            return
        self._unreachable.add(address)
        _LOG.warning("broker cannot be reached, other replicas are used address=%s", address)
        for member in self.members:
            member.routes_changed()

    def _probe_soon(self, address: str) -> None:
        if address not in self._probing:
            self._probing.add(address)
            self.tasks.spawn(f"probe {address}", self._probe(address))

    async def _probe(self, address: str) -> None:
        try:
            for attempt in range(1 << 30):
                if await self._heartbeat_to(address):
                    break
                if not self._is_known(address):
                    break
                if attempt == 0:
                    await self._refresh_routes_of(address)
                await self.clock.sleep_ms(PROBE_MS[min(attempt, len(PROBE_MS) - 1)])
        finally:
            self._probing.discard(address)
        if address in self._unreachable:
            self._unreachable.discard(address)
            for member in self.members:
                member.routes_changed()

    def _is_known(self, address: str) -> bool:
        return any(address in broker.addresses.values() for broker in self.brokers.values())

    async def _refresh_routes_of(self, address: str) -> None:
        names = {b.name for b in self.brokers.values() if address in b.addresses.values()}
        for topic, entry in list(self._routes.items()):
            if entry.route is not None and not names.isdisjoint(entry.route.brokers):
                outcome = await self._fetch_route(topic)
                if isinstance(outcome, ClientError):
                    _LOG.warning("route not refreshed topic=%s reason=%s", topic, outcome)

    # Heartbeats

    def add_member(self, member: GroupMember) -> None:
        self.members.append(member)

    async def heartbeat(self) -> None:
        """Tell every broker of our routes who we are, all at the same time."""
        addresses = self._heartbeat_addresses()
        if addresses:
            await asyncio.gather(*(self._heartbeat_to(address) for address in addresses))

    def _heartbeat_addresses(self) -> list[str]:
        has_consumers = any(member.role is MemberRole.CONSUMER for member in self.members)
        return [
            address
            for broker in self.brokers.values()
            for replica, address in broker.addresses.items()
            if (has_consumers or replica == MASTER_ID) and address not in self._unreachable
        ]

    async def _heartbeat_to(self, address: str) -> bool:
        """Whether the broker took it. A failed one is a reason to look after the address."""
        body = fastjson.dumps(self._heartbeat_body())
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
        try:
            answer = await self.transport.invoke(address, command, self.settings.request_timeout_ms)
        except BrokerUnreachableError:
            self._set_aside(address)
            return False
        except (TransportError, ClientClosedError) as error:
            _LOG.warning("heartbeat failed address=%s reason=%s", address, error)
            return False
        if answer.code != 0:
            _LOG.warning(
                "heartbeat refused address=%s code=%d remark=%s",
                address, answer.code, answer.remark,
            )  # fmt: skip
        self.watch(address)
        return True

    def watch(self, address: str) -> None:
        """Notice at once when the connection to `address` ends."""
        connection = self.transport.remoting.connection(address)
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
        if self._is_running and not self.is_announced(address):
            self._probe_soon(address)

    def _connection_ended(self, address: str, connection: ClientConnection) -> None:
        if self._watched.get(address) is connection:
            del self._watched[address]
        if self._is_running and self._is_known(address):
            self._probe_soon(address)

    def _heartbeat_body(self) -> dict[str, Any]:
        entries: dict[MemberRole, list[dict[str, Any]]] = {role: [] for role in MemberRole}
        for member in self.members:
            entries[member.role].append(member.heartbeat_data())
        return {
            "clientID": self.client_id,
            "consumerDataSet": entries[MemberRole.CONSUMER],
            "producerDataSet": entries[MemberRole.PRODUCER],
        }

    async def _beat(self) -> None:
        while True:
            await self.clock.sleep_ms(self.settings.heartbeat_ms)
            await self.heartbeat()

    async def _unregister_all(self) -> None:
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
            await self.transport.call(
                address, RequestCode.UNREGISTER_CLIENT,
                {"clientID": self.client_id, kind: member.group},
                timeout_ms=1000, action="unregister",
            )  # fmt: skip
        except (TransportError, BrokerError) as error:
            _LOG.debug("not unregistered address=%s reason=%s", address, error)

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


def _address_bytes(address: str) -> bytes:
    try:
        return ipaddress.ip_address(address).packed
    except ValueError:
        return b"\x7f\0\0\1"
