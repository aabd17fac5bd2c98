"""From which hosts the replicas of a group speak: who may pass requests on.

A replica registers an address for clients and one for other replicas, and either may be a name, as
of containers. Names are looked up when somebody unknown speaks, off the loop and at most once in a
few seconds, so that a stranger costs a look-up and no more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

from twinlog.controller.record import GroupRecord
from twinlog.remoting.addresses import peer_address, split_address
from twinlog.runtime.clock import Clock

LOOK_UP_PAUSE_MS = 5_000
_LOOK_UP_MS_MAX = 1_000


async def addresses_of(name: str) -> set[str]:
    """What a name stands for; empty when nobody knows it."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOK_UP_MS_MAX / 1000):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return set()
    return {peer_address(info[4])[0] for info in found}


class MemberHosts:
    """`look_up` tells the addresses of a name."""

    def __init__(
        self, clock: Clock, look_up: Callable[[str], Awaitable[set[str]]] = addresses_of
    ) -> None:
        self._clock = clock
        self._look_up = look_up
        self._looked_up: dict[str, set[str]] = {}
        self._looked_up_ms = -LOOK_UP_PAUSE_MS

    def knows(self, record: GroupRecord, host: str) -> bool:
        """Whether a replica of the record is known to speak from `host`."""
        hosts = _hosts(record)
        return host in hosts or any(host in self._looked_up.get(name, ()) for name in hosts)

    def may_look_up(self, record: GroupRecord) -> bool:
        """Whether it is worth while: there are names, and the last answer is old."""
        is_old = self._clock.monotonic_ms() - self._looked_up_ms >= LOOK_UP_PAUSE_MS
        return is_old and any(_names(record))

    async def look_up(self, record: GroupRecord) -> None:
        self._looked_up_ms = self._clock.monotonic_ms()
        names = list(_names(record))
        found = await asyncio.gather(*(self._look_up(name) for name in names))
        self._looked_up = dict(zip(names, found, strict=True))


def _hosts(record: GroupRecord) -> set[str]:
    given = [a for r in record.replicas.values() for a in (r.address, r.ha_address) if a]
    hosts = set()
    for address in given:
        try:
            hosts.add(split_address(address)[0])
        except ValueError:
            continue  # Of a broker that registered nonsense.
    return hosts


def _names(record: GroupRecord) -> Iterable[str]:
    for host in _hosts(record):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            yield host
