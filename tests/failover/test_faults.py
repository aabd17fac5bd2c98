"""Faults besides a killed master, with real processes: a full disk, a master that hears nobody, an
election that only an operator may ask for, a controller and a name server that stand still."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from support.failover_group import TOPIC, Group, Load, first_send, read_all, running_group
from support.ha_load import send_command
from support.processes import wait_until
from twinlog.client import Producer
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.headers.controller import ElectMasterRequestHeader
from twinlog.runtime.clock import SystemClock

NAME = "broker-a"


async def ask(address: str, code: int, header: Any = None, body: bytes = b"") -> Request:
    client = RemotingClient(clock=SystemClock())
    try:
        return await client.invoke(address, RemotingCommand.request(code, header, body), 10_000)
    finally:
        await client.close()


async def set_disk_level(address: str, percent: int) -> None:
    """Above it a disk counts as full; every disk is used to more than nothing."""
    body = f"diskSpaceWarningLevelRatio={percent}\n".encode()
    answer = await ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def happened(group: Group, kind: str, reason: str) -> bool:
    return any(e["event"] == kind and reason in str(e.get("reason")) for e in group.events())


async def test_a_master_with_a_full_disk_gives_way_and_passes_sends_on(tmp_path: Path) -> None:
    with running_group(tmp_path, 2, cleanResourceInterval=200) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=50)
            running = asyncio.create_task(load.run())
            await load.goes_on()
            full = group.master
            await set_disk_level(full.address, 0)
            await asyncio.to_thread(
                wait_until, lambda: happened(group, "elected", "cannot write"), "a switch",
                deadline_s=30,
            )  # fmt: skip
            assert group.master is not full
            await load.goes_on()
            await set_disk_level(full.address, 99)
            await asyncio.to_thread(group.wait_in_sync)
            load.stop()
            await running
        wanted = set(load.acknowledged)
        assert wanted - set(await read_all(group.namesrv.address, wanted)) == set()


async def refused(address: str) -> str:
    """Why the first send is refused that is refused before anything is stored. Asked directly: a
    suspect master is in nobody's route any more."""
    client = RemotingClient(clock=SystemClock())
    try:
        async with asyncio.timeout(60):
            while True:
                command = send_command(b"nobody confirms it", topic=TOPIC)
                answer = await client.invoke(address, command, 20_000)
                if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                    return answer.remark or ""
                assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, answer.remark
    finally:
        await client.close()


async def test_a_master_that_hears_nobody_stores_nothing_and_takes_sends_again(
    tmp_path: Path,
) -> None:
    """The controller and the slave are killed. Then the master is, too, and its log is away: who is
    left leads by the operator's word alone."""
    with running_group(tmp_path, 2) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            master = group.master
            slave = next(broker for broker in group.brokers if broker is not master)
            group.controller.kill()
            slave.kill()
            assert "no word from the controller" in await refused(master.address)
            group.restart_controller()
            await first_send(producer)
            master.kill()
            await elect_by_the_operator(group, slave)
            await first_send(producer)
            assert group.master is not master


async def elect_by_the_operator(group: Group, slave: Any) -> None:
    number = group.id_of(slave)
    group.restart(slave)
    header = ElectMasterRequestHeader("DefaultCluster", NAME, number, designate_elect=True)
    typed = ElectMasterRequestHeader(
        "DefaultCluster", NAME, number, designate_elect=True, twinlog_unclean=NAME
    )
    address = group.controller.address
    async with asyncio.timeout(60):
        while True:
            answer = await ask(address, RequestCode.CONTROLLER_ELECT_MASTER, header)
            assert answer.code != ResponseCode.SUCCESS, "it lacks what was acknowledged"
            answer = await ask(address, RequestCode.CONTROLLER_ELECT_MASTER, typed)
            if answer.code == ResponseCode.SUCCESS:
                return
            await asyncio.sleep(0.1)


async def addresses(group: Group) -> set[str]:
    """Of all brokers in the route."""
    answer = await ask(group.namesrv.address, RequestCode.GET_BROKER_CLUSTER_INFO)
    table = fastjson.loads(answer.body)["brokerAddrTable"]
    return {address for data in table.values() for address in data["brokerAddrs"].values()}


async def test_nobody_is_silent_because_name_server_and_controller_stood_still(
    tmp_path: Path,
) -> None:
    """Long enough for every limit, and for brokers to hang up and dial again."""
    with running_group(tmp_path, 2) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
        group.wait_in_sync()
        epoch, everybody = group.epoch, {broker.address for broker in group.brokers}
        await asyncio.to_thread(
            wait_until, lambda: asyncio.run(addresses(group)) == everybody, "a route"
        )
        stood = (group.namesrv, group.controller)
        for process in stood:
            process.suspend()
        await asyncio.sleep(11)
        for process in stood:
            process.resume()
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            assert await addresses(group) == everybody
            await asyncio.sleep(0.02)
        assert group.epoch == epoch
        assert len(group.members) == 2
