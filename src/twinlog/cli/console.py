"""`twinlog console`: the web console in the foreground."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session
from twinlog.cli.lab import ClusterLab
from twinlog.cli.serve import EXIT_BAD_CONFIG, Lifetime, configure_logging, fail, run_service
from twinlog.console.access import Login, Role
from twinlog.console.server import Console, ConsoleConfigError, ConsoleSettings
from twinlog.remoting.acl import AclConfigError
from twinlog.remoting.acl_file import AclFiles
from twinlog.runtime.audit_file import write_audit_to
from twinlog.runtime.config import NamesrvConfig
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.small_file import read_small_file

TOKEN_LENGTH_MIN = 32  # Nobody guesses one: whoever has it is let in without counting guesses.


class Tokens(msgspec.Struct):
    """What `--token-file` holds: kept so that an address goes on working after a restart."""

    admin: str
    viewer: str


@click.command(
    short_help="Run the web console in the foreground.",
    epilog="Example: twinlog console -n 127.0.0.1:9876 --port 8082",
)
@click.option("--port", default=8082, show_default=True, type=click.IntRange(0, 65535),
              help="Port to listen on.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--allow-host", "host_names", multiple=True, metavar="NAME",
              help="A host name for browsers; an IP address needs no entry.")  # fmt: skip
@click.option("--acl-file", type=click.Path(dir_okay=False), metavar="FILE",
              help="plain_acl.yml: who may log in; admins may make changes.")  # fmt: skip
@click.option("--no-auth", "is_open", is_flag=True, help="No login; only on loopback.")
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="File that keeps tokens, so that they survive a restart.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(dir_okay=False),
              help="Certificate; the console is then served with https.")  # fmt: skip
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Private key of the certificate.")
@click.option("--audit", type=click.Path(dir_okay=False), metavar="FILE",
              help="Log of all changes; ~/.twinlog/console/audit.log by default.")  # fmt: skip
@click.option("--cluster-dir", type=click.Path(file_okay=False, path_type=Path), hidden=True)
@connection_options
def console(session: Session, **values: Any) -> None:
    """Serve the web console: replication, topics, groups and messages in a browser.

    Prints the address to open, with a token in it.
    """
    configure_logging(NamesrvConfig())  # The defaults of every server.
    audit = values["audit"] or str(Path.home() / ".twinlog" / "console" / "audit.log")
    settings = _settings(session, values, audit)
    write_audit_to(audit)
    directory = values["cluster_dir"]
    lab = ClusterLab(directory) if directory is not None else None

    def make(lifetime: Lifetime) -> Console:
        return Console(
            settings, lab=lab,
            on_failure=lambda name, error: lifetime.fail(f"{name}: {error!r}"),
        )  # fmt: skip

    run_service(make, known_errors=(AclConfigError, ConsoleConfigError))


def _settings(session: Session, values: Mapping[str, Any], audit: str) -> ConsoleSettings:
    tokens = _tokens(values["token_file"])
    settings = ConsoleSettings(
        name_server=session.namesrv,
        client=session.client_settings,
        host=values["host"],
        port=values["port"],
        host_names=values["host_names"],
        is_open=values["is_open"],
        admin_token=tokens.admin if tokens else None,
        viewer_token=tokens.viewer if tokens else None,
        has_token_file=tokens is not None,
        tls_cert=values["tls_cert"],
        tls_key=values["tls_key"],
        audit_path=audit,
        accounts=_accounts(values["acl_file"]),
    )
    try:
        settings.check()
    except ConsoleConfigError as error:
        fail(str(error), EXIT_BAD_CONFIG)
    return settings


def _tokens(path: Path | None) -> Tokens | None:
    if path is None:
        return None
    try:
        return load_tokens(path)
    except (OSError, ValueError) as error:
        fail(f"--token-file {path}: {error}", EXIT_BAD_CONFIG)
        raise


def load_tokens(path: Path) -> Tokens:
    """The tokens of a file; a new file, its owner's alone, where there is none."""
    if path.exists():
        found = msgspec.json.decode(read_small_file(path), type=Tokens)
        if min(len(found.admin), len(found.viewer)) < TOKEN_LENGTH_MIN:
            raise ValueError(f"a token has at least {TOKEN_LENGTH_MIN} characters")
        return found
    import secrets

    tokens = Tokens(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(tokens))
    return tokens


def _accounts(path: str | None) -> Any:
    """A function that gives the accounts of the rule file as they are now."""
    if path is None:
        return dict
    files = AclFiles(PosixDisk(), path, path + ".d")
    try:
        files.load()
    except (AclConfigError, OSError) as error:
        fail(f"--acl-file {path}: {error}", EXIT_BAD_CONFIG)

    def read() -> dict[str, Login]:
        files.reload_if_changed()
        return {
            name: Login(account.secret_key, Role.ADMIN if account.is_admin else Role.VIEWER)
            for name, account in files.rules.accounts.items()
        }

    return read
