"""Brokers in the test's own process, and a client to talk to them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.ha_load import send_command
from support.processes import free_broker_port, free_port
from twinlog.broker.server import MEMORY_UNKNOWN, Broker, build_broker
from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.broker_config import BrokerRole, FlushDiskType, HADialect
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.config import BrokerConfig, NamesrvConfig
from twinlog.runtime.disk import Disk

SUBSCRIPTION = 4  # Of a pull: the header carries the expression.
ENUMS: dict[str, Any] = {
    "broker_role": BrokerRole,
    "flush_disk_type": FlushDiskType,
    "twinlog_ha_dialect": HADialect,
}


class Brokers:
    """Brokers in this process, and a client to talk to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Broker] = []
        self.name_servers: list[Namesrv] = []
        self.client = RemotingClient(clock=SystemClock())

    async def start(
        self,
        name: str,
        disk: Disk | None = None,
        *,
        memory_size: int = MEMORY_UNKNOWN,
        clock: Clock | None = None,
        config_path: str | None = None,
        **config: Any,
    ) -> Broker:
        values = {
            "store_path_root_dir": str(self.directory / name),
            "listen_port": free_broker_port(),
            "mapped_file_size_commit_log": 256 * 1024,
            "broker_ip1": "127.0.0.1",
            "broker_ip2": "127.0.0.1",
            "twinlog_ha_dialect": "classic",
            **config,
        }
        for key, kind in ENUMS.items():
            if key in values:
                values[key] = kind(values[key])
        settled = BrokerConfig(**values)
        settled.check()
        broker = build_broker(
            settled, rng=random.Random(1), disk=disk, clock=clock, memory_size=memory_size,
            config_path=config_path,
        )  # fmt: skip
        await broker.start()
        self.started.append(broker)
        return broker

    async def master(self, **config: Any) -> Broker:
        return await self.start("master", **{"broker_role": "SYNC_MASTER", **config})

    async def slave(self, master: Broker, **config: Any) -> Broker:
        address = f"127.0.0.1:{master.ha.listen_port}"
        slave = await self.start(
            "slave", broker_role="SLAVE", broker_id=1, ha_master_address=address, **config
        )
        await until(lambda: len(master.ha.acks) == 1)
        return slave

    async def send(self, broker: Broker, body: bytes = b"body", **more: Any) -> Request:
        return await self.client.invoke(broker.address, send_command(body, **more), 30_000)

    async def call(
        self, broker: Broker, code: int, header: dict[str, Any] | None = None, body: bytes = b""
    ) -> Request:
        command = RemotingCommand.request(code, header, body)
        return await self.client.invoke(broker.address, command, 30_000)

    async def name_server(self, port: int = 0) -> Namesrv:
        config = NamesrvConfig(
            listen_port=port or free_port(), kv_config_path=str(self.directory / "kv.json")
        )
        server = build_namesrv(config)
        await server.start()
        self.name_servers.append(server)
        return server

    async def end(self, broker: Broker) -> None:
        """Stop one of them cleanly."""
        self.started.remove(broker)
        await broker.stop()

    async def stop(self) -> None:
        await self.client.close()
        for broker in reversed(self.started):
            await broker.stop()
        for server in self.name_servers:
            await server.stop()


async def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        await asyncio.sleep(0.01)


async def pull(brokers: Brokers, broker: Broker, offset: int, **more: Any) -> Request:
    """One message of queue 0 of topic "t" for the group "g"; `more` are members of the header."""
    header = {
        "consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": offset, "maxMsgNums": 1,
        "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 15_000,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG", **more,
    }  # fmt: skip
    return await brokers.call(broker, RequestCode.PULL_MESSAGE, header)
