"""`twinlog group reset|skip|clone`: moving the offsets of a group.

Nothing is changed without `--execute`; a group whose members are online is moved only with
`--live`, because its members do it and must be reachable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.group import check_group_exists
from twinlog.cli.admin.options import once_options, once_report
from twinlog.cli.admin.session import Session, call, show
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import FAILED, USAGE, CommandError
from twinlog.cli.output import Column, Report, Table
from twinlog.cli.times import parse_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.groups import GroupMembers, OffsetReset

_COLUMNS = [
    Column("topic"),
    Column("broker"),
    Column("queue", is_right=True),
    Column("before", is_right=True),
    Column("after", is_right=True),
    Column("change", is_right=True),
]


def _execution(command: Any) -> Any:
    command = click.option("--live", is_flag=True, help="Allow it while members are connected.")(
        command
    )
    return click.option(
        "--execute", is_flag=True, help="Do it; without this option it is only shown."
    )(command)


@click.command(epilog="Example: twinlog group reset billing --topic orders --to 2h --execute")
@click.argument("name")
@click.option("--topic", required=True, help="The topic whose offsets are moved.")
@click.option("--to", "target", metavar="WHERE", help="start, end, 2h (ago), a date, milliseconds.")
@click.option("--offset", type=click.IntRange(min=0), help="The same offset in every queue.")
@click.option("--queue", metavar="BROKER/QUEUE", help="Only one queue.")
@_execution
@once_options
def reset(
    session: Session,
    name: str,
    topic: str,
    target: str | None,
    offset: int | None,
    queue: str | None,
    execute: bool,
    live: bool,
) -> int:
    """Move a group to another position in a topic. It is a dry run unless --execute is given."""
    if (target is None) == (offset is None):
        raise CommandError("no target: give --to or --offset", USAGE, hint="e.g. --to 2h")
    wish = _Wish(name, topic, _target(target), offset, queue, execute, live)
    return show(session, call(session, lambda admin: _reset(admin, wish)))


@click.command(epilog="Example: twinlog group skip billing --topic orders --execute")
@click.argument("name")
@click.option("--topic", required=True, help="The topic whose offsets are moved.")
@_execution
@once_options
def skip(session: Session, name: str, topic: str, execute: bool, live: bool) -> int:
    """Move a group to the end of a topic, past the messages that it has not consumed."""
    wish = _Wish(name, topic, ("end", None), None, None, execute, live)
    return show(session, call(session, lambda admin: _reset(admin, wish)))


class _Wish:
    """What a reset should do."""

    def __init__(
        self,
        group: str,
        topic: str,
        target: tuple[str, int | None],
        offset: int | None,
        queue: str | None,
        executes: bool,
        is_live: bool,
    ) -> None:
        self.group = group
        self.topic = topic
        self.place, self.time_ms = target
        self.offset = offset
        self.queue = queue
        self.executes = executes
        self.is_live = is_live


def _target(text: str | None) -> tuple[str, int | None]:
    if text is None:
        return "offset", None
    if text in ("start", "earliest", "beginning"):
        return "start", 0
    if text in ("end", "latest"):
        return "end", None
    return "time", parse_time(text)


async def _reset(admin: Admin, wish: _Wish) -> Report:
    from twinlog.admin import groups

    await check_group_exists(admin, wish.group)
    await check_topic_exists(admin, wish.topic)
    members = (await groups.members_of_many(admin, [wish.group])).get(wish.group)
    plan = _restrict(await _plan(admin, wish), wish)
    if wish.executes:
        if members is not None and members.members:
            await _move_live(admin, wish, members)
        else:
            for entry in plan:
                await groups.set_offset(admin, wish.group, entry.queue, entry.after)
    notes = [] if wish.executes else ["Dry run: nothing was changed. Add --execute to do it."]
    if members is not None and members.members and not wish.executes:
        notes.append(f"{len(members.members)} members are online: --live is needed as well.")
    return Report([Table(_COLUMNS, [_row(entry) for entry in plan])], notes=notes)


def _row(entry: OffsetReset) -> dict[str, Any]:
    return {
        "topic": entry.queue.topic,
        "broker": entry.queue.broker_name,
        "queue": entry.queue.queue_id,
        "before": entry.before,
        "after": entry.after,
        "change": None if entry.before is None else entry.after - entry.before,
    }


async def _plan(admin: Admin, wish: _Wish) -> list[OffsetReset]:
    from twinlog.admin import groups
    from twinlog.client.net import calls

    if wish.offset is None:
        return await groups.plan_reset(admin, wish.group, wish.topic, timestamp_ms=wish.time_ms)
    plan = []
    for entry in await groups.plan_reset(admin, wish.group, wish.topic, timestamp_ms=None):
        low = await calls.min_offset(admin.instance, entry.queue)
        after = min(max(low, wish.offset), entry.after)
        plan.append(groups.OffsetReset(entry.queue, entry.before, after))
    return plan


def _restrict(plan: list[OffsetReset], wish: _Wish) -> list[OffsetReset]:
    if wish.queue is None:
        return plan
    broker, _, number = wish.queue.rpartition("/")
    chosen = [
        entry
        for entry in plan
        if str(entry.queue.queue_id) == number and broker in ("", entry.queue.broker_name)
    ]
    if not chosen:
        raise CommandError(f"no queue {wish.queue!r} in {wish.topic}", 3, hint="BROKER/QUEUE")
    return chosen


async def _move_live(admin: Admin, wish: _Wish, members: GroupMembers) -> None:
    from twinlog.admin import groups
    from twinlog.client.errors import BrokerSystemError

    clients = [member.client_id for member in members.members]
    if not wish.is_live:
        shown = ", ".join(clients[:3]) + (", ..." if len(clients) > 3 else "")
        raise CommandError(
            f"group {wish.group!r} is live: {len(clients)} members are connected ({shown})",
            FAILED,
            hint="stop them first, or add --live: the broker then tells them to move",
        )
    if members.consume_type == "CONSUME_ACTIVELY":
        raise CommandError(
            f"the members of {wish.group!r} pull for themselves and cannot be told to move",
            FAILED,
            hint="stop them, then reset without --live",
        )
    if wish.offset is not None or wish.queue is not None:
        raise CommandError(
            "a live group can be moved to a time, the start or the end only, in all its queues",
            USAGE,
            hint="stop its members to use --offset or --queue",
        )
    try:
        await groups.reset_offsets(admin, wish.group, wish.topic, timestamp_ms=wish.time_ms)
    except BrokerSystemError as error:
        if "not exist" not in error.remark:
            raise
        raise CommandError(
            f"the broker has no offset of {wish.group!r} in {wish.topic!r} yet",
            FAILED,
            hint="its members commit within 5 s of consuming: try again then",
        ) from error


@click.command(epilog="Example: twinlog group clone billing billing-new --topic orders --execute")
@click.argument("source")
@click.argument("target")
@click.option("--topic", help="Only this topic.")
@click.option("--execute", is_flag=True, help="Do it; without this option it is only shown.")
@once_report
async def clone(admin: Admin, source: str, target: str, topic: str | None, execute: bool) -> Report:
    """Give the group TARGET the offsets of SOURCE. It is a dry run unless --execute is given."""
    from twinlog.admin import groups

    await check_group_exists(admin, source)
    if execute:
        copied = await groups.clone_offsets(admin, source, target, topic=topic)
    else:
        copied = list((await groups.group_progress(admin, source, topic=topic)).queues)
    rows = [
        {
            "topic": entry.queue.topic, "broker": entry.queue.broker_name,
            "queue": entry.queue.queue_id, "offset": entry.consumer_offset,
        }
        for entry in copied
    ]  # fmt: skip
    columns = [
        Column("topic"), Column("broker"), Column("queue", is_right=True),
        Column("offset", is_right=True),
    ]  # fmt: skip
    notes = [] if execute else ["Dry run: nothing was changed. Add --execute to do it."]
    return Report([Table(columns, rows, empty=f"{source} has no offsets")], notes=notes)
