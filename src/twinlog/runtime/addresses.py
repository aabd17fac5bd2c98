"""Which address this machine is reached at. Corresponds to RemotingUtil.getLocalAddress."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from twinlog.runtime.numbers import number_or_none

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
NOT_A_HOST = "is neither an address nor a host name"


def is_wildcard(address: str) -> bool:
    """True for an address that means every interface."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return address in ("", "*")


def is_host(text: str) -> bool:
    """Whether it has the form of an address or of a host name; nobody is asked for the name."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        labels = text.removesuffix(".").split(".")
        # Digits and dots alone are meant as an address: 10.0.0.256, 1.2.3.
        return len(text) <= 254 and bool(text.strip("0123456789.")) and all(map(is_label, labels))
    else:
        return True


def is_label(text: str) -> bool:
    """A part of a host name; Docker's and other private names also have underscores."""
    return _LABEL.fullmatch(text) is not None


def is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and number_or_none(port, 1, 65535) is not None


def resolve(host: str) -> str:
    """The address of a host that is given by address or by name; IPv4 if it has both.

    Raises ValueError for a name that no machine has.
    """
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        return host
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"neither an address nor a name that can be resolved: {error}") from None
    return str(min(found, key=lambda item: item[0] != socket.AF_INET)[4][0])


def local_address() -> str:
    """The address that others can reach, as Apache guesses it; loopback when there is none."""
    import psutil  # Only without brokerIP1: a start with it is that much sooner.

    found = [
        item.address.partition("%")[0]
        for items in psutil.net_if_addrs().values()
        for item in items
        if item.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return choose_address(found)


def choose_address(addresses: Iterable[str]) -> str:
    """The first IPv4 address that is not loopback, those of a private home network last."""
    usable = [a for a in map(ipaddress.ip_address, addresses) if not a.is_loopback]
    v4 = [str(a) for a in usable if a.version == 4]
    v6 = [str(a) for a in usable if a.version == 6 and not a.is_link_local]
    far = [a for a in v4 if not a.startswith("192.168")]
    return next(iter(far + v4[::-1] + v6), "127.0.0.1")
