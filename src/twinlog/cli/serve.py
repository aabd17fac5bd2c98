"""Runs a server in the foreground: logging, signals, ready line, exit code.

Exit codes (CONTRACT): 0 after a clean stop, 2 for a bad configuration with one line that names
file, key and value, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import click

from twinlog.observe.observer import Observed, Observer
from twinlog.runtime import log_config
from twinlog.runtime.audit_file import finish_audit
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import LoadedConfig
from twinlog.runtime.config_format import ConfigValueError
from twinlog.runtime.config_key import by_reason
from twinlog.runtime.descriptors import raise_descriptor_limit
from twinlog.runtime.failures import Failures
from twinlog.runtime.log_config import LogSettings
from twinlog.runtime.memory import give_back, return_large_buffers
from twinlog.runtime.server_config import ServerConfig

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2
_RESTART = -1  # Never an exit code: the process is replaced instead.
_LOG = logging.getLogger("twinlog.serve")


class Service(Protocol):
    """A server as `run_service` sees it."""

    @property
    def ready_line(self) -> str: ...

    @property
    def failures(self) -> Failures: ...

    def reload(self) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class VisibleService(Service, Protocol):
    """A service that has metrics and health of its own."""

    config: ServerConfig

    def observed(self) -> Observed: ...


class Lifetime:
    """How long a service runs: until a signal, or until it says that it cannot go on."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self.failure: str | None = None
        self.restart_reason: str | None = None

    def restart(self, reason: str) -> None:
        """Stop cleanly and run the same command again, in the same process."""
        self.restart_reason = reason
        self._ended.set()

    def stop(self) -> None:
        self._ended.set()

    def fail(self, reason: str) -> None:
        """End the process with exit code 1; the first reason is the one that is shown."""
        if self.failure is None:
            self.failure = reason
        self._ended.set()

    async def ended(self) -> None:
        await self._ended.wait()


def fail(text: str, code: int = EXIT_FAILED) -> None:
    """End with one line on standard error."""
    click.echo(f"twinlog: {text}", err=True)
    sys.exit(code)


def _write_stack(_: int, frame: FrameType | None) -> None:
    """In the form that faulthandler has, and with one write: the stream may be in use below."""
    lines = ["Stack (most recent call first):"]
    while frame is not None:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    with contextlib.suppress(OSError, ValueError):  # Nowhere to write to.
        os.write(sys.stderr.fileno(), "\n".join([*lines, ""]).encode(errors="replace"))


def configure_logging(settings: LogSettings) -> None:
    """Log as the configuration says; ends with one line when the file cannot be opened."""
    # From here on there is something to open again, and until the loop runs nobody who could.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # `twinlog debug bundle` asks where a server is. The handler runs between two steps of the
    # interpreter: stacks that a signal reads in the middle of one, this thread's too, may be half
    # made, and a broker that was asked for its own could end with a segmentation fault.
    with contextlib.suppress(AttributeError, ValueError):  # No such signal, not the main thread.
        signal.signal(signal.SIGUSR1, _write_stack)
    try:
        log_config.configure(settings, os.environ)
    except OSError as error:
        fail(f"twinlogLogFile={settings.twinlog_log_file}: {error.strerror}", EXIT_BAD_CONFIG)


def log_findings(log: logging.Logger, loaded: LoadedConfig[Any]) -> None:
    """Say what is odd about the configuration, and which of its keys do nothing here."""
    for warning in loaded.warnings:
        log.warning("configuration %s", warning)
    for reason, keys in by_reason(loaded.without_effect).items():
        log.info("configuration without effect here: %s: %s", ", ".join(keys), reason)


def notify_ready() -> None:
    """Tell systemd (`Type=notify`) that the server is ready; nothing without systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect("\0" + address[1:] if address.startswith("@") else address)
        notify.sendall(b"READY=1")


def run_service(
    make: Callable[[Lifetime], Service], *, known_errors: tuple[type[Exception], ...] = ()
) -> None:
    """Start what `make` builds, serve until SIGTERM or SIGINT, stop cleanly, exit.

    SIGHUP makes it read certificates and access rules again and open its log files again.

    `known_errors` are what a start may end with besides OSError; they are shown in one line.
    """
    if not __debug__:
        fail("assertions are part of the safety net: do not run with -O")
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(make, known_errors))
    if code == _RESTART:
        finish_audit()
        os.execv(sys.executable, [sys.executable, "-m", "twinlog.cli.main", *sys.argv[1:]])
    sys.exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Not on every platform; everything works without it.
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _reload(service: Service | None) -> None:
    try:
        log_config.reopen()
    except OSError as error:
        _LOG.error("log file cannot be opened again reason=%s", error)
    if service is not None:
        service.reload()
    _LOG.info("read certificates and access rules again, opened log files again")


def _contain_callbacks(
    failures: Failures,
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """The last net: what a callback of the loop raised and nobody else has contained."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            failures.note("event loop", error, str(context.get("message", "")))
        else:
            loop.default_exception_handler(context)

    return handle


async def _serve(
    make: Callable[[Lifetime], Service], known_errors: tuple[type[Exception], ...]
) -> int:
    lifetime = Lifetime()
    observer: Observer | None = None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifetime.stop)
    expected: tuple[type[Exception], ...] = (OSError, *known_errors)
    loop.add_signal_handler(signal.SIGHUP, _reload, None)  # While it starts: the logs alone.
    try:
        service = make(lifetime)
        loop.set_exception_handler(_contain_callbacks(service.failures))
        if isinstance(service, VisibleService):
            observer = Observer(
                service.config, service.observed(), clock=SystemClock(), failures=service.failures
            )
            await observer.start()
        await service.start()
    except ConfigValueError as error:
        click.echo(f"twinlog: cannot start: {error}", err=True)
        return EXIT_BAD_CONFIG
    except expected as error:
        click.echo(f"twinlog: cannot start: {error}", err=True)
        if lifetime.restart_reason is None:
            return EXIT_FAILED
        if observer is not None:
            await observer.stop()
        return _RESTART  # It has mended what kept it from starting.
    loop.add_signal_handler(signal.SIGHUP, _reload, service)
    # Not before: a recovery reads gigabytes through buffers that are better kept.
    return_large_buffers()
    give_back()
    click.echo(service.ready_line, err=True)
    if observer is not None:
        observer.serving()
    notify_ready()
    await lifetime.ended()
    if observer is not None:
        observer.stopping()
    await service.stop()
    if observer is not None:
        await observer.stop()
    if lifetime.failure is not None:
        click.echo(f"twinlog: stopped: {lifetime.failure}", err=True)
        return EXIT_FAILED
    _LOG.info("stopped cleanly")
    if lifetime.restart_reason is not None:
        _LOG.warning("starting again reason=%s", lifetime.restart_reason)
        return _RESTART
    return 0
