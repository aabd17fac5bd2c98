"""Pages that move: the part of a page that changes, rendered again and sent as an event.

The same template makes the page and its events, so that a page without JavaScript shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from twinlog.admin.follow import tail_topic
from twinlog.client.errors import TopicNotFoundError
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
        self._shared = _Shared(shell.call)
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
        events = self._replication(request) if page == "replication" else self._rounds(request)
        return self._opened(request, events, "part")

    async def tail(self, request: Request) -> Response:
        """Messages of a topic as they come, as rows of a table."""
        topic = request.path_params["topic"]
        try:
            await self._shell.context.admin.route(topic)
        except TopicNotFoundError as error:
            return Response(f"{error}\n", 404)  # A browser does not ask for it again.
        except KNOWN_ERRORS as error:
            return Response(f"{error}\n", 503)
        return self._opened(request, self._rows(request, topic), "row")

    async def _rows(self, request: Request, topic: str) -> AsyncIterator[str]:
        async for batch in tail_topic(self._shell.context.admin, topic):
            rows = [row_of(message) for message in batch]
            yield self._shell.render(request, "live/tail.html", {"rows": rows, "topic": topic})

    def _opened(self, request: Request, events: AsyncIterator[str], name: str) -> Response:
        if self._streams >= STREAMS_MAX:
            return Response("too many pages are open\n", 503)
        # Counted here: until a stream sends its first event, many more may be asked for.
        self._streams += 1
        return _Stream(self._closed, self._until_stopped(request, events, name))

    def _closed(self) -> None:
        self._streams -= 1

    async def _until_stopped(
        self, request: Request, events: AsyncIterator[str], name: str
    ) -> AsyncIterator[dict[str, str]]:
        """What is wrong with the cluster meanwhile ends a stream; the browser asks again."""
        with contextlib.suppress(*KNOWN_ERRORS):
            async for text in events:
                if self.stopped.is_set() or not self._may_go_on(request):
                    return
                yield {"event": name, "data": text}

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
            view = await self._shared.get(operation, dict(request.query_params))
        except KNOWN_ERRORS as error:
            return {"view": None, "error": str(error)}
        return {"view": view, "error": ""}


class _Stream(EventSourceResponse):
    """A stream that says when it is over, however far it came."""

    def __init__(self, closed: Callable[[], None], events: AsyncIterator[dict[str, str]]) -> None:
        super().__init__(events, ping=15)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()


class _Shared:
    """Answers for all pages that show the same: however many are open, brokers are asked once."""

    def __init__(self, ask: Callable[[str, dict[str, str]], Awaitable[Any]]) -> None:
        self._ask = ask
        self._answers: dict[object, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, operation: str, values: dict[str, str]) -> Any:
        now = asyncio.get_running_loop().time()
        key = (operation, tuple(sorted(values.items())))
        asked, answer = self._answers.get(key, (0.0, None))
        if answer is None or (answer.done() and now - asked >= ROUND_SECONDS / 2):
            if len(self._answers) >= STREAMS_MAX:
                self._answers.clear()
            answer = asyncio.ensure_future(self._ask(operation, values))
            answer.add_done_callback(_looked_at)
            self._answers[key] = (now, answer)
        return await asyncio.shield(answer)


def _looked_at(answer: asyncio.Future[Any]) -> None:
    """Whoever asked may have left: an error that nobody waits for is no news."""
    if not answer.cancelled():
        answer.exception()
