"""The console as a service: its connection to the cluster, its socket, its start and its end."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import uvicorn

from twinlog.client.settings import ClientSettings
from twinlog.console.access import Access, Login, is_loopback
from twinlog.console.app import Application, build_app
from twinlog.console.directory import ConsoleAdmin
from twinlog.console.operations import Context, Lab
from twinlog.console.watch import Watcher
from twinlog.observe.http_guard import GuardedHttp
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.failures import Failures
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.console")
STOP_SECONDS_MAX = 2


class ConsoleConfigError(ValueError):
    """The console cannot be started so; the text says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """What the command line says."""

    name_server: str
    client: ClientSettings
    host: str = "127.0.0.1"
    port: int = 8082
    host_names: tuple[str, ...] = ()
    is_open: bool = False
    admin_token: str | None = None
    viewer_token: str | None = None
    has_token_file: bool = False
    """The tokens are in a file: they need not be printed."""
    audit_path: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    accounts: Callable[[], Mapping[str, Login]] = field(default=dict)

    def check(self) -> None:
        """Raise ConsoleConfigError for what would leave the door open."""
        if self.is_open and not is_loopback(self.host):
            raise ConsoleConfigError(
                f"--no-auth on {self.host}: without a login the console listens on loopback only"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConsoleConfigError("--tls-cert and --tls-key go together")


class _Server(uvicorn.Server):
    """uvicorn without its own handling of signals: `cli/serve.py` has that."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Console:
    """A `Service` of `cli/serve.py`."""

    def __init__(
        self,
        settings: ConsoleSettings,
        *,
        lab: Lab | None = None,
        clock: Clock | None = None,
        on_failure: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        settings.check()
        self.settings = settings
        self._clock = clock or SystemClock()
        self._lab = lab
        self.failures = Failures()
        self._tasks = TaskOwner("console", on_failure, failures=self.failures, clock=self._clock)
        self.access = Access(
            self._clock.monotonic_ms,
            admin_token=settings.admin_token,
            viewer_token=settings.viewer_token,
            accounts=settings.accounts,
            is_open=settings.is_open,
        )
        self.port = settings.port
        self._admin: ConsoleAdmin | None = None
        self._server: _Server | None = None
        self._app: Application | None = None

    @property
    def url(self) -> str:
        scheme = "https" if self.settings.tls_cert else "http"
        host = self.settings.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        return f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"

    @property
    def ready_line(self) -> str:
        if self.settings.is_open:
            return f"twinlog console ready {self.url} (no login: --no-auth)"
        if self.settings.has_token_file:
            return f"twinlog console ready {self.url}"
        return (
            f"twinlog console ready {self.url}?token={self.access.admin_token}\n"
            f"  to look only: {self.url}?token={self.access.viewer_token}"
        )

    def reload(self) -> None:
        """Accounts are read with every login; there is nothing else that may change."""

    async def start(self) -> None:
        listener = _listen(self.settings.host, self.settings.port)
        self.port = listener.getsockname()[1]
        settings = self.settings
        admin = ConsoleAdmin(settings.name_server, **settings.client)
        await admin.start()
        self._admin = admin
        watcher = Watcher(admin, self._clock, settings.name_server, self._tasks)
        context = Context(
            admin, settings.name_server, settings.client, watcher, self._clock, self._lab
        )
        self._app = build_app(
            context,
            self.access,
            cookie=f"twinlog_console_{self.port}",
            host_names=settings.host_names,
            is_tls=settings.tls_cert is not None,
        )
        config = uvicorn.Config(
            self._app.asgi, lifespan="off", http=GuardedHttp, ws="none", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, limit_concurrency=256,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
            ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key,
        )  # fmt: skip
        self._server = _Server(config)
        server = self._server
        self._tasks.vital("http", lambda: server.serve(sockets=[listener]))
        watcher.start()

    async def stop(self) -> None:
        if self._app is not None:
            self._app.live.stopped.set()
        if self._server is not None:
            self._server.should_exit = True
            deadline = self._clock.monotonic_ms() + 1000 * (STOP_SECONDS_MAX + 1)
            while self._tasks.count > 1 and self._clock.monotonic_ms() < deadline:
                await self._clock.sleep_ms(20)
        await self._tasks.stop()
        if self._admin is not None:
            await self._admin.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host}:{port}: {error.strerror}") from error
    return listener
