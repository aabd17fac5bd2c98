"""A controlled group in this process: a controller, brokers, and a client to talk to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.controller.record import GroupRecord
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.runtime.config import ControllerConfig

GROUP = "broker-a"


class LocalGroup:
    """Replicas by name; `record` is what the controller has committed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.brokers = Brokers(directory)
        self.controller: ControllerServer = self._new_controller(0)

    def _new_controller(self, port: int) -> ControllerServer:
        path = str(self.directory / "controller")
        return build_controller(ControllerConfig(controller_store_path=path, listen_port=port))

    async def restart_controller(self) -> None:
        port = self.controller.port
        self.controller = self._new_controller(port)
        await self.controller.start()

    async def start(self, name: str, **config: Any) -> Broker:
        return await self.brokers.start(
            name,
            **{
                "broker_name": GROUP,
                "enable_controller_mode": True,
                "controller_addr": self.controller.address,
                "broker_role": "SYNC_MASTER",
                "twinlog_ha_dialect": "auto",
                "slave_timeout": 1_000,
                **config,
            },
        )

    @property
    def is_known(self) -> bool:
        return self.controller.core is not None and GROUP in self.controller.core.groups

    @property
    def record(self) -> GroupRecord:
        assert self.controller.core is not None
        return self.controller.core.groups[GROUP].record

    async def pair(self, **config: Any) -> tuple[Broker, Broker]:
        """Master and slave, both in the sync-state set."""
        first = await self.start("first", **config)
        await until(lambda: first.role.is_master)
        second = await self.start("second", **config)
        await self.in_sync(2)
        await until(lambda: second.ha.is_linked)
        return first, second

    async def in_sync(self, count: int) -> None:
        await until(lambda: len(self.record.sync_state_set) == count)
        master = self.master
        assert master.ha.group is not None
        group = master.ha.group
        await until(lambda: group.authority and len(group.authority.members) == count)

    async def cut_link(self, slave: Broker) -> None:
        """No controller, and the slave follows nobody any more."""
        await self.learnt(slave)
        await self.controller.stop()
        await self.part(slave)

    async def learnt(self, slave: Broker) -> None:
        """A record that it learns after it was parted would make it follow its master again."""
        manager = slave.replicas
        assert manager is not None
        await until(lambda: manager._stored.record == self.record)

    async def part(self, slave: Broker) -> None:
        slave.ha.stand_down("cut by a test")
        await until(lambda: not self.master.ha.acks.replicas)

    @property
    def master(self) -> Broker:
        return next(broker for broker in self.brokers.started if broker.role.is_master)


@asynccontextmanager
async def local_group(directory: Path) -> AsyncIterator[LocalGroup]:
    group = LocalGroup(directory)
    await group.controller.start()
    group.brokers = Brokers(directory)
    try:
        yield group
    finally:
        await group.brokers.stop()
        await group.controller.stop()
