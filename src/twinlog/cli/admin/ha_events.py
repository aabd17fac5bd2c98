"""`twinlog ha events`: what changed in groups with a controller, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.events import show_events
from twinlog.cli.admin.ha_group import controller_option
from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session

if TYPE_CHECKING:
    from twinlog.admin.client import Admin


@click.command("events", epilog="Example: twinlog ha events broker-a --since 1h --follow")
@click.argument("name", metavar="[BROKER]", required=False)
@click.option("--since", metavar="TIME",
              help="Only events after this time: 1h (ago), 2026-11-17 12:00:00, ...")  # fmt: skip
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000),
              help="Show only the last N events.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until interrupted.")
@controller_option
@once_options
def events(
    session: Session,
    name: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    controller: str | None,
) -> int:
    """Show elections, admissions, removals and switches: when and why."""

    said: set[str] = set()

    async def read(admin: Admin, since_ms: int | None, count: int | None) -> list[dict[str, Any]]:
        from twinlog.admin.failover import Controllers, about_ha
        from twinlog.client.errors import ClientError, RequestCodeNotSupportedError, UsageError

        try:
            controllers = await Controllers.find(admin, controller)
            found = await controllers.events(name, since_ms=since_ms)
        except (UsageError, RequestCodeNotSupportedError):
            raise
        except ClientError as error:
            found = await _without_leader(admin, controller, name, since_ms, error)
            if str(error) not in said:  # Once, not in each round of --follow.
                click.echo(f"twinlog: {error}; this is what the others have kept", err=True)
                said.add(str(error))
        return about_ha(found, count)

    return show_events(session, read, name, since, limit, follow)


async def _without_leader(
    admin: Admin, controller: str | None, name: str | None, since_ms: int | None, error: Exception
) -> list[dict[str, Any]]:
    """While no controller leads, which is when one looks: every server has its own journal."""
    from twinlog.admin.events import cluster_events

    found = await cluster_events(admin, name, since_ms=since_ms, controller=controller)
    if not found.events and found.failures:
        raise error
    return found.events
