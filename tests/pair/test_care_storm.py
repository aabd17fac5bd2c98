"""Damage, scrubs, retention, backups, switches, kills and rebuilt slaves, all at once."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from support.care_storm import CONFIG, Storm, StormLoad
from support.failover_group import running_group
from twinlog.client import Producer

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "10"))


@pytest.mark.chaos
@pytest.mark.timeout(1200)
async def test_nothing_damaged_is_served_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SEED= and ROUNDS= make others."""
    rng = random.Random(SEED)
    with running_group(tmp_path, 2, **CONFIG) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            load = StormLoad(producer)
            sending = asyncio.create_task(load.run())
            await load.goes_on(1)
            group.wait_in_sync()
            storm = Storm(group, load, tmp_path, rng)
            reading = asyncio.create_task(asyncio.to_thread(storm.read))
            try:
                await load.goes_on(3000)
                for _ in range(ROUNDS):
                    await one_round(storm)
            finally:
                storm.is_over = load.must_stop = True
                await asyncio.gather(sending, reading)
        await asyncio.to_thread(storm.come_in_sync)
        await asyncio.to_thread(storm.judge)
        with capsys.disabled():
            print(f"\nstorm: seed {SEED}: {storm.line}")
        assert storm.wrong == []
        assert storm.failures() == []


async def one_round(storm: Storm) -> None:
    rng = storm.rng
    await asyncio.to_thread(storm.damage)
    actions = rng.sample(["switch", "back_up", "kill_in_repair", "begin_scrubs"], 2)
    await asyncio.gather(*(act(storm, name) for name in actions))
    await storm.load.goes_on()
    await asyncio.to_thread(storm.come_in_sync)
    await asyncio.to_thread(storm.heal)
    if rng.random() < 0.4:
        await asyncio.gather(act(storm, "rebuild"), act(storm, "back_up"))
        await asyncio.to_thread(storm.come_in_sync)


async def act(storm: Storm, name: str) -> None:
    if name == "switch":
        await storm.switch()
    else:
        await asyncio.to_thread(getattr(storm, name))
