"""twinlog brokers under the controller of RocketMQ 5.3.3: it elects, they replicate as between
themselves, and nothing that was acknowledged is lost when a master is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.apache import ApacheController
from support.failover_group import Load, first_send, read_all
from support.ha_load import Connection, send_command
from support.processes import free_port, process_group, wait_until
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker, start_twinlog_namesrv
from twinlog.client import Producer
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.timeout(600)
KILLS = int(os.environ.get("TWINLOG_KILLS", "3"))
NAME = "broker-a"


class UnderApache:
    """A pair of ours, a name server of ours, and their controller."""

    def __init__(self, directory: Path, processes: Any) -> None:
        self._processes = processes
        self.namesrv = processes.add(start_twinlog_namesrv(directory / "namesrv"))
        self.controller = processes.add(ApacheController(directory / "controller", free_port()))
        wait_until(self._leads, "Apache's controller leads", deadline_s=120)
        self.brokers = [self._start(directory / f"b{n}") for n in range(2)]
        self.wait_in_sync(2)

    def _leads(self) -> bool:
        try:
            answer = self.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
        except OSError:
            return False
        return bool(answer.ext().get("controllerLeaderAddress"))

    def ask(self, code: int, header: dict[str, Any] | None = None, body: bytes = b"") -> Any:
        connection = Connection(self.controller.address, timeout_s=10)
        try:
            return connection.call(code, header, body)
        finally:
            connection.close()

    def _start(self, directory: Path) -> TwinlogBroker:
        broker = self._processes.add(
            start_twinlog_broker(
                directory, namesrv=self.namesrv.address, controllerAddr=self.controller.address,
                enableControllerMode="true", brokerId=-1, brokerRole="SYNC_MASTER",
                mappedFileSizeCommitLog=1 << 24,
            )
        )  # fmt: skip
        wait_until(lambda: self.master_address, "a master is elected", deadline_s=60)
        assert isinstance(broker, TwinlogBroker)
        return broker

    def _info(self) -> dict[str, Any]:
        body = fastjson.dumps([NAME])
        answer = self.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        found: dict[str, Any] = fastjson.loads(answer.body)["replicasInfoTable"].get(NAME, {})
        return found

    @property
    def master_address(self) -> str:
        return self._info().get("masterAddress") or ""

    @property
    def master(self) -> TwinlogBroker:
        address = self.master_address
        return next(broker for broker in self.brokers if broker.address == address)

    @property
    def epoch(self) -> int:
        return int(self._info().get("masterEpoch") or 0)

    def wait_in_sync(self, count: int) -> None:
        wait_until(
            lambda: len(self._info().get("inSyncReplicas") or ()) == count, f"{count} in sync",
            deadline_s=120,
        )  # fmt: skip

    def restart(self, broker: TwinlogBroker) -> None:
        again = TwinlogBroker.start_as_it_is(broker, wait=False)
        self.brokers[self.brokers.index(broker)] = self._processes.add(again)


@pytest.fixture
def under_apache(tmp_path: Path) -> Iterator[UnderApache]:
    with process_group() as processes:
        yield UnderApache(tmp_path, processes)


async def test_killed_masters_are_replaced_and_nothing_is_lost(under_apache: UnderApache) -> None:
    group = under_apache
    async with Producer("load", name_server=group.namesrv.address) as producer:
        await first_send(producer)
        load = Load(producer, per_second=100)
        running = asyncio.create_task(load.run())
        for _ in range(KILLS):
            await load.goes_on()
            master, epoch = group.master, group.epoch
            master.kill()
            await load.goes_on(within_s=60)
            assert group.epoch > epoch
            assert group.master is not master
            await asyncio.to_thread(group.restart, master)
            await asyncio.to_thread(group.wait_in_sync, 2)
        await load.goes_on()
        load.stop()
        await running
    wanted = set(load.acknowledged)
    assert wanted - set(await read_all(group.namesrv.address, wanted)) == set()


async def test_a_master_that_begins_again_leads_on(under_apache: UnderApache) -> None:
    """Killed and started faster than Apache's controller notices, or elected anew: one master, and
    what was acknowledged is there."""
    group = under_apache
    async with Producer("load", name_server=group.namesrv.address) as producer:
        await first_send(producer)
        load = Load(producer, per_second=50)
        running = asyncio.create_task(load.run())
        await load.goes_on()
        master = group.master
        master.kill()
        group.restart(master)
        await load.goes_on(within_s=60)
        await asyncio.to_thread(group.wait_in_sync, 2)
        load.stop()
        await running
    wanted = set(load.acknowledged)
    assert wanted - set(await read_all(group.namesrv.address, wanted)) == set()


async def test_a_controller_that_forgot_the_group_makes_nobody_master(
    under_apache: UnderApache, tmp_path: Path
) -> None:
    """RocketMQ's takes the first who asks; brokers that have messages do not ask."""
    group = under_apache
    async with Producer("load", name_server=group.namesrv.address) as producer:
        await first_send(producer)
    for process in (*group.brokers, group.controller):
        process.kill()
    (tmp_path / "controller" / "records").rename(tmp_path / "forgotten")
    group.controller = group._processes.add(group.controller.restart())
    wait_until(group._leads, "it leads", deadline_s=120)
    for broker in list(group.brokers):
        group.restart(broker)
    for broker in group.brokers:
        broker.wait_for_text("an operator must choose the master")
    assert not group.master_address
    connection = Connection(group.brokers[0].address)
    try:
        connection.send(send_command(b"nobody leads"))
        assert connection.receive().code != ResponseCode.SUCCESS
    finally:
        connection.close()
