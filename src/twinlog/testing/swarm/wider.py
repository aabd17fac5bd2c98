"""What later worlds have besides: wrong addresses, and words that come late over one connection."""

from __future__ import annotations

import asyncio

from twinlog.testing.sim_network import SimTransport
from twinlog.testing.swarm.controllers import StrayController
from twinlog.testing.swarm.corners import SwarmCorners
from twinlog.testing.swarm.node import SwarmNode

STRAY_S = (1.0, 4.0, 8.0)
LATE_S = (0.5, 1.2, 2.5, 5.0)
DRAINED = b"twinlogDrained"


class SwarmWider(SwarmCorners):
    """All that may happen in a world from `WIDER_FROM` on."""

    async def wrong_controller(self) -> None:
        """The file of a replica, or what answers at an address, brings it to another controller,
        which has never heard of the group. Never all of a set: that one would be adopted."""
        swarm, stray = self._swarm, self._swarm.stray
        if stray is None or stray.astray:
            return
        running = [node for node in swarm.nodes if node.is_running]
        count = self._rng.choice((1, max(1, len(running) - 1)))
        stray.begin()
        moved = []
        for node in self._rng.sample(running, min(count, len(running))):
            if self._may_go_astray(node, stray):
                stray.astray.add(node.host)
                moved.append(node)
                await self._move(node)
        await asyncio.sleep(self._rng.choice(STRAY_S))
        stray.astray.clear()
        for node in moved:
            await self._move(node)
        stray.kill()

    def _may_go_astray(self, node: SwarmNode, stray: StrayController) -> bool:
        """One that is empty founds another group, and all of a set bring theirs along: both is
        meant so, and nobody could tell that it is wrong."""
        swarm = self._swarm
        manager = node.broker.replicas if node.is_running else None
        record = None if manager is None else manager._stored.record
        there = {swarm.id_of(other) for other in swarm.nodes if other.host in stray.astray}
        there.add(swarm.id_of(node))
        return record is not None and not any(
            members <= there for members in (record.sync_state_set, swarm.checks.members)
        )

    async def _move(self, node: SwarmNode) -> None:
        """It dials again: its process is another one, or its connections are gone."""
        if self._rng.random() < 0.5:
            self._hang_up(node)
        else:
            await self._down(node)

    async def late_connection(self) -> None:
        """One direction of a connection to a controller carries nothing for a while. Whoever waits
        for it takes another one, which is not late."""
        network = self._swarm.loop.network
        ends = {controller.host for controller in self._swarm.controllers}
        found = [
            transport
            for transport in network.transports
            if transport.peer is not None
            and not transport.is_held
            and (transport.host in ends) != (transport.peer.host in ends)
        ]
        if found:
            transport = self._rng.choice(found)
            transport.is_held = True
            await asyncio.sleep(self._rng.choice(LATE_S))
            transport.release()

    async def late_drained(self) -> None:
        """A master says that it is drained over a connection that is heard of late: when the switch
        is given up, it leads by a lease again, and the next switch has begun. It hears nothing from
        then on, and clients still reach it (R6)."""
        swarm, master = self._swarm, self._master()
        others = sorted(swarm.checks.members - {swarm.id_of(master)})
        if not master.is_master or not others or swarm.checks.on_beat is not None:
            return
        late = _LateWords(master)
        swarm.checks.on_beat = late.beat
        try:
            await self.switch_to(self._rng.choice(others))
        finally:
            swarm.checks.on_beat = None
        if late.transport is None:
            return
        if await swarm.until(lambda: self._leads_by_lease(master), 3.0):
            hosts = [host for host in self._hosts() if host is not master.host]
            cut = [(host, master.host) for host in hosts]
            swarm.spawn(self._cut(cut, one_way=True, lasts_s=3.0))
            swarm.spawn(self.switch_to(self._rng.choice(others)))
            await swarm.until(self._is_switching, 1.0)
        late.transport.release()

    def _leads_by_lease(self, master: SwarmNode) -> bool:
        manager = master.broker.replicas if master.is_master else None
        if manager is None or manager.authority is None or manager._hand_over_to is not None:
            return False
        return manager.authority.may_answer_early(master.clock.boot_ms())

    def _is_switching(self) -> bool:
        return any(
            group.hand_over_to is not None
            for controller in self._swarm.controllers
            if controller.is_leading and controller.server.core is not None
            for group in controller.server.core.groups.values()
        )


class _LateWords:
    """Breaks the connection over which a master says that it is drained, and holds the next one,
    whose first words to the controller's rules these are."""

    def __init__(self, master: SwarmNode) -> None:
        self._master = master
        self._broken: SimTransport | None = None
        self.transport: SimTransport | None = None

    def beat(self, node: SwarmNode, transport: SimTransport, data: bytes) -> None:
        if node is not self._master or DRAINED not in data or self.transport is not None:
            return
        if self._broken is None:
            self._broken = transport
            transport.is_held = True
            for end in (transport, transport.peer):
                if end is not None:
                    end.reset("connection reset by the network")
        elif transport is not self._broken:
            self.transport = transport
            transport.is_held = True
