"""What happens to a controlled group: one method for each name in `world.FAULTS`.

What needs several things in a row is in `corners.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinlog.testing.group.rpc import Answer
from twinlog.testing.swarm.node import NAME, SwarmNode

if TYPE_CHECKING:
    from twinlog.testing.sim_steps import SimHost
    from twinlog.testing.simdisk import SimDisk
    from twinlog.testing.swarm.sim import Swarm

DOWN_S = (0.0, 0.2, 1.0, 4.0)
AROUND_THE_LEASE_S = (0.5, 1.5, 1.9, 2.1, 2.4, 4.0, 8.0)
CUT_S = (0.5, 2.0, 3.0, 6.0, 12.0)
ELECT_MASTER = 1002
NOT_LEADER = 2007
ADOPT = 10022


class SwarmFaults:
    """Several may be under way at once; what one breaks it mends, unless another did."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._rng = swarm.rng
        self._is_adopting = False

    def _some(self) -> SwarmNode:
        return self._rng.choice(self._swarm.nodes)

    def _hosts(self) -> list[SimHost]:
        """Of brokers, controllers and etcd."""
        hosts = [node.host for node in self._swarm.nodes]
        hosts += [controller.host for controller in self._swarm.controllers]
        return hosts if self._swarm.etcd is None else [*hosts, self._swarm.etcd.host]

    def _master(self) -> SwarmNode:
        return self._swarm.master or self._some()

    # Processes and machines.

    async def kill(self) -> None:
        await self._down(self._some())

    async def kill_master(self) -> None:
        """Where nothing else happens, a consumer then asks the next master for its place."""
        swarm = self._swarm
        await self._down(self._master())
        if swarm.world.is_orderly and await swarm.until(lambda: swarm.master is not None, 5.0):
            swarm.consumer.restart()

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
        if self._rng.random() < 0.5:  # A slow disk: others get what it does not have yet.
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
        await self._lose_disk(self._some())

    async def _lose_disk(self, node: SwarmNode) -> bool:
        """Of a replica without which the set still has one that never lost anything. Nothing else
        happens until the group counts without it: two disks at once are outside of promises."""
        swarm = self._swarm
        record, lost = swarm.checks.record, swarm.id_of(node)
        if record is None or not lost or not self._is_calm():
            return False
        others = [swarm.node_of(n) for n in record.sync_state_set - {lost}]
        if not any(other is not None and other.lost_s < 0 for other in others):
            return False
        node.kill()
        node.replace_disk()
        swarm.calm(8.0, lambda: lost not in swarm.checks.members)
        await asyncio.sleep(self._rng.choice(DOWN_S))
        node.boot_if_down()
        return True

    async def expire(self) -> None:
        """Old segments go, and with them what they said of topics and groups. While all are there,
        so that nobody's log ends before another's begins."""
        if self._is_calm() and len(self._swarm.checks.members) == len(self._swarm.nodes):
            for node in self._swarm.nodes:
                if node.is_master or self._rng.random() < 0.5:
                    await self._swarm.loop.spawn_on(node.host, node.expire())

    def _is_calm(self) -> bool:
        """Everybody is up, nothing is cut: what happens now happens alone."""
        swarm = self._swarm
        controllers = swarm.controllers
        return (
            swarm.loop.network.is_whole
            and not (swarm.stray is not None and swarm.stray.astray)
            and all(node.is_running and not node.host.is_paused for node in swarm.nodes)
            and all(c.is_up and c.host.is_alive and not c.host.is_paused for c in controllers)
        )

    # Controllers and name servers.

    async def kill_controller(self) -> None:
        controller = self._rng.choice(self._swarm.controllers)
        controller.kill()
        await asyncio.sleep(self._rng.choice(DOWN_S))
        controller.boot_if_down()

    async def power_controller(self) -> None:
        controller = self._rng.choice(self._swarm.controllers)
        controller.power_loss()
        await asyncio.sleep(self._rng.choice(DOWN_S))
        controller.boot_if_down()

    async def old_backup(self) -> None:
        """The only controller gets older records, while everybody is there to contradict it; an
        operator adopts the group when all replicas are here (R12)."""
        swarm, controller = self._swarm, self._swarm.controllers[0]
        record = swarm.checks.record
        if swarm.etcd is not None or record is None or not self._is_calm():
            return
        backups = controller.recent_backups(frozenset(record.replicas))
        if not backups:
            return
        controller.kill()
        controller.restore(self._rng.choice(backups))
        swarm.checks.restored()
        swarm.calm(3.0, lambda: False)
        controller.boot()
        if not self._is_adopting:
            self._is_adopting = True
            swarm.spawn(self._keep_adopting())

    async def _keep_adopting(self) -> None:
        """An operator who looks now and then, and never while a replica is away."""
        while True:
            is_hostile = self._swarm.is_hostile
            await asyncio.sleep(self._rng.uniform(3.0, 8.0) if is_hostile else 0.5)
            core = self._swarm.controllers[0].server.core
            is_frozen = core is not None and any(group.frozen for group in core.groups.values())
            if is_frozen and self._is_calm():
                answer = await self._ask_leader(ADOPT, {"brokerName": NAME, "twinlogGroup": NAME})
                self._swarm.trace(f"adopt was answered {answer.code} {answer.remark}")

    async def kill_controller_and_master(self) -> None:
        self._swarm.spawn(self.kill_controller())
        await self.kill_master()

    async def kill_etcd(self) -> None:
        etcd = self._swarm.etcd
        if etcd is not None and etcd.host.is_alive:
            self._swarm.loop.kill(etcd.host)
            await asyncio.sleep(self._rng.choice(DOWN_S))
            etcd.boot_if_down()

    async def pause_etcd(self) -> None:
        if self._swarm.etcd is not None:
            await self._pause(self._swarm.etcd.host)

    async def cut_etcd(self) -> None:
        """From one controller or all, both ways or one."""
        etcd, controllers = self._swarm.etcd, self._swarm.controllers
        if etcd is None:
            return
        cut = self._rng.sample(controllers, self._rng.randint(1, len(controllers)))
        pairs = [(controller.host, etcd.host) for controller in cut]
        if self._rng.random() < 0.3:
            pairs = [(b, a) for a, b in pairs]
        await self._cut(pairs, one_way=self._rng.random() < 0.5)

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

    async def split(self) -> None:
        """Two halves that do not hear each other; clients and name servers hear both."""
        hosts = self._hosts()
        there = {host for host in hosts if self._rng.random() < 0.5}
        here = [host for host in hosts if host not in there]
        await self._cut([(a, b) for a in here for b in hosts if b in there])

    async def _cut(
        self,
        pairs: list[tuple[SimHost, SimHost]],
        *,
        one_way: bool = False,
        lasts_s: float | None = None,
    ) -> None:
        for a, b in pairs:
            self._swarm.loop.network.partition(a, b, one_way=one_way)
        await asyncio.sleep(self._rng.choice(CUT_S) if lasts_s is None else lasts_s)
        for a, b in pairs:
            self._swarm.loop.network.mend(a, b, one_way=one_way)

    async def reset(self) -> None:
        self._swarm.loop.network.reset_all()

    async def reset_some(self) -> None:
        self._swarm.loop.network.reset_some(self._rng.choice((0.1, 0.3, 0.6)))

    async def loss(self) -> None:
        """Packets are lost on all links: TCP sends them again, and connections overtake others."""
        network = self._swarm.loop.network
        network.loss_rate = self._rng.choice((0.02, 0.1, 0.3))
        await asyncio.sleep(self._rng.choice(CUT_S))
        network.loss_rate = 0.0

    async def reorder(self) -> None:
        """Every packet is late by another time: connections overtake each other all the time."""
        network, usual_s = self._swarm.loop.network, self._swarm.world.delay_s
        network.delay_s = (0.0, self._rng.choice((0.05, 0.3, 1.0)))
        await asyncio.sleep(self._rng.choice(CUT_S))
        network.delay_s = usual_s

    # Disks and clocks.

    def _some_disk(self) -> SimDisk:
        """The master's in half of all cases."""
        return (self._master() if self._rng.random() < 0.5 else self._some()).disk

    async def slow_disk(self) -> None:
        disk = self._some_disk()
        disk.stall()
        await asyncio.sleep(self._rng.choice((0.1, 1.0, 3.0)))
        disk.resume()

    async def full_disk(self) -> None:
        disk = self._some_disk()
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
        answer = await self._ask_leader(ELECT_MASTER, {**ext, "brokerId": str(wanted)})
        swarm.trace(f"switch to {wanted} was answered {answer.code} {answer.remark}")

    async def _ask_leader(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        addresses = self._swarm.controller_addresses
        for address in self._rng.sample(addresses, len(addresses)):
            answer = await self._swarm.operator.call(address, code, ext, body)
            if answer.code != NOT_LEADER:
                break
        return answer

    async def restart_consumer(self) -> None:
        self._swarm.consumer.restart()
