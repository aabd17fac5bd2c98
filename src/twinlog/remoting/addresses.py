"""Addresses in their three forms: text `host:port`, socket tuple, packed as in a record."""

from __future__ import annotations

import ipaddress
from typing import Any

from twinlog.runtime.numbers import number_or_none


def split_address(address: str) -> tuple[str, int]:
    """`host:port` to its parts; `[::1]:9876` and `::1:9876` are IPv6.

    Raises:
        ValueError: no port, or not a number in 0..65535.
    """
    host, separator, port = address.strip().rpartition(":")
    number = number_or_none(port, high=65535)
    if not separator or number is None:
        raise ValueError(f"address {address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), number


def split_addresses(addresses: str) -> list[str]:
    """A list as in `namesrvAddr`: separated by semicolons (or commas), blanks ignored."""
    return [part.strip() for part in addresses.replace(",", ";").split(";") if part.strip()]


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def replica_address(address: str, ha_address: str | None) -> str:
    """Where one replica asks another: the port of its service at the host of its HA port.

    What a broker registers as `brokerIP1` is for clients, and may lead nowhere from here: a
    container's published address, for instance. Both ports are bound to the same address, so
    whoever reaches the one reaches the other.
    """
    host = (ha_address or "").rpartition(":")[0].strip("[]")
    if not host:
        return address
    try:
        return join_address(host, split_address(address)[1])
    except ValueError:
        return address


def pack_host(host: str, port: int) -> bytes:
    """4 or 16 bytes of address, 4 bytes of port: the born host of a record.

    IPv4 in IPv6 becomes IPv4: the C++ client reads no other. What is no address is 0.0.0.0.
    """
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return b"\0\0\0\0" + port.to_bytes(4, "big")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


def peer_address(sockname: Any) -> tuple[str, int]:
    """Host and port out of what a socket says; a mapped IPv4 address in its short form."""
    if not isinstance(sockname, tuple) or len(sockname) < 2:
        return ("unknown", 0)
    host = str(sockname[0])
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    return (host, int(sockname[1]))
