"""What every client takes: where the cluster is, who asks, how long to wait."""

from __future__ import annotations

import ssl
from typing import Any, TypedDict, Unpack

import msgspec

from twinlog.client.errors import UsageError
from twinlog.client.hooks import ClientHooks
from twinlog.client.tls import TlsSettings


class ClientSettings(TypedDict, total=False):
    """Keyword arguments that all clients share.

    access_key, secret_key, security_token: an account of a broker with `aclEnable=true`.
    tls: True (certificates are verified against the system's), `TlsSettings` for files and names
        of your own, or a context.
    client_id: the name under which brokers list this client; unique by default.
    request_timeout_ms: for everything but sends and pulls.
    hooks: called around sends and handlers, see `twinlog.client.hooks`.
    """

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: bool | ssl.SSLContext | TlsSettings
    client_id: str | None
    request_timeout_ms: int
    connect_timeout_ms: int
    route_poll_ms: int
    heartbeat_ms: int
    hooks: ClientHooks | None


class ResolvedSettings(msgspec.Struct, frozen=True):
    """The same with every default filled in."""

    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    client_id: str | None = None
    request_timeout_ms: int = 3000
    connect_timeout_ms: int = 3000
    route_poll_ms: int = 30_000
    heartbeat_ms: int = 30_000
    hooks: ClientHooks | None = None


def resolve(**settings: Unpack[ClientSettings]) -> ResolvedSettings:
    """Check what was given and fill in the rest."""
    if (settings.get("access_key") is None) != (settings.get("secret_key") is None):
        raise UsageError("access_key and secret_key must be given together: one of them is missing")
    for name in ("request_timeout_ms", "connect_timeout_ms", "route_poll_ms", "heartbeat_ms"):
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or value <= 0):
            raise UsageError(f"{name} must be a number of milliseconds above 0, not {value!r}")
    known = set(ClientSettings.__annotations__)
    unknown = sorted(set(settings) - known)
    if unknown:
        raise UsageError(
            f"there is no setting {unknown[0]!r}; the settings are {', '.join(sorted(known))}"
        )
    values: dict[str, Any] = dict(settings)
    tls = values.pop("tls", False)
    if tls is True:
        tls = TlsSettings()
    if isinstance(tls, TlsSettings):
        values["tls"], values["tls_server_name"] = tls.context(), tls.server_name
    elif tls:
        values["tls"] = tls
    return ResolvedSettings(**values)
