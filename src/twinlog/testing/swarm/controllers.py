"""A controller of the swarm: a host, a disk, processes that come and go, writes of unknown fate."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from twinlog.controller.record import GroupRecord
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.controller.store import StoreOutcome
from twinlog.runtime.controller_config import ControllerConfig
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.simdisk import SimDisk

if TYPE_CHECKING:
    from twinlog.testing.swarm.sim import Swarm

CONTROLLER_PORT = 9878


class WatchedStore:
    """A store whose every record the judge sees, and which sometimes does not say what it did."""

    def __init__(self, store: Any, swarm: Swarm, rng: random.Random) -> None:
        self._store = store
        self._swarm = swarm
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load_all(self) -> list[GroupRecord]:
        records: list[GroupRecord] = await self._store.load_all()
        for record in records:
            self._swarm.checks.decided(record)
        return records

    async def load(self, group: str) -> GroupRecord | None:
        record: GroupRecord | None = await self._store.load(group)
        if record is not None:
            self._swarm.checks.decided(record)
        return record

    async def commit(self, record: GroupRecord) -> StoreOutcome:
        is_unknown = self._swarm.is_hostile and self._rng.random() < self._swarm.world.unknown_rate
        if is_unknown and self._rng.random() < 0.5:
            return StoreOutcome.UNKNOWN
        outcome: StoreOutcome = await self._store.commit(record)
        if outcome is StoreOutcome.DONE:
            self._swarm.checks.decided(record)
        return StoreOutcome.UNKNOWN if is_unknown else outcome


class ControllerNode:
    """Survives its processes."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        self._swarm = swarm
        self.name = f"controller{number}"
        self.host = swarm.loop.add_host(self.name)
        self.host.clock_rate = swarm.world.rates[-number]
        self.clock = SimClock(swarm.loop, self.host)
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.is_up = False
        self.server: ControllerServer

    @property
    def address(self) -> str:
        return f"{self.host.address}:{CONTROLLER_PORT}"

    def boot(self) -> None:
        self._swarm.loop.revive(self.host)
        self._swarm.trace(f"{self.name} boots")
        self._swarm.loop.spawn_on(self.host, self._boot()).add_done_callback(self._booted)

    async def _boot(self) -> None:
        config = ControllerConfig(
            bind_address=self.host.address,
            listen_port=CONTROLLER_PORT,
            controller_store_path="/controller",
        )
        server = build_controller(config, disk=self.disk, clock=self.clock, on_failure=self._failed)
        server._store = WatchedStore(server._store, self._swarm, self._swarm.rng)
        server.failures.listener = self._failed
        self.server = server
        await server.start()
        self.is_up = True

    def _booted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._swarm.fail(f"{self.name} did not start: {error!r}")

    def _failed(self, what: str, error: BaseException) -> None:
        self._swarm.fail(f"{self.name}: {what} failed: {error!r}")

    def kill(self) -> None:
        if self.host.is_alive:
            self._swarm.trace(f"{self.name} killed")
            self.is_up = False
            self._swarm.loop.kill(self.host)
            self.disk = self.disk.kill()

    def boot_if_down(self) -> None:
        if not self.host.is_alive:
            self.boot()

    def resume_if_paused(self) -> None:
        if self.host.is_alive and self.host.is_paused:
            self._swarm.loop.resume(self.host)
