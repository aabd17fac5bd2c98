"""The one place that makes TLS contexts. Corresponds to TlsSystemConfig, TlsHelper and TlsMode.

Keys are Apache's, `tls.*`. Apache takes them from JVM options and from the file that
`tls.config.file` names; here they may stand in the server's own properties file as well.

What differs: without a certificate TLS is off, where Apache makes a certificate that nobody can
check; `tls.test.mode.enable=true` asks for that kind. A mode that is given needs what it needs:
nothing falls back to plain text silently.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from twinlog.runtime.config_format import ConfigValueError, parse_properties
from twinlog.runtime.config_key import Declaration, no_effect, spellings, used
from twinlog.runtime.small_file import read_small_file


class TlsMode(StrEnum):
    """What a server does with a connection."""

    DISABLED = "disabled"  # TLS is refused.
    PERMISSIVE = "permissive"  # Both: the first byte says which.
    ENFORCING = "enforcing"  # Plain text is refused.


class ClientAuth(StrEnum):
    """Whether a server asks for the client's certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


class TlsConfig(msgspec.Struct, frozen=True):
    """The TLS keys. Passwords are kept out of `repr`, and so out of logs."""

    server_mode: Annotated[
        TlsMode | None,
        used(
            "Whether TLS is refused, accepted as well as plain text, or the only way in.",
            spelling="tls.server.mode",
            default="permissive with a certificate, else disabled",
        ),
    ] = None
    client_enable: Annotated[
        bool,
        used("Connect to other servers over TLS, as useTLS does.", spelling="tls.enable"),
    ] = False
    test_mode_enable: Annotated[
        bool,
        used(
            "Create a certificate at start-up that cannot be verified; for tests.",
            spelling="tls.test.mode.enable",
        ),
    ] = False
    server_key_path: Annotated[
        str | None,
        used(
            "File with the private key of the server's certificate.",
            spelling="tls.server.keyPath",
            default="the certificate's file",
        ),
    ] = None
    server_key_password: Annotated[
        str | None,
        used("Password of that key; it is never shown.", spelling="tls.server.keyPassword"),
    ] = None
    server_cert_path: Annotated[
        str | None, used("File with the server's certificate.", spelling="tls.server.certPath")
    ] = None
    server_need_client_auth: Annotated[
        ClientAuth,
        used(
            "Whether clients are asked for a certificate.", spelling="tls.server.need.client.auth"
        ),
    ] = ClientAuth.NONE
    server_auth_client: Annotated[
        bool,
        no_effect(
            "Check the certificates of clients.",
            "certificates that are asked for are always checked",
            spelling="tls.server.authClient",
        ),
    ] = False
    server_trust_cert_path: Annotated[
        str | None,
        used(
            "File with the authorities that sign the certificates of clients.",
            spelling="tls.server.trustCertPath",
        ),
    ] = None
    client_key_path: Annotated[
        str | None,
        used(
            "File with the private key that is used when connecting to other servers.",
            spelling="tls.client.keyPath",
            default="the certificate's file",
        ),
    ] = None
    client_key_password: Annotated[
        str | None,
        used("Password of that key; it is never shown.", spelling="tls.client.keyPassword"),
    ] = None
    client_cert_path: Annotated[
        str | None,
        used("File with the certificate shown to other servers.", spelling="tls.client.certPath"),
    ] = None
    client_auth_server: Annotated[
        bool,
        used("Check the certificates of other servers.", spelling="tls.client.authServer"),
    ] = False
    client_trust_cert_path: Annotated[
        str | None,
        used(
            "File with the authorities that sign the certificates of other servers.",
            spelling="tls.client.trustCertPath",
            default="the system's authorities",
        ),
    ] = None

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        text = ", ".join(
            f"{name}={'***' if 'password' in name and value else value!r}"
            for name, value in shown.items()
        )
        return f"TlsConfig({text})"

    @property
    def mode(self) -> TlsMode:
        """The server's mode, decided."""
        if self.server_mode is not None:
            return self.server_mode
        return TlsMode.PERMISSIVE if self._has_certificate else TlsMode.DISABLED

    @property
    def _has_certificate(self) -> bool:
        return bool(self.server_cert_path) or self.test_mode_enable


_FILE_KEY = "tls.config.file"


def is_tls_key(key: str) -> bool:
    return key.startswith("tls.")


def tls_with(properties: Mapping[str, str]) -> TlsConfig:
    """The TLS configuration of `tls.*` keys. Raises ConfigValueError naming a key."""
    config, faults = read_tls(properties)
    if faults:
        raise faults[0]
    return config


def read_tls(properties: Mapping[str, str]) -> tuple[TlsConfig, list[ConfigValueError]]:
    """The TLS configuration of `tls.*` keys, and what is wrong with them.

    What `tls.config.file` holds yields to the keys themselves.
    """
    faults: list[ConfigValueError] = []
    merged = dict(properties)
    path = merged.pop(_FILE_KEY, None)
    if path is not None:
        try:
            merged = _read_file(path) | merged
        except ConfigValueError as error:
            faults.append(error)
    values = {}
    for key, text in merged.items():
        try:
            declared = _known(key)
            values[declared.name] = declared.convert(_as_written(declared, text))
        except ConfigValueError as error:
            faults.append(error)
    config = TlsConfig(**values)
    # A fault of one value would show up again in what follows from it.
    return config, faults or [*_check_server(config), *_check_client(config)]


def _known(key: str) -> Declaration:
    known = spellings(TlsConfig)
    if key not in known:
        raise ConfigValueError(key, f"unknown TLS key; known are {', '.join(sorted(known))}")
    return known[key]


def _as_written(declared: Declaration, text: str) -> str:
    """Apache takes modes in capitals too."""
    return text.lower() if declared.name in ("server_mode", "server_need_client_auth") else text


def _read_file(path: str) -> dict[str, str]:
    try:
        entries = parse_properties(read_small_file(path))
        return {entry.key: entry.value for entry in entries}
    except OSError as error:
        raise ConfigValueError(_FILE_KEY, f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigValueError(_FILE_KEY, f"{path} is not a properties file: {error}") from error


def _check_server(config: TlsConfig) -> Iterator[ConfigValueError]:
    if config.mode is TlsMode.DISABLED:
        return
    if not config._has_certificate:
        yield ConfigValueError("tls.server.mode", f"{config.mode} needs tls.server.certPath")
    yield from _check_readable("tls.server.certPath", config.server_cert_path)
    yield from _check_readable("tls.server.keyPath", config.server_key_path)
    yield from _check_readable("tls.server.trustCertPath", config.server_trust_cert_path)
    if config.server_need_client_auth is not ClientAuth.NONE and not config.server_trust_cert_path:
        yield ConfigValueError(
            "tls.server.need.client.auth",
            "needs tls.server.trustCertPath: a certificate that is not checked proves nothing",
        )
    if config.server_auth_client and config.server_need_client_auth is ClientAuth.NONE:
        yield ConfigValueError(
            "tls.server.authClient",
            "has no effect unless tls.server.need.client.auth is optional or require",
        )


def _check_client(config: TlsConfig) -> Iterator[ConfigValueError]:
    yield from _check_readable("tls.client.certPath", config.client_cert_path)
    yield from _check_readable("tls.client.keyPath", config.client_key_path)
    yield from _check_readable("tls.client.trustCertPath", config.client_trust_cert_path)


def _check_readable(key: str, path: str | None) -> Iterator[ConfigValueError]:
    if path is not None and not os.access(path, os.R_OK):
        yield ConfigValueError(key, f"{path} cannot be read")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a listening server needs: the mode, and the context when it is not disabled."""

    mode: TlsMode
    context: ssl.SSLContext | None


def server_tls(config: TlsConfig) -> ServerTls:
    """The server's side. Raises ConfigValueError for files that are no certificate or key."""
    if config.mode is TlsMode.DISABLED:
        return ServerTls(TlsMode.DISABLED, None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.server_cert_path:
        _load_chain(
            context,
            "tls.server.certPath",
            config.server_cert_path,
            config.server_key_path,
            config.server_key_password,
        )
    else:
        _load_self_signed(context)
    if config.server_need_client_auth is not ClientAuth.NONE:
        _load_trust(context, "tls.server.trustCertPath", config.server_trust_cert_path)
        is_required = config.server_need_client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return ServerTls(config.mode, context)


def client_tls(config: TlsConfig, *, use_tls: bool = False) -> ssl.SSLContext | None:
    """The client's side; None for plain text. `use_tls` is the key `useTLS` of a client.

    As with Apache the server's certificate is checked only with `tls.client.authServer=true`.
    """
    if not (config.client_enable or use_tls):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Brokers are known by address, and RocketMQ's certificates name no address.
    context.check_hostname = False
    if config.client_auth_server:
        if config.client_trust_cert_path:
            _load_trust(context, "tls.client.trustCertPath", config.client_trust_cert_path)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.verify_mode = ssl.CERT_NONE
    if config.client_cert_path:
        _load_chain(
            context,
            "tls.client.certPath",
            config.client_cert_path,
            config.client_key_path,
            config.client_key_password,
        )
    return context


def ha_tls(config: TlsConfig, *, is_master: bool) -> ssl.SSLContext:
    """For the HA port (`twinlogHATLS`): both ends show a certificate and check the other's.

    A master uses the `tls.server.*` files, a slave the `tls.client.*` ones. Whoever has a
    certificate of the authority may replicate: it should be the cluster's own.
    """
    side, paths = ("client", (config.client_cert_path, config.client_trust_cert_path))
    key, password = config.client_key_path, config.client_key_password
    if is_master:
        side, paths = ("server", (config.server_cert_path, config.server_trust_cert_path))
        key, password = config.server_key_path, config.server_key_password
    certificate, trust = paths
    if not certificate or not trust:
        who = "a master" if is_master else "a slave"
        raise ConfigValueError(
            "twinlogHATLS", f"{who} needs tls.{side}.certPath and tls.{side}.trustCertPath"
        )
    purpose = ssl.PROTOCOL_TLS_SERVER if is_master else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # As in `client_tls`.
    _load_chain(context, f"tls.{side}.certPath", certificate, key, password)
    _load_trust(context, f"tls.{side}.trustCertPath", trust)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_chain(
    context: ssl.SSLContext, key: str, cert: str, private: str | None, password: str | None
) -> None:
    try:
        # A password is always passed: without one OpenSSL would ask on the terminal.
        context.load_cert_chain(cert, private, password or "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigValueError(key, f"{cert} with key {private or cert}: {error}") from error


def _load_trust(context: ssl.SSLContext, key: str, path: str | None) -> None:
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigValueError(key, f"{path}: {error}") from error


def _load_self_signed(context: ssl.SSLContext) -> None:
    """A certificate for tests, made now and kept nowhere."""
    try:
        from twinlog.runtime.self_signed import make_certificate
    except ImportError as error:
        raise ConfigValueError(
            "tls.test.mode.enable", "needs the package cryptography; or give tls.server.certPath"
        ) from error
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(make_certificate("twinlog-test"))
        file.flush()
        context.load_cert_chain(file.name)
