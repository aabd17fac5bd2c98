"""The HTTP port of a server: /metrics, /health/live, /health/ready.

uvicorn on the server's own loop, without its signal handlers. A port that is taken is a warning:
whoever stores messages does not stop because nobody can look.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from twinlog.observe.collect import Samples, Source
from twinlog.observe.exposition import content_type, wants_openmetrics, write_sliced
from twinlog.observe.health import Health
from twinlog.observe.http_guard import GuardedHttp
from twinlog.runtime.clock import Clock
from twinlog.runtime.failures import Failures
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.http")
_CONNECTIONS_MAX = 64
_STOP_MS_MAX = 2_000
_STOP_CHECK_MS = 10


class _Server(uvicorn.Server):
    """Signals belong to the process that it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpPort:
    """Serves one process. `readiness` says why it is not ready, empty when it is."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        clock: Clock,
        failures: Failures,
        health: Callable[[], Health],
        readiness: Callable[[], str],
        sources: tuple[Source, ...],
        new_samples: Callable[[], Samples] | None,
    ) -> None:
        self.host = host
        self.port = port
        self._clock = clock
        self._failures = failures
        self._tasks = TaskOwner("http", failures=failures, clock=clock)
        self._health = health
        self._readiness = readiness
        self._sources = sources
        self._new_samples = new_samples
        self.last_scrape_seconds = 0.0
        self._problem = ""
        self._server: _Server | None = None

    # Life

    async def start(self) -> None:
        """Listen, if the port is free; `tell` says whether."""
        try:
            listener = self._bind()
        except OSError as error:
            self._problem = error.strerror or str(error)
            return
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._application(),
            http=GuardedHttp,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=1,
        )
        server = self._server = _Server(config)
        self._tasks.contained("http", lambda: server.serve([listener]))

    def tell(self) -> None:
        """A line in the log, behind the one that says that the server is ready."""
        address = f"{self.host}:{self.port}"
        if self._problem:
            text = "no HTTP port for metrics and health address=%s reason=%s"
            _LOG.warning(text, address, self._problem)
        else:
            _LOG.info("HTTP port for metrics and health address=%s", address)

    def _bind(self) -> socket.socket:
        info = socket.getaddrinfo(self.host.strip("[]"), self.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(info[0], socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(info[4])
            listener.listen(_CONNECTIONS_MAX)
        except OSError:
            listener.close()
            raise
        return listener

    async def stop(self) -> None:
        """Answers that are on their way are finished, for a moment."""
        if self._server is not None:
            self._server.should_exit = True
        deadline_ms = self._clock.monotonic_ms() + _STOP_MS_MAX
        while self._tasks.count and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(_STOP_CHECK_MS)
        await self._tasks.stop()

    # Requests

    def _application(self) -> Starlette:
        routes = [
            Route("/health/live", self._live),
            Route("/health/ready", self._ready),
        ]
        if self._new_samples is not None:
            routes.append(Route("/metrics", self._metrics))
        return Starlette(routes=routes, exception_handlers={Exception: self._failed})

    async def _failed(self, request: Request, error: Exception) -> Response:
        self._failures.note(f"HTTP {request.url.path[:64]}", error)
        return JSONResponse({"error": "internal error, see the log"}, 500)

    async def _live(self, request: Request) -> Response:
        """Whoever answers lives."""
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        reason = self._readiness()
        body: dict[str, Any] = {"ready": not reason, "reason": reason}
        body |= health_json(self._health())
        return JSONResponse(body, 200 if not reason else 503)

    async def _metrics(self, request: Request) -> Response:
        began_ms = self._clock.monotonic_ms()
        is_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        slices = write_sliced(self._collect(), self._clock, is_openmetrics=is_openmetrics)
        content = b"".join([data async for data in slices])
        self.last_scrape_seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        return Response(content, media_type=content_type(is_openmetrics=is_openmetrics))

    def _collect(self) -> Iterator[Metric]:
        assert self._new_samples is not None
        samples = self._new_samples()
        for source in self._sources:
            yield from source.collect(samples)
        yield from samples.left_out_rows()


def health_json(health: Health) -> dict[str, Any]:
    """Health as endpoints and the console give it."""
    return {
        "healthy": health.is_healthy,
        "findings": [
            {
                "level": finding.level.value,
                "code": finding.code.value,
                "about": finding.about,
                "text": finding.text,
                "nextStep": finding.next_step,
            }
            for finding in health.findings
        ],
    }
