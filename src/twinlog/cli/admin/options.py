"""The options that every command about a cluster has; they become one `Session`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import click

from twinlog.cli.admin.session import Session, color_of, find_cluster, run
from twinlog.cli.admin.tls import take, tls_options, warn_of
from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.output import OUTPUTS, Report
from twinlog.cli.times import parse_duration

WATCH_DEFAULT = "2s"
Command = Callable[..., Any]
Action = Callable[..., Awaitable[Report]]
_WATCH = click.option("--watch", is_flag=False, flag_value=WATCH_DEFAULT, metavar="[TIME]",
                      help="Repeat the output at this interval (2s).")  # fmt: skip


def cluster_options(command: Command) -> Command:
    """Add -n, --context, credentials, --timeout, -o and --watch; they become one `session`."""
    return _with_options(command, prints_reports=True, repeats=True)


def once_options(command: Command) -> Command:
    """The same without --watch, for commands that change something or repeat in their own way."""
    return _with_options(command, prints_reports=True, repeats=False)


def cluster_report(action: Action) -> Command:
    """A command that is one report, with `cluster_options`: `action` gets an Admin."""
    return cluster_options(_reported(action))


def once_report(action: Action) -> Command:
    """The same with `once_options`."""
    return once_options(_reported(action))


def _reported(action: Action) -> Command:
    @functools.wraps(action)
    def command(session: Session, **values: Any) -> int:
        return run(session, lambda admin: action(admin, **values))

    return command


def connection_options(command: Command) -> Command:
    """The same without -o and --watch, for commands that print in their own way."""
    return _with_options(command, prints_reports=False, repeats=False)


def _with_options(command: Command, *, prints_reports: bool, repeats: bool) -> Command:
    @functools.wraps(command)
    def wrapped(**values: Any) -> Any:
        session = _session(values)
        return command(session=session, **values)

    options: list[Command] = [
        click.option("-n", "--namesrv", metavar="ADDR[;ADDR]",
                     help="Name servers. Also: NAMESRV_ADDR, a context, the cluster of `up`."),
        click.option("--context", "context_name", metavar="NAME",
                     help="A cluster by its name; see twinlog context. Also TWINLOG_CONTEXT."),
        click.option("--access-key", metavar="KEY", help="Account. Also TWINLOG_ACCESS_KEY."),
        click.option("--secret-key", metavar="KEY", help="Secret key. Also TWINLOG_SECRET_KEY."),
        tls_options,
        click.option("--timeout", metavar="TIME", default="5s", show_default=True,
                     help="How long to wait for one answer."),
    ]  # fmt: skip
    if prints_reports:
        options += [
            click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table",
                         help="Form of the output."),
            *([_WATCH] if repeats else []),
            click.option("--no-color", is_flag=True, help="Print without colours. Also NO_COLOR."),
        ]  # fmt: skip
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _session(values: dict[str, Any]) -> Session:
    """Take the shared values out of `values`."""
    namesrv = values.pop("namesrv")
    context = click.get_current_context(silent=True)
    if namesrv is None and context is not None and isinstance(context.obj, dict):
        namesrv = context.obj.get("namesrv")
    session = find_cluster(namesrv, values.pop("context_name"))
    access_key, secret_key = values.pop("access_key"), values.pop("secret_key")
    if access_key or secret_key:
        session = replace(session, access_key=access_key, secret_key=secret_key)
    if bool(session.access_key) != bool(session.secret_key):
        raise CommandError("--access-key and --secret-key go together", USAGE)
    tls = take(values, session.tls)
    warn_of(tls)
    watch = values.pop("watch", None)
    timeout_ms = round(parse_duration(values.pop("timeout")) * 1000)
    if timeout_ms <= 0:
        raise CommandError("--timeout must be above 0", USAGE)
    return replace(
        session,
        tls=tls,
        timeout_ms=timeout_ms,
        output=values.pop("output", "table"),
        watch_seconds=None if watch is None else parse_duration(watch),
        color=color_of(values.pop("no_color", False)),
    )
