"""What happens to a simulated group by itself: processes, machines, links, disks, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.testing.group.node import GroupNode

if TYPE_CHECKING:
    from twinlog.testing.group.sim import GroupSimulation


class Faults:
    """One method for each name in `world.FAULTS`."""

    def __init__(self, sim: GroupSimulation) -> None:
        self._sim = sim
        self._rng = sim.rng

    def _some_slave(self) -> GroupNode:
        return self._rng.choice(self._sim.slaves)

    async def kill_slave(self) -> None:
        await self._restart(self._some_slave(), lambda node: node.kill())

    async def kill_master(self) -> None:
        await self._restart(self._sim.master, lambda node: node.kill())

    async def power_slave(self) -> None:
        await self._power(self._some_slave)

    async def power_master(self) -> None:
        await self._power(lambda: self._sim.master)

    async def _power(self, choose: Callable[[], GroupNode]) -> None:
        if self._sim.world.is_flushed:
            await self._power_now(choose())
            return
        # What is in the memory of one machine alone at that moment nobody promised.
        async with self._sim.one_at_a_time:
            if await self._sim.in_sync_within(5.0):
                node = choose()
                await self._power_now(node)
                await self._sim.in_sync_within(10.0)

    async def _power_now(self, node: GroupNode) -> None:
        disk = node.disk
        disk.stall()  # A slow disk: others get what it does not have yet.
        try:
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 0.5)))
        finally:
            disk.resume()
        if node.disk is disk and not node.is_held:
            await self._restart(node, self._sim.power_loss)

    async def _restart(self, node: GroupNode, end: Callable[[GroupNode], None]) -> None:
        if not node.host.is_alive or node.is_held:
            return
        end(node)
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))
        node.boot_if_down()

    async def slow_disk_slave(self) -> None:
        await self._stall(self._some_slave())

    async def slow_disk_master(self) -> None:
        await self._stall(self._sim.master)

    async def _stall(self, node: GroupNode) -> None:
        disk = node.disk
        disk.stall()
        try:
            await asyncio.sleep(self._rng.choice((0.1, 1.0)))
        finally:
            disk.resume()

    async def pause_slave(self) -> None:
        await self._pause(self._some_slave())

    async def pause_master(self) -> None:
        await self._pause(self._sim.master)

    async def _pause(self, node: GroupNode) -> None:
        if not node.host.is_alive or node.host.is_paused:
            return
        node.pause()
        await asyncio.sleep(self._rng.choice((0.2, 1.0, 5.0)))
        node.resume_if_paused()

    async def partition(self) -> None:
        self._sim.loop.network.partition(self._sim.master.host, self._some_slave().host)
        await self._until_healed()

    async def partition_oneway(self) -> None:
        ends = [self._sim.master.host, self._some_slave().host]
        self._rng.shuffle(ends)
        self._sim.loop.network.partition(*ends, one_way=True)
        await self._until_healed()

    async def _until_healed(self) -> None:
        await asyncio.sleep(self._rng.choice((0.3, 2.0, 6.0)))
        self._sim.loop.network.heal()

    async def reset(self) -> None:
        self._sim.loop.network.reset_all()

    async def disk_full_slave(self) -> None:
        slave = self._some_slave()
        slave.disk.quota = max(slave.disk.space("/").used + self._rng.randint(0, 3000), 1)
        await asyncio.sleep(self._rng.choice((0.5, 2.0)))
        slave.disk.quota = 1 << 40

    async def wall_clock(self) -> None:
        node = self._rng.choice(self._sim.nodes)
        node.host.wall_offset_ms += self._rng.choice((-3_600_000, -500, 500, 3_600_000))

    async def restart_consumer(self) -> None:
        self._sim.consumer.restart()
