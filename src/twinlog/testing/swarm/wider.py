"""What later worlds have besides: errors of people who set up machines."""

from __future__ import annotations

import asyncio

from twinlog.testing.swarm.controllers import StrayController
from twinlog.testing.swarm.corners import SwarmCorners
from twinlog.testing.swarm.node import SwarmNode

STRAY_S = (1.0, 4.0, 8.0)


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
