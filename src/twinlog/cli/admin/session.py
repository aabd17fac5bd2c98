"""Which cluster a command talks to, as whom, and how its answer is printed.

The name server is the first of: `-n`, `--context`, TWINLOG_CONTEXT, NAMESRV_ADDR, the current
context, the local cluster of `twinlog up`, 127.0.0.1:9876. Credentials: flags or environment, the
context, then Apache's `$ROCKETMQ_HOME/conf/tools.yml`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from twinlog.cli.admin.tls import Tls, from_environment
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, UNHEALTHY, UNREACHABLE, USAGE, CommandError
from twinlog.cli.lazy import complain, nearest
from twinlog.cli.output import Report, render, terminal_width, uses_color

if TYPE_CHECKING:
    from twinlog.admin.client import Admin, Gathered
    from twinlog.client.settings import ClientSettings

T = TypeVar("T")
DEFAULT_NAMESRV = "127.0.0.1:9876"
WATCH_SECONDS_MIN = 0.2


@dataclass(frozen=True, slots=True)
class Session:
    """What the shared options say."""

    namesrv: str
    source: str
    access_key: str | None = None
    secret_key: str | None = None
    tls: Tls | None = None
    timeout_ms: int = 5000
    output: str = "table"
    watch_seconds: float | None = None
    color: bool = False
    is_context: bool = False

    @property
    def client_settings(self) -> ClientSettings:
        settings: ClientSettings = {
            "request_timeout_ms": self.timeout_ms,
            "connect_timeout_ms": min(self.timeout_ms, 3000),
        }
        if self.access_key:
            settings["access_key"] = self.access_key
            settings["secret_key"] = self.secret_key or ""
        if self.tls is not None:
            settings["tls"] = self.tls.settings()
        return settings

    def admin(self) -> Admin:
        from twinlog.admin.client import Admin

        return Admin(self.namesrv, **self.client_settings)


# Finding the cluster


def find_cluster(namesrv: str | None, context_name: str | None) -> Session:
    """Where, and with which credentials."""
    found = _address(namesrv, context_name)
    access_key = os.environ.get("TWINLOG_ACCESS_KEY")
    secret_key = os.environ.get("TWINLOG_SECRET_KEY")
    return _with_tools(replace(
        found,
        access_key=access_key or found.access_key,
        secret_key=secret_key or found.secret_key,
        tls=from_environment(found.tls),
    ))  # fmt: skip


def _address(namesrv: str | None, context_name: str | None) -> Session:
    """The first place that names a cluster."""
    if namesrv:
        return Session(namesrv, "-n")
    source = f"context {context_name}"
    if context_name is None:
        context_name = os.environ.get("TWINLOG_CONTEXT") or None
        source = f"context {context_name} (TWINLOG_CONTEXT)"
    if context_name is None:
        variable = os.environ.get("NAMESRV_ADDR")
        if variable:
            return Session(variable, "NAMESRV_ADDR")
    from twinlog.cli.admin import contexts

    known = contexts.load()
    if context_name is None and known.current:
        context_name, source = known.current, f"context {known.current}"
    if context_name is not None:
        context = known.get(context_name)
        return Session(
            context.namesrv, source, context.access_key or None, context.secret_key or None,
            context.encryption, is_context=True,
        )  # fmt: skip
    local = _local_cluster()
    return Session(DEFAULT_NAMESRV, "default") if local is None else Session(local, "twinlog up")


def _local_cluster() -> str | None:
    """The name server of the cluster that `twinlog up` left running in its usual place."""
    import json
    from pathlib import Path

    home = os.environ.get("TWINLOG_HOME")
    directory = Path(home) if home else Path.home() / ".twinlog" / "cluster"
    try:
        nodes = json.loads((directory / "cluster.json").read_bytes())["nodes"]
        port = next(node["port"] for node in nodes if node["kind"] == "namesrv")
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    return f"127.0.0.1:{port}"


def _with_tools(session: Session) -> Session:
    """Credentials of Apache's tools.yml, when there are no others."""
    home = os.environ.get("ROCKETMQ_HOME")
    if session.access_key or session.is_context or session.source == "twinlog up" or not home:
        return session
    from pathlib import Path

    file = Path(home) / "conf" / "tools.yml"
    if not file.exists():
        return session
    import yaml

    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        access_key, secret_key = values.get("accessKey"), values.get("secretKey")
    except (OSError, yaml.YAMLError, AttributeError) as error:
        raise CommandError(f"{file} cannot be read: {error}", USAGE) from error
    if not access_key or not secret_key:
        return session
    return replace(session, access_key=str(access_key), secret_key=str(secret_key))


# Running


def run(session: Session, action: Callable[[Admin], Awaitable[Report]]) -> int:
    """Ask, print, and return the exit code; with `--watch` again and again."""
    if session.watch_seconds is None:
        report = call(session, action)
        return show(session, report)
    return _watch(session, action)


def call(session: Session, action: Callable[[Admin], Awaitable[T]]) -> T:
    """The result of `action`; errors of the client become a line and an exit code."""

    async def main() -> T:
        async with session.admin() as admin:
            return await action(admin)

    return run_async(session, main)


def run_async(session: Session, main: Callable[[], Awaitable[T]]) -> T:
    from twinlog.client.errors import ClientError

    try:
        return run_loop(main)
    except ClientError as error:
        raise explain(error, session) from error


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """The result of `main` in a loop of its own, which Ctrl-C never catches half made.

    Python raises KeyboardInterrupt wherever it is. Within the making or the closing of a loop that
    leaves an object without its fields, and their destructors print tracebacks. So the signal waits
    while the loop is made, is asyncio's own while `main` works, and ends the process afterwards.
    """
    import asyncio
    import signal
    import threading

    # Not for a thread, nor where somebody else answers, or a job's shell ignores the signal.
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    async def plain() -> T:
        return await main()

    async def interruptible() -> T:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            return await main()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    if not is_ours:
        return asyncio.run(plain())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return asyncio.run(interruptible())
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def show(session: Session, report: Report) -> int:
    text = render(report, session.output, color=session.color, width=terminal_width())
    click.echo(text, nl=False)
    if session.output not in ("table", "wide"):
        for note in report.notes:
            click.echo(f"twinlog: {note}", err=True)
    return _code(report)


def _code(report: Report) -> int:
    for line in report.missing:
        complain(line, UNHEALTHY)
    return UNHEALTHY if report.missing or not report.is_healthy else 0


def _watch(session: Session, action: Callable[[Admin], Awaitable[Report]]) -> int:
    """Until interrupted. A server that is away for a while is told and asked again."""
    import asyncio

    from twinlog.cli.watching import painter
    from twinlog.client.errors import ClientError

    assert session.watch_seconds is not None
    seconds = max(session.watch_seconds, WATCH_SECONDS_MIN)
    code: int | None = None

    async def rounds(admin: Admin) -> None:
        nonlocal code
        while True:
            try:
                report = await action(admin)
            except ClientError as error:
                if code is None:
                    raise  # Wrong from the start: nobody wants to watch that.
                explained = explain(error, session)
                report, code = Report(missing=[explained.line]), explained.code
            else:
                code = UNHEALTHY if report.missing or not report.is_healthy else 0
            paint(report)
            await asyncio.sleep(seconds)

    with painter(session.output, color=session.color) as paint:
        try:
            call(session, rounds)
        except KeyboardInterrupt:
            return code or 0
    raise AssertionError("unreachable")


# Errors


def explain(error: Exception, session: Session) -> CommandError:
    """An error of the client as one line with an exit code and what to do."""
    from twinlog.client import errors

    text = str(error)
    if isinstance(error, errors.NotANameServerError):
        return CommandError(text, UNREACHABLE, hint="give a name server, usually port 9876")
    if isinstance(error, errors.NameServerUnreachableError):
        if "in time" in text:
            hint = "something listens there and says nothing: is it a broker's HA port?"
            return CommandError(text, UNREACHABLE, hint=hint)
        return CommandError(text, UNREACHABLE, hint=_where_hint(session))
    if isinstance(error, errors.NoBrokerError):
        return CommandError(text, UNHEALTHY, hint="start a broker, or see: twinlog doctor")
    not_found = (
        errors.TopicNotFoundError, errors.BrokerTopicNotFoundError, errors.QueryNotFoundError,
        errors.GroupNotFoundError, errors.ConsumerNotOnlineError,
    )  # fmt: skip
    if isinstance(error, not_found):
        return CommandError(text, NOT_FOUND)
    if isinstance(error, errors.TransportError):
        return CommandError(text, UNREACHABLE, hint="see: twinlog cluster health")
    if isinstance(error, errors.UsageError):
        return CommandError(text, USAGE)
    return CommandError(text, FAILED)


def _where_hint(session: Session) -> str:
    if session.tls is not None:
        return f"the address came from {session.source}; does a name server with TLS run there?"
    if session.source == "default":
        return "start one with `twinlog up`, or name yours with -n HOST:PORT or NAMESRV_ADDR"
    return f"the address came from {session.source}; is a name server running there?"


def not_found(kind: str, name: str, known: Sequence[str], *, also: str = "") -> CommandError:
    """`no topic 'oders'; did you mean 'orders'?`"""
    hint = nearest(name, known) or f"see: twinlog {kind} list"
    return CommandError(f"no {kind} {name!r}", NOT_FOUND, hint=f"{hint}{also}")


def missing_of(found: Gathered[Any]) -> list[str]:
    """What did not answer, for `Report.missing`."""
    return [f"incomplete: {address}: {error}" for address, error in found.failures.items()]


async def slave_notes(admin: Admin) -> list[str]:
    """For answers that come from a slave because its master is lost."""
    lost = (await admin.cluster()).without_master()
    return [
        f"{name} has no master: this is what its slave {address} knows"
        for name, address in lost.items()
    ]


def confirm(question: str, is_sure: bool) -> None:
    """Ask on a terminal; elsewhere `--yes` is needed."""
    if is_sure:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError(f"{question.rstrip('?')}: this needs a confirmation", USAGE,
                           hint="add --yes")  # fmt: skip
    if not click.confirm(question, default=False):
        raise CommandError("nothing was changed", FAILED)


def color_of(no_color: bool) -> bool:
    return not no_color and uses_color()
