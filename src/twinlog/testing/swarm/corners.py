"""Things that must happen in a row, and that chance does not bring about: the corners of the rules.

Each is made for the rules that it names: broken, they are noticed here (`tools/swarm_mutants.py`).
"""

from __future__ import annotations

import asyncio

from twinlog.testing.swarm.faults import DOWN_S, SwarmFaults
from twinlog.testing.swarm.node import SwarmNode

ALTER_SYNC_STATE_SET = 1001
ALONE_S = 9.0
"""A slave that began again follows the master that it knew after a second without a controller."""


class SwarmCorners(SwarmFaults):
    """All that may happen."""

    def _slaves(self, master: SwarmNode) -> list[SwarmNode]:
        return [node for node in self._swarm.nodes if node is not master and node.is_running]

    def _restart_controllers(self) -> None:
        for controller in self._swarm.controllers:
            controller.kill()
            controller.boot()

    def _hang_up(self, node: SwarmNode) -> None:
        """Its connections to all but clients break, and both ends know."""
        for transport in tuple(self._swarm.loop.network.transports):
            ends = {transport.host.address, transport.remote[0]}
            if node.host.address in ends and self._swarm.client_address not in ends:
                transport.reset("connection reset by the network")

    async def lease_left(self) -> None:
        """A master is cut off with a lease in its hand, and everybody knows at once that it is
        gone, perhaps a controller that has just begun: nobody else may answer early before the
        lease is over (R5, R6). What it takes meanwhile is cut when it is back (R9)."""
        swarm, master = self._swarm, self._master()
        if self._rng.random() < 0.5:
            self._restart_controllers()
        hosts = [host for host in self._hosts() if host is not master.host]
        swarm.spawn(self._cut([(master.host, host) for host in hosts], lasts_s=4.0))
        self._hang_up(master)

    async def last_member(self) -> None:
        """The master is alone in its set and dies: nobody else has everything (R7)."""
        swarm, master = self._swarm, self._master()
        others = [node.host for node in swarm.nodes if node is not master]
        swarm.spawn(self._cut([(master.host, host) for host in others], lasts_s=5.0))
        alone = frozenset((swarm.id_of(master),))
        if await swarm.until(lambda: swarm.checks.members == alone, 4.0):
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            await self._down(master)

    async def power_then_kill(self) -> None:
        """All slaves lose power and are back at once, perhaps twice; the master is killed at the
        same moment: it alone has everything (R8)."""
        master = self._master()
        slaves = self._slaves(master)
        if not master.is_running or any(node.lost_s >= 0 for node in self._swarm.nodes):
            return
        is_twice = self._rng.random() < 0.5
        master.kill()
        for node in slaves:
            node.power_loss()
            node.boot()
        if is_twice:
            await asyncio.sleep(self._rng.uniform(0.0, 0.3))
            for node in slaves:
                if node.host.is_alive:
                    node.kill()
                    node.boot()
        await asyncio.sleep(self._rng.choice((1.0, 3.0)))
        master.boot_if_down()

    async def late_proposal(self) -> None:
        """A replica leaves the set; then another copy of the proposal by which it was admitted
        arrives, which was under way for all this time (R2)."""
        swarm, master = self._swarm, self._master()
        node = self._rng.choice(self._slaves(master) or [master])
        number = swarm.id_of(node)
        if node is master or number not in swarm.checks.members:
            return
        swarm.spawn(self._cut([(master.host, node.host)], lasts_s=5.0))
        if not await swarm.until(lambda: number not in swarm.checks.members, 4.0):
            return
        for ext, body in reversed(swarm.checks.proposals):
            if f"{number}=" in ext.get("twinlogIncarnations", ""):
                answer = await self._ask_leader(ALTER_SYNC_STATE_SET, ext, body)
                swarm.trace(f"a late proposal was answered {answer.code} {answer.remark}")
                return

    async def restart_alone(self) -> None:
        """A slave begins again while no controller is there: it follows whom it followed (R4)."""
        swarm, master = self._swarm, self._master()
        slaves = self._slaves(master)
        if not master.is_master or not slaves or not self._is_calm():
            return
        node = self._rng.choice(slaves)
        if node.epoch != master.epoch:
            return
        swarm.calm(ALONE_S + 1.0, lambda: False)
        for controller in swarm.controllers:
            controller.kill()
        node.kill()
        await asyncio.sleep(self._rng.choice(DOWN_S[:3]))
        node.boot_if_down()
        if not await swarm.until(lambda: node.is_running and node.broker.ha.is_linked, ALONE_S):
            swarm.fail(f"{node.name} does not follow {master.name} without a controller (R4)")
        for controller in swarm.controllers:
            controller.boot_if_down()

    async def elect_new_disk(self) -> None:
        """The records that named topics and groups are expired; a replica has a new disk, and
        leads as soon as it is in the set (R3)."""
        swarm, master = self._swarm, self._master()
        slaves = self._slaves(master)
        if not master.is_master or not slaves:
            return
        await self.expire()
        node = self._rng.choice(slaves)
        lost = swarm.id_of(node)
        if not await self._lose_disk(node):
            return

        def is_member() -> bool:
            return node.is_running and swarm.id_of(node) in swarm.checks.members - {lost}

        if not await swarm.until(is_member, 12.0):
            return
        if len(swarm.nodes) > 2:
            await self.switch_to(swarm.id_of(node))
        else:
            await self._down(master)

    async def power_joining(self) -> None:
        """A replica falls out and comes back; the proposal to admit it hangs on its way to the
        controller while the replica loses power; then it arrives, and the master dies (R3)."""
        swarm, master = self._swarm, self._master()
        others = [node for node in swarm.nodes if node is not master and node.is_running]
        if not others:
            return
        node = self._rng.choice(others)
        node.kill()
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        node.boot_if_down()
        await asyncio.sleep(self._rng.uniform(0.2, 1.2))
        hosts = [controller.host for controller in swarm.controllers]
        pairs = [(master.host, host) for host in hosts]
        swarm.spawn(self._cut(pairs, one_way=True, lasts_s=self._rng.uniform(1.5, 3.0)))
        await asyncio.sleep(self._rng.uniform(0.7, 1.4))
        if node.host.is_alive:
            node.power_loss()
            node.boot()
        await asyncio.sleep(self._rng.uniform(0.5, 1.6))
        await self._down(master)

    async def switch_twice(self) -> None:
        """The next master is replaced at once, and the last one does not hear of it for a while:
        it still passes sends on to the wrong one."""
        swarm, first = self._swarm, self._swarm.master
        members = list(swarm.checks.members)
        if first is None or len(members) < 3:
            return
        others = [
            n for n in self._rng.sample(sorted(members), len(members)) if n != swarm.id_of(first)
        ]
        await self.switch_to(others[0])
        cut = self._cut([(c.host, first.host) for c in swarm.controllers], one_way=True)
        swarm.spawn(cut)
        if await swarm.until(lambda: swarm.master is not first, 1.0):
            await self.switch_to(others[1])
