"""SIGKILL of the master under load: another replica takes over, nothing acknowledged is lost, and
the old master comes back as a slave by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.failover_group import Load, first_send, read_all, running_group
from twinlog.client import Producer


@pytest.mark.parametrize(("replicas", "kills"), [(2, 3), (3, 2)])
async def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(
    tmp_path: Path, replicas: int, kills: int
) -> None:
    with running_group(tmp_path, replicas) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=200)
            running = asyncio.create_task(load.run())
            for _ in range(kills):
                await load.goes_on()
                epoch, master = group.epoch, group.master
                master.kill()
                await load.goes_on()
                assert group.epoch > epoch
                assert group.master is not master
                group.restart(master)
                await asyncio.to_thread(group.wait_in_sync)
            await load.goes_on()
            load.stop()
            await running
        wanted = set(load.acknowledged)
        found = await read_all(group.namesrv.address, wanted)
        assert wanted - set(found) == set(), f"lost, of {len(wanted)}"
