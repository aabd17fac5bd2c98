"""What the demo asks the brokers while it runs: how far apart the replicas are."""

from __future__ import annotations

import asyncio

from twinlog.admin.brokers import broker_runtime
from twinlog.admin.client import Admin
from twinlog.admin.failover import Controllers
from twinlog.admin.ha_groups import ha_status
from twinlog.admin.topics import create_topic
from twinlog.cli.demo.plot import Point
from twinlog.client import ClientError
from twinlog.runtime.numbers import number_or_none

REST_SECONDS = 1.5  # Offsets are written into the log twice a second while they move.


class Observer:
    """An administrator's client for two brokers. A broker that does not answer has no value."""

    def __init__(self, name_server: str, master: str, slave: str) -> None:
        self._admin = Admin(name_server, request_timeout_ms=1000)
        self._master = master
        self._slave = slave
        self._ends: dict[str, int] = {}
        self._rest_end: int | None = None
        self._rest_since = 0.0

    async def start(self) -> None:
        await self._admin.start()

    async def close(self) -> None:
        await self._admin.close()

    async def create_topic(self, name: str, queues: int) -> bool:
        """False when a broker did not answer in time: on a busy machine one asks again."""
        try:
            answers = await create_topic(self._admin, name, read_queues=queues)
        except ClientError:
            return False
        return bool(answers.values) and answers.is_complete

    def swap(self) -> None:
        """The slave has become the master."""
        self._master, self._slave = self._slave, self._master

    async def master(self) -> str | None:
        """Address of the broker that takes sends, as clients see it."""
        try:
            masters = (await self._admin.cluster()).masters()
        except ClientError:
            return None
        return masters[0] if masters else None

    async def lag_bytes(self) -> int | None:
        """Bytes of the master's log that the slave lacks. While the slave is away, what it had when
        it last answered counts; None while the master is away."""
        ends = [await self._log_end(address) for address in (self._master, self._slave)]
        for address, end in zip((self._master, self._slave), ends, strict=True):
            if end is not None:
                self._ends[address] = end
        if ends[0] is None or self._slave not in self._ends:
            return None
        return max(0, ends[0] - self._ends[self._slave])

    async def is_replicating(self) -> bool:
        """The master counts its slave as one that is in sync."""
        try:
            groups = await ha_status(self._admin)
        except ClientError:
            return False
        return bool(groups) and any(replica.is_in_sync for replica in groups[0].replicas)

    async def is_admitted(self) -> bool:
        """Both replicas are in the set from which a master is elected."""
        try:
            groups = await (await Controllers.find(self._admin)).groups()
        except ClientError:
            return False
        return bool(groups) and sum(replica.is_member for replica in groups[0].replicas) == 2

    async def is_at_rest(self) -> bool:
        """Both logs end at the same place, and did so for a while."""
        ends = [await self._log_end(address) for address in (self._master, self._slave)]
        now = asyncio.get_running_loop().time()
        if ends[0] is None or ends[0] != ends[1] or ends[0] != self._rest_end:
            self._rest_end, self._rest_since = ends[0], now
            return False
        return now - self._rest_since > REST_SECONDS

    async def _log_end(self, address: str) -> int | None:
        try:
            facts = await broker_runtime(self._admin, address)
        except ClientError:
            return None
        value = facts.get("commitLogMaxOffset", "")
        return number_or_none(value)


def first_caught_up(lag: list[Point], since: float) -> float:
    """The first sample after `since` that shows no bytes behind; the last one if none does."""
    for at, behind in lag:
        if at >= since and behind == 0:
            return at
    return lag[-1][0] if lag else since
