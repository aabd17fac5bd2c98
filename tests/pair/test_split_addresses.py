"""Clients and replicas in different networks: `brokerIP1` leads nowhere from another replica.

As with containers: what clients are given is the address of the host, and the replicas have a
network of their own. Here brokers are bound to addresses of their own on loopback, and what they
give to clients is one where nobody listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.failover_group import Group
from support.processes import ProcessGroup, process_group, wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin import Admin
from twinlog.admin.brokers import broker_runtime

OUTSIDE = "127.0.0.99"
DEADLINE_S = 60


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with process_group() as made:
        yield made


def split(number: int, **keys: object) -> dict[str, object]:
    host = f"127.0.0.{10 + number}"
    return {"bindAddress": host, "brokerIP1": OUTSIDE, "brokerIP2": host, **keys}


def test_a_slave_copies_tables_and_log_over_the_network_of_replicas(
    tmp_path: Path, group: ProcessGroup
) -> None:
    namesrv = start_twinlog_namesrv(tmp_path / "ns")
    group.add(namesrv)
    master = start_twinlog_broker(
        tmp_path / "m", namesrv=namesrv.address, **split(1, brokerRole="SYNC_MASTER")
    )
    group.add(master)
    slave = start_twinlog_broker(
        tmp_path / "s", namesrv=namesrv.address, **split(2, brokerRole="SLAVE", brokerId=1)
    )
    group.add(slave)
    address = f"127.0.0.12:{slave.port}"
    wait_until(
        lambda: int(runtime(namesrv.address, address).get("metadataSyncAgeMs", "-1")) >= 0,
        "the slave has copied its master's tables", deadline_s=DEADLINE_S,
    )  # fmt: skip
    assert runtime(namesrv.address, address)["metadataMaster"] == f"127.0.0.11:{master.port}"
    assert "master is twinlog" in slave.output()


def runtime(name_server: str, address: str) -> dict[str, str]:
    async def ask() -> dict[str, str]:
        async with Admin(name_server) as admin:
            return await broker_runtime(admin, address)

    return asyncio.run(ask())


class SplitGroup(Group):
    """Replicas in a network of their own."""

    def _start(self, number: int, *, wait: bool) -> TwinlogBroker:
        self._config |= split(number + 1)
        return super()._start(number, wait=wait)


def test_a_controlled_group_switches_over_the_network_of_replicas(tmp_path: Path) -> None:
    group = SplitGroup(tmp_path, 2)
    try:
        group.wait_in_sync()
        epoch, master = group.epoch, group.master
        master.kill()
        wait_until(lambda: group.epoch > epoch, "a new master", deadline_s=DEADLINE_S)
        assert group.master is not master
        group.restart(master)
        group.wait_in_sync()
    finally:
        group.end()
