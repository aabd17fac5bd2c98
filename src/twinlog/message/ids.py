"""Message ids and packed host addresses. Corresponds to MessageDecoder's ids and MessageClientIDSetter.

| id | bytes, as upper-case hex |
|---|---|
| offset message id | store host address (4 or 16), i32 port, i64 physical offset |
| unique id (UNIQ_KEY) | client address (4 or 16), i16 process id, i32 instance hash, i32 ms since the start of the month, i16 counter |

A packed host is the address followed by the port as i32: 8 bytes for IPv4, 20 for IPv6.
"""  # noqa: E501 - the table is one row per format.

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from twinlog.message.layout import HOST_V4_SIZE, HOST_V6_SIZE

NO_HOST = bytes(HOST_V4_SIZE)
_PORT = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_UNIQUE_FIXED = struct.Struct(">Hi")
_UNIQUE_MOVING = struct.Struct(">IH")  # Unsigned: a month has more than 2**31 ms.
ID_COUNTERS = 0x10000
_CLOCK_SLACK_MS = 1_000_000  # A clock set back by less than this counts as standing still.


class OffsetMessageId(NamedTuple):
    """What an offset message id says."""

    host: bytes
    physical_offset: int


class UniqueId(NamedTuple):
    """What a unique id says. `time_ms` is a guess: the id holds no year and no month."""

    address: str
    process_id: int
    instance_hash: int
    time_ms: int
    counter: int


@lru_cache(maxsize=4096)
def pack_host(address: str, port: int) -> bytes:
    """The packed form of `address` (IPv4 or IPv6 text, a scope is dropped) and `port`."""
    text = address.partition("%")[0]
    return ipaddress.ip_address(text).packed + _PORT.pack(port)


def unpack_host(host: bytes) -> tuple[str, int]:
    """Address text and port of a packed host. Raises ValueError for another length."""
    if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise ValueError(f"a packed host has 8 or 20 bytes, this one has {len(host)}")
    return str(ipaddress.ip_address(host[:-4])), _PORT.unpack_from(host, len(host) - 4)[0]


def host_text(host: bytes) -> str:
    """`address:port`, the address of an IPv6 host in brackets."""
    address, port = unpack_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@lru_cache(maxsize=1024)
def _host_hex(host: bytes) -> str:
    return host.hex().upper()


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id that a send is answered with: where the record is."""
    return f"{_host_hex(store_host)}{physical_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def parse_offset_message_id(text: str) -> OffsetMessageId:
    """Store host and physical offset. Raises ValueError when `text` is no such id."""
    if len(text) not in (2 * (HOST_V4_SIZE + 8), 2 * (HOST_V6_SIZE + 8)):
        raise ValueError(f"an offset message id has 32 or 56 characters, this one {len(text)}")
    data = bytes.fromhex(text)
    return OffsetMessageId(data[:-8], _OFFSET.unpack(data[-8:])[0])


def month_start_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """Midnight of the first of the month of `now_ms`, in `zone` or else in local time."""
    now = datetime.fromtimestamp(now_ms / 1000, zone)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(start.timestamp() * 1000)


def _next_month_start_ms(start_ms: int, zone: tzinfo | None) -> int:
    start = datetime.fromtimestamp(start_ms / 1000, zone)
    return month_start_ms(int((start + timedelta(days=32)).timestamp() * 1000), zone)


class UniqueIdGenerator:
    """Makes unique ids as the 4.9 Java client does. One per process; ids differ by the counter."""

    def __init__(
        self,
        address: bytes,
        process_id: int,
        instance_hash: int,
        now_ms: Callable[[], int],
        *,
        zone: tzinfo | None = None,
    ) -> None:
        if len(address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, this one has {len(address)}")
        fixed = address + _UNIQUE_FIXED.pack(process_id & 0xFFFF, instance_hash)
        self._fixed = fixed.hex().upper()
        self.id_size = len(self._fixed) + 2 * _UNIQUE_MOVING.size
        self._now_ms = now_ms
        self._zone = zone
        self._counter = 0
        self._start_ms = 0
        self._end_ms = 0

    def take(self, count: int) -> tuple[str, int]:
        """Many ids at once: what they begin with, and the counter of the first.

        The last four digits of the others are the counters after it, 0 behind FFFF.
        """
        if not 0 < count <= ID_COUNTERS:
            raise ValueError(f"{count} ids at once: 1 to {ID_COUNTERS} have different counters")
        text = self.next_id()
        first = int(text[-4:], 16)
        self._counter = (first + count) % ID_COUNTERS
        return text[:-4], first

    def next_id(self) -> str:
        now = self._now_ms()
        if now >= self._end_ms:
            self._start_ms = month_start_ms(now, self._zone)
            self._end_ms = _next_month_start_ms(self._start_ms, self._zone)
        elapsed = now - self._start_ms
        if -_CLOCK_SLACK_MS < elapsed < 0:
            elapsed = 0
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._fixed}{elapsed & 0xFFFFFFFF:08X}{counter:04X}"


def parse_unique_id(text: str, now_ms: int, *, zone: tzinfo | None = None) -> UniqueId:
    """What a unique id says, read at `now_ms`. Raises ValueError when `text` is no such id."""
    if len(text) not in (32, 56):
        raise ValueError(f"a unique id has 32 or 56 characters, this one {len(text)}")
    data = bytes.fromhex(text)
    address = data[:-12]
    process_id, instance_hash = _UNIQUE_FIXED.unpack(data[-12:-6])
    elapsed, counter = _UNIQUE_MOVING.unpack(data[-6:])
    start = month_start_ms(now_ms, zone)
    if start + elapsed >= now_ms:
        start = month_start_ms(start - 1, zone)  # Made at the end of the month before.
    name = str(ipaddress.ip_address(address))
    return UniqueId(name, process_id, instance_hash, start + elapsed, counter)
