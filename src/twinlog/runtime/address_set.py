"""A list of addresses and networks in a configuration: `10.0.0.2, 10.1.0.0/24, fd00::/8`."""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressSet:
    """Which peers are named. A peer is given as a socket names it, never by a host name."""

    def __init__(self, text: str = "") -> None:
        """Raises ValueError that names the entry which is neither an address nor a network."""
        entries = [entry.strip() for entry in text.replace(";", ",").split(",")]
        self._networks = tuple(_network(entry) for entry in entries if entry)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: object) -> bool:
        address = address_or_none(str(host))
        return address is not None and any(address in network for network in self._networks)


def address_or_none(host: str) -> _Address | None:
    """`host` as an address, None for a name. An IPv4 peer of an IPv6 socket is an IPv4 address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _network(entry: str) -> _Network:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        raise ValueError(f"{entry!r} is neither an address nor a network") from None
