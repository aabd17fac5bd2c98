"""Checklist items of synchronous replication (spec, section 18): HAService on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from support.ha_fake_store import FakeLog
from support.ha_world import Node, RawPeer, World, eventually
from twinlog.runtime.watermark import Outcome
from twinlog.store.status import PutMessageStatus

LOG = bytes(2350)


class Put:
    """One put of a SYNC_MASTER: when it was answered, and how."""

    def __init__(self, master: Node, body: bytes) -> None:
        self.loop = master.loop
        self.started_s = self.loop.now_s
        self.end_offset = master.log.put(body)
        self.outcome: Outcome | None = None
        self.reason = ""
        self.answered_s = -1.0
        self.status, self.refusal = master.ha.check_sync(self.end_offset)
        if self.status is None:
            master.ha.group_transfer.wait(self.end_offset, self._done)

    def _done(self, _argument: Any, outcome: Outcome, reason: str) -> None:
        self.outcome, self.reason, self.answered_s = outcome, reason, self.loop.now_s

    @property
    def took_s(self) -> float:
        return self.answered_s - self.started_s


async def joined(world: World, master: Node, offset: int, name: str = "raw slave") -> RawPeer:
    """A slave spoken by hand, which acknowledges only when told to."""
    peer = await world.dial(master, name)
    count = len(master.ha.acks)
    peer.report(offset)
    await eventually(lambda: len(master.ha.acks) == count + 1)
    return peer


def test_item_060_the_answer_comes_only_after_an_ack_of_the_end() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        peer = await joined(world, master, 2350)
        put = Put(master, b"message")
        peer.report(put.end_offset - 1)
        await asyncio.sleep(1)
        assert put.outcome is None
        peer.report(put.end_offset)
        await eventually(lambda: put.outcome)
        assert put.outcome is Outcome.REACHED

    world.run(main())


def test_item_063_no_connected_slave_gives_slave_not_available_at_once_with_the_reason() -> None:
    """Departure (DECISIONS 17): a connection that has not reported is no slave either."""
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        await asyncio.sleep(0.1)
        put = Put(master, b"message")
        assert put.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "no slave connected since" in put.refusal
        assert master.log.max_offset == put.end_offset
        await world.dial(master)
        await asyncio.sleep(1)
        assert Put(master, b"again").status is PutMessageStatus.SLAVE_NOT_AVAILABLE

    world.run(main())


def test_item_064_a_lag_of_the_limit_or_more_gives_slave_not_available() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG), slave_fall_behind_max=100)

    async def main() -> None:
        await joined(world, master, 2350)
        assert Put(master, bytes(99)).status is None
        refused = Put(master, bytes(1))
        assert refused.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "behind by 100 bytes since" in refused.refusal
        assert "limit 100 bytes (haSlaveFallbehindMax)" in refused.refusal
        assert "slave 10.0.0.2:" in refused.refusal

    world.run(main())


def test_item_065_it_cures_itself_when_the_slave_catches_up() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG), slave_fall_behind_max=100)

    async def main() -> None:
        peer = await joined(world, master, 2350)
        assert Put(master, bytes(100)).status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        await asyncio.sleep(0.1)
        peer.report(2450)
        await eventually(lambda: master.ha.confirmed.value == 2450)
        assert Put(master, bytes(50)).status is None

    world.run(main())


def test_item_066_no_ack_within_slave_timeout_gives_flush_slave_timeout_with_the_reason() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        await joined(world, master, 2350)
        put = Put(master, b"message")
        await eventually(lambda: put.outcome, 10)
        assert put.outcome is Outcome.TIMEOUT
        assert 2.999 < put.took_s < 3.01
        assert "slave 10.0.0.2:" in put.reason
        assert "behind by 7 bytes since 2023-" in put.reason
        assert "limit 3000 ms (slaveTimeout)" in put.reason
        assert master.log.max_offset == put.end_offset

    world.run(main())


def test_item_067_wake_ups_by_others_never_shorten_a_wait() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        peer = await joined(world, master, 2350)
        puts = []
        for _ in range(50):
            puts.append(Put(master, b"x"))
            await asyncio.sleep(0.02)
            if len(puts) < 50:
                peer.report(puts[-1].end_offset)
        last = puts[-1]
        await eventually(lambda: last.outcome, 10)
        assert all(put.outcome is Outcome.REACHED for put in puts[:-1])
        assert last.outcome is Outcome.TIMEOUT
        assert 2.999 < last.took_s < 3.01

    world.run(main())


def test_item_068_many_puts_on_a_dead_slave_all_fail_within_one_timeout() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        await joined(world, master, 2350)
        puts = [Put(master, b"x") for _ in range(1000)]
        await eventually(lambda: all(put.outcome for put in puts), 10)
        assert {put.outcome for put in puts} == {Outcome.TIMEOUT}
        assert max(put.took_s for put in puts) < 3.01

    world.run(main())


def test_item_069_with_two_slaves_one_ack_is_enough() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        fast = await joined(world, master, 2350, "fast")
        await joined(world, master, 2100, "slow")
        put = Put(master, b"message")
        await asyncio.sleep(0.1)
        fast.report(put.end_offset)
        await eventually(lambda: put.outcome)
        assert put.outcome is Outcome.REACHED

    world.run(main())


def test_item_072_waiting_occupies_no_task() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))

    async def main() -> None:
        await joined(world, master, 2350)
        before = len(asyncio.all_tasks())
        for _ in range(500):
            Put(master, b"x")
        assert len(asyncio.all_tasks()) == before

    world.run(main())


def test_item_073_puts_are_answered_in_order() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG))
    order: list[int] = []

    async def main() -> None:
        peer = await joined(world, master, 2350)
        for _ in range(100):
            end = master.log.put(b"xy")
            master.ha.confirmed.wait(end, 1 << 60, lambda e, *_: order.append(e), end)
        await asyncio.sleep(0.1)
        peer.report(2400)
        await eventually(lambda: len(order) == 25)
        peer.report(2550)
        await eventually(lambda: len(order) == 100)
        assert order == sorted(order)

    world.run(main())


def test_item_076_with_in_sync_replicas_1_no_ack_is_waited_for() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG), in_sync_replicas=1)

    async def main() -> None:
        await asyncio.sleep(0.1)
        assert Put(master, b"x").status is PutMessageStatus.PUT_OK

    world.run(main())


def test_item_077_with_in_sync_replicas_3_two_slaves_must_have_it() -> None:
    world = World()
    master = world.master(FakeLog(data=LOG), in_sync_replicas=3)

    async def main() -> None:
        first = await joined(world, master, 2350, "first")
        refused = Put(master, b"x")
        assert refused.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "1 of 2 slaves connected" in refused.refusal
        second = await joined(world, master, 2350, "second")
        put = Put(master, b"x")
        await asyncio.sleep(0.1)
        first.report(put.end_offset)
        await asyncio.sleep(0.5)
        assert put.outcome is None
        second.report(put.end_offset)
        await eventually(lambda: put.outcome)
        assert put.outcome is Outcome.REACHED

    world.run(main())
