"""Access to a cluster: the options about it as settings of the client, its errors as ours."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from twinlog.client.errors import (
    BrokerError,
    InvalidAddressError,
    NameServerUnreachableError,
    NoBrokerError,
    NotANameServerError,
    TopicNotFoundError,
    TransportError,
)
from twinlog.client.net.name_servers import parse_name_servers
from twinlog.spark.errors import NotFoundError, OptionError, UnreachableError
from twinlog.spark.options import bad, parse_bool, parse_count


def settings_of(options: Mapping[str, str]) -> dict[str, Any]:
    """Turn the options about access into settings of the client.

    Raises:
        OptionError: one of them, or the address of the name server, cannot be meant.
    """
    timeout = parse_count("pollTimeoutMs", options.get("pollTimeoutMs", "3000"))
    found: dict[str, Any] = {"request_timeout_ms": timeout}
    address = options["nameServer"]
    try:
        parse_name_servers(address)
    except InvalidAddressError as error:
        raise bad("nameServer", address, str(error)) from error
    for name, other in (("accessKey", "secretKey"), ("secretKey", "accessKey")):
        if options.get(name) and not options.get(other):
            raise OptionError("BAD_OPTION", f"option {name} needs the option {other} too")
    if options.get("accessKey"):
        found["access_key"] = options.get("accessKey")
        found["secret_key"] = options.get("secretKey")
    if parse_bool("useTLS", options.get("useTLS", "false")):
        found["tls"] = _tls(options.get("tlsCaFile"))
    elif "tlsCaFile" in options:
        why = "it has an effect only with useTLS=true: set that too, or leave it out"
        raise bad("tlsCaFile", options["tlsCaFile"], why)
    return found


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also what ssl raises
        why = f"it must be a file with certificates in the PEM format ({error.strerror or error})"
        raise bad("tlsCaFile", ca_file, why) from error


@contextlib.contextmanager
def as_pipeline_errors() -> Iterator[None]:
    """Raise the errors of the client as those of the pipeline, which have exit codes."""
    try:
        yield
    except (NameServerUnreachableError, NoBrokerError, TransportError) as error:
        raise UnreachableError("BROKER_UNREACHABLE", str(error)) from error
    except NotANameServerError as error:
        raise OptionError("BAD_OPTION", f"option nameServer: {error}") from error
    except TopicNotFoundError as error:
        raise NotFoundError("TOPIC_NOT_FOUND", str(error)) from error
    except BrokerError as error:
        raise UnreachableError("BROKER_REFUSED", str(error)) from error
