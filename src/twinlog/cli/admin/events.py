"""`twinlog events`: what changed in a cluster and why, from the journals of all its servers."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_options
from twinlog.cli.admin.session import Session, call, show
from twinlog.cli.output import Column, Report, Table, show_time
from twinlog.cli.times import parse_time

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
_SEEN_MAX = 5_000


@click.command("events", epilog="Example: twinlog events --since 1h --follow",
               short_help="Show what changed in the cluster, and why.")  # fmt: skip
@click.argument("name", metavar="[BROKER]", required=False)
@click.option(
    "--since",
    metavar="TIME",
    help="Only events after this time: 1h (ago), 2026-11-17 12:00:00, ...",
)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000),
              help="Show only the last N events.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on printing until interrupted.")
@click.option("--ha", "is_ha", is_flag=True, help="Only events of replication and elections.")
@cluster_options
def events(
    session: Session, name: str | None, since: str | None, limit: int, follow: bool, is_ha: bool
) -> int:
    """Show what changed: roles, replicas, lag, disks, refusals, errors, recoveries, settings.

    Merged by time from the journals of all servers that answer. A broker that is down keeps its
    journal in store/twinlog/events and tells it when it is back.
    """

    async def read(admin: Admin, since_ms: int | None, count: int | None) -> list[Event]:
        from twinlog.admin.events import cluster_events
        from twinlog.admin.failover import about_ha

        wanted = None if is_ha else count
        found = await cluster_events(admin, name, since_ms=since_ms, limit=wanted)
        for address, error in found.failures.items():
            if count is not None:  # Once, not in each round of --follow.
                click.echo(f"twinlog: no events from {address}: {error}", err=True)
        return about_ha(found.events, count) if is_ha else found.events

    return show_events(session, read, since, limit, follow)


def show_events(session: Session, read: Read, since: str | None, limit: int, follow: bool) -> int:
    """Print what was read; with `follow` also what comes."""
    since_ms = None if since is None else parse_time(since)

    def look(from_ms: int | None, count: int | None) -> list[Event]:
        return call(session, lambda admin: read(admin, from_ms, count))

    found = look(since_ms, limit)
    code = show(session, Report([Table(_COLUMNS, [_row(e) for e in found], empty="no events")]))
    seen = deque(found, maxlen=_SEEN_MAX)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        last = max((_row(event)["time"] for event in seen), default=since_ms)
        for event in (event for event in look(last, None) if event not in seen):
            click.echo(_line(session, event))
            seen.append(event)
    return code


def _row(event: Event) -> Event:
    from twinlog.runtime.event_journal import event_time

    details = " ".join(f"{key}={value}" for key, value in event.items() if key not in _NAMED)
    return {**event, "time": event_time(event), "details": details}


def _line(session: Session, event: Event) -> str:
    if session.output == "json":
        return json.dumps(event, ensure_ascii=False)
    row = _row(event)
    return f"{show_time(row['time'])}  {row.get('group') or '-'}  {row['event']}  {row['details']}"
