"""Runs a server in the foreground: logging, signals, ready line, exit code.

Exit codes (CONTRACT): 0 after a clean stop, 2 for a bad configuration with one line that names
file, key and value, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Protocol

import click

from twinlog.runtime.descriptors import raise_descriptor_limit
from twinlog.runtime.memory import return_large_buffers

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2
_RESTART = -1  # Never an exit code: the process is replaced instead.
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
_LOG = logging.getLogger("twinlog.serve")


class Service(Protocol):
    """A server as `run_service` sees it."""

    @property
    def ready_line(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


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


def configure_logging() -> None:
    """Log lines go to standard error; `TWINLOG_LOG_LEVEL` says from which level on."""
    level = os.environ.get("TWINLOG_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(stream=sys.stderr, format=_FORMAT, datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("twinlog").setLevel(level if level in logging.getLevelNamesMapping() else 20)


def run_service(
    make: Callable[[Lifetime], Service], *, known_errors: tuple[type[Exception], ...] = ()
) -> None:
    """Start what `make` builds, serve until SIGTERM or SIGINT, stop cleanly, exit.

    `known_errors` are what a start may end with besides OSError; they are shown in one line.
    """
    if not __debug__:
        fail("assertions are part of the safety net: do not run with -O")
    configure_logging()
    return_large_buffers()
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(make, known_errors))
    if code == _RESTART:
        os.execv(sys.executable, [sys.executable, "-m", "twinlog.cli.main", *sys.argv[1:]])
    sys.exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Not on every platform; everything works without it.
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    make: Callable[[Lifetime], Service], known_errors: tuple[type[Exception], ...]
) -> int:
    lifetime = Lifetime()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifetime.stop)
    service = make(lifetime)
    expected: tuple[type[Exception], ...] = (OSError, *known_errors)
    try:
        await service.start()
    except expected as error:
        click.echo(f"twinlog: cannot start: {error}", err=True)
        return EXIT_FAILED
    click.echo(service.ready_line, err=True)
    await lifetime.ended()
    await service.stop()
    if lifetime.failure is not None:
        click.echo(f"twinlog: stopped: {lifetime.failure}", err=True)
        return EXIT_FAILED
    _LOG.info("stopped cleanly")
    if lifetime.restart_reason is not None:
        _LOG.warning("starting again reason=%s", lifetime.restart_reason)
        return _RESTART
    return 0
