"""What happens to a controlled group: one method for each name in `world.FAULTS`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinlog.testing.group.rpc import Answer
from twinlog.testing.swarm.node import NAME, SwarmNode

if TYPE_CHECKING:
    from twinlog.testing.sim_loop import SimHost
    from twinlog.testing.swarm.sim import Swarm

DOWN_S = (0.0, 0.2, 1.0, 4.0)
AROUND_THE_LEASE_S = (0.5, 1.5, 1.9, 2.1, 2.4, 4.0, 8.0)
CUT_S = (0.5, 2.0, 3.0, 6.0, 12.0)
ELECT_MASTER = 1002


class SwarmFaults:
    """Several may be under way at once; what one breaks it mends, unless another did."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._rng = swarm.rng

    def _some(self) -> SwarmNode:
        return self._rng.choice(self._swarm.nodes)

    def _hosts(self) -> list[SimHost]:
        """Of brokers and controllers."""
        hosts = [node.host for node in self._swarm.nodes]
        return hosts + [controller.host for controller in self._swarm.controllers]

    def _master(self) -> SwarmNode:
        return self._swarm.master or self._some()

    # Processes and machines.

    async def kill(self) -> None:
        await self._down(self._some())

    async def kill_master(self) -> None:
        await self._down(self._master())

    async def _down(self, node: SwarmNode) -> None:
        if node.host.is_alive:
            node.kill()
            await asyncio.sleep(self._rng.choice(DOWN_S))
            node.boot_if_down()

    async def power(self) -> None:
        await self._power(self._some())

    async def power_master(self) -> None:
        await self._power(self._master())

    async def _power(self, node: SwarmNode) -> None:
        if not node.host.is_alive:
            return
        if self._rng.random() < 0.5:  # A slow disk: others get what it has not got yet.
            disk = node.disk
            disk.stall()
            await asyncio.sleep(self._rng.choice((0.1, 0.5)))
            disk.resume()
            if node.disk is not disk:
                return
        node.power_loss()
        await asyncio.sleep(self._rng.choice(DOWN_S))
        node.boot_if_down()

    async def kill_all(self) -> None:
        for node in self._swarm.nodes:
            if node.host.is_alive:
                node.kill()
        await asyncio.sleep(self._rng.choice((0.0, 1.0)))
        for node in self._rng.sample(self._swarm.nodes, len(self._swarm.nodes)):
            node.boot_if_down()
            await asyncio.sleep(self._rng.choice((0.0, 0.5, 3.0)))

    async def pause(self) -> None:
        await self._pause(self._some().host)

    async def pause_master(self) -> None:
        await self._pause(self._master().host)

    async def pause_controller(self) -> None:
        await self._pause(self._rng.choice(self._swarm.controllers).host)

    async def _pause(self, host: SimHost) -> None:
        if not host.is_alive or host.is_paused:
            return
        incarnation = host.incarnation
        self._swarm.loop.pause(host)
        await asyncio.sleep(self._rng.choice(AROUND_THE_LEASE_S))
        if host.incarnation == incarnation:
            self._swarm.loop.resume(host)

    async def restart_clean(self) -> None:
        node = self._some()
        if await node.stop():
            await asyncio.sleep(self._rng.choice(DOWN_S))
        node.boot_if_down()

    async def lose_disk(self) -> None:
        """Of a replica that nobody counts on: a slave outside of the set."""
        swarm = self._swarm
        record = swarm.checks.record
        outside = [
            node
            for node in swarm.nodes
            if record is not None
            and swarm.id_of(node) not in (0, *record.sync_state_set)
            and not node.is_master
        ]
        if outside:
            node = self._rng.choice(outside)
            if node.host.is_alive:
                node.kill()
            node.replace_disk()
            node.boot()

    # Controllers and name servers.

    async def kill_controller(self) -> None:
        controller = self._rng.choice(self._swarm.controllers)
        controller.kill()
        await asyncio.sleep(self._rng.choice(DOWN_S))
        controller.boot_if_down()

    async def kill_controller_and_master(self) -> None:
        self._swarm.spawn(self.kill_controller())
        await self.kill_master()

    async def kill_namesrv(self) -> None:
        number = self._rng.randrange(len(self._swarm.namesrv_hosts))
        host = self._swarm.namesrv_hosts[number]
        if host.is_alive:
            self._swarm.loop.kill(host)
            await asyncio.sleep(self._rng.choice(DOWN_S))
            await self._swarm.start_namesrv(host)

    # Links.

    async def cut_pair(self) -> None:
        a, b = self._rng.sample(self._swarm.nodes, 2)
        await self._cut([(a.host, b.host)])

    async def cut_off(self) -> None:
        """One replica from everybody but the clients."""
        await self._cut_from_all(self._some())

    async def cut_master(self) -> None:
        await self._cut_from_all(self._master())

    async def _cut_from_all(self, node: SwarmNode) -> None:
        others = [*self._hosts(), *self._swarm.namesrv_hosts]
        kept = [host for host in others if self._rng.random() < 0.9 and host is not node.host]
        await self._cut([(node.host, host) for host in kept])

    async def cut_controller(self) -> None:
        controller = self._rng.choice(self._swarm.controllers)
        nodes = [node for node in self._swarm.nodes if self._rng.random() < 0.6]
        await self._cut([(controller.host, node.host) for node in nodes])

    async def cut_oneway(self) -> None:
        ends = self._hosts()
        pairs = [tuple(self._rng.sample(ends, 2)) for _ in range(self._rng.randint(1, 3))]
        await self._cut([(a, b) for a, b in pairs], one_way=True)

    async def _cut(self, pairs: list[tuple[SimHost, SimHost]], *, one_way: bool = False) -> None:
        for a, b in pairs:
            self._swarm.loop.network.partition(a, b, one_way=one_way)
        await asyncio.sleep(self._rng.choice(CUT_S))
        self._swarm.loop.network.heal()

    async def reset(self) -> None:
        self._swarm.loop.network.reset_all()

    # Disks and clocks.

    async def slow_disk(self) -> None:
        disk = self._some().disk
        disk.stall()
        await asyncio.sleep(self._rng.choice((0.1, 1.0, 3.0)))
        disk.resume()

    async def full_disk(self) -> None:
        disk = self._some().disk
        disk.quota = max(disk.space("/").used + self._rng.randint(0, 3000), 1)
        await asyncio.sleep(self._rng.choice((1.0, 5.0)))
        disk.quota = 1 << 40

    async def wall_clock(self) -> None:
        self._some().host.wall_offset_ms += self._rng.choice((-3_600_000, -500, 500, 3_600_000))

    # People.

    async def switch(self) -> None:
        """An operator wants another master."""
        record = self._swarm.checks.record
        if record is None or not record.sync_state_set:
            return
        await self.switch_to(self._rng.choice(sorted(record.sync_state_set)))

    async def switch_to(self, wanted: int) -> None:
        swarm = self._swarm
        ext = {"brokerName": NAME, "clusterName": "DefaultCluster", "designateElect": "true"}
        address = self._rng.choice(swarm.controller_addresses)
        answer: Answer = await swarm.operator.call(
            address, ELECT_MASTER, {**ext, "brokerId": str(wanted)}
        )
        swarm.trace(f"switch to {wanted} was answered {answer.code} {answer.remark}")

    async def restart_consumer(self) -> None:
        self._swarm.consumer.restart()
