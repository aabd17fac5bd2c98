"""The console's own administrator: it waits for nobody long, and remembers where everybody is.

A page asks several servers in turn. One of them that hangs must not make a page hang: the watcher
knows who was silent when it last looked, and such a server gets a short time only. While no name
server answers, the brokers are those of the last answer, and every page says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import ContextVar

from twinlog.admin.client import Admin, ClusterInfo
from twinlog.client.errors import ClientError, NameServerUnreachableError, TransportError
from twinlog.client.net.routes import TopicRoute
from twinlog.remoting.command import Header, Request

ANSWER_MS = 700
"""For whoever is looked at twice a second, and for those who were silent then."""
LOOK_MS = 2_000
"""For everybody else, while a page only looks."""

only_looks: ContextVar[bool] = ContextVar("only_looks", default=False)


class ConsoleAdmin(Admin):
    """An `Admin` with short deadlines and a memory."""

    silent: frozenset[str] = frozenset()
    """Addresses that did not answer when the watcher last looked."""
    name_server_error = ""
    """Why the name servers' last answer is used; empty when one of them answered."""
    _known: ClusterInfo | None = None

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
        if address in self.silent:
            timeout_ms = min(timeout_ms or ANSWER_MS, ANSWER_MS)
        elif timeout_ms is None and only_looks.get():
            timeout_ms = LOOK_MS
        return await super().ask(
            address, code, header, body, action=action, accepted=accepted, timeout_ms=timeout_ms
        )

    async def ask_name_server(
        self,
        code: int,
        header: Header | None = None,
        *,
        action: str,
        accepted: Collection[int] = (0,),
    ) -> Request:
        """All of them side by side: whoever answers first is stayed with."""
        servers = self.instance.name_servers

        async def ask(address: str) -> Request:
            answer = await super(ConsoleAdmin, self).ask(
                address, code, header, action=action, accepted=accepted, timeout_ms=ANSWER_MS
            )
            servers.answered(address)
            return answer

        reasons = []
        for done in asyncio.as_completed([ask(address) for address in servers.in_order()]):
            try:
                return await done
            except TransportError as error:
                reasons.append(str(error))
        raise NameServerUnreachableError(f"no name server answers: {'; '.join(reasons)}")

    async def ask_cluster(self) -> ClusterInfo:
        """The brokers as a name server knows them now."""
        try:
            info = await super().cluster()
        except ClientError as error:
            self.name_server_error = str(error)
            raise
        self._known, self.name_server_error = info, ""
        return info

    async def cluster(self) -> ClusterInfo:
        """The brokers; those of the last answer while no name server gives one."""
        if not self.name_server_error or self._known is None:
            try:
                return await self.ask_cluster()
            except NameServerUnreachableError:
                if self._known is None:
                    raise
        assert self._known is not None
        return self._known

    async def route(self, topic: str) -> TopicRoute:
        """The route; while no name server answers the last one, or else all brokers."""
        if not self.name_server_error:
            try:
                async with asyncio.timeout(ANSWER_MS / 1000):
                    return await super().route(topic)
            except (NameServerUnreachableError, TimeoutError) as error:
                self.name_server_error = str(error) or "no name server answers in time"
        known = self.instance.cached_route(topic)
        return known or TopicRoute((await self.cluster()).brokers, ())
