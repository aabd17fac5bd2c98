"""What seldom comes together by itself, brought about on purpose, in the worlds that `world` says.

Each of these was once found by chance in a seed, and by none any more when the worlds had changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twinlog.testing.group.node import BODY_AT, LOG_PATH, NAME_LENGTH, GroupNode
from twinlog.testing.group.operations import DELETE_EXPIRED, Operations

LENGTHS_SIZE = 3  # Of a topic's and of the properties' length.
WATCHED_S = 6.0
STALL_S = 2.0
LOOK_S = 0.0005


class Corners(Operations):
    """One method for each name in `world.CORNERS` besides."""

    async def kill_in_record(self) -> None:
        """A copy is killed when its log ends among the properties of a record: what has come of it
        says how long it is, and its checksum is that of its body, which is whole."""
        slave = self._rng.choice(self._sim.slaves)
        seen = [-1]

        def is_in_properties() -> bool:
            if not slave.is_up or not slave.host.is_alive:
                return False
            end = slave.broker.store.commit_log.max_offset
            if end == seen[0]:
                return False
            seen[0] = end
            return self._is_in_properties(end)

        if await self._happens(is_in_properties) and not slave.is_held:
            slave.kill()
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))
            slave.boot_if_down()
            await self._sim.in_sync_within(5.0)

    def _is_in_properties(self, end: int) -> bool:
        for record in reversed(self._sim.master.image().records):
            if record.offset + record.size <= end:
                return False
            if record.offset < end:
                text = len(record.body) + len(record.topic) + LENGTHS_SIZE
                return record.offset + BODY_AT + text < end
        return False

    async def retention_killed(self) -> None:
        """A disk that was slow is given time: what follows from the log is saved seldom. Meanwhile
        the last records of idempotent producers expire, and the master is lost just then: it must
        know their numbers without them."""
        sim = self._sim
        await sim.in_sync_within(5.0)
        master = sim.master
        await self._stall(master)
        await asyncio.sleep(self._rng.uniform(0.5, 1.5))
        sim.are_producers_silent = True
        await asyncio.sleep(0.1)
        size, end = sim.world.segment_size, master.image().end
        behind = end - end % size + size
        if await sim.until(lambda: master.image().end >= behind, WATCHED_S):
            sim.loop.create_task(sim.operator.call(master.address, DELETE_EXPIRED, {}))
            if await self._happens(lambda: self._begin(master) >= behind):
                if sim.world.is_flushed and not master.is_classic and self._rng.random() < 0.5:
                    sim.power_loss(master)
                else:
                    master.kill()
                await asyncio.sleep(self._rng.choice((0.0, 0.5)))
                master.boot_if_down()
                await sim.until_up(master)
        sim.are_producers_silent = False

    async def _stall(self, node: GroupNode) -> None:
        disk = node.disk
        disk.stall()
        await asyncio.sleep(STALL_S)
        disk.resume()

    def _begin(self, node: GroupNode) -> int:
        names = [int(name) for name in node.disk.names(LOG_PATH) if len(name) == NAME_LENGTH]
        return min(names, default=-1) if node.host.is_alive else -1

    async def lose_twice(self) -> None:
        """Consumers have read a tail that only the master had. It loses it, and is lost itself when
        other messages have their places, before the consumers come again: whoever takes over must
        send them back to where the log was shorter once."""
        sim = self._sim
        if not await sim.in_sync_within(5.0):
            return
        self._part()
        await asyncio.sleep(0.8)
        sim.is_consumer_silent = True
        old = sim.master
        if old.host.is_alive:
            sim.power_loss(old)
        sim.loop.network.heal()
        await asyncio.sleep(self._rng.choice((0.0, 1.0)))
        old.boot_if_down()
        await sim.in_sync_within(10.0)
        await asyncio.sleep(self._rng.uniform(2.0, 4.0))
        await self.switch()
        sim.is_consumer_silent = False

    async def _happens(self, condition: Callable[[], bool]) -> bool:
        """Within a few seconds; looked for all the time, for it may not last."""
        deadline_s = self._sim.loop.now_s + WATCHED_S
        while not condition():
            if self._sim.loop.now_s > deadline_s or self._sim.failure:
                return False
            await asyncio.sleep(LOOK_S)
        return True
