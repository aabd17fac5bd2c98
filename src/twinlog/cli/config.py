"""`twinlog config lint|print|explain|diff`: configuration files, before a server reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup, nearest
from twinlog.cli.output import OUTPUTS, Column, Report, Table, render, uses_color

if TYPE_CHECKING:
    from twinlog.runtime.config import BrokerConfig, LoadedConfig, NamesrvConfig

ROLES = ("broker", "namesrv")
_OUTPUT = click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table")
_ROLE = click.option("--role", type=click.Choice(ROLES), help="Guessed from the keys otherwise.")
_NAMESRV_KEYS = ("kvConfigPath", "configStorePath", "clusterTest", "orderMessageEnable")
_BROKER_KEYS = ("brokerName", "brokerId", "brokerRole", "brokerClusterName", "storePathRootDir")


@click.group(cls=LazyGroup, short_help="Check, print and explain configuration files.")
def config() -> None:
    """Configuration files of brokers and name servers."""


def _print(report: Report, output: str) -> None:
    click.echo(render(report, output, color=uses_color()), nl=False)


def guess_role(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", NOT_FOUND) from error
    keys = [line.partition("=")[0].strip() for line in text.splitlines()]
    if any(key in _BROKER_KEYS for key in keys):
        return "broker"
    if any(key in _NAMESRV_KEYS for key in keys) or "namesrv" in Path(path).name:
        return "namesrv"
    return "broker"


def load(path: str | None, role: str) -> LoadedConfig[Any]:
    from twinlog.runtime.config import ConfigError, load_broker_config, load_namesrv_config

    try:
        if role == "broker":
            return load_broker_config(path, environment={})
        return load_namesrv_config(path, environment={})
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error


# lint


@config.command(epilog="Example: twinlog config lint broker.conf --strict")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@_ROLE
@click.option("--strict", is_flag=True, help="Warnings fail as well.")
@_OUTPUT
def lint(paths: tuple[str, ...], role: str | None, strict: bool, output: str) -> int:
    """Errors, unknown keys and traps. Exit code 0, 1 (warnings with --strict) or 2 (unusable)."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        rows += lint_file(path, role or guess_role(path))
    levels = {row["level"] for row in rows}
    table = Table([Column("level"), Column("text")], rows, empty=f"{', '.join(paths)}: good")
    _print(Report([table]), output)
    if "error" in levels:
        return USAGE
    return FAILED if strict and "warning" in levels else 0


def lint_file(path: str, role: str) -> list[dict[str, Any]]:
    try:
        loaded = load(path, role)
    except CommandError as error:
        return [{"level": "error", "text": error.text, "file": path}]
    found = [("warning", text) for text in loaded.warnings]
    advice = _broker_advice(loaded.config) if role == "broker" else []
    found += (("warning", f"{path}: {text}") for text in advice)
    if loaded.not_applicable:
        keys = ", ".join(loaded.not_applicable)
        found.append(("info", f"{path}: of the JVM or its threads, without effect here: {keys}"))
    return [{"level": level, "text": text, "file": path} for level, text in found]


def _broker_advice(config: BrokerConfig) -> list[str]:
    """Settings that are allowed and still not what most people want."""
    found = []
    is_open = config.bind_address not in ("127.0.0.1", "localhost", "::1")
    if is_open and config.broker_ip1 in ("127.0.0.1", "localhost"):
        found.append(
            "brokerIP1 is loopback but bindAddress is not: other machines are told an address "
            "that leads to themselves; set brokerIP1 to the address they reach"
        )
    if config.namesrv_addr is None:
        found.append("namesrvAddr is not set: no client will find this broker")
    if config.broker_role == "SYNC_MASTER" and config.flush_disk_type == "ASYNC_FLUSH":
        found.append(
            "SYNC_MASTER with ASYNC_FLUSH: two copies in memory before a send is answered; "
            "a power cut of both machines at once may lose the last half second"
        )
    if not Path(config.store_path_root_dir).is_absolute():
        found.append("storePathRootDir is relative: it depends on where the broker is started")
    return found


# print, diff


@config.command("print", epilog="Example: twinlog config print broker.conf --changed")
@click.argument("path", required=False, metavar="[FILE]")
@_ROLE
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@_OUTPUT
def print_command(path: str | None, role: str | None, changed: bool, output: str) -> int:
    """Every key with the value that counts; without FILE the defaults."""
    chosen = role or (guess_role(path) if path else "broker")
    values = _values(load(path, chosen).config)
    defaults = _values(load(None, chosen).config)
    rows: list[dict[str, Any]] = [
        {"key": key, "value": value, "default": defaults.get(key)}
        for key, value in values.items()
        if not changed or value != defaults.get(key)
    ]
    columns = [Column("key"), Column("value"), Column("default", is_wide=not changed)]
    _print(Report([Table(columns, rows, empty="all defaults")]), output)
    return 0


def _values(config: BrokerConfig | NamesrvConfig) -> dict[str, str]:
    pairs = (line.partition("=") for line in config.to_properties().splitlines())
    return {key: value for key, separator, value in pairs if separator}


@config.command(epilog="Example: twinlog config diff master.conf slave.conf")
@click.argument("first")
@click.argument("second")
@_ROLE
@_OUTPUT
def diff(first: str, second: str, role: str | None, output: str) -> int:
    """Keys whose values differ between two files, defaults included. Exit code 1 if any."""
    chosen = role or guess_role(first)
    one, two = _values(load(first, chosen).config), _values(load(second, chosen).config)
    rows: list[dict[str, Any]] = [
        {"key": key, "first": one.get(key), "second": two.get(key)}
        for key in sorted(one.keys() | two.keys())
        if one.get(key) != two.get(key)
    ]
    columns = [Column("key"), Column("first", first), Column("second", second)]
    _print(Report([Table(columns, rows, empty="no difference")]), output)
    return FAILED if rows else 0


# explain


@config.command(epilog="Example: twinlog config explain flushDiskType")
@click.argument("key")
@_ROLE
@_OUTPUT
def explain(key: str, role: str | None, output: str) -> int:
    """What a key means, its type and its default."""
    from twinlog.cli.config_texts import describe, known_keys

    for candidate in [role] if role else list(ROLES):
        found = describe(candidate, key)
        if found is not None:
            _print(Report(fields=found), output)
            return 0
    names = [name for candidate in ROLES for name in known_keys(candidate)]
    raise CommandError(f"no key {key!r}", NOT_FOUND, hint=nearest(key, names))
