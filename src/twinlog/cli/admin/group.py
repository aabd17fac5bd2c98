"""`twinlog group ...`: consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_options, cluster_report, once_options, once_report
from twinlog.cli.admin.session import (
    Session,
    call,
    confirm,
    missing_of,
    not_found,
    run,
    show,
    slave_notes,
)
from twinlog.cli.exit_codes import FAILED, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, show_time
from twinlog.message.names import RETRY_PREFIX

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.groups import GroupMembers, GroupProgress
    from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig

_TABLE = {
    "reset": (
        "twinlog.cli.admin.group_reset",
        "reset",
        "Move offsets; first a dry run.",
    ),
    "skip": (
        "twinlog.cli.admin.group_reset",
        "skip",
        "Move to the end and skip all waiting messages.",
    ),
    "clone": ("twinlog.cli.admin.group_reset", "clone", "Give a group the offsets of another."),
}


@click.group(
    cls=LazyGroup, table=_TABLE, short_help="Show and change consumer groups; reset their offsets."
)
def group() -> None:
    """Consumer groups: settings, members, progress and offset resets."""


async def all_groups(
    admin: Admin,
) -> tuple[dict[str, dict[str, SubscriptionGroupConfig]], list[str]]:
    """Settings by group and broker address, and who did not answer."""
    from twinlog.admin import groups

    found = await groups.list_groups(admin)
    found.any_or_raise()
    table: dict[str, dict[str, SubscriptionGroupConfig]] = {}
    for address, configs in found.values.items():
        for name, config in configs.items():
            table.setdefault(name, {})[address] = config
    return table, missing_of(found)


async def check_group_exists(admin: Admin, name: str) -> dict[str, SubscriptionGroupConfig]:
    """Its settings by broker; raises with the nearest name."""
    from twinlog.admin import groups

    table, _ = await all_groups(admin)
    if name not in table:
        raise not_found("group", name, [g for g in table if groups.is_user_group(g)])
    return table[name]


# Looking


@group.command("list", epilog="Example: twinlog group list -o json")
@click.option("--all", "is_all", is_flag=True, help="Include RocketMQ's own groups.")
@cluster_options
def list_command(session: Session, is_all: bool) -> int:
    """List groups with their members and lag."""
    return run(session, lambda admin: _list(admin, is_all, session.output))


async def _list(admin: Admin, is_all: bool, output: str) -> Report:
    from twinlog.admin import groups

    table, missing = await all_groups(admin)
    names = sorted(name for name in table if is_all or groups.is_user_group(name))
    if output == "name":
        return Report([Table([Column("group")], [{"group": name} for name in names])])
    members = await groups.members_of_many(admin, names)
    progress = await groups.progress_of_many(admin, names)
    rows = []
    for name in names:
        known = progress[name]
        config = next(iter(table[name].values()))
        online = members.get(name)
        rows.append(
            {
                "group": name,
                "members": len(online.members) if online else 0,
                "lag": None if isinstance(known, Exception) else known.lag,
                "tps": None if isinstance(known, Exception) else known.tps,
                "model": online.message_model if online else None,
                "topics": None if isinstance(known, Exception) else _topics(known),
                "enabled": config.consume_enable,
                "retry_max": config.retry_max_times,
            }
        )
    columns = [
        Column("group"), Column("members", is_right=True), Column("lag", is_right=True),
        Column("tps", is_right=True), Column("topics"), Column("model", is_wide=True),
        Column("enabled", is_wide=True), Column("retry_max", is_right=True, is_wide=True),
    ]  # fmt: skip
    notes = await slave_notes(admin)
    return Report([Table(columns, rows, empty="no groups")], missing=missing, notes=notes)


def _topics(progress: GroupProgress) -> list[str]:
    names = {entry.queue.topic for entry in progress.queues}
    return sorted(name for name in names if not name.startswith(RETRY_PREFIX))


@group.command("show", epilog="Example: twinlog group show billing")
@click.argument("name")
@cluster_report
async def show_command(admin: Admin, name: str) -> Report:
    """Show the settings, members, subscriptions and lag of a group."""
    from twinlog.admin import groups

    configs = await check_group_exists(admin, name)
    config = next(iter(configs.values()))
    members = (await groups.members_of_many(admin, [name])).get(name)
    progress = (await groups.progress_of_many(admin, [name]))[name]
    fields = {
        "group": name,
        "lag": None if isinstance(progress, Exception) else progress.lag,
        "members": len(members.members) if members else 0,
        "model": members.message_model if members else None,
        "consume_type": members.consume_type if members else None,
        "consume_from": members.consume_from if members else None,
        "enabled": config.consume_enable,
        "broadcast_enabled": config.consume_broadcast_enable,
        "retry_max": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
        "brokers": sorted(configs),
    }
    subscriptions: list[dict[str, Any]] = [
        {"topic": entry.topic, "expression": entry.sub_string, "type": entry.expression_type}
        for entry in (members.subscriptions if members else ())
    ]
    columns = [Column("topic"), Column("expression"), Column("type")]
    tables = [_member_table(members), Table(columns, subscriptions, "subscriptions")]
    return Report(tables, fields)


def _member_table(members: GroupMembers | None) -> Table:
    from twinlog.remoting.codes import version_description

    rows: list[dict[str, Any]] = [
        {
            "client_id": member.client_id,
            "address": member.address,
            "language": member.language,
            "version": version_description(member.version),
        }
        for member in (members.members if members else ())
    ]
    columns = [Column("client_id"), Column("address"), Column("language"), Column("version")]
    return Table(columns, rows, "clients", empty="nobody is connected")


@group.command(epilog="Example: twinlog group clients billing")
@click.argument("name")
@cluster_report
async def clients(admin: Admin, name: str) -> Report:
    """List the connected members of a group."""
    from twinlog.admin import groups

    await check_group_exists(admin, name)
    members = (await groups.members_of_many(admin, [name])).get(name)
    return Report([_member_table(members)])


_PROGRESS_COLUMNS = [
    Column("topic"),
    Column("broker"),
    Column("queue", is_right=True),
    Column("broker_offset", "END", is_right=True),
    Column("consumer_offset", "COMMITTED", is_right=True),
    Column("lag", is_right=True),
    Column("last_ms", "LAST CONSUMED", show_time),
    Column("client_id", is_wide=True),
]


@group.command(epilog="Example: twinlog group progress billing --watch")
@click.argument("name")
@click.option("--topic", help="Only this topic.")
@cluster_options
def progress(session: Session, name: str, topic: str | None) -> int:
    """Show how far a group is in each queue, and its lag."""
    return run(session, lambda admin: _progress(admin, name, topic, session.output))


async def _progress(admin: Admin, name: str, topic: str | None, output: str) -> Report:
    from twinlog.admin import groups

    await check_group_exists(admin, name)
    known = await groups.group_progress(admin, name, topic=topic)
    owners = await groups.queue_owners(admin, name) if output not in ("table", "name") else {}
    rows = [
        {
            "topic": entry.queue.topic,
            "broker": entry.queue.broker_name,
            "queue": entry.queue.queue_id,
            "broker_offset": entry.broker_offset,
            "consumer_offset": entry.consumer_offset,
            "lag": entry.lag,
            "last_ms": entry.last_ms,
            "client_id": owners.get(entry.queue),
        }
        for entry in known.queues
    ]
    missing = [f"incomplete: {address}: {error}" for address, error in known.failures.items()]
    table = Table(_PROGRESS_COLUMNS, rows, "queues", empty="nothing consumed yet")
    fields = {"group": name, "lag": known.lag, "tps": known.tps}
    return Report([table], fields, missing=missing, notes=await slave_notes(admin))


# Changing


def _settings(command: Any) -> Any:
    options = [
        click.option("--retry-max", "retry_max_times", type=click.IntRange(min=0),
                     help="Retries before a message becomes a dead letter."),
        click.option("--retry-queues", "retry_queue_nums", type=click.IntRange(min=0),
                     help="Queues of the group's retry topic."),
        click.option("--consume/--no-consume", "consume_enable", default=None,
                     help="Whether members of the group get messages."),
        click.option("--broadcast/--no-broadcast", "consume_broadcast_enable", default=None,
                     help="Whether its members may consume as broadcast."),
        click.option("--from-min/--no-from-min", "consume_from_min_enable", default=None,
                     help="consumeFromMinEnable; kept for Apache's tools."),
        click.option("--slow-broker-id", "which_broker_when_consume_slowly", type=int,
                     help="Id of the slave for readers that are behind."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@group.command(epilog="Example: twinlog group create billing --retry-max 3")
@click.argument("name")
@_settings
@click.option("--cluster", help="Only on the brokers of this cluster.")
@once_report
async def create(admin: Admin, name: str, cluster: str | None, **values: Any) -> Report:
    """Create a group on every master."""
    from twinlog.admin import groups
    from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig

    table, _ = await all_groups(admin)
    if name in table:
        hint = f"change it with: twinlog group update {name}"
        raise CommandError(f"group {name!r} exists", FAILED, hint=hint)
    config = SubscriptionGroupConfig(name, **{k: v for k, v in values.items() if v is not None})
    found = await groups.create_group(admin, config, cluster=cluster)
    found.any_or_raise()
    rows = [_config_row(address, config) for address in found.values]
    return Report([Table(_CONFIG_COLUMNS, rows)], missing=missing_of(found))


_CONFIG_COLUMNS = [
    Column("group"), Column("broker_address", "BROKER"), Column("enabled"),
    Column("retry_max", is_right=True), Column("retry_queues", is_right=True),
]  # fmt: skip


def _config_row(address: str, config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "group": config.group_name,
        "broker_address": address,
        "enabled": config.consume_enable,
        "retry_max": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
    }


@group.command(epilog="Example: twinlog group update billing --no-consume")
@click.argument("name")
@_settings
@once_options
def update(session: Session, name: str, **values: Any) -> int:
    """Change the settings that are given; each broker keeps its other ones."""
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        raise CommandError("nothing to change", USAGE, hint="see: twinlog group update --help")

    async def action(admin: Admin) -> Report:
        from twinlog.admin import groups

        configs = await check_group_exists(admin, name)
        found = await groups.change_group(admin, name, given, configs)
        found.any_or_raise()
        rows = [_config_row(address, config) for address, config in found.values.items()]
        return Report([Table(_CONFIG_COLUMNS, rows)], missing=missing_of(found))

    return show(session, call(session, action))


@group.command(epilog="Example: twinlog group delete billing --yes")
@click.argument("name")
@click.option(
    "--keep-offsets", is_flag=True, help="Keep the offsets, so that the group can continue later."
)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def delete(session: Session, name: str, keep_offsets: bool, is_sure: bool) -> int:
    """Delete a group with its retry and dead-letter topics."""
    call(session, lambda admin: check_group_exists(admin, name))
    confirm(f"delete group {name} and its retry and dead-letter topics?", is_sure)

    async def action(admin: Admin) -> Report:
        from twinlog.admin import groups

        found = await groups.delete_group(admin, name, remove_offsets=not keep_offsets)
        found.any_or_raise()
        rows: list[dict[str, Any]] = [{"group": name, "deleted_on": sorted(found.values)}]
        columns = [Column("group"), Column("deleted_on")]
        return Report([Table(columns, rows)], missing=missing_of(found))

    return show(session, call(session, action))


@group.command(epilog="Example: twinlog group check billing")
@click.argument("name")
@cluster_report
async def check(admin: Admin, name: str) -> Report:
    """Check that all members have the same subscriptions.

    If they differ, members silently miss messages.
    """
    from twinlog.admin import groups

    await check_group_exists(admin, name)
    found = await groups.member_subscriptions(admin, name)
    texts = {
        client: "; ".join(sorted(f"{s.topic} {s.sub_string}" for s in entries))
        for client, entries in found.values.items()
    }
    is_same = len(set(texts.values())) <= 1
    sentence = (
        f"no member of {name} is connected" if not texts and not found.failures
        else f"no member of {name} tells what it subscribes to" if not texts
        else f"all {len(texts)} members of {name} subscribe to the same" if is_same
        else f"members of {name} subscribe to different things: some messages reach no member"
    )  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"client_id": client, "subscriptions": text} for client, text in texts.items()
    ]
    table = Table([Column("client_id"), Column("subscriptions")], rows, "members")
    return Report([table], sentence=sentence, is_healthy=is_same, missing=missing_of(found))
