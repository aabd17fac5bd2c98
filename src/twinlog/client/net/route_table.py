"""Routes of a client: which broker has which queues, asked of whichever name server answers.

Corresponds to the route half of MQClientInstance. Routes are kept by topic, asked for again every
`route_poll_ms`, at once after an error, and every second while they are provisional: the topic is
not there yet, or one of its brokers has no master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from twinlog.client.errors import (
    ClientClosedError,
    ClientError,
    NameServerUnreachableError,
    NoBrokerError,
    NotANameServerError,
    NoWritableQueueError,
    TopicNotFoundError,
    TransportError,
    UsageError,
    broker_error,
)
from twinlog.client.net.answers import body_as
from twinlog.client.net.name_servers import NameServers
from twinlog.client.net.routes import TopicRoute, parse_route
from twinlog.client.net.transport import Transport
from twinlog.client.settings import ResolvedSettings
from twinlog.message.names import AUTO_CREATE_TOPIC
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.route import BrokerData, ClusterInfo
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Header, RemotingCommand, Request
from twinlog.remoting.headers.namesrv import GetRouteInfoRequestHeader
from twinlog.runtime.clock import Clock
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.client")
DEFAULT_TOPIC_QUEUES = 4
PROVISIONAL_POLL_MS = 1000
TOPICS_MAX = 65_536


class Host(Protocol):
    """What a route table needs of its client."""

    settings: ResolvedSettings
    clock: Clock
    tasks: TaskOwner
    name_servers: NameServers

    @property
    def transport(self) -> Transport: ...


class _Route:
    __slots__ = ("asked_at_ms", "is_provisional", "route")

    def __init__(self, route: TopicRoute | None, asked_at_ms: int, is_provisional: bool) -> None:
        self.route = route
        self.asked_at_ms = asked_at_ms
        self.is_provisional = is_provisional


class RouteTable:
    """Routes by topic, and from them the brokers by name."""

    def __init__(self, host: Host, changed: Callable[[], None]) -> None:
        self._host = host
        self._changed = changed
        self.brokers: dict[str, BrokerData] = {}
        self._routes: dict[str, _Route] = {}
        self._fetches: dict[str, asyncio.Task[TopicRoute | ClientError | None]] = {}
        self._poll_wake = asyncio.Event()

    async def ask_name_servers(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        accepted: Iterable[int] = (0,),
        action: str,
    ) -> Request:
        """Ask the current name server, and the others if it does not answer."""
        reasons = []
        for address in self._host.name_servers.in_order():
            command = RemotingCommand.request(code, header, body)
            try:
                answer = await self._host.transport.invoke(
                    address, command, self._host.settings.request_timeout_ms
                )
            except TransportError as error:
                reasons.append(str(error))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotANameServerError(
                    f"{address} is not a name server: it does not know request {code}; "
                    f"is it a broker's port?"
                )
            self._host.name_servers.answered(address)
            if answer.code not in accepted:
                raise broker_error(answer.code, answer.remark, address=address, action=action)
            return answer
        raise NameServerUnreachableError(f"no name server answers: {'; '.join(reasons)}")

    def cached(self, topic: str) -> TopicRoute | None:
        entry = self._routes.get(topic)
        return None if entry is None else entry.route

    def topics(self) -> list[str]:
        """Those whose route is known."""
        return sorted(topic for topic, entry in self._routes.items() if entry.route is not None)

    async def get(self, topic: str, *, create: bool = False) -> TopicRoute:
        """The route of a topic, asked for if it is not known yet.

        Args:
            topic: The topic.
            create: For a producer: a topic that the first send will create counts as there.
        """
        route = self.cached(topic)
        return route if route is not None else await self.refresh(topic, create=create)

    async def refresh(self, topic: str, *, create: bool = False) -> TopicRoute:
        """Ask now. Several who ask for the same topic at the same time share one request."""
        fetch = self._fetches.get(topic)
        if fetch is None:
            fetch = self._host.tasks.job("route", self._fetch_route(topic), about=topic)
            self._fetches[topic] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(topic, None))
        # A wait, not an await: its end with the client is no cancellation of who waits here.
        await asyncio.wait((fetch,))
        if fetch.cancelled():
            raise ClientClosedError("this client was closed in the meantime")
        outcome = fetch.result()
        if isinstance(outcome, ClientError):
            raise outcome
        if outcome is not None:
            return outcome
        return await self._route_of_missing_topic(topic, create=create)

    async def _fetch_route(self, topic: str) -> TopicRoute | ClientError | None:
        """None: the name server does not know the topic. Errors are values: tasks must not die."""
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
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
        except UnicodeEncodeError:
            return UsageError(f"{topic!r} is not valid UTF-8")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return NotANameServerError(f"the answer about topic {topic!r} is unreadable: {error!r}")
        except Exception as error:
            self._host.tasks.failures.note("route", error, topic)
            return ClientError(f"the route of topic {topic!r} is not available: {error!r}")
        # Without its master a route is about to change: producers wait for the next one.
        has_masters = all(b.master_address is not None for b in route.brokers.values())
        self._remember(topic, route, is_provisional=not has_masters)
        return route

    def _remember(self, topic: str, route: TopicRoute | None, *, is_provisional: bool) -> None:
        old = self._routes.get(topic)
        if old is None and len(self._routes) >= TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        self._routes[topic] = _Route(route, self._host.clock.monotonic_ms(), is_provisional)
        if is_provisional and (old is None or not old.is_provisional):
            self._poll_wake.set()
        if route is None:
            return
        self.brokers.update(route.brokers)
        if old is None or old.route != route:
            self._changed()

    async def _route_of_missing_topic(self, topic: str, *, create: bool) -> TopicRoute:
        route = await self._route_of_new_topic(topic) if create else None
        brokers = {} if route is not None else await self.cluster_brokers()
        if route is None and not brokers:
            asked = self._host.name_servers.in_order()[0]
            raise NoBrokerError(
                f"name server {asked} knows no broker: start one, or check that the brokers' "
                f"namesrvAddr names this name server"
            )
        if route is None and create:
            # Brokers may have registered between the two questions, all their topics at once.
            route = await self._route_of_new_topic(topic)
        if route is not None:
            return route
        lost = [name for name, broker in brokers.items() if broker.master_address is None]
        if create and lost:
            # Topics are registered by masters: a name server that started after one was lost has
            # never heard of its topics.
            raise NoWritableQueueError(
                f"topic {topic!r} is not known, but {', '.join(sorted(lost))} may have it and has "
                "no master at the moment: try again when there is one"
            )
        hint = "autoCreateTopicEnable=false" if create else "nobody has sent to it yet"
        raise TopicNotFoundError(f"topic {topic!r} does not exist ({hint}): create it first")

    async def _route_of_new_topic(self, topic: str) -> TopicRoute | None:
        """Where the first send will create the topic; None when no broker does that."""
        template = await self._fetch_route(AUTO_CREATE_TOPIC)
        self._routes.pop(AUTO_CREATE_TOPIC, None)
        if not isinstance(template, TopicRoute):
            return None
        route = template.as_template_for_new_topic(DEFAULT_TOPIC_QUEUES)
        self._remember(topic, route, is_provisional=True)
        return route

    async def cluster_brokers(self) -> dict[str, BrokerData]:
        """Every broker that is registered, by name."""
        answer = await self.ask_name_servers(
            RequestCode.GET_BROKER_CLUSTER_INFO, action="list of brokers"
        )
        return body_as(answer, ClusterInfo).brokers()

    async def poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(PROVISIONAL_POLL_MS / 1000):
                    await self._poll_wake.wait()
            except TimeoutError:
                pass  # The usual case: it is time to look.
            else:
                self._poll_wake.clear()
                await self._host.clock.sleep_ms(PROVISIONAL_POLL_MS)
            now_ms = self._host.clock.monotonic_ms()
            for topic, entry in list(self._routes.items()):
                wait_ms = (
                    PROVISIONAL_POLL_MS
                    if entry.is_provisional
                    else self._host.settings.route_poll_ms
                )
                if now_ms - entry.asked_at_ms >= wait_ms:
                    await self._poll_one(topic, entry)

    async def _poll_one(self, topic: str, entry: _Route) -> None:
        outcome = await self._fetch_route(topic)
        if isinstance(outcome, ClientError):
            entry.asked_at_ms = self._host.clock.monotonic_ms()
            _LOG.warning("route not refreshed topic=%s reason=%s", topic, outcome)
        elif outcome is None and entry.route is not None:
            # Brokers may be restarting: a known route is better than none.
            self._routes[topic] = _Route(entry.route, self._host.clock.monotonic_ms(), True)

    def is_known(self, address: str) -> bool:
        return any(address in broker.broker_addrs.values() for broker in self.brokers.values())

    async def refresh_of_address(self, address: str) -> None:
        names = {b.broker_name for b in self.brokers.values() if address in b.broker_addrs.values()}
        for topic, entry in list(self._routes.items()):
            if entry.route is not None and not names.isdisjoint(entry.route.brokers):
                outcome = await self._fetch_route(topic)
                if isinstance(outcome, ClientError):
                    _LOG.warning("route not refreshed topic=%s reason=%s", topic, outcome)
