"""The runbooks of docs/PAIR.md on real processes: manual switch, rolling restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.ha_load import ha_status
from support.pair_story import (
    Group,
    Ledger,
    Pair,
    Traffic,
    create_topics,
    groups_of,
    in_thread,
    offsets_of,
    running_pair,
    stored_bodies,
    topics_of,
    until,
)
from support.processes import wait_until
from twinlog.client import TransactionState

pytestmark = pytest.mark.timeout(240)
MASTER: dict[str, object] = {"brokerRole": "SYNC_MASTER", "brokerId": 0}
SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}


class Scene:
    """A pair with producers and one group that stays up through everything."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.traffic = Traffic(pair, self.rng, self.ledger)
        self.group = Group("stays", ["plain", "delayed", "tx"], self.rng)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Scene:
        await create_topics(self.pair.name_server, ["plain", "delayed", "tx"])
        await self._stack.enter_async_context(self.traffic)
        consumer = await self.group.start(self.pair.name_server)
        self._stack.push_async_callback(consumer.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def acknowledged(self, count: int) -> None:
        """At least so many more, however often it takes while roles change."""
        goal = len(self.ledger.acknowledged["plain"]) + count
        deadline = asyncio.get_running_loop().time() + 60
        while len(self.ledger.acknowledged["plain"]) < goal:
            assert asyncio.get_running_loop().time() < deadline, "no sends are acknowledged"
            await self.traffic.send("plain", count)
            await asyncio.sleep(0.02)

    async def everything_consumed(self) -> None:
        for topic in ("plain", "delayed"):
            await until(
                lambda topic=topic: (
                    self.ledger.acknowledged[topic] <= set(self.group.bodies(topic))
                ),
                f"all of {topic}",
            )
        await until(lambda: self.ledger.committed <= set(self.group.bodies("tx")), "the committed")

    def assert_once(self, *topics: str) -> None:
        for topic in topics:
            twice = [body for body, count in self.group.bodies(topic).items() if count > 1]
            assert twice == [], f"{topic}: {len(twice)} came twice"


async def test_manual_switch(tmp_path: Path) -> None:
    """docs/PAIR.md, "Manual switch": the slave's copy takes over, the old master follows it."""
    with running_pair(tmp_path) as pair:
        async with Scene(pair, 5) as scene:
            traffic, ledger = scene.traffic, scene.ledger
            await scene.acknowledged(300)
            await traffic.send("delayed", 30, delay_level=2)
            await asyncio.gather(
                *(traffic.transact("tx", TransactionState.COMMIT, is_told=n % 2 == 0)
                  for n in range(10))
            )  # fmt: skip
            # The slave stops first, so the master dies with a tail that nobody else has: its
            # sends are answered with 11 and promise nothing.
            assert await in_thread(pair.slave.stop) == 0, pair.slave.tail()
            before = set(ledger.sent["plain"])
            await traffic.send("plain", 50)
            # The group has read of it: its position is beyond what the copy holds.
            lost = ledger.sent["plain"] - before
            await until(lambda: lost & set(scene.group.bodies("plain")), "the tail is read")
            await in_thread(pair.master.kill)
            # The role of the copy is changed and it is started.
            old, pair.master = pair.master, await _restart(pair, pair.slave, MASTER)
            promised = set().union(*ledger.acknowledged.values()) | ledger.committed
            held = await in_thread(stored_bodies, pair.master.store)
            assert [body for body in promised if body not in held] == []
            # It serves alone, and says 11 until it has a slave. Its messages take the places of
            # those that are lost, and are consumed anyway.
            await traffic.send("plain", 20)
            # The old master comes back as the slave.
            pair.slave = await _restart(pair, old, SLAVE)
            await in_thread(pair.wait_in_sync)
            assert list((pair.slave.store / "twinlog").glob("cut-*")), "its tail is kept aside"
            await scene.acknowledged(100)
            await scene.everything_consumed()
            stored = set(await in_thread(stored_bodies, pair.master.store, "plain"))
            await until(lambda: stored <= set(scene.group.bodies("plain")), "all that it stored")
            assert "consumer was in a tail" in pair.master.output()
            await _assert_delivered_once(pair, "delayed", "tx")
            await _assert_same_tables(pair)


async def _assert_delivered_once(pair: Pair, *topics: str) -> None:
    """In the log. A consumer may have seen a delivery in the lost tail, and then the one here."""
    for topic in topics:
        counts = await in_thread(stored_bodies, pair.master.store, topic)
        assert [body for body, count in counts.items() if count > 1] == [], topic


async def _restart(pair: Pair, broker: Any, changes: dict[str, object]) -> Any:
    return await in_thread(lambda: pair.restart(broker, **changes))


async def _assert_same_tables(pair: Pair) -> None:
    def is_same() -> bool:
        return (
            topics_of(pair.master) == topics_of(pair.slave)
            and groups_of(pair.master) == groups_of(pair.slave)
            and offsets_of(pair.master) == offsets_of(pair.slave)
        )

    await in_thread(lambda: wait_until(is_same, "the same tables on both"))


@pytest.mark.chaos
async def test_switch_there_and_back(tmp_path: Path) -> None:
    """A planned switch loses nothing, also of delayed messages, and can be undone."""
    with running_pair(tmp_path) as pair:
        async with Scene(pair, 6) as scene:
            for turn in range(2):
                await scene.acknowledged(100)
                await scene.traffic.send("delayed", 20, delay_level=1)
                await _switch(pair)
                await in_thread(pair.wait_in_sync)
                status = await in_thread(ha_status, pair.master.address)
                assert status["twinlog"]["role"] == "SYNC_MASTER", turn
            await scene.acknowledged(50)
            await scene.everything_consumed()
            scene.assert_once("delayed")
            await _assert_same_tables(pair)


async def _switch(pair: Pair) -> None:
    """Master first, so that the slave has all; then both with the other's role."""
    assert await in_thread(pair.master.stop) == 0, pair.master.tail()
    assert await in_thread(pair.slave.stop) == 0, pair.slave.tail()
    old_master, old_slave = pair.master, pair.slave
    pair.master = await _restart(pair, old_slave, MASTER)
    pair.slave = await _restart(pair, old_master, SLAVE)


async def test_rolling_restart_under_load(tmp_path: Path) -> None:
    """docs/PAIR.md, "Rolling restart": slave, then master, while producers and consumers go on."""
    with running_pair(tmp_path) as pair:
        async with Scene(pair, 7) as scene:
            is_over = asyncio.Event()
            load = asyncio.ensure_future(_load(scene, is_over))
            await scene.acknowledged(100)
            for name in ("slave", "master"):
                broker = getattr(pair, name)
                assert await in_thread(broker.stop) == 0, broker.tail()
                setattr(pair, name, await _restart(pair, broker, {}))
                await in_thread(pair.wait_in_sync)
                await _within(scene.acknowledged(100))
            is_over.set()
            await load
            await scene.everything_consumed()
            scene.assert_once("plain", "delayed")
            await _assert_same_tables(pair)


async def _load(scene: Scene, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        await scene.traffic.send("plain", 20)
        await scene.traffic.send("delayed", 2, delay_level=1)
        await asyncio.sleep(0.02)


async def _within(work: Awaitable[None]) -> None:
    await asyncio.wait_for(work, 60)
