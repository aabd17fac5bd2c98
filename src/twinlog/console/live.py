"""Pages that move: the part of a page that changes, rendered again and sent as an event.

The same template makes the page and its events, so that a page without JavaScript shows the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from twinlog.admin.follow import tail_topic
from twinlog.console.shell import KNOWN_ERRORS, Shell, caller_of
from twinlog.console.views.cluster import replication_of
from twinlog.console.views.messages import row_of

ROUND_SECONDS = 2.0
STREAMS_MAX = 64
# Page -> operation that is asked every two seconds.
ROUNDS = {"overview": "overview", "lab": "lab", "group": "group"}


class Live:
    """Streams of events."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._streams = 0
        self.stopped = asyncio.Event()

    def routes(self) -> list[Route]:
        return [
            Route("/live/tail/{topic}", self.tail, methods=["GET"]),
            Route("/live/{page}", self.stream, methods=["GET"]),
        ]

    async def stream(self, request: Request) -> Response:
        page = request.path_params["page"]
        if page != "replication" and page not in ROUNDS:
            return Response("no such stream\n", 404)
        if self._streams >= STREAMS_MAX:
            return Response("too many pages are open\n", 503)
        events = self._replication(request) if page == "replication" else self._rounds(request)
        return EventSourceResponse(self._until_stopped(request, events), ping=15)

    async def tail(self, request: Request) -> Response:
        """Messages of a topic as they come, as rows of a table."""
        if self._streams >= STREAMS_MAX:
            return Response("too many pages are open\n", 503)
        events = self._rows(request, request.path_params["topic"])
        return EventSourceResponse(self._until_stopped(request, events, "row"), ping=15)

    async def _rows(self, request: Request, topic: str) -> AsyncIterator[str]:
        async for batch in tail_topic(self._shell.context.admin, topic):
            rows = [row_of(message) for message in batch]
            yield self._shell.render(request, "live/tail.html", {"rows": rows, "topic": topic})

    async def _until_stopped(
        self, request: Request, events: AsyncIterator[str], name: str = "part"
    ) -> AsyncIterator[dict[str, str]]:
        self._streams += 1
        try:
            async for text in events:
                if self.stopped.is_set() or not self._may_go_on(request):
                    return
                yield {"event": name, "data": text}
        finally:
            self._streams -= 1

    def _may_go_on(self, request: Request) -> bool:
        session = caller_of(request).session
        return session is None or self._shell.access.is_alive(session)

    async def _replication(self, request: Request) -> AsyncIterator[str]:
        async for snapshot in self._shell.context.watcher.snapshots():
            value = replication_of(self._shell.context, snapshot)
            yield self._shell.render(request, "live/replication.html", {"view": value})

    async def _rounds(self, request: Request) -> AsyncIterator[str]:
        page = request.path_params["page"]
        while True:
            yield self._shell.render(request, f"live/{page}.html", await self._values(request))
            await asyncio.sleep(ROUND_SECONDS)

    async def _values(self, request: Request) -> dict[str, Any]:
        operation = ROUNDS[request.path_params["page"]]
        try:
            view = await self._shell.call(operation, dict(request.query_params))
        except KNOWN_ERRORS as error:
            return {"view": None, "error": str(error)}
        return {"view": view, "error": ""}
