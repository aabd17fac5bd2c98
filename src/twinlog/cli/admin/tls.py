"""TLS on the command line: files and names as options, from the environment or of a context.

Options win over the environment, the environment over the context, each as a whole field: a context
that names a CA can be used with `--tls-server-name`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from twinlog.client.tls import TlsSettings

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust, who we are, and which name to expect; all empty: the system's certificates."""

    ca: str = ""
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""
    insecure: bool = False

    def settings(self) -> TlsSettings:
        from twinlog.client.tls import TlsSettings

        return TlsSettings(
            ca=self.ca or None,
            certificate=self.client_cert or None,
            key=self.client_key or None,
            key_password=os.environ.get("TWINLOG_TLS_CLIENT_KEY_PASSWORD"),
            server_name=self.server_name or None,
            insecure=self.insecure,
        )


# name of the option -> (metavar, help); a flag has no metavar.
OPTIONS: dict[str, tuple[str, str]] = {
    "tls": ("", "Encrypt, and check the server's certificate."),
    "tls-ca": ("FILE", "Certificates to trust instead of the system's."),
    "tls-client-cert": ("FILE", "The client's certificate."),
    "tls-client-key": (
        "FILE",
        "The client's private key. Password: TWINLOG_TLS_CLIENT_KEY_PASSWORD.",
    ),
    "tls-server-name": ("NAME", "The name that the certificate must have."),
    "tls-insecure": ("", "Encrypt, but do not check the server's certificate. For tests only."),
}


def tls_options(command: Command) -> Command:
    """Add the options above to a command."""
    for name, (metavar, text) in reversed(OPTIONS.items()):
        if metavar:
            command = click.option(f"--{name}", metavar=metavar, help=text)(command)
        else:
            command = click.option(f"--{name}", is_flag=True, help=text)(command)
    return command


def take(values: dict[str, Any], known: Tls | None) -> Tls | None:
    """What the options say on top of `known`; they are taken out of `values`."""
    given = {name: values.pop(name.replace("-", "_")) for name in OPTIONS}
    return merged(given, known)


def merged(given: Mapping[str, Any], known: Tls | None) -> Tls | None:
    """`given` by the names of OPTIONS. None: no encryption."""
    changes = {
        field.name: given[option]
        for field in fields(Tls)
        if given.get(option := f"tls-{field.name.replace('_', '-')}")
    }
    if not changes and not given.get("tls"):
        return known
    return replace(known or Tls(), **changes)


def warn_of(tls: Tls | None) -> None:
    """Said for every command, so that nobody gets used to it."""
    if tls is not None and tls.insecure:
        click.echo("twinlog: TLS is INSECURE: no certificate is checked, anybody in between can "
                   "read and change everything", err=True)  # fmt: skip


def from_environment(known: Tls | None) -> Tls | None:
    """On top of `known`: TWINLOG_TLS=1 and one variable for each option, such as TWINLOG_TLS_CA."""
    given: dict[str, Any] = {}
    for name, (metavar, _) in OPTIONS.items():
        text = os.environ.get(f"TWINLOG_{name.upper().replace('-', '_')}", "")
        given[name] = text if metavar else text.lower() in ("1", "true", "yes", "on")
    return merged(given, known)
