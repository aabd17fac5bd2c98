"""The name servers of a client: which there are, and which one is asked.

Corresponds to the name-server half of NettyRemotingClient and to TopAddressing. One server is used
until it fails, then the next: they do not differ, and a single one keeps its connection warm.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from twinlog.client.errors import InvalidAddressError, NameServerUnreachableError
from twinlog.runtime.numbers import number_or_none

DISCOVERY_PATH = "/rocketmq/nsaddr"
DISCOVERY_ANSWER_SIZE_MAX = 64 * 1024
DISCOVERY_TIMEOUT_MS = 5000


def parse_name_servers(name_server: str | Sequence[str]) -> list[str]:
    """`a:9876;b:9876`, a list of addresses, or one http(s) address that answers with such."""
    if isinstance(name_server, str):
        parts = name_server.replace(",", ";").split(";")
    elif isinstance(name_server, Sequence) and all(isinstance(p, str) for p in name_server):
        parts = list(name_server)
    else:
        raise InvalidAddressError(
            f"name_server must be text such as '127.0.0.1:9876', not {name_server!r}"
        )
    addresses = [part.strip() for part in parts if part.strip()]
    if not addresses:
        raise InvalidAddressError("name_server is empty: give at least one host:port")
    if len(addresses) == 1 and is_discovery(addresses[0]):
        return addresses
    return [check_address(address) for address in dict.fromkeys(addresses)]


def is_discovery(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def check_address(address: str) -> str:
    """`host:port`, or an error that shows what was given."""
    host, separator, port = address.rpartition(":")
    if "://" in address or "/" in address:
        raise InvalidAddressError(f"{address!r} is not an address of the form host:port")
    if not separator or not host:
        raise InvalidAddressError(f"{address!r} has no port: write host:port")
    if number_or_none(port, 1, 65535) is None:
        raise InvalidAddressError(f"{address!r}: {port!r} is not a port from 1 to 65535")
    return address


class NameServers:
    """A list with a current member."""

    def __init__(self, addresses: Sequence[str], *, start: int = 0) -> None:
        self._addresses = list(addresses)
        self._index = start % len(self._addresses) if self._addresses else 0

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    def in_order(self) -> list[str]:
        """The current one first, then those to try if it fails."""
        return self._addresses[self._index :] + self._addresses[: self._index]

    def answered(self, address: str) -> None:
        """Stay with the one that answers."""
        if address in self._addresses:
            self._index = self._addresses.index(address)

    def replace(self, addresses: Sequence[str]) -> bool:
        """Take a newly discovered list. True when it differs."""
        if not addresses or set(addresses) == set(self._addresses):
            return False
        self._addresses = list(addresses)
        self._index = 0
        return True


async def discover(url: str, timeout_ms: float = DISCOVERY_TIMEOUT_MS) -> list[str]:
    """Ask an HTTP address for the list, as Java's clients do every two minutes."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            text = await _http_get(url)
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        reason = str(error) or type(error).__name__
        raise NameServerUnreachableError(
            f"{url} did not return the addresses of the name servers: {reason}"
        ) from error
    try:
        return parse_name_servers(text.strip())
    except InvalidAddressError as error:
        raise NameServerUnreachableError(
            f"{url} returned {text[:80]!r}, which is not a list of name servers: {error}"
        ) from error


async def _http_get(url: str) -> str:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
    context = ssl.create_default_context() if is_tls else None
    path = (parts.path if parts.path not in ("", "/") else DISCOVERY_PATH) + (
        f"?{parts.query}" if parts.query else ""
    )
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        answer = await reader.read(DISCOVERY_ANSWER_SIZE_MAX)
        while more := await reader.read(DISCOVERY_ANSWER_SIZE_MAX - len(answer)):
            answer += more
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or status[1] != b"200":
        raise OSError(f"HTTP answer {head[:60]!r}")
    return body.decode("utf-8", "replace")
