"""The connection of an administrator: name servers, brokers, and answers of many at once.

Corresponds to DefaultMQAdminExtImpl. The operations themselves are functions in the modules next to
this one; each takes an `Admin` and returns values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic, Self, TypeVar, Unpack

import msgspec

from twinlog.client.errors import ClientError, NoBrokerError, UsageError
from twinlog.client.lifetime import Lifetime
from twinlog.client.net.answers import body_as
from twinlog.client.net.instance import ClientInstance
from twinlog.client.net.routes import TopicRoute
from twinlog.client.settings import ClientSettings, resolve
from twinlog.remoting.bodies import route as bodies
from twinlog.remoting.bodies.route import BrokerData
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Header, Request

T = TypeVar("T")
ADMIN_TIMEOUT_MS = 5000  # mqadmin's.


class Gathered(msgspec.Struct, Generic[T], frozen=True):
    """What several servers answered, and which of them did not: a partial answer is an answer."""

    values: dict[str, T] = {}
    failures: dict[str, ClientError] = {}

    @property
    def is_complete(self) -> bool:
        return not self.failures

    def all_or_raise(self) -> dict[str, T]:
        for error in self.failures.values():
            raise error
        return self.values

    def any_or_raise(self) -> dict[str, T]:
        """Raises when nobody answered."""
        return self.values or self.all_or_raise()


class ClusterInfo(msgspec.Struct, frozen=True):
    """Brokers by name, and the names of each cluster."""

    brokers: dict[str, BrokerData]
    clusters: dict[str, tuple[str, ...]]

    def names(self, cluster: str | None = None) -> list[str]:
        if cluster is None:
            return sorted(self.brokers)
        if cluster not in self.clusters:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise UsageError(f"cluster {cluster!r} is unknown; there is: {known}")
        return sorted(name for name in self.clusters[cluster] if name in self.brokers)

    def masters(self, cluster: str | None = None) -> list[str]:
        """Addresses of masters."""
        found = (self.brokers[name].master_address for name in self.names(cluster))
        return [address for address in found if address is not None]

    def readable_addresses(self, cluster: str | None = None) -> list[str]:
        """One address of each group: the master's, else a slave's."""
        brokers = (self.brokers[name] for name in self.names(cluster))
        return [
            broker.master_address or next(iter(broker.broker_addrs.values()))
            for broker in brokers
            if broker.broker_addrs
        ]

    def without_master(self, cluster: str | None = None) -> dict[str, str]:
        """Groups that have lost their master, and the slave that answers for each."""
        brokers = (self.brokers[name] for name in self.names(cluster))
        return {
            broker.broker_name: next(iter(broker.broker_addrs.values()))
            for broker in brokers
            if broker.master_address is None and broker.broker_addrs
        }

    def addresses(self, cluster: str | None = None) -> list[str]:
        """Addresses of masters and slaves."""
        return [a for name in self.names(cluster) for a in self.brokers[name].broker_addrs.values()]


class Admin(Lifetime):
    """An administrator's client. Takes the settings of every client, but 5 s for each answer."""

    def __init__(
        self, name_server: str | Sequence[str], **settings: Unpack[ClientSettings]
    ) -> None:
        settings.setdefault("request_timeout_ms", ADMIN_TIMEOUT_MS)
        self.instance = ClientInstance(name_server, resolve(**settings), name="admin")

    async def start(self) -> Self:
        await self.instance.start()
        return self

    async def close(self) -> None:
        await self.instance.stop()

    # One server

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        action: str,
        accepted: Collection[int] = (0,),
        timeout_ms: float | None = None,
    ) -> Request:
        """A request to one broker."""
        return await self.instance.transport.call(
            address, code, header, body, action=action, accepted=accepted,
            timeout_ms=timeout_ms or self.instance.settings.request_timeout_ms,
        )  # fmt: skip

    async def ask_name_server(
        self,
        code: int,
        header: Header | None = None,
        *,
        action: str,
        accepted: Collection[int] = (0,),
    ) -> Request:
        """A request to whichever name server answers."""
        return await self.instance.ask_name_servers(code, header, action=action, accepted=accepted)

    async def tell_name_servers(
        self, code: int, header: Header | None = None, body: bytes = b"", *, action: str
    ) -> Gathered[Request]:
        """A request to every name server: they do not tell each other."""

        async def tell(address: str) -> Request:
            return await self.ask(address, code, header, body, action=action)

        return await gather(self.instance.name_servers.addresses, tell)

    # The cluster

    async def cluster(self) -> ClusterInfo:
        answer = await self.ask_name_server(
            RequestCode.GET_BROKER_CLUSTER_INFO, action="list of brokers"
        )
        data = body_as(answer, bodies.ClusterInfo)
        clusters = {name: tuple(sorted(some)) for name, some in data.cluster_addr_table.items()}
        return ClusterInfo(data.brokers(), clusters)

    async def masters(self, cluster: str | None = None) -> list[str]:
        """Addresses of all masters; an error when there is none."""
        addresses = (await self.cluster()).masters(cluster)
        if not addresses:
            raise NoBrokerError("the name server knows no master")
        return addresses

    async def readers(self) -> list[str]:
        """One address of each group that can be asked; an error when there is none."""
        addresses = (await self.cluster()).readable_addresses()
        if not addresses:
            raise NoBrokerError("the name server knows no broker")
        return addresses

    async def route(self, topic: str) -> TopicRoute:
        return await self.instance.refresh_route(topic)

    async def route_masters(self, topic: str) -> list[str]:
        """One address of each broker that has the topic: the master, else a slave."""
        route = await self.route(topic)
        return [
            broker.master_address or next(iter(broker.broker_addrs.values()))
            for broker in route.brokers.values()
            if broker.broker_addrs
        ]


async def gather(addresses: Iterable[str], call: Callable[[str], Awaitable[T]]) -> Gathered[T]:
    """Call for every address at the same time; errors are part of the result."""
    chosen = list(dict.fromkeys(addresses))
    outcomes = await asyncio.gather(*(call(a) for a in chosen), return_exceptions=True)
    result: Gathered[T] = Gathered()
    for address, outcome in zip(chosen, outcomes, strict=True):
        if isinstance(outcome, ClientError):
            result.failures[address] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            result.values[address] = outcome
    return result
