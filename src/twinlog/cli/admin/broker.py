"""`twinlog broker`: without a verb it runs a broker; with one it looks after running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_report, once_options
from twinlog.cli.admin.session import Session, call, confirm, missing_of, not_found, show
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup, nearest
from twinlog.cli.output import Column, Report, Table, show_bytes, show_percent
from twinlog.runtime.numbers import number_or_none

if TYPE_CHECKING:
    from twinlog.admin.client import Admin


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    short_help="Run a broker, or manage running ones.",
    epilog="Examples: twinlog broker -c broker.conf; twinlog broker list; "
    "twinlog broker config get broker-a brokerRole",
)
@click.option("-c", "--configFile", "path", help="A RocketMQ properties file.")
@click.option("-n", "--namesrvAddr", "namesrv", help="Name servers, ADDR;ADDR.")
@click.option("-p", "--printConfigItem", "is_print", is_flag=True, help="Print all keys and exit.")
@click.option("-m", "--printImportantConfig", "is_important", is_flag=True,
              help="Print the most important keys and exit.")  # fmt: skip
@click.option(
    "--as-slave",
    "as_slave",
    is_flag=True,
    help="If this was the master and was replaced, return as a slave (needs -c).",
)
@click.pass_context
def broker(
    context: click.Context,
    path: str | None,
    namesrv: str | None,
    is_print: bool,
    is_important: bool,
    as_slave: bool,
) -> None:
    """Run a broker in the foreground: it stores, serves and replicates messages.

    With a command, it shows or changes running brokers instead.
    """
    if context.invoked_subcommand is not None:
        if namesrv is not None:
            context.obj = {"namesrv": namesrv}
        return
    from twinlog.cli.broker import run_broker

    given = namesrv or (context.obj or {}).get("namesrv")
    if as_slave and path is None:
        raise click.UsageError("--as-slave changes the role in a file: add -c FILE")
    run_broker(path, given, is_print=is_print, is_important=is_important, returns_as_slave=as_slave)


_COLUMNS = [
    Column("broker"),
    Column("id", is_right=True),
    Column("role"),
    Column("address"),
    Column("cluster", is_wide=True),
    Column("version"),
    Column("in_tps", "IN/S", is_right=True),
    Column("out_tps", "OUT/S", is_right=True),
    Column("max_offset", "LOG END", is_right=True),
    Column("disk_ratio", "DISK", show_percent, is_right=True),
    Column("state"),
]


def broker_row(entry: Any) -> dict[str, Any]:
    """One row of `twinlog broker list` out of a BrokerSummary."""
    is_up = entry.error is None
    role = entry.runtime.get("haRole") or ("MASTER" if entry.broker_id == 0 else "SLAVE")
    return {
        "broker": entry.name,
        "id": entry.broker_id,
        "role": role,
        "address": entry.address,
        "cluster": entry.cluster,
        "version": entry.version if is_up else None,
        "in_tps": entry.put_tps if is_up else None,
        "out_tps": entry.get_tps if is_up else None,
        "max_offset": entry.max_offset if is_up else None,
        "disk_ratio": entry.disk_ratio if is_up else None,
        "state": ("drained" if entry.is_drained else "up") if is_up else "not answering",
    }


@broker.command("list", epilog="Example: twinlog broker list --watch")
@click.option("--cluster", help="Only this cluster.")
@cluster_report
async def list_command(admin: Admin, cluster: str | None) -> Report:
    """List all brokers with role, rates, end of the log and disk."""
    return await broker_report(admin, cluster)


async def broker_report(admin: Admin, cluster: str | None) -> Report:
    from twinlog.admin import brokers

    if cluster is not None:
        known = (await admin.cluster()).clusters
        if cluster not in known:
            raise not_found("cluster", cluster, list(known))
    entries = await brokers.list_brokers(admin, cluster=cluster)
    missing = [f"incomplete: {e.address}: {e.error}" for e in entries if e.error is not None]
    with_master = {entry.name for entry in entries if entry.broker_id == 0}
    lost = dict.fromkeys(entry.name for entry in entries if entry.name not in with_master)
    missing += (f"{name} has no master; see: twinlog ha status" for name in lost)
    table = Table(_COLUMNS, [broker_row(entry) for entry in entries], empty="no broker registered")
    return Report([table], missing=missing)


async def addresses_of(admin: Admin, name: str) -> list[str]:
    """The addresses of a broker given by name (all its replicas), by NAME:ID, or by address."""
    info = await admin.cluster()
    if name in info.brokers:
        return list(info.brokers[name].broker_addrs.values())
    group, _, number = name.rpartition(":")
    broker_id = number_or_none(number)
    if group in info.brokers and broker_id is not None:
        address = info.brokers[group].broker_addrs.get(broker_id)
        if address is None:
            known = ", ".join(f"{group}:{i}" for i in info.brokers[group].broker_addrs)
            raise CommandError(f"no broker {name!r}", NOT_FOUND, hint=f"there is: {known}")
        return [address]
    if broker_id is not None and group:
        return [name]
    raise not_found("broker", name, info.names())


@broker.command("show", epilog="Example: twinlog broker show broker-a:0")
@click.argument("name")
@cluster_report
async def show_command(admin: Admin, name: str) -> Report:
    """Show everything that a broker says about its state. NAME: broker-a, broker-a:1, HOST:PORT."""
    from twinlog.admin import brokers
    from twinlog.admin.client import gather

    found = await gather(
        await addresses_of(admin, name), lambda address: brokers.broker_runtime(admin, address)
    )
    found.any_or_raise()
    rows: list[dict[str, Any]] = [
        {"address": address, "key": key, "value": value}
        for address, runtime in found.values.items()
        for key, value in sorted(runtime.items())
    ]
    columns = [Column("address"), Column("key"), Column("value")]
    return Report([Table(columns, rows)], missing=missing_of(found))


# Settings


@broker.group(cls=LazyGroup)
def config() -> None:
    """Show and change the settings of running brokers."""


@config.command("get", epilog="Example: twinlog broker config get broker-a flushDiskType")
@click.argument("name")
@click.argument("keys", nargs=-1)
@cluster_report
async def config_get(admin: Admin, name: str, keys: tuple[str, ...]) -> Report:
    """Print settings, all of them unless KEYS are given."""
    from twinlog.admin import brokers
    from twinlog.admin.client import gather

    found = await gather(
        await addresses_of(admin, name), lambda address: brokers.broker_config(admin, address)
    )
    found.any_or_raise()
    known = {key for values in found.values.values() for key in values}
    for key in keys:
        if key not in known:
            raise CommandError(f"no key {key!r}", NOT_FOUND, hint=nearest(key, sorted(known)))
    rows: list[dict[str, Any]] = [
        {"key": key, "value": values.get(key), "address": address}
        for address, values in found.values.items()
        for key in (keys or sorted(values))
    ]
    columns = [Column("address"), Column("key"), Column("value")]
    return Report([Table(columns, rows)], missing=missing_of(found))


@config.command("set", epilog="Example: twinlog broker config set broker-a fileReservedTime=48")
@click.argument("name")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def config_set(session: Session, name: str, changes: tuple[str, ...], is_sure: bool) -> int:
    """Change settings while the broker runs; it writes them to its file."""
    values = {}
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator:
            raise CommandError(f"{change!r} is not KEY=VALUE", USAGE)
        values[key.strip()] = value.strip()
    confirm(f"set {', '.join(changes)} on {name}?", is_sure)
    return show(session, call(session, lambda admin: _config_set(admin, name, values)))


async def _config_set(admin: Admin, name: str, values: dict[str, str]) -> Report:
    from twinlog.admin import brokers
    from twinlog.admin.client import gather

    addresses = await addresses_of(admin, name)
    (first, *_) = addresses
    known = await brokers.broker_config(admin, first)
    for key in values:
        if key not in known:
            # An Apache broker takes an unknown key in silence: better to say so here.
            raise CommandError(f"no key {key!r}", NOT_FOUND, hint=nearest(key, sorted(known)))
    found = await gather(
        addresses, lambda address: brokers.update_broker_config(admin, address, values)
    )
    found.any_or_raise()
    rows: list[dict[str, Any]] = [
        {"address": address, "key": key, "value": value}
        for address in found.values
        for key, value in values.items()
    ]
    columns = [Column("address"), Column("key"), Column("value")]
    return Report([Table(columns, rows)], missing=missing_of(found))


# Draining


def _permission_command(name: str, text: str, *, adds: bool) -> None:
    @broker.command(name, help=text, epilog=f"Example: twinlog broker {name} broker-a")
    @click.argument("broker_name")
    @click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
    @once_options
    def command(session: Session, broker_name: str, is_sure: bool) -> int:
        if not adds:
            confirm(f"let no producer choose {broker_name}?", is_sure)
        return show(session, call(session, lambda admin: _permission(admin, broker_name, adds)))


async def _permission(admin: Admin, broker_name: str, adds: bool) -> Report:
    from twinlog.admin import brokers

    info = await admin.cluster()
    if broker_name not in info.brokers:
        raise not_found("broker", broker_name, info.names())
    change = brokers.add_write_permission if adds else brokers.wipe_write_permission
    found = await change(admin, broker_name)
    found.any_or_raise()
    rows: list[dict[str, Any]] = [
        {"broker": broker_name, "name_server": address, "topics_changed": count}
        for address, count in found.values.items()
    ]
    columns = [Column("broker"), Column("name_server"), Column("topics_changed", is_right=True)]
    notes = []
    if not adds:
        notes.append("The routes say so now; running producers notice within 30 s.")
    return Report([Table(columns, rows)], missing=missing_of(found), notes=notes)


_permission_command("drain", "Keep producers away from a broker before you stop it.", adds=False)
_permission_command("undrain", "Let producers choose a broker again.", adds=True)


@broker.command(epilog="Example: twinlog broker disk")
@cluster_report
async def disk(admin: Admin) -> Report:
    """Show how full the disks of the brokers are."""
    from twinlog.admin import brokers

    entries = await brokers.list_brokers(admin)
    rows = [
        {
            "broker": entry.name,
            "id": entry.broker_id,
            "address": entry.address,
            "disk_ratio": entry.disk_ratio if entry.error is None else None,
            "log_bytes": log_bytes(entry.runtime) if entry.error is None else None,
            "capacity": entry.runtime.get("commitLogDirCapacity"),
        }
        for entry in entries
    ]
    columns = [
        Column("broker"), Column("id", is_right=True), Column("address"),
        Column("disk_ratio", "DISK", show_percent, is_right=True),
        Column("log_bytes", "LOG", show_bytes, is_right=True), Column("capacity"),
    ]  # fmt: skip
    missing = [f"incomplete: {e.address}: {e.error}" for e in entries if e.error is not None]
    return Report([Table(columns, rows)], missing=missing)


def log_bytes(runtime: Any) -> int:
    return int(runtime.get("commitLogMaxOffset", 0)) - int(runtime.get("commitLogMinOffset", 0))
