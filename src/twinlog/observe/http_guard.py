"""HTTP connections that ask nothing: bounded in number and in time.

uvicorn waits forever for the end of a request, and refuses everyone while as many connections are
open as it may serve. Whoever opened a few dozen and said nothing would have made /health fail, and
with it a server that is restarted by its health.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS_MAX = 10.0


class GuardedHttp(H11Protocol):
    """One connection. The oldest that waits for a request makes room for a new one."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._deadline: asyncio.TimerHandle | None = None
        self.began = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the peer has yet to say what it wants, or the rest of it."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.began = self.loop.time()
        self._arm()
        waiting = [
            each
            for each in self.connections
            if each is not self and isinstance(each, GuardedHttp) and each.is_waiting
        ]
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit and waiting:
            min(waiting, key=lambda each: each.began).end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_waiting:
            self._disarm()
        elif self._deadline is None:
            self._arm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_waiting and self._deadline is None and not self.transport.is_closing():
            self._arm()

    def end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS_MAX, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.is_waiting:
            self.end()
