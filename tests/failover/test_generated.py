"""Interleavings that nobody wrote down: a seed draws what happens to a group of real processes, and
in which order, while clients of every kind use it. Then everything is put back, and judged:

- acknowledged by a plain producer: there, at least once;
- acknowledged by an idempotent producer: there once, and in the order of sending in each queue;
- an ordered consumer gets each queue in order, and sees all of it;
- a transaction that was committed is there once, one that was rolled back never;
- a delayed message is there, and not before its time;
- what consumers committed falls back by a second at most, and never goes forward.

`TWINLOG_CHAOS_SEED=N` runs one seed, `TWINLOG_CHAOS_ROUNDS=N` so many that are new each time. The
seed and what it drew are printed, and are part of every failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.command_line import twinlog
from support.failover_group import Group, Load, first_send, read_all, running_group, switch
from support.twinlog_servers import TwinlogBroker
from twinlog.client import (
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

ONCE, DEALS, KEPT, LATER = "Once", "Deals", "Kept", "Later"
DELAY_LEVEL, DELAY_MS = 1, 1_000
CLOCK_SLACK_MS = 50
QUEUES = 4
STEPS = 12
KEPT_COUNT = 5000  # Offsets are committed up to here, one by one.
BACK_S = 1.0
"""So much of what was committed may be lost by a switch."""


def seeds() -> list[int]:
    if given := os.environ.get("TWINLOG_CHAOS_SEED"):
        return [int(given)]
    count = int(os.environ.get("TWINLOG_CHAOS_ROUNDS", "0"))
    return [random.SystemRandom().randrange(1 << 32) for _ in range(count)] or [1, 2]


class Actor:
    """Something that goes on until it is told to stop."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self.is_stopping = False
        self.count = 0
        self.failed: list[str] = []

    async def run(self) -> None:
        while not self.is_stopping:
            self.count += 1
            try:
                await self.turn()
            except Exception as error:
                self.failed.append(repr(error)[:200])
            await asyncio.sleep(self._pause_s)

    async def turn(self) -> None:
        raise NotImplementedError


class OnceSender(Actor):
    """One message after the other, each to the next queue; one that failed is not sent again."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(0.01)
        self._producer = producer
        self._number = 0
        self.acknowledged: dict[bytes, int] = {}
        """The queue by body."""

    async def turn(self) -> None:
        self._number += 1
        queue = MessageQueue(ONCE, "broker-a", self._number % QUEUES)
        body = b"once %d" % self._number
        receipt = await self._producer.send(Message(ONCE, body), queue=queue)
        if receipt.is_acknowledged:
            self.acknowledged[body] = queue.queue_id


class Teller(Actor):
    """Transactions with an outcome that is drawn before; sometimes only a check tells it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(0.1)
        self._rng = rng
        self._number = 0
        self.producer: TransactionProducer
        self.decided: dict[bytes, TransactionState] = {}
        self.stored: set[bytes] = set()

    async def check(self, message: ReceivedMessage) -> TransactionState:
        return self.decided[bytes(message.body)]

    async def turn(self) -> None:
        self._number += 1
        body = b"deal %d" % self._number
        state = self._rng.choice((TransactionState.COMMIT, TransactionState.ROLLBACK))
        self.decided[body] = state
        told = TransactionState.UNKNOWN if self._rng.random() < 0.2 else state

        async def execute(message: Message, transaction_id: str) -> TransactionState:
            self.stored.add(bytes(message.body))
            return told

        await self.producer.send_in_transaction(Message(DEALS, body), execute)


class Postponer(Actor):
    """Delayed messages; the body has the time of the call."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(0.1)
        self._producer = producer
        self.acknowledged: set[bytes] = set()

    async def turn(self) -> None:
        body = b"%d %d" % (time.time() * 1000, self.count)
        receipt = await self._producer.send(Message(LATER, body, delay_level=DELAY_LEVEL))
        if receipt.is_acknowledged:
            self.acknowledged.add(body)


class Keeper(Actor):
    """Commits higher and higher offsets, and remembers when each was taken."""

    def __init__(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        super().__init__(0.05)
        self._consumer = consumer
        self.queue = queue
        self.asked = 0
        self.taken: list[tuple[float, int]] = []

    async def turn(self) -> None:
        self.asked = offset = min(self.asked + 1, KEPT_COUNT)
        await self._consumer.commit({self.queue: offset})
        self.taken.append((time.monotonic(), offset))

    def least(self, broken_s: float) -> int:
        """What must be left of it after something broke at `broken_s`."""
        return max((offset for at, offset in self.taken if at < broken_s - BACK_S), default=0)


class Nemesis:
    """What the seed draws."""

    def __init__(self, group: Group, rng: random.Random) -> None:
        self._group = group
        self._rng = rng
        self.story: list[str] = []
        self.broken_s = time.monotonic()
        """When the last process that had answered clients was about to be hurt."""
        self._drained: set[int] = set()

    def _note(self, text: str) -> None:
        self.broken_s = time.monotonic()
        self.story.append(text)

    async def run(self, steps: int) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self.kill, self.kill_master, self.freeze, self.freeze_master, self.switch, self.drain,
            self.undrain, self.restart_controller, self.restart_namesrv, self.roll,
            self.stop_while_switching, self.stop_two, self.switch_twice,
            self.kill_while_switching,
        ]  # fmt: skip
        for _ in range(steps):
            # Two at once now and then, of those that do not wait for a healthy group.
            count = 2 if self._rng.random() < 0.3 else 1
            await asyncio.gather(*(what() for what in self._rng.sample(faults, count)))
            await asyncio.sleep(self._rng.choice((0.0, 0.3, 1.0, 2.5)))
        await self.heal()

    def _living(self) -> list[TwinlogBroker]:
        return [broker for broker in self._group.brokers if broker.is_alive]

    def _name(self, broker: TwinlogBroker) -> str:
        return f"replica {self._group.id_of(broker)}"

    async def _kill(self, broker: TwinlogBroker) -> None:
        if not broker.is_alive:
            return
        pause_s = self._rng.choice((0.0, 0.5, 2.0))
        self._note(f"kill {self._name(broker)} for {pause_s} s")
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(pause_s)
        if broker in self._group.brokers:  # Otherwise another fault has started it again.
            self._group.restart(broker)

    async def kill(self) -> None:
        if living := self._living():
            await self._kill(self._rng.choice(living))

    async def kill_master(self) -> None:
        await self._kill(self._group.master)

    async def _freeze(self, broker: TwinlogBroker) -> None:
        if not broker.is_alive:
            return
        pause_s = self._rng.choice((0.3, 1.9, 2.5, 5.0))
        self._note(f"stop {self._name(broker)} for {pause_s} s")
        broker.suspend()
        await asyncio.sleep(pause_s)
        if broker.is_alive:
            broker.resume()

    async def freeze(self) -> None:
        if living := self._living():
            await self._freeze(self._rng.choice(living))

    async def freeze_master(self) -> None:
        await self._freeze(self._group.master)

    async def switch(self) -> None:
        self._note("switch")
        try:
            await switch(self._group)
        except Exception as error:  # Nobody is there to switch to: what then holds is judged.
            self.story.append(f"no switch: {error!r}"[:100])

    async def switch_twice(self) -> None:
        await asyncio.gather(self.switch(), self.switch())

    async def stop_while_switching(self) -> None:
        await asyncio.gather(self.switch(), self._stop(self._group.master))

    async def kill_while_switching(self) -> None:
        """Of three, the one that a master hands over to, or the one that it waits for as well."""
        others = [b for b in self._living() if b is not self._group.master]
        if others:
            await asyncio.gather(self.switch(), self._kill(self._rng.choice(others)))

    async def stop_two(self) -> None:
        """The one that a master hands over to may be the other one."""
        two = self._rng.sample(self._group.brokers, 2)
        await asyncio.gather(*(self._stop(broker) for broker in two))

    async def _stop(self, broker: TwinlogBroker) -> None:
        if not broker.is_alive:
            return
        self._note(f"end {self._name(broker)}")
        await asyncio.to_thread(broker.stop)
        if broker in self._group.brokers:
            self._group.restart(broker)

    async def _operate(self, verb: str, number: int) -> bool:
        self._note(f"{verb} {number}")
        group = self._group
        words = ["ha", verb, "broker-a", str(number), "-n", group.namesrv.address]
        words += ["--controller", group.controller.address]
        found = await asyncio.to_thread(twinlog, *words)
        return found.code == 0

    async def drain(self) -> None:
        numbers = {self._group.id_of(broker) for broker in self._group.brokers} - self._drained
        if len(numbers) > 1:
            number = self._rng.choice(sorted(numbers))
            if await self._operate("drain", number):
                self._drained.add(number)

    async def undrain(self) -> None:
        for number in sorted(self._drained):
            if await self._operate("undrain", number):
                self._drained.discard(number)

    async def restart_controller(self) -> None:
        self._note("restart the controller")
        await asyncio.to_thread(self._group.controller.kill)
        await asyncio.sleep(self._rng.choice((0.0, 1.0, 3.0)))
        await asyncio.to_thread(self._group.restart_controller)

    async def restart_namesrv(self) -> None:
        self._note("restart the name server")
        await asyncio.to_thread(self._group.namesrv.kill)
        self._group.namesrv = await asyncio.to_thread(self._group.namesrv.restart)

    async def roll(self) -> None:
        """Each broker stops as a supervisor would have it, and starts again."""
        for broker in list(self._group.brokers):
            if broker.is_alive and broker in self._group.brokers:
                self._note(f"restart {self._name(broker)}")
                await asyncio.to_thread(broker.stop)
                if broker in self._group.brokers:
                    self._group.restart(broker)
                await asyncio.sleep(self._rng.choice((0.2, 2.0)))

    async def heal(self) -> None:
        for broker in list(self._group.brokers):
            if not broker.is_alive:
                self._group.restart(broker)
        while self._drained:
            await self.undrain()
        await asyncio.to_thread(self._group.wait_in_sync, deadline_s=90)


async def committed(name_server: str, queue: MessageQueue) -> int:
    """Where another member of the group would go on."""
    async with PullConsumer("keepers", name_server=name_server, auto_commit=False) as consumer:
        offset = await consumer.committed(queue)
        return -1 if offset is None else offset


async def everything(name_server: str, topic: str, wanted: set[bytes]) -> list[ReceivedMessage]:
    """All of a topic, up to a second after all that is wanted has come."""
    found: list[ReceivedMessage] = []
    missing = set(wanted)
    deadline = time.monotonic() + 90
    async with PullConsumer(
        f"judge-{topic}", name_server=name_server, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        await consumer.assign(await consumer.queues(topic))
        while time.monotonic() < deadline:
            batch = await consumer.poll(timeout_ms=1000)
            found += batch
            missing -= {bytes(message.body) for message in batch}
            if not batch and not missing:
                break
    return found


@pytest.mark.parametrize("seed", seeds())
async def test_whatever_happens_in_whatever_order_what_was_said_holds(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    replicas = rng.choice((2, 3, 3))
    times = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
    with running_group(tmp_path, replicas, **times) as group:
        nemesis = Nemesis(group, rng)
        try:
            await live(group, nemesis, rng)
        finally:
            print(f"\nseed {seed}, {replicas} replicas: " + "; ".join(nemesis.story))


async def live(group: Group, nemesis: Nemesis, rng: random.Random) -> None:
    server = group.namesrv.address
    teller = Teller(random.Random(rng.random()))
    seen: dict[int, list[int]] = defaultdict(list)
    """Of the ordered consumer: places by queue."""

    async def see(message: ReceivedMessage) -> None:
        seen[message.queue.queue_id].append(message.queue_offset)

    async with (
        Producer("plain", name_server=server) as plain,
        Producer("once", name_server=server, idempotent=True) as once,
        TransactionProducer("tellers", name_server=server, check=teller.check) as tellers,
        PullConsumer("keepers", name_server=server, auto_commit=False) as keeping,
        PushConsumer(
            "ordered", name_server=server, ordered=True, commit_ms=200,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ) as ordered,
    ):  # fmt: skip
        await first_send(plain)
        group.wait_in_sync()
        for topic in (ONCE, DEALS, KEPT, LATER):
            await plain.send(Message(topic, b"first"))
        keeper = Keeper(keeping, MessageQueue(KEPT, "broker-a", 0))
        kept = (Message(KEPT, b"kept", sharding_key="one") for _ in range(KEPT_COUNT))
        receipts = await plain.send_many(kept)
        keeper.queue = receipts[0].queue
        await keeping.assign([keeper.queue])
        await ordered.subscribe(ONCE, "*", see)
        teller.producer = tellers
        load, sender, postponer = Load(plain, per_second=50), OnceSender(once), Postponer(plain)
        actors = [load, sender, teller, keeper, postponer]
        running = [asyncio.create_task(actor.run()) for actor in actors]
        await load.goes_on()
        await nemesis.run(STEPS)
        await load.goes_on(within_s=60)
        broken_s = nemesis.broken_s
        load.stop()
        for actor in (sender, teller, keeper, postponer):
            actor.is_stopping = True
        await asyncio.wait_for(asyncio.gather(*running), 60)

        for actor in (sender, teller, keeper, postponer):
            assert len(actor.failed) < actor.count, actor.failed[-3:]
        lost = set(load.acknowledged) - set(await read_all(server, set(load.acknowledged)))
        assert not lost, f"{len(lost)} of {len(load.acknowledged)} are lost: {sorted(lost)[:5]}"
        await judge_once(server, sender, seen)
        await judge_deals(server, teller)
        await judge_delays(server, postponer)
        offset = await committed(server, keeper.queue)
        assert keeper.least(broken_s) <= offset <= keeper.asked
        print(
            f"\n{len(load.acknowledged)} plain, {len(sender.acknowledged)} once,"
            f" {len(teller.stored)} transactions, {len(keeper.taken)} commits acknowledged"
        )


async def judge_once(server: str, sender: OnceSender, seen: dict[int, list[int]]) -> None:
    wanted = set(sender.acknowledged)
    found = await everything(server, ONCE, wanted)
    numbers: dict[int, list[int]] = defaultdict(list)
    for message in found:
        kind, _, number = bytes(message.body).partition(b" ")
        if kind == b"once":
            numbers[message.queue.queue_id].append(int(number))
    there = {b"once %d" % number for queue in numbers.values() for number in queue}
    assert wanted <= there, f"lost: {sorted(wanted - there)[:5]}"
    for queue_id, queue in numbers.items():
        assert queue == sorted(set(queue)), f"queue {queue_id} has copies, or another order"
    ends = {m.queue.queue_id: 0 for m in found}
    for message in found:
        ends[message.queue.queue_id] = max(ends[message.queue.queue_id], message.queue_offset + 1)
    deadline = time.monotonic() + 60
    while any(set(range(end)) - set(seen[n]) for n, end in ends.items()):
        assert time.monotonic() < deadline, "the ordered consumer does not see everything"
        await asyncio.sleep(0.1)
    for queue_id, places in seen.items():
        first = list(dict.fromkeys(places))
        assert first == sorted(first), f"queue {queue_id} came in another order"


async def judge_deals(server: str, teller: Teller) -> None:
    stored = {body: teller.decided[body] for body in teller.stored}
    wanted = {body for body, state in stored.items() if state is TransactionState.COMMIT}
    found = [bytes(message.body) for message in await everything(server, DEALS, wanted)]
    assert wanted <= set(found), f"committed and lost: {sorted(wanted - set(found))[:5]}"
    for body in set(found) - {b"first"}:
        assert teller.decided[body] is TransactionState.COMMIT, f"{body!r} was rolled back"
        assert found.count(body) == 1, f"{body!r} is there {found.count(body)} times"


async def judge_delays(server: str, postponer: Postponer) -> None:
    wanted = postponer.acknowledged
    found = await everything(server, LATER, wanted)
    there = {bytes(message.body) for message in found}
    assert wanted <= there, f"delayed and lost: {sorted(wanted - there)[:5]}"
    for message in found:
        body = bytes(message.body)
        if body != b"first":
            early_ms = int(body.split()[0]) + DELAY_MS - message.store_timestamp
            # One message came 9 ms early in seed 1157456814; the cause is not known.
            assert early_ms <= CLOCK_SLACK_MS, f"{body!r} was there {early_ms} ms too early"
