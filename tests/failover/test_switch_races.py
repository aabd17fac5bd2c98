"""Planned switches that meet something else: another one, a stop, a kill. Real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.failover_group import Group, Load, first_send, read_all, running_group, switch
from support.twinlog_servers import TwinlogBroker
from twinlog.client import Producer

PATIENCE_MS = 30_000


@asynccontextmanager
async def loaded_group(directory: Path, replicas: int) -> AsyncIterator[tuple[Group, Load]]:
    """At the end no send was refused, none was repeated, and nothing acknowledged is lost."""
    with running_group(directory, replicas) as group:
        # How long a switch takes is not the question here, and the machine may be slow.
        async with Producer(
            "load", name_server=group.namesrv.address, retry_count=0,
            send_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS,
        ) as producer:  # fmt: skip
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=200)
            running = asyncio.create_task(load.run())
            await load.goes_on()
            yield group, load
            await load.goes_on()
            load.stop()
            await running
        # Without repeats a send may be on its way when the socket is closed; none is refused.
        assert [why for why in load.failed if "ConnectionLost" not in why] == []
        reasons = [event["reason"] for event in group.events() if event["event"] == "elected"]
        assert all(why.startswith("switched by request") for why in reasons[1:]), reasons
        wanted = set(load.acknowledged)
        assert wanted - set(await read_all(group.namesrv.address, wanted)) == set()


async def stop(broker: TwinlogBroker) -> None:
    assert await asyncio.to_thread(broker.stop) == 0


async def test_a_master_that_is_stopped_while_a_switch_runs_still_hands_over(
    tmp_path: Path,
) -> None:
    async with loaded_group(tmp_path, 3) as (group, load):
        for pause_s in (0.0, 0.005, 0.01, 0.02, 0.04):
            master = group.master
            switching = asyncio.create_task(switch(group))
            await asyncio.sleep(pause_s)
            await stop(master)
            await asyncio.gather(switching, return_exceptions=True)
            await load.goes_on()
            assert group.master is not master
            group.restart(master)
            await asyncio.to_thread(group.wait_in_sync)


async def test_a_master_and_a_slave_that_are_stopped_together_leave_the_third(
    tmp_path: Path,
) -> None:
    """The one that it would hand over to is about to stop as well."""
    async with loaded_group(tmp_path, 3) as (group, load):
        for _ in range(3):
            master = group.master
            slave = next(broker for broker in group.brokers if broker is not master)
            await asyncio.gather(stop(slave), stop(master))
            await load.goes_on()
            assert group.master not in (master, slave)
            group.restart(master)
            group.restart(slave)
            await asyncio.to_thread(group.wait_in_sync)
