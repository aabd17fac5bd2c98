"""`twinlog context ...`: clusters by name."""

from __future__ import annotations

from typing import Any

import click

from twinlog.cli.admin import contexts
from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import OUTPUTS, Column, Report, Table, render

_COLUMNS = [
    Column("name"), Column("current"), Column("namesrv"), Column("access_key"), Column("tls"),
]  # fmt: skip
_OUTPUT = click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table")


@click.group(cls=LazyGroup, short_help="Clusters by name, with credentials.")
def context() -> None:
    """Clusters by name: name servers, credentials, TLS. Used with --context or `context use`."""


def _row(name: str, entry: contexts.Context, current: str) -> dict[str, Any]:
    # A secret is never printed.
    return {
        "name": name,
        "current": name == current,
        "namesrv": entry.namesrv,
        "access_key": entry.access_key or None,
        "tls": entry.tls,
    }


def _print(rows: list[dict[str, Any]], output: str) -> None:
    empty = "no contexts; add one with: twinlog context add NAME --namesrv ADDR"
    click.echo(render(Report([Table(_COLUMNS, rows, empty=empty)]), output), nl=False)


@context.command("list", epilog="Example: twinlog context list")
@_OUTPUT
def list_command(output: str) -> None:
    """All contexts."""
    known = contexts.load()
    _print([_row(n, entry, known.current) for n, entry in sorted(known.contexts.items())], output)


@context.command("show", epilog="Example: twinlog context show prod")
@click.argument("name", required=False)
@_OUTPUT
def show_command(name: str | None, output: str) -> None:
    """One context, the current one unless NAME is given."""
    known = contexts.load()
    wanted = name or known.current
    if not wanted:
        raise CommandError("no context is current", 3, hint="choose one: twinlog context use NAME")
    _print([_row(wanted, known.get(wanted), known.current)], output)


@context.command(epilog="Example: twinlog context add prod --namesrv 'ns1:9876;ns2:9876' --use")
@click.argument("name")
@click.option("-n", "--namesrv", required=True, metavar="ADDR[;ADDR]")
@click.option("--access-key", default="")
@click.option("--secret-key", default="", help="Asked for when --access-key is given without it.")
@click.option("--tls", is_flag=True)
@click.option("--use", "is_used", is_flag=True, help="Make it the current one.")
def add(
    name: str, namesrv: str, access_key: str, secret_key: str, tls: bool, is_used: bool
) -> None:
    """Add or replace a context."""
    from twinlog.client.errors import UsageError
    from twinlog.client.net.name_servers import parse_name_servers

    try:
        parse_name_servers(namesrv)
    except UsageError as error:
        raise CommandError(str(error), USAGE) from error
    if access_key and not secret_key:
        secret_key = click.prompt("secret key", hide_input=True)
    known = contexts.load()
    known.contexts[name] = contexts.Context(namesrv, access_key, secret_key, tls)
    if is_used or not known.current:
        known.current = name
    contexts.save(known)
    click.echo(f"context {name} saved in {contexts.path()}")


@context.command(epilog="Example: twinlog context use prod")
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one."""
    known = contexts.load()
    known.get(name)
    known.current = name
    contexts.save(known)
    click.echo(f"current context: {name}")


@context.command(epilog="Example: twinlog context delete prod")
@click.argument("name")
def delete(name: str) -> None:
    """Forget a context."""
    known = contexts.load()
    known.get(name)
    del known.contexts[name]
    if known.current == name:
        known.current = ""
    contexts.save(known)
    click.echo(f"context {name} removed")
