"""Planned switches: drained, handed over, held sends passed on. No call fails."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx

from support.failover_group import Load, first_send, read_all, running_group, switch
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker, http_address
from twinlog.client import Producer


def measured_id(broker: TwinlogBroker) -> str:
    text = httpx.get(f"http://{http_address(broker)}/metrics").text
    return re.findall(r'twinlog_healthy\{broker_id="([^"]*)"', text)[0]


async def test_switches_under_load_fail_no_call_and_lose_nothing(tmp_path: Path) -> None:
    with running_group(tmp_path, 2) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=200)
            running = asyncio.create_task(load.run())
            for _ in range(5):
                await load.goes_on()
                master = group.master
                await switch(group)
                await load.goes_on()
                assert group.master is not master
                await asyncio.to_thread(group.wait_in_sync)
            load.stop()
            await running
        (slave,) = (broker for broker in group.brokers if broker is not group.master)
        wait_until(lambda: measured_id(slave) == str(group.id_of(slave)), "metrics name the slave")
        assert measured_id(group.master) == "0"
        assert load.failed == []
        wanted = set(load.acknowledged)
        assert wanted - set(await read_all(group.namesrv.address, wanted)) == set()


async def test_a_master_that_is_stopped_hands_over_first(tmp_path: Path) -> None:
    with running_group(tmp_path, 2) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=200)
            running = asyncio.create_task(load.run())
            await load.goes_on()
            master = group.master
            assert await asyncio.to_thread(master.stop) == 0
            await load.goes_on()
            assert group.master is not master
            reasons = [e["reason"] for e in group.events() if e["event"] == "elected"]
            assert reasons[-1].startswith("switched by request")
            load.stop()
            await running
        assert load.failed == []
