"""A master dies under load and comes back: what was promised is there, and is consumed once."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

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
    seconds_to_first_read,
    stored_bodies,
    topics_of,
    until,
)
from twinlog.admin import Admin, groups
from twinlog.client import TransactionState
from twinlog.client.net import route_table
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig

TOPICS = ["plain", "ordered", "delayed", "tx"]
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


class Story:
    """The cast of one seed."""

    def __init__(self, pair: Pair, seed: int, directory: Path) -> None:
        self.pair = pair
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.many = Group("many", ["plain", "delayed", "tx", "fresh"], self.rng)
        self.inline = Group("inline", ["ordered"], self.rng, ordered=True)
        self.everyone = Group(
            "everyone", ["plain"], self.rng, broadcast=True,
            offset_file=str(directory / "offsets.json"),
        )  # fmt: skip
        self.groups = [self.many, self.inline, self.everyone]

    async def before(self, traffic: Traffic) -> None:
        """Everything at once; consumers stand still for a part of it, so there is a backlog."""
        jobs = [
            traffic.send("plain", 300),
            traffic.send("ordered", 200, sharding_key=f"k{self.rng.randrange(4)}"),
            traffic.send("delayed", 40, delay_level=self.rng.randrange(1, 3)),
        ]
        jobs += [
            traffic.transact("tx", ROLLBACK if n % 5 == 0 else COMMIT, is_told=n % 3 != 0)
            for n in range(30)
        ]
        await asyncio.gather(*jobs)
        for group in self.groups:
            group.may_run.clear()
        await asyncio.gather(
            traffic.send("plain", 200),
            *(traffic.send("ordered", 25, sharding_key=f"k{n}") for n in range(4)),
        )

    async def kill(self, traffic: Traffic) -> None:
        """New names seconds before, then SIGKILL with hundreds of sends on their way."""
        await create_topics(self.pair.name_server, ["fresh"])
        async with Admin(self.pair.name_server) as admin:
            (
                await groups.create_group(admin, SubscriptionGroupConfig("fresh-group"))
            ).all_or_raise()
        await traffic.send("fresh", 5)
        burst = await self._launch_until(traffic, self.rng.randrange(200, 1000))
        on_their_way = sum(not future.done() for future in burst)
        self.pair.master.popen.kill()
        killed_s = time.monotonic()
        assert on_their_way >= 64
        print(f"{on_their_way} sends on their way at the kill")
        first_s = await seconds_to_first_read(self.pair.name_server, "plain", killed_s)
        print(f"first message read from the slave {first_s:.2f} s after the kill")
        await in_thread(self.pair.master.popen.wait)
        await asyncio.gather(*burst, return_exceptions=True)

    async def _launch_until(self, traffic: Traffic, count: int) -> list[asyncio.Future[Any]]:
        """Hundreds at a time, until `count` are answered; some have left, none is new."""
        burst: list[asyncio.Future[Any]] = []
        while True:
            answered = sum(future.done() for future in burst)
            if answered >= count and len(burst) - answered >= 64:
                return burst
            while len(burst) - answered < 400:
                burst.append(self._launch_any(traffic))
            await asyncio.sleep(0)

    def _launch_any(self, traffic: Traffic) -> asyncio.Future[Any]:
        topic = self.rng.choice(["plain", "plain", "ordered", "ordered", "delayed"])
        return traffic.launch(topic, delay_level=int(topic == "delayed"))

    async def check_slave_alone(self) -> None:
        promised = [body for bodies in self.ledger.acknowledged.values() for body in bodies] + list(
            self.ledger.committed | self.ledger.rolled_back
        )
        held = await in_thread(stored_bodies, self.pair.slave.store)
        missing = [body for body in promised if body not in held]
        assert missing == [], f"{len(missing)} of {len(promised)} promised are not on the slave"
        assert "fresh" in await in_thread(topics_of, self.pair.slave)
        assert {"fresh-group", "many"} <= set(await in_thread(groups_of, self.pair.slave))

    async def drain_from_slave(self) -> None:
        for group in self.groups:
            group.may_run.set()
        for group, topic in ((self.many, "plain"), (self.many, "fresh"), (self.everyone, "plain")):
            await until(
                lambda group=group, topic=topic: (
                    self.ledger.acknowledged[topic] <= set(group.bodies(topic))
                ),
                f"all of {topic} from the slave for {group.name}",
            )

    async def come_back(self, traffic: Traffic) -> None:
        self.pair.master = await in_thread(self.pair.restart, self.pair.master)
        returned = time.monotonic()
        before = len(self.ledger.acknowledged["plain"])
        while len(self.ledger.acknowledged["plain"]) < before + 50:
            assert time.monotonic() < returned + 60, "sends work again"
            await traffic.send("plain", 25)
            await traffic.send("ordered", 25)
            await asyncio.sleep(0.1)
        print(f"sends acknowledged {time.monotonic() - returned:.2f} s after the master is ready")

    async def all_consumed(self) -> None:
        ledger = self.ledger
        for group, topic in (
            (self.many, "plain"), (self.many, "fresh"), (self.many, "delayed"),
            (self.everyone, "plain"), (self.inline, "ordered"),
        ):  # fmt: skip
            await until(
                lambda group=group, topic=topic: (
                    ledger.acknowledged[topic] <= set(group.bodies(topic))
                ),
                f"all of {topic} for {group.name}",
            )
        await until(
            lambda: ledger.committed <= set(self.many.bodies("tx")), "all that was committed"
        )

    def verdict(self) -> None:
        ledger = self.ledger
        for group in self.groups:
            for topic in group.topics:
                invented = set(group.bodies(topic)) - ledger.sent[topic]
                assert not invented, f"{group.name} was given what nobody sent"
        assert not ledger.rolled_back & set(self.many.bodies("tx")), "rolled back and consumed"
        twice = {
            topic: [b for b, count in self.many.bodies(topic).items() if count > 1]
            for topic in ("plain", "delayed", "tx")
        }
        # Consumers that stay up commit what they know: nothing comes again (checklist 101).
        assert twice == {"plain": [], "delayed": [], "tx": []}
        assert self.everyone.repeats() == []
        self.inline.assert_order()
        print(f"ordered group: {len(self.inline.repeats())} of {len(self.inline.seen)} came again")

    async def restart_group(self, traffic: Traffic) -> None:
        """Another member after all: it begins where the group is, not where the master was."""
        successor = Group("many", self.many.topics, self.rng)
        consumer = await successor.start(self.pair.name_server)
        try:
            await traffic.send("plain", 20)
            last = list(self.ledger.acknowledged["plain"])
            await until(lambda: set(last) <= {*self.many.bodies("plain"),
                                              *successor.bodies("plain")}, "the last")  # fmt: skip
        finally:
            await consumer.close()
        again = set(successor.bodies()) & set(self.many.bodies())
        assert not again, f"{len(again)} messages were consumed again by a new member"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_item_097_and_101_the_story(tmp_path: Path, seed: int) -> None:
    with running_pair(tmp_path) as pair:
        await create_topics(pair.name_server, TOPICS)
        story = Story(pair, seed, tmp_path)
        async with Traffic(pair, story.rng, story.ledger) as traffic, AsyncExitStack() as stack:
            consumers = {}
            for group in story.groups:
                consumers[group.name] = await group.start(pair.name_server)
                stack.push_async_callback(consumers[group.name].close)
            await story.before(traffic)
            await story.kill(traffic)
            await story.check_slave_alone()
            await story.drain_from_slave()
            await story.come_back(traffic)
            await story.all_consumed()
            story.verdict()
            await consumers["many"].close()
            await story.restart_group(traffic)


@pytest.mark.timeout(120)
async def test_the_last_commit_goes_to_a_master_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer read from the slave to its end and has not looked at the route since."""
    monkeypatch.setattr(route_table, "PROVISIONAL_POLL_MS", 600_000)
    with running_pair(tmp_path) as pair:
        await create_topics(pair.name_server, ["plain"])
        rng, ledger = random.Random(1), Ledger()
        group = Group("many", ["plain"], rng, commit_ms=600_000)
        group.may_run.clear()
        consumer = await group.start(pair.name_server)
        async with Traffic(pair, rng, ledger) as traffic:
            await traffic.send("plain", 200)
        pair.master.popen.kill()
        await in_thread(pair.master.popen.wait)
        group.may_run.set()
        await until(lambda: ledger.acknowledged["plain"] <= set(group.bodies()), "the rest")
        before = pair.namesrv.registrations(pair.master.address)
        pair.master = await in_thread(pair.restart, pair.master)
        pair.namesrv.wait_registered(pair.master.address, after=before)
        await consumer.close()
        offsets = (await in_thread(offsets_of, pair.master))["plain@many"]
        assert sum(offsets.values()) == 200
