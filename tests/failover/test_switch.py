"""Planned switches: drained, handed over, held sends passed on. No call fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.failover_group import Load, first_send, read_all, running_group, switch
from twinlog.client import Producer


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
