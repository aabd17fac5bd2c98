"""A controller of the swarm: a host, a disk, processes that come and go, writes of unknown fate."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twinlog.controller.events import Commit, Effect
from twinlog.controller.record import GroupRecord
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.controller.store import StoreOutcome
from twinlog.runtime.controller_config import ControllerConfig
from twinlog.runtime.disk import write_atomically
from twinlog.testing.sim_process import SimProcess
from twinlog.testing.simdisk import SimDisk

if TYPE_CHECKING:
    from twinlog.testing.sim_steps import SimHost
    from twinlog.testing.swarm.sim import Swarm

CONTROLLER_PORT = 9878
STORE_PATH = "/controller"
RECORDS_PATH = f"{STORE_PATH}/groups.json"


class WatchedStore:
    """A store whose every record the judge sees, and which sometimes does not say what it did."""

    def __init__(
        self, store: Any, swarm: Swarm, rng: random.Random, keep: Callable[[], None]
    ) -> None:
        self._store = store
        self._swarm = swarm
        self._rng = rng
        self._keep = keep

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
            self._keep()
        return StoreOutcome.UNKNOWN if is_unknown else outcome


class ControllerNode(SimProcess):
    """One controller."""

    def __init__(self, swarm: Swarm, number: int) -> None:
        super().__init__(swarm, f"controller{number}")
        self._swarm = swarm
        self.host.clock_rate = swarm.world.rates[-number]
        self.backups: list[bytes] = []
        """Its records after each write, oldest first."""
        self.server: ControllerServer

    @property
    def address(self) -> str:
        return f"{self.host.address}:{CONTROLLER_PORT}"

    @property
    def is_leading(self) -> bool:
        """Whether it would decide something now."""
        is_running = self.is_up and self.host.is_alive and not self.host.is_paused
        return is_running and self.server.core is not None

    async def _boot(self) -> None:
        etcd = self._swarm.etcd
        server = self._build(self._swarm.controllers, "" if etcd is None else etcd.address)
        if etcd is None:
            server._store = WatchedStore(server._store, self._swarm, self._swarm.rng, self._back_up)
        server._carry_out = partial(self._judged, server, server._carry_out)  # type: ignore[method-assign]
        await self._start(server)

    def _build(self, peers: list[ControllerNode], etcd: str) -> ControllerServer:
        config = ControllerConfig(
            bind_address=self.host.address,
            listen_port=CONTROLLER_PORT,
            controller_store_path=STORE_PATH,
            controller_d_leger_self_id=self.name,
            controller_d_leger_peers=";".join(f"{peer.name}-{peer.address}" for peer in peers),
            twinlog_controller_etcd=etcd,
        )
        server = build_controller(config, disk=self.disk, clock=self.clock, on_failure=self._failed)
        server.failures.listener = self._failed
        return server

    async def _start(self, server: ControllerServer) -> None:
        self.server = server
        await server.start()
        self.is_up = True

    def _judged(
        self, server: ControllerServer, carry_out: Callable[[Effect], None], effect: Effect
    ) -> None:
        """Every decision is judged by what its controller knows at this moment."""
        if isinstance(effect, Commit) and server.core is not None:
            self._swarm.checks.decides(server.core.groups[effect.record.group], effect.record)
        carry_out(effect)

    def _booted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._swarm.fail(f"{self.name} did not start: {error!r}")

    def _failed(self, what: str, error: BaseException) -> None:
        self._swarm.fail(f"{self.name}: {what} failed: {error!r}")

    def kill(self) -> None:
        if self.host.is_alive:
            super().kill()

    def power_loss(self) -> None:
        if self.host.is_alive:
            super().power_loss()

    def _back_up(self) -> None:
        self.backups.append(self.disk.peek(RECORDS_PATH, 0, 1 << 30))

    def recent_backups(self, replicas: frozenset[int]) -> list[bytes]:
        """Those that know these replicas: who gives an id for the second time shuts its owner out,
        and that is for a person to mend."""
        wanted = {str(n) for n in replicas}
        return [
            data
            for data in self.backups[-8:]
            if any(wanted <= group["replicas"].keys() for group in json.loads(data)["groups"])
        ]

    def restore(self, data: bytes) -> None:
        """Somebody puts an older file in its place while it is down."""
        self._swarm.trace(f"{self.name} has an old backup")
        write_atomically(self.disk, RECORDS_PATH, data)


class StrayController(ControllerNode):
    """Belongs to no group, and knows none. `astray`: hosts that reach it where they ask for the
    controllers of their own group, as with a file that names the wrong address."""

    def __init__(self, swarm: Swarm) -> None:
        super().__init__(swarm, len(swarm.controllers) + 1)
        self.name = "stray"
        self.astray: set[SimHost] = set()
        swarm.loop.network.dial_rule = self._where

    def _where(self, source: SimHost, address: str, port: int) -> tuple[float, str, int]:
        is_astray = port == CONTROLLER_PORT and source in self.astray
        return 0.0, self.host.address if is_astray else address, port

    async def _boot(self) -> None:
        await self._start(self._build([self], ""))

    def begin(self) -> None:
        """Without anything that it knew the last time."""
        self.kill()
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.boot()
