"""`twinlog context ...`: clusters by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from twinlog.cli.admin import contexts
from twinlog.cli.admin.tls import Tls, take, tls_options
from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import OUTPUTS, Column, Report, Table, render, terminal_width

_COLUMNS = [
    Column("name"), Column("current"), Column("namesrv"), Column("access_key"), Column("tls"),
    Column("tls_ca", is_wide=True), Column("tls_client_cert", is_wide=True),
    Column("tls_server_name", is_wide=True),
]  # fmt: skip
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="table", help="Form of the output."
)


@click.group(cls=LazyGroup, short_help="Give names to clusters and their credentials.")
def context() -> None:
    """Give names to clusters: each context has name servers, credentials and TLS settings.

    A context is chosen with --context, TWINLOG_CONTEXT or `twinlog context use`.
    """


def _row(name: str, entry: contexts.Context, current: str) -> dict[str, Any]:
    # A secret is never printed.
    tls = entry.encryption
    files = tls or Tls()
    return {
        "name": name,
        "current": name == current,
        "namesrv": entry.namesrv,
        "access_key": entry.access_key or None,
        "tls": "INSECURE" if files.insecure else tls is not None,
        "tls_ca": files.ca or None,
        "tls_client_cert": files.client_cert or None,
        "tls_server_name": files.server_name or None,
    }


def _print(rows: list[dict[str, Any]], output: str) -> None:
    empty = "no contexts; add one with: twinlog context add NAME --namesrv ADDR"
    report = Report([Table(_COLUMNS, rows, empty=empty)])
    click.echo(render(report, output, width=terminal_width()), nl=False)


@context.command("list", epilog="Example: twinlog context list")
@_OUTPUT
def list_command(output: str) -> None:
    """List all contexts."""
    known = contexts.load()
    current = contexts.chosen(known)
    _print([_row(n, entry, current) for n, entry in sorted(known.contexts.items())], output)


@context.command("show", epilog="Example: twinlog context show prod")
@click.argument("name", required=False)
@_OUTPUT
def show_command(name: str | None, output: str) -> None:
    """Show one context; by default the current one."""
    known = contexts.load()
    current = contexts.chosen(known)
    wanted = name or current
    if not wanted:
        raise CommandError("no context is current", 3, hint="choose one: twinlog context use NAME")
    _print([_row(wanted, known.get(wanted), current)], output)


@context.command(epilog="Example: twinlog context add prod --namesrv 'ns1:9876;ns2:9876' --use")
@click.argument("name")
@click.option(
    "-n", "--namesrv", required=True, metavar="ADDR[;ADDR]", help="Name servers of the cluster."
)
@click.option("--access-key", default="", metavar="KEY", help="Account.")
@click.option("--secret-key", default="", metavar="KEY",
              help="Asked for when --access-key is given without it.")  # fmt: skip
@tls_options
@click.option("--use", "is_used", is_flag=True, help="Make it the current context.")
def add(name: str, namesrv: str, access_key: str, secret_key: str, is_used: bool,
        **values: Any) -> None:  # fmt: skip
    """Add or replace a context. Which context is current changes only with --use."""
    _check_name(name)
    tls = _checked(namesrv, take(values, None))
    if access_key and not secret_key:
        secret_key = click.prompt("secret key", hide_input=True)
    known = contexts.load()
    known.contexts[name] = contexts.Context(
        namesrv, access_key, secret_key, tls is not None, tls or Tls()
    )
    if is_used:
        known.current = name
    contexts.save(known)
    click.echo(f"context {name} saved in {contexts.path()}")
    if not is_used and known.current != name:
        click.echo(f"it is not the current one; make it so with: twinlog context use {name}")


def _check_name(name: str) -> None:
    """One word that can be typed, and kept in a file."""
    if not name.isprintable() or len(name.split()) != 1 or name != name.strip():
        raise CommandError(f"{name!r} is not a name: give one word", USAGE)


def _checked(namesrv: str, tls: Tls | None) -> Tls | None:
    """Wrong addresses and files are found when they are typed. Files are kept as whole paths."""
    from twinlog.client.errors import UsageError
    from twinlog.client.net.name_servers import parse_name_servers

    try:
        parse_name_servers(namesrv)
        if tls is None:
            return None
        tls.settings().context()
    except UsageError as error:
        raise CommandError(str(error), USAGE) from error
    ca, cert, key = (
        str(Path(file).absolute()) if file else ""
        for file in (tls.ca, tls.client_cert, tls.client_key)
    )
    return replace(tls, ca=ca, client_cert=cert, client_key=key)


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
