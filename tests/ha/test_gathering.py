"""Bursts of appends share frames; a single append goes out at once."""

from __future__ import annotations

import asyncio

import pytest

from support.ha_fake_store import FakeLog
from support.ha_world import Node, RawPeer, World, eventually


async def _joined(world: World, master: Node) -> RawPeer:
    peer = await world.dial(master)
    peer.report(1000)
    await eventually(lambda: len(master.ha.acks) == 1)
    return peer


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_after_a_pause_an_append_is_sent_at_once(role: str) -> None:
    world = World()
    log = FakeLog(segment_size=100_000, data=bytes(1000))
    master = world.master(log, role=role)

    async def main() -> None:
        peer = await _joined(world, master)
        for n in range(5):
            await asyncio.sleep(0.01)
            log.put(b"x" * 10)
            assert master.ha.connections[0].core.next_offset == 1010 + 10 * n
        await eventually(lambda: len(peer.frames) == 5)

    world.run(main())


def test_asynchronous_a_burst_is_one_frame_a_millisecond() -> None:
    world = World()
    log = FakeLog(segment_size=100_000, data=bytes(1000))
    master = world.master(log, role="ASYNC_MASTER")

    async def main() -> None:
        peer = await _joined(world, master)
        await asyncio.sleep(0.01)
        for _ in range(20):
            log.put(b"x" * 10)
        assert master.ha.connections[0].core.next_offset == 1010
        await eventually(lambda: peer.frames[-1:] == [(1010, b"x" * 190)])
        assert len(peer.frames) == 2

    world.run(main())


def test_synchronous_sends_are_gathered_until_the_acknowledgement() -> None:
    world = World()
    world.loop.network.delay_s = (0.0001, 0.0004)  # The frame arrives within its millisecond.
    log = FakeLog(segment_size=100_000, data=bytes(1000))
    master = world.master(log)

    async def main() -> None:
        peer = await _joined(world, master)
        core = master.ha.connections[0].core
        await asyncio.sleep(0.01)
        ahead = core.next_offset
        for _ in range(3):
            log.put(b"x" * 10)
        assert core.next_offset == ahead + 10
        await eventually(lambda: len(peer.frames) == 1, within_s=0.0009)
        peer.report(1010)  # Before the millisecond is over.
        await eventually(lambda: core.next_offset == 1030)
        assert peer.frames[0] == (1000, b"x" * 10)
        await eventually(lambda: peer.frames[1:] == [(1010, b"x" * 20)])

    world.run(main())


def test_a_slave_that_does_not_acknowledge_holds_up_a_millisecond_at_most() -> None:
    world = World()
    log = FakeLog(segment_size=100_000, data=bytes(1000))
    master = world.master(log)

    async def main() -> None:
        peer = await _joined(world, master)
        await asyncio.sleep(0.01)
        for _ in range(3):
            log.put(b"x" * 10)
        await asyncio.sleep(0.002)
        assert master.ha.connections[0].core.next_offset == 1030
        await eventually(lambda: len(peer.frames) == 2)

    world.run(main())


def test_to_a_far_slave_sends_leave_while_others_are_on_their_way() -> None:
    """After one round trip of 4 ms, and no millisecond passes between the sends that follow."""
    world = World()
    log = FakeLog(segment_size=100_000, data=bytes(1000))
    master = world.master(log)

    async def main() -> None:
        peer = await _joined(world, master)
        connection = master.ha.connections[0]
        await asyncio.sleep(0.01)
        log.put(b"x" * 10)
        await asyncio.sleep(0.004)
        peer.report(1010)
        await eventually(lambda: connection.core.ack_offset == 1010)
        for number in range(1, 9):
            log.put(b"x" * 10)
            assert connection.core.next_offset == 1010 + 10 * number
        await eventually(lambda: len(peer.frames) == 9)

    world.run(main())
