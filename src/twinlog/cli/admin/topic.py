"""`twinlog topic ...`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.admin.names import is_user_topic, kind_of_topic, system_names
from twinlog.cli.admin.options import cluster_options, cluster_report, once_options
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

if TYPE_CHECKING:
    from twinlog.admin.client import Admin

PERMS = {"rw": 6, "r": 4, "w": 2, "none": 0, "6": 6, "4": 4, "2": 2, "0": 0}
PERM_NAMES = {6: "rw", 4: "r", 2: "w", 0: "none"}

_TABLE = {
    "produce": ("twinlog.cli.admin.produce", "produce", "Send lines, a file or arguments."),
    "consume": ("twinlog.cli.admin.consume", "consume", "Print messages, starting anywhere."),
    "tail": ("twinlog.cli.admin.consume", "tail", "Print the last messages, then new ones."),
}


@click.group(
    cls=LazyGroup,
    table=_TABLE,
    short_help="List, create and change topics; send and read messages.",
)
def topic() -> None:
    """List, create and change topics; send and read messages."""


def perm_name(perm: int) -> str:
    return PERM_NAMES.get(perm & 6, str(perm))


async def check_topic_exists(admin: Admin, name: str, *, also: str = "") -> None:
    """Raise with the nearest name when no broker has the topic."""
    from twinlog.admin import topics

    names = await topics.list_topics(admin)
    if name not in names:
        user = [known for known in names if is_user_topic(known)]
        raise not_found("topic", name, user or names, also=also)


# Looking


@topic.command("list", epilog="Example: twinlog topic list -o wide")
@click.option(
    "--all", "is_all", is_flag=True, help="Include RocketMQ's own topics and those of groups."
)
@click.option("--cluster", help="Only topics of this cluster.")
@cluster_options
def list_command(session: Session, is_all: bool, cluster: str | None) -> int:
    """List topics."""
    is_short = session.output in ("table", "name") and session.watch_seconds is None
    if is_short and cluster is None:
        from twinlog.cli.admin import quick

        found = quick.topic_names(session)
        if found is not None:
            names, clusters, brokers = found
            return show(session, _list_report(names, system_names(clusters, brokers), is_all))
    return run(session, lambda admin: _list(admin, is_all, cluster, session.output))


async def _list(admin: Admin, is_all: bool, cluster: str | None, output: str) -> Report:
    import asyncio

    from twinlog.admin import topics

    names, system = await asyncio.gather(
        topics.list_topics(admin, cluster=cluster), topics.system_topics(admin)
    )
    report = _list_report(names, system, is_all)
    if output not in ("table", "name"):
        report.missing = await _add_settings(admin, report.tables[0].rows)
    return report


def _list_report(names: list[str], system: frozenset[str], is_all: bool) -> Report:
    rows: list[dict[str, Any]] = [
        {"topic": name, "kind": kind_of_topic(name, system)} for name in names
    ]
    if not is_all:
        rows = [row for row in rows if row["kind"] == "user"]
    columns = [
        Column("topic"),
        Column("kind", is_wide=not is_all),
        Column("read_queues", is_right=True, is_wide=True),
        Column("write_queues", is_right=True, is_wide=True),
        Column("perm", is_wide=True),
        Column("brokers", is_wide=True),
    ]
    empty = "no topics; make one with: twinlog topic create NAME"
    return Report([Table(columns, rows, empty=empty)])


async def _add_settings(admin: Admin, rows: list[dict[str, Any]]) -> list[str]:
    from twinlog.admin import topics
    from twinlog.admin.client import gather

    info = await admin.cluster()
    names = {
        address: name for name, b in info.brokers.items() for address in b.broker_addrs.values()
    }
    found = await gather(
        info.readable_addresses(), lambda address: topics.all_topic_configs(admin, address)
    )
    for row in rows:
        have = [(a, configs[row["topic"]]) for a, configs in found.values.items()
                if row["topic"] in configs]  # fmt: skip
        row["read_queues"] = sum(config.read_queue_nums for _, config in have)
        row["write_queues"] = sum(config.write_queue_nums for _, config in have)
        row["perm"] = perm_name(have[0][1].perm) if have else None
        row["brokers"] = sorted(names[address] for address, _ in have)
    return missing_of(found)


_QUEUE_COLUMNS = [
    Column("broker"),
    Column("queue", is_right=True),
    Column("min_offset", "MIN OFFSET", is_right=True),
    Column("max_offset", "MAX OFFSET", is_right=True),
    Column("messages", is_right=True),
    Column("last_update_ms", "LAST UPDATE", show_time),
]


@topic.command("stats", epilog="Example: twinlog topic stats orders")
@click.argument("name")
@cluster_options
def stats_command(session: Session, name: str) -> int:
    """Show the offsets of a topic's queues; the same as show."""
    return run(session, lambda admin: _show(admin, name))


@topic.command("show", epilog="Example: twinlog topic show orders")
@click.argument("name")
@cluster_options
def show_command(session: Session, name: str) -> int:
    """Show the settings, queues and groups of a topic."""
    return run(session, lambda admin: _show(admin, name))


async def _show(admin: Admin, name: str) -> Report:
    import asyncio

    from twinlog.admin import topics

    await check_topic_exists(admin, name)
    stats, configs = await asyncio.gather(
        topics.topic_stats(admin, name), topics.topic_config(admin, name)
    )
    rows: list[dict[str, Any]] = [
        {
            "broker": entry.queue.broker_name,
            "queue": entry.queue.queue_id,
            "min_offset": entry.min_offset,
            "max_offset": entry.max_offset,
            "messages": entry.count,
            "last_update_ms": entry.last_update_ms,
        }
        for entries in stats.values.values()
        for entry in entries
    ]
    groups = await topics.topic_groups(admin, name) if stats.is_complete else None
    config = next((config for config in configs.values.values() if config is not None), None)
    fields: dict[str, Any] = {"topic": name}
    if config is not None:
        fields |= {
            "perm": perm_name(config.perm),
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "order": config.order,
        }
    fields |= {
        "messages": sum(row["messages"] for row in rows),
        "groups": groups,
    }
    rows.sort(key=lambda row: (row["broker"], row["queue"]))
    table = Table(_QUEUE_COLUMNS, rows, "queues", empty="no queue has been asked")
    notes = await slave_notes(admin)
    return Report([table], fields, missing=missing_of(stats), notes=notes)


@topic.command(epilog="Example: twinlog topic route orders -o json")
@click.argument("name")
@cluster_report
async def route(admin: Admin, name: str) -> Report:
    """Show which brokers have a topic, as clients see it."""
    from twinlog.admin import topics

    await check_topic_exists(admin, name)
    found = await topics.topic_route(admin, name)
    rows = []
    for data in sorted(found.queue_data, key=lambda data: data.broker_name):
        broker = found.brokers.get(data.broker_name)
        rows.append(
            {
                "broker": data.broker_name,
                "cluster": broker.cluster if broker else "",
                "read_queues": data.read_queue_nums,
                "write_queues": data.write_queue_nums,
                "perm": perm_name(data.perm),
                "master": broker.master_address if broker else None,
                "slaves": [a for i, a in broker.broker_addrs.items() if i] if broker else [],
            }
        )
    columns = [
        Column("broker"), Column("cluster"), Column("read_queues", is_right=True),
        Column("write_queues", is_right=True), Column("perm"), Column("master"), Column("slaves"),
    ]  # fmt: skip
    return Report([Table(columns, rows)])


@topic.command(epilog="Example: twinlog topic groups orders")
@click.argument("name")
@cluster_report
async def groups(admin: Admin, name: str) -> Report:
    """List the groups that consume a topic or have an offset in it."""
    from twinlog.admin import topics

    await check_topic_exists(admin, name)
    rows: list[dict[str, Any]] = [
        {"group": group} for group in await topics.topic_groups(admin, name)
    ]
    return Report([Table([Column("group")], rows, empty=f"no group consumes {name}")])


# Changing


def _perm(text: str | None) -> int | None:
    if text is None:
        return None
    if text.lower() not in PERMS:
        raise CommandError(f"perm {text!r} is unknown", USAGE, hint="rw, r, w, none (or 6, 4, 2)")
    return PERMS[text.lower()]


@topic.command(epilog="Example: twinlog topic create orders -q 8")
@click.argument("name")
@click.option("-q", "--queues", default=8, show_default=True, help="Queues on each broker.")
@click.option("--read-queues", type=int, help="Read queues, if they differ from --queues.")
@click.option("--write-queues", type=int, help="Write queues, if they differ from --queues.")
@click.option("--perm", default="rw", show_default=True, help="rw, r, w or none.")
@click.option("--order", is_flag=True, help="Keep order even while brokers come and go.")
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("--broker", help="Only on this broker: its name, or its address.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@once_options
def create(session: Session, name: str, queues: int, if_not_exists: bool, **values: Any) -> int:
    """Create a topic on every master."""
    values["read_queues"] = values["read_queues"] or queues
    values["write_queues"] = values["write_queues"] or queues
    return show(session, call(session, lambda admin: _create(admin, name, if_not_exists, values)))


async def _create(admin: Admin, name: str, if_not_exists: bool, values: dict[str, Any]) -> Report:
    from twinlog.admin import topics

    if name in await topics.list_topics(admin):
        if if_not_exists:
            return Report([Table([], [], empty=f"topic {name} already exists")])
        raise CommandError(
            f"topic {name!r} exists", FAILED, hint=f"change it with: twinlog topic update {name}"
        )
    broker = values["broker"]
    perm = _perm(values["perm"])
    assert perm is not None
    found = await topics.create_topic(
        admin, name, read_queues=values["read_queues"], write_queues=values["write_queues"],
        perm=perm, order=values["order"], cluster=values["cluster"],
        address=None if broker is None else await master_of(admin, broker),
    )  # fmt: skip
    found.any_or_raise()
    rows = [
        {
            "topic": name, "broker_address": address, "read_queues": values["read_queues"],
            "write_queues": values["write_queues"], "perm": perm_name(perm),
        }
        for address in found.values
    ]  # fmt: skip
    return Report([Table(_CHANGED, rows)], missing=missing_of(found))


_CHANGED = [
    Column("topic"),
    Column("broker_address", "BROKER"),
    Column("read_queues", is_right=True),
    Column("write_queues", is_right=True),
    Column("perm"),
]


async def master_of(admin: Admin, broker: str) -> str:
    """The master's address of a broker that is given by name; an address stays."""
    info = await admin.cluster()
    if broker in info.brokers:
        address = info.brokers[broker].master_address
        if address is None:
            raise CommandError(f"broker {broker!r} has no master now", 10)
        return address
    if ":" in broker:
        return broker
    raise not_found("broker", broker, info.names())


@topic.command(epilog="Example: twinlog topic update orders --queues 16")
@click.argument("name")
@click.option("-q", "--queues", type=int, help="Read and write queues on each broker.")
@click.option("--read-queues", type=int, help="Read queues, if they differ from --queues.")
@click.option("--write-queues", type=int, help="Write queues, if they differ from --queues.")
@click.option("--perm", help="rw, r, w or none.")
@click.option("--order/--no-order", default=None, help="Keep order even while brokers come and go.")
@once_options
def update(session: Session, name: str, queues: int | None, **values: Any) -> int:
    """Change the settings that are given; each broker keeps its other ones."""
    values["read_queues"] = values["read_queues"] or queues
    values["write_queues"] = values["write_queues"] or queues
    if all(value is None for value in values.values()):
        raise CommandError(
            "nothing to change", USAGE, hint="give --queues, --perm or --order; see --help"
        )
    return show(session, call(session, lambda admin: _update(admin, name, values)))


async def _update(admin: Admin, name: str, values: dict[str, Any]) -> Report:
    from twinlog.admin import topics

    await check_topic_exists(admin, name)
    configs = await topics.topic_config(admin, name)
    change = topics.TopicChange(
        values["read_queues"], values["write_queues"], _perm(values["perm"]), values["order"]
    )
    old = {address: config for address, config in configs.values.items() if config is not None}
    found = await topics.change_topic(admin, name, change, old)
    found.failures.update(configs.failures)
    found.any_or_raise()
    rows: list[dict[str, Any]] = [
        {
            "topic": name, "broker_address": address, "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums, "perm": perm_name(config.perm),
        }
        for address, config in found.values.items()
    ]  # fmt: skip
    return Report([Table(_CHANGED, rows)], missing=missing_of(found))


@topic.command(epilog="Example: twinlog topic delete orders --yes")
@click.argument("names", nargs=-1, required=True)
@click.option("--cluster", help="Only on the brokers of this cluster.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def delete(session: Session, names: tuple[str, ...], cluster: str | None, is_sure: bool) -> int:
    """Delete topics and their messages."""
    call(session, lambda admin: _check_all(admin, names))
    confirm(f"delete {', '.join(names)} and all their messages?", is_sure)
    return show(session, call(session, lambda admin: _delete(admin, names, cluster)))


async def _check_all(admin: Admin, names: tuple[str, ...]) -> None:
    for name in names:
        await check_topic_exists(admin, name)


async def _delete(admin: Admin, names: tuple[str, ...], cluster: str | None) -> Report:
    from twinlog.admin import topics

    rows: list[dict[str, Any]] = []
    missing = []
    for name in names:
        found = await topics.delete_topic(admin, name, cluster=cluster)
        found.any_or_raise()
        missing += missing_of(found)
        rows.append({"topic": name, "deleted_on": sorted(found.values)})
    return Report([Table([Column("topic"), Column("deleted_on")], rows)], missing=missing)
