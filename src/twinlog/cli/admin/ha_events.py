"""`twinlog ha events`: what changed in groups with a controller, and why."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.ha_group import controller_option
from twinlog.cli.admin.options import cluster_options
from twinlog.cli.admin.session import Session, call, show
from twinlog.cli.output import Column, Report, Table, show_time
from twinlog.cli.times import parse_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin

_COLUMNS = [
    Column("time", "TIME", show_time),
    Column("group"),
    Column("event"),
    Column("details"),
    Column("from", is_wide=True),
]
_NAMED = {"time", "group", "event", "from"}
FOLLOW_SECONDS = 0.5


@click.command("events", epilog="Example: twinlog ha events broker-a --since 1h --follow")
@click.argument("name", metavar="[BROKER]", required=False)
@click.option("--since", metavar="TIME", help="Only later ones: 1h, 2026-11-17 12:00:00, ...")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000),
              help="The last so many.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Go on printing until interrupted.")
@controller_option
@cluster_options
def events(
    session: Session,
    name: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    controller: str | None,
) -> int:
    """Elections, admissions, removals, switches: when and why, from controllers and brokers."""
    return show_events(session, name, since, limit, follow, controller)


def show_events(
    session: Session,
    name: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    controller: str | None,
) -> int:
    since_ms = None if since is None else parse_time(since)

    def read(from_ms: int | None, count: int | None) -> list[dict[str, Any]]:
        return call(session, lambda admin: read_events(admin, controller, name, from_ms, count))

    found = read(since_ms, limit)
    code = show(session, Report([Table(_COLUMNS, [_row(e) for e in found], empty="no events")]))
    while follow:
        time.sleep(FOLLOW_SECONDS)
        last = max((row["time"] for row in map(_row, found)), default=since_ms)
        for event in (event for event in read(last, None) if event not in found):
            click.echo(_line(session, event))
            found.append(event)
    return code


async def read_events(
    admin: Admin, controller: str | None, name: str | None, since_ms: int | None, limit: int | None
) -> list[dict[str, Any]]:
    from twinlog.admin.failover import Controllers

    controllers = await Controllers.find(admin, controller)
    return await controllers.events(name, since_ms=since_ms, limit=limit)


def _row(event: dict[str, Any]) -> dict[str, Any]:
    from twinlog.admin.failover import event_time

    details = " ".join(f"{key}={value}" for key, value in event.items() if key not in _NAMED)
    return {**event, "time": event_time(event), "details": details}


def _line(session: Session, event: dict[str, Any]) -> str:
    if session.output == "json":
        return json.dumps(event, ensure_ascii=False)
    row = _row(event)
    return f"{show_time(row['time'])}  {row.get('group') or '-'}  {row['event']}  {row['details']}"
