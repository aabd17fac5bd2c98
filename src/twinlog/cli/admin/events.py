"""`twinlog events`: what changed in a cluster and why, from the journals of all its servers."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, call, not_found, show
from twinlog.cli.exit_codes import CommandError
from twinlog.cli.output import Column, Report, Table, show_time
from twinlog.cli.times import now_ms, parse_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin

Event = dict[str, Any]
Read = Callable[["Admin", int | None, int | None], Awaitable[list[Event]]]
"""(admin, since when, how many at most) -> events, oldest first."""

_COLUMNS = [
    Column("time", "TIME", show_time),
    Column("group"),
    Column("event"),
    Column("details"),
    Column("from", is_wide=True),
]
_NAMED = {"time", "group", "event", "from"}
FOLLOW_SECONDS = 0.5
FOLLOW_BACK_MS = 600_000  # So far a server's clock may be behind ours.
_SEEN_MAX = 50_000  # What servers keep in memory: a thousand each.


@click.command("events", epilog="Example: twinlog events --since 1h --follow",
               short_help="Show what changed in the cluster, and why.")  # fmt: skip
@click.argument("name", metavar="[BROKER]", required=False)
@click.option("--since", metavar="TIME",
              help="Only events after this time: 1h (ago), 2026-11-17 12:00:00, ...")  # fmt: skip
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000),
              help="Show only the last N events.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until interrupted.")
@click.option("--ha", "is_ha", is_flag=True, help="Only events of replication and elections.")
@once_options
def events(
    session: Session, name: str | None, since: str | None, limit: int, follow: bool, is_ha: bool
) -> int:
    """Show what changed: roles, replicas, lag, disks, refusals, errors, recoveries, settings.

    Merges the journals of all servers that answer, by time. A broker that is down keeps its
    journal in store/twinlog/events and shows it when it is back.
    """

    silent: set[str] = set()

    async def read(admin: Admin, since_ms: int | None, count: int | None) -> list[Event]:
        from twinlog.admin.events import cluster_events
        from twinlog.admin.failover import about_ha

        wanted = None if is_ha else count
        found = await cluster_events(admin, name, since_ms=since_ms, limit=wanted)
        for address, error in found.failures.items():
            if address not in silent:  # Once, not in each round of --follow.
                click.echo(f"twinlog: no events from {address}: {error}", err=True)
        silent.clear()
        silent.update(found.failures)
        return about_ha(found.events, count) if is_ha else found.events

    return show_events(session, read, name, since, limit, follow)


def show_events(
    session: Session, read: Read, name: str | None, since: str | None, limit: int, follow: bool
) -> int:
    """Print what was read; with `follow` also what comes."""
    since_ms = None if since is None else parse_time(since)

    async def checked(admin: Admin, from_ms: int | None, count: int | None) -> list[Event]:
        found = await read(admin, from_ms, count)
        if name is not None and from_ms is None and all(e.get("group") != name for e in found):
            known = list((await admin.cluster()).brokers)
            if name not in known:  # Servers without a group, as controllers, tell in any case.
                raise not_found("broker", name, known)
        return found

    def look(from_ms: int | None, count: int | None) -> list[Event]:
        return call(session, lambda admin: checked(admin, from_ms, count))

    if follow:
        _follow(session, look, since_ms, limit)
    found = look(since_ms, limit)
    return show(session, Report([Table(_COLUMNS, [_row(e) for e in found], empty="no events")]))


def _follow(
    session: Session,
    look: Callable[[int | None, int | None], list[Event]],
    since_ms: int | None,
    limit: int,
) -> NoReturn:
    """What is new is what was not there before, not what has a later time: a server whose clock
    was ahead for a while has events of the future."""
    from twinlog.runtime.event_journal import select

    past = look(None, None)
    for event in select(past, None, since_ms, limit):
        click.echo(_line(session, event))
    seen = dict.fromkeys(map(_key, past))
    said = ""
    while True:
        time.sleep(FOLLOW_SECONDS)
        try:
            found = look(now_ms() - FOLLOW_BACK_MS, None)
        except CommandError as error:
            if error.text != said:  # Once, not in each round.
                click.echo(f"twinlog: {error.text}; it is asked again", err=True)
            said = error.text
            continue
        said = ""
        for event in (event for event in found if _key(event) not in seen):
            click.echo(_line(session, event))
            seen[_key(event)] = None
        while len(seen) > _SEEN_MAX:
            del seen[next(iter(seen))]


def _key(event: Event) -> str:
    return json.dumps(event, sort_keys=True)


def _row(event: Event) -> Event:
    from twinlog.runtime.event_journal import event_time

    details = " ".join(f"{key}={value}" for key, value in event.items() if key not in _NAMED)
    return {**event, "time": event_time(event), "details": details}


def _line(session: Session, event: Event) -> str:
    if session.output == "json":
        return json.dumps(event, ensure_ascii=False)
    row = _row(event)
    return f"{show_time(row['time'])}  {row.get('group') or '-'}  {row['event']}  {row['details']}"
