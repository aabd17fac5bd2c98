"""Somebody sets the wall clock of a running broker, by hours and in both directions.

Delays, locks, transactions, held pulls, idempotent marks, retention and registration go by time
that passed, or take a clock that was ahead for a moment for what it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import Brokers, pull, until
from twinlog.broker.put.idempotence import Verdict
from twinlog.broker.server import Broker
from twinlog.message.once import ONCE_PROPERTY, Mark
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.clock import SystemClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Retention is 72 h, an idle producer is forgotten after days: some steps are beyond all limits.
STEPS_MS = (-400 * DAY_MS, -DAY_MS, -HOUR_MS, -50, 50, HOUR_MS, DAY_MS, 400 * DAY_MS)


class SetClock(SystemClock):
    """The machine's clocks; the wall clock can be set."""

    offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


class World:
    def __init__(self, brokers: Brokers, broker: Broker, clock: SetClock) -> None:
        self.brokers = brokers
        self.broker = broker
        self.clock = clock
        self.delayed_count = 0

    async def send_delayed(self) -> None:
        body = b"delayed %d" % self.delayed_count
        answer = await self.brokers.send(self.broker, body, topic="late", DELAY="1")
        assert answer.code == 0, answer.remark
        self.delayed_count += 1

    async def lock(self, client_id: str) -> list[Any]:
        queue = {"brokerName": self.broker.config.broker_name, "queueId": 0, "topic": "t"}
        body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
        answer = await self.brokers.call(
            self.broker, RequestCode.LOCK_BATCH_MQ, body=fastjson.dumps(body)
        )
        granted: list[Any] = fastjson.loads(answer.body)["lockOKMQSet"]
        return granted


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    brokers, clock = Brokers(tmp_path), SetClock()
    server = await brokers.name_server()
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    broker = await brokers.start(
        "broker", clock=clock, message_delay_level="1s 10m", delete_when=hours,
        mapped_file_size_commit_log=4096, namesrv_addr=server.address,
        flush_interval_commit_log=10,
    )  # fmt: skip
    try:
        yield World(brokers, broker, clock)
    finally:
        clock.offset_ms = 0
        await brokers.stop()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_late_lost_or_given_up(world: World, seed: int) -> None:
    rng, broker, brokers = random.Random(seed), world.broker, world.brokers
    mark = Mark("producer-1", 1, 0, 0, "once")
    for topic in ("t", "once"):
        more = {ONCE_PROPERTY: mark.text()} if topic == "once" else {}
        assert (await brokers.send(broker, topic=topic, **more)).code == 0
    assert (await brokers.send(broker, topic="half", TRAN_MSG="true", PGROUP="p")).code == 0
    for _ in range(20):
        await brokers.send(broker, bytes(1000), topic="bulk")
    await until(lambda: broker.store.dispatched.value == broker.store.flushed.value)
    held = asyncio.ensure_future(pull(brokers, broker, 1, suspendTimeoutMillis=60_000, sysFlag=6))
    assert await world.lock("a")
    segments = len(broker.store.commit_log.segments.segments)
    assert segments > 3
    steps = [rng.choice(STEPS_MS) for _ in range(6)]
    for step in (*steps, 0):
        world.clock.offset_ms = step
        await world.send_delayed()
        await brokers.send(broker, b"behind", topic="later", DELAY="2")
        assert await world.lock("b") == [], f"after {steps}"
        assert await broker.store.cleaner.clean() == 0
        broker.once.sweep()
        assert broker.once.decide(mark, 1).verdict is Verdict.REPEAT
        await broker.transactions.check()
        broker._check_hold()
        broker._scan_clients()
        broker._sample_store_stats()
        await asyncio.sleep(rng.random() / 10)
    late = broker.store.max_offset_in_queue
    # Level 1 is a second: those stored by a clock that was ahead do not hold back the others.
    await until(lambda: late("late", 0) >= world.delayed_count)
    assert broker.transactions.pending_count == 1
    assert not held.done()
    await brokers.send(broker, b"wakes", topic="t")
    assert (await held).code == 0
    assert len(broker.store.commit_log.segments.segments) >= segments
    route = brokers.name_servers[0].routes.route("t")
    assert route is not None, "still registered"
