"""`twinlog dlq ...`: messages whose handling failed too often, by group."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.consume import message_row
from twinlog.cli.admin.message import LIST_COLUMNS
from twinlog.cli.admin.options import cluster_report, connection_options, once_options
from twinlog.cli.admin.session import Session, call, confirm, not_found, show
from twinlog.cli.exit_codes import NOT_FOUND, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, show_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.client.message import ReceivedMessage

SHOWN_MAX = 100


@click.group(cls=LazyGroup, short_help="Look at and resend dead letters.")
def dlq() -> None:
    """Show and resend dead letters: messages that a group failed to handle too often."""


@dlq.command("list", epilog="Example: twinlog dlq list")
@cluster_report
async def list_command(admin: Admin) -> Report:
    """List the groups that have dead letters."""
    from twinlog.admin import dead_letters

    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for entry in await dead_letters.dead_letter_groups(admin):
        missing += [f"incomplete: {a}: {error}" for a, error in entry.failures.items()]
        rows.append({"group": entry.group, "messages": entry.count, "last_ms": entry.last_ms})
    columns = [
        Column("group"), Column("messages", is_right=True),
        Column("last_ms", "LAST", show_time),
    ]  # fmt: skip
    return Report([Table(columns, rows, empty="no dead letters")], missing=missing)


async def letters(admin: Admin, group: str) -> AsyncIterator[ReceivedMessage]:
    """All dead letters of a group; a name without any is answered with the nearest."""
    from twinlog.admin import dead_letters

    known = await dead_letters.groups_with_letters(admin)
    if group not in known:
        hint = not_found("dlq", group, known).hint if known else "no group has dead letters"
        raise CommandError(f"group {group!r} has no dead letters", NOT_FOUND, hint=hint)
    async for letter in dead_letters.letters(admin, group):
        yield letter


@dlq.command("show", epilog="Example: twinlog dlq show billing -o json")
@click.argument("group")
@click.option("--limit", default=SHOWN_MAX, show_default=True, type=click.IntRange(min=1),
              help="Show at most this many dead letters.")  # fmt: skip
@cluster_report
async def show_command(admin: Admin, group: str, limit: int) -> Report:
    """List the dead letters of a group."""
    rows: list[dict[str, Any]] = []
    notes = []
    async for letter in letters(admin, group):
        if len(rows) == limit:
            notes.append(f"The first {limit} are shown: raise --limit, or use `dlq export`.")
            break
        rows.append(message_row(letter))
    columns = [Column("topic"), *LIST_COLUMNS]
    return Report([Table(columns, rows, empty="empty", name_key="message_id")], notes=notes)


@dlq.command(epilog="Example: twinlog dlq export billing > letters.jsonl")
@click.argument("group")
@connection_options
def export(session: Session, group: str) -> int:
    """Print every dead letter as one JSON object per line."""

    async def action(admin: Admin) -> None:
        async for letter in letters(admin, group):
            click.echo(json.dumps(message_row(letter), ensure_ascii=False))

    call(session, action)
    return 0


@dlq.command(epilog="Example: twinlog dlq resend billing --yes")
@click.argument("group")
@click.option("--id", "ids", multiple=True, help="Only these messages; may be given several times.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def resend(
    session: Session, group: str, ids: tuple[str, ...], limit: int | None, is_sure: bool
) -> int:
    """Give the group its dead letters again, with a fresh count of retries.

    They go to the group's retry topic: other groups of the original topic do not see them. The dead
    letters stay where they are.
    """
    confirm(f"have group {group} handle its dead letters again?", is_sure)
    return show(session, call(session, lambda admin: _resend(admin, group, ids, limit)))


async def _resend(admin: Admin, group: str, ids: tuple[str, ...], limit: int | None) -> Report:
    from twinlog.admin import messages

    rows: list[dict[str, Any]] = []
    async for letter in letters(admin, group):
        if ids and letter.message_id not in ids and letter.offset_message_id not in ids:
            continue
        if limit is not None and len(rows) == limit:
            break
        receipt = await messages.send_to_retry(admin, group, letter)
        rows.append(
            {
                "message_id": letter.message_id, "topic": letter.topic,
                "status": receipt.status.name, "broker": receipt.queue.broker_name,
            }
        )  # fmt: skip
    if ids and not rows:
        raise CommandError(f"none of these ids is in the dead letters of {group}", NOT_FOUND)
    columns = [Column("message_id"), Column("topic"), Column("status"), Column("broker")]
    is_ok = all(row["status"] == "SEND_OK" for row in rows)
    return Report([Table(columns, rows, empty="nothing to send")], is_healthy=is_ok)
