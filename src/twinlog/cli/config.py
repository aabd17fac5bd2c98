"""`twinlog config lint|print|explain|diff`: configuration files, before a server reads them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup, nearest
from twinlog.cli.output import OUTPUTS, Column, Report, Table, render, terminal_width, uses_color

if TYPE_CHECKING:
    from twinlog.runtime.config import AnyConfig, BrokerConfig, LoadedConfig
    from twinlog.runtime.config_key import Declaration, Key

# Of several that know as many keys of a file, the first is meant: a name server with a controller
# inside has keys of its own, so a file of controller keys alone is a controller's.
ROLES = ("broker", "controller", "namesrv")
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="table", help="Form of the output."
)
_ROLE = click.option(
    "--role", type=click.Choice(ROLES), help="The role; guessed from the keys if not given."
)


@click.group(cls=LazyGroup, short_help="Check, print and explain configuration files.")
def config() -> None:
    """Check, print and explain configuration files of brokers, name servers and controllers."""


def _print(report: Report, output: str) -> None:
    click.echo(render(report, output, color=uses_color(), width=terminal_width()), nl=False)


def struct_of(role: str) -> type[AnyConfig]:
    from twinlog.runtime.config import BrokerConfig, ControllerConfig, NamesrvConfig

    structs: dict[str, type[AnyConfig]] = {
        "broker": BrokerConfig, "controller": ControllerConfig, "namesrv": NamesrvConfig,
    }  # fmt: skip
    return structs[role]


def guess_role(path: str) -> str:
    """Whose file it is: the server that knows most of its keys, else the one in its name."""
    from twinlog.runtime.config_key import spellings
    from twinlog.runtime.small_file import read_small_file

    try:
        text = read_small_file(path).decode("utf-8", "replace")
    except OSError as error:
        code = USAGE if error.errno == errno.EFBIG else NOT_FOUND
        raise CommandError(f"{path} cannot be read: {error.strerror}", code) from error
    keys = {line.partition("=")[0].strip() for line in text.splitlines()}

    def score(role: str) -> tuple[int, bool]:
        return len(keys & spellings(struct_of(role)).keys()), role in Path(path).name

    return max(ROLES, key=score)


def load(path: str | None, role: str) -> LoadedConfig[Any]:
    from twinlog.runtime.config import ConfigError

    try:
        return _read(path, role)
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error


def _read(path: str | None, role: str) -> LoadedConfig[Any]:
    """As the server itself does, without this machine's environment. Raises ConfigError."""
    from twinlog.runtime import config

    if role == "broker":
        return config.load_broker_config(path, environment={})
    if role == "controller":
        return config.load_controller_config(path, environment={})
    return config.load_namesrv_config(path, environment={})


# lint


@config.command(epilog="Example: twinlog config lint broker.conf --strict")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@_ROLE
@click.option("--strict", is_flag=True, help="Treat warnings as failures.")
@_OUTPUT
def lint(paths: tuple[str, ...], role: str | None, strict: bool, output: str) -> int:
    """Find errors, unknown keys and traps. Exit code 1: warnings, with --strict; 2: unusable."""
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
    """Everything that is to be said about a file, the errors first."""
    return [{"level": level, "text": text, "file": path} for level, text in _found(path, role)]


def _found(path: str, role: str) -> Iterator[tuple[str, str]]:
    from twinlog.runtime.config import ConfigError
    from twinlog.runtime.config_key import by_reason

    try:
        loaded = _read(path, role)
    except ConfigError as error:
        yield from (("error", str(fault)) for fault in error.faults)
        yield from (("warning", text) for text in error.warnings)
        return
    yield from (("warning", text) for text in loaded.warnings)
    if role == "broker":
        yield from (("warning", f"{path}: {text}") for text in _broker_advice(loaded.config))
    for reason, keys in by_reason(loaded.without_effect).items():
        yield "info", f"{path}: without effect here: {', '.join(keys)}: {reason}"


def _broker_advice(config: BrokerConfig) -> list[str]:
    """Settings that are allowed and still not what most people want."""
    from twinlog.runtime.addresses import is_wildcard

    found = []
    is_open = config.bind_address not in ("127.0.0.1", "localhost", "::1")
    if is_wildcard(config.broker_ip1):
        found.append(
            "brokerIP1 is the address of every interface, which leads a client to its own machine; "
            "set brokerIP1 to the address that clients reach"
        )
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
    if is_open and _replicates(config) and not _admits_slaves(config):
        found.append(
            "a twinlog master refuses slaves on other machines without credentials: set the same "
            "twinlogHASecret on all replicas, or use twinlogHATLS"
        )
    if not Path(config.store_path_root_dir).is_absolute():
        found.append("storePathRootDir is relative: it depends on where the broker is started")
    return found


def _replicates(config: BrokerConfig) -> bool:
    """As far as the file tells: an ASYNC_MASTER may have slaves or none."""
    return config.enable_controller_mode or config.broker_role in ("SYNC_MASTER", "SLAVE")


def _admits_slaves(config: BrokerConfig) -> bool:
    credentials = config.twinlog_ha_secret or config.twinlog_ha_tls
    return bool(credentials or config.twinlog_ha_classic_peers)


# print, diff


@config.command("print", epilog="Example: twinlog config print broker.conf --changed")
@click.argument("path", required=False, metavar="[FILE]")
@_ROLE
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@_OUTPUT
def print_command(path: str | None, role: str | None, changed: bool, output: str) -> int:
    """Print every key with its effective value; without FILE, the defaults."""
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


def _values(config: AnyConfig) -> dict[str, str]:
    pairs = (line.partition("=") for line in config.to_properties().splitlines())
    return {key: value for key, separator, value in pairs if separator}


@config.command(epilog="Example: twinlog config diff master.conf slave.conf")
@click.argument("first")
@click.argument("second")
@_ROLE
@_OUTPUT
def diff(first: str, second: str, role: str | None, output: str) -> int:
    """List the keys that differ between two files, defaults included. Exit code 1 if any do."""
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
    """Explain a key: its meaning, its values, its default, and what it does here."""
    for candidate in [role] if role else ["broker", "namesrv", "controller"]:
        found = explanation(candidate, key)
        if found is not None:
            _print(Report(fields=found), output)
            return 0
    names = [name for candidate in ROLES for name in _keys(candidate)]
    raise CommandError(f"no key {key!r}", NOT_FOUND, hint=nearest(key, names))


def explanation(role: str, key: str) -> dict[str, Any] | None:
    """Everything that is declared of a key; None when the role does not have it."""
    declared = _keys(role).get(key)
    if declared is None:
        return None
    says = declared.says
    return {
        "key": declared.key,
        "of": role,
        "values": declared.values,
        "default": _default(role, declared),
        "effect": f"{says.effect}: {says.reason}" if says.reason else str(says.effect),
        "runtime": _runtime(says),
        "meaning": says.text,
    }


def _runtime(says: Key) -> str:
    if says.is_live:
        return "changes at once"
    return "needs a restart" if says.effect == "used" else "cannot be changed"


def _keys(role: str) -> dict[str, Declaration]:
    from twinlog.runtime.config_key import spellings
    from twinlog.runtime.tls import TlsConfig

    return {**spellings(struct_of(role)), **spellings(TlsConfig)}


def _default(role: str, declared: Declaration) -> str:
    """The value that a server uses whose file does not have the key."""
    from twinlog.runtime.config_format import text_of

    value = getattr(load(None, role).config, declared.name, declared.default)
    shown, words = text_of(value), declared.says.default
    return f"{shown} ({words})" if shown and words else shown or words or "not set"
