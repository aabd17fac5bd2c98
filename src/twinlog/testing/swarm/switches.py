"""Planned switches in a row: the same processes become master and slave again and again.

What a change of role leaves behind adds up: after each one the group is whole, and what its
processes hold (tasks, connections, subscribers, waiters) is what they held after the first rounds.
"""

from __future__ import annotations

import asyncio

from twinlog.runtime.broker_config import BrokerRole
from twinlog.testing.swarm.faults import SwarmFaults
from twinlog.testing.swarm.sim import Swarm

WARM_UP = 20
"""Switches until everybody has spoken to everybody: until then connections are made."""
WHOLE_AGAIN_S = 70.0
SWITCH_S = 10.0


class Switches(Swarm):
    """`count` switches, `pause_s` apart. Every tenth master is killed instead of asked."""

    def __init__(self, seed: int, *, count: int, pause_s: float, keeps_trace: bool = False) -> None:
        super().__init__(seed, keeps_trace=keeps_trace)
        self.world.faults = ()
        self.world.role = BrokerRole.SYNC_MASTER
        self.world.unknown_rate = 0.0
        self.world.put_pause_s = min(pause_s / 5, 4.0)  # Within ten seconds one is sent.
        self.world.duration_s = 1e9
        self.count = count
        self.pause_s = pause_s
        self.done = 0
        self.held: list[dict[str, int]] = []

    async def until_over(self) -> None:
        await self.until(lambda: self.done >= self.count, self.world.duration_s)

    async def _do_faults(self) -> None:
        faults = SwarmFaults(self)
        while self.done < self.count and not self.failure:
            if not await self.until(self._is_whole_now, WHOLE_AGAIN_S):
                self.fail(f"not whole before switch {self.done + 1}: {self._facts()}")
                return
            self.held.append(self._holds())
            await asyncio.sleep(self.pause_s)
            if not await self._switch(faults):
                self.fail(f"switch {self.done + 1} has not happened: {self._facts()}")
                return
            self.done += 1

    def _is_whole_now(self) -> bool:
        """In the set and following, under load."""
        record = self.checks.record
        is_full = record is not None and len(record.sync_state_set) == len(self.nodes)
        return is_full and all(node.is_running for node in self.nodes)

    async def _switch(self, faults: SwarmFaults) -> bool:
        record = self.checks.record
        assert record is not None
        epoch = record.master_epoch
        if self.done % 10 == 9:
            await faults.kill_master()
        else:
            others = sorted(record.sync_state_set - {record.master_broker_id})
            await faults.switch_to(self.rng.choice(others))
        return await self.until(lambda: self._leads_after(epoch), SWITCH_S)

    def _leads_after(self, epoch: int) -> bool:
        master = self.master
        return master is not None and master.epoch > epoch

    def _holds(self) -> dict[str, int]:
        """Sums over all brokers."""
        held = {"connections": len(self.loop.network.transports), "tasks": 0, "subscribers": 0}
        for node in self.nodes:
            broker = node.broker
            held["tasks"] += broker.tasks.count
            marks = (broker.store.appended, broker.store.flushed, broker.store.dispatched)
            for mark in (*marks, broker.ha.confirmed):
                held["subscribers"] += len(mark._subscribers) + len(mark._first)
        return held

    def leak(self) -> str:
        """What grew since the first rounds, if anything did."""
        first, last = self.held[:WARM_UP], self.held[-4:]
        for key in first[0]:
            before, after = max(held[key] for held in first), min(held[key] for held in last)
            if after > before + 4:
                return f"{key}: {before} after {WARM_UP} switches, {after} after {len(self.held)}"
        return ""
