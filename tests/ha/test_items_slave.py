"""Checklist items of the slave's client (spec, section 18), on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct

import pytest

from support.ha_fake_store import FakeLog
from support.ha_world import Node, RawMaster, RawPeer, World, eventually
from twinlog.message.layout import MAGIC_BLANK, MAGIC_V1


def data(size: int, start: int = 0) -> bytes:
    return bytes((start + i) % 251 for i in range(size))


def test_item_036_without_a_master_address_it_waits_and_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)))
    slave = world.slave(FakeLog(data=data(100)), None)

    async def main() -> None:
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(60)
        assert caplog.records == []
        assert slave.ha.status().client.state == "READY"
        slave.ha.update_master_address(master.address)
        await eventually(lambda: slave.log.max_offset == 2350, 5)

    world.run(main())


def test_item_037_a_failed_connect_is_retried_after_1_2_4_and_then_5_s() -> None:
    """Departure (DECISIONS 15): RocketMQ waits 5 s after a failed connect, none after a close."""
    world = World()
    master = RawMaster(world.loop, on_open=lambda peer: peer.transport.close())
    world.slave(FakeLog(data=data(100)), master)

    async def main() -> None:
        await eventually(lambda: len(master.opened_s) == 7, 60)
        moments = master.opened_s
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert [round(pause) for pause in pauses] == [1, 2, 4, 5, 5, 5]

    world.run(main())


def test_item_037_connecting_takes_at_most_5_s() -> None:
    world = World()
    master = RawMaster(world.loop)
    slave = world.slave(FakeLog(data=data(100)), master)
    world.loop.network.partition(master.host, slave.host)

    async def main() -> None:
        await eventually(lambda: slave.ha.status().client.last_disconnect_reason, 6)
        assert "no connection within 5000 ms" in slave.ha.status().client.last_disconnect_reason
        world.loop.network.heal()
        await eventually(lambda: master.peers, 7)

    world.run(main())


def test_item_038_on_connect_it_reports_its_max_offset_at_once() -> None:
    """At once, not 5 s later as in 4.9 (DECISIONS 15)."""
    world = World()
    master = RawMaster(world.loop)
    world.slave(FakeLog(data=data(123)), master)

    async def main() -> None:
        await eventually(lambda: master.peers and master.peers[0].reports, 1)
        assert master.peers[0].reports == [123]

    world.run(main())


def test_item_039_it_reports_when_idle() -> None:
    world = World()
    world.loop.network.tiny_pieces = 0
    master = RawMaster(world.loop)
    world.slave(FakeLog(data=data(123)), master)

    async def main() -> None:
        await eventually(lambda: master.peers and len(master.peers[0].reports) == 3, 20)
        peer = master.peers[0]
        assert peer.reports == [123, 123, 123]
        times = [when for when, _ in peer.pieces]
        assert all(5 < b - a < 7 for a, b in itertools.pairwise(times))

    world.run(main())


def with_master(
    log: FakeLog, story: object, **settings: object
) -> tuple[World, RawMaster, FakeLog]:
    """Run `story(peer, slave)` with a slave that has dialled a master spoken by hand."""
    world = World()
    master = RawMaster(world.loop)
    slave = world.slave(log, master, **settings)

    async def main() -> None:
        await eventually(lambda: master.peers and master.peers[0].reports)
        await story(master.peers[0], slave)  # type: ignore[operator]

    world.run(main())
    return world, master, log


def test_item_040_it_reports_after_every_frame_that_grew_the_log() -> None:
    async def story(peer: RawPeer, _slave: object) -> None:
        peer.frame(100, b"abc")
        peer.frame(103, b"de")
        peer.frame(105, b"f")
        await eventually(lambda: len(peer.reports) == 4)
        assert peer.reports == [100, 103, 105, 106]

    with_master(FakeLog(data=data(100)), story)


def test_item_041_a_heartbeat_brings_no_report() -> None:
    async def story(peer: RawPeer, _slave: object) -> None:
        for _ in range(5):
            peer.frame(100)
        await asyncio.sleep(3)
        assert peer.reports == [100]
        assert peer.is_open

    with_master(FakeLog(data=data(100)), story)


def test_item_042_reports_that_cannot_be_written_close_the_connection() -> None:
    """RocketMQ gives up after 3 attempts at one report; here after 64 KiB of unsent ones."""
    world = World()
    master = RawMaster(world.loop)
    slave = world.slave(FakeLog(segment_size=1 << 20, data=data(100)), master)

    async def main() -> None:
        await eventually(lambda: master.peers and master.peers[0].reports)
        world.loop.network.partition(slave.host, master.host, one_way=True)
        peer = master.peers[0]
        for i in range(9000):
            peer.frame(100 + i, b"x")
        await eventually(lambda: slave.ha.client.link is None, 10)
        assert "takes no reports" in slave.ha.status().client.last_disconnect_reason

    world.run(main())


def test_item_043_frames_that_arrive_together_are_processed_in_order() -> None:
    async def story(peer: RawPeer, slave: object) -> None:
        wire = b"".join(struct.pack(">qi", 100 + i, 1) + bytes([i]) for i in range(50))
        peer.transport.write(wire)
        await eventually(lambda: len(peer.reports) == 51)
        assert slave.log.data[100:] == bytes(range(50))  # type: ignore[attr-defined]

    with_master(FakeLog(data=data(100)), story)


def test_item_044_a_frame_split_over_many_reads_is_processed_once() -> None:
    async def story(peer: RawPeer, slave: object) -> None:
        for byte in struct.pack(">qi", 100, 5) + b"hello":
            peer.transport.write(bytes([byte]))
            await asyncio.sleep(0.05)
        await eventually(lambda: len(peer.reports) == 2)
        assert slave.log.data[100:] == b"hello"  # type: ignore[attr-defined]
        assert slave.log.append_sizes == [5]  # type: ignore[attr-defined]

    with_master(FakeLog(data=data(100)), story)


def test_item_045_a_partial_frame_survives_a_full_buffer() -> None:
    body = data(4 * 1024 * 1024 - 12)

    async def story(peer: RawPeer, slave: object) -> None:
        peer.frame(100, b"abc")
        peer.frame(103, body)
        peer.frame(103 + len(body), b"end")
        await eventually(lambda: len(peer.reports) == 4)
        assert slave.log.data[100:] == b"abc" + body + b"end"  # type: ignore[attr-defined]

    with_master(FakeLog(segment_size=1 << 30, data=data(100)), story)


@pytest.mark.parametrize("offset", [0, 99, 101, 1000])
def test_item_046_a_wrong_offset_closes_and_stores_nothing(offset: int) -> None:
    async def story(peer: RawPeer, slave: object) -> None:
        peer.frame(offset, b"abc")
        await eventually(lambda: not peer.is_open)
        reason = slave.ha.status().client.last_disconnect_reason  # type: ignore[attr-defined]
        assert f"SLAVE: 100 MASTER: {offset}" in reason

    _, _, log = with_master(FakeLog(data=data(100)), story)
    assert log.data == data(100)


def test_item_047_an_empty_slave_takes_the_offset_it_is_given() -> None:
    async def story(peer: RawPeer, slave: object) -> None:
        peer.frame(5000, b"abc")
        await eventually(lambda: len(peer.reports) == 3)
        assert peer.reports == [0, 5000, 5003]
        assert slave.log.start == 5000  # type: ignore[attr-defined]

    with_master(FakeLog(), story)


def test_item_048_a_heartbeat_with_a_wrong_offset_closes_too() -> None:
    async def story(peer: RawPeer, _slave: object) -> None:
        peer.frame(99)
        await eventually(lambda: not peer.is_open, 1)

    with_master(FakeLog(data=data(100)), story)


def test_item_049_after_a_close_partial_data_is_forgotten_and_it_resumes_from_its_log() -> None:
    world = World()
    master = RawMaster(world.loop)
    slave = world.slave(FakeLog(data=data(100)), master)

    async def main() -> None:
        await eventually(lambda: master.peers and master.peers[0].reports)
        first = master.peers[0]
        first.frame(100, b"abc")
        await eventually(lambda: slave.log.max_offset == 103)
        first.transport.write(struct.pack(">qi", 103, 10) + b"part")
        await asyncio.sleep(0.5)
        first.transport.close()
        await eventually(lambda: len(master.peers) == 2 and master.peers[1].reports)
        assert master.peers[1].reports == [103]
        master.peers[1].frame(103, b"whole")
        await eventually(lambda: slave.log.max_offset == 108)
        assert slave.log.data[100:] == b"abcwhole"

    world.run(main())


FILLED = struct.pack(">iI20xq", 900, MAGIC_V1, 0).ljust(900, b"r") + struct.pack(
    ">iI", 100, MAGIC_BLANK
).ljust(100, b"\0")
"""A record, and what fills the rest of the file of 1000 bytes."""


def test_a_filler_at_the_end_is_asked_for_again_and_known_bytes_change_nothing() -> None:
    async def story(peer: RawPeer, slave: Node) -> None:
        peer.frame(900, FILLED[900:950])
        peer.frame(950, FILLED[950:])
        peer.frame(1000, b"next")
        await eventually(lambda: len(peer.reports) == 4)
        assert peer.reports == [900, 950, 1000, 1004]
        assert bytes(slave.log.data) == FILLED + b"next"
        assert slave.log.cuts == []

    with_master(FakeLog(data=FILLED), story)


def test_a_filler_that_the_master_has_forgotten_makes_way_for_its_records() -> None:
    """Apache's master, killed between the filler and the next record, begins again before it."""

    async def story(peer: RawPeer, slave: Node) -> None:
        peer.frame(900)
        peer.frame(900, b"a record instead")
        await eventually(lambda: len(peer.reports) == 2)
        assert peer.reports == [900, 916]
        assert bytes(slave.log.data) == FILLED[:900] + b"a record instead"
        assert [offset for offset, _ in slave.log.cuts] == [900]

    with_master(FakeLog(data=FILLED), story)


def test_a_filler_that_comes_again_is_no_reason_to_redial_at_once() -> None:
    """A full disk: each connection brings the filler, and nothing behind it can be stored."""
    world = World()

    def send(peer: RawPeer) -> None:
        peer.frame(900, FILLED[900:])
        peer.frame(1001, b"wrong")

    master = RawMaster(world.loop, on_open=send)
    world.slave(FakeLog(data=FILLED), master)

    async def main() -> None:
        await eventually(lambda: len(master.opened_s) == 5, 60)
        pauses = [after - before for before, after in itertools.pairwise(master.opened_s)]
        assert [round(pause) for pause in pauses] == [1, 2, 4, 5]

    world.run(main())


def test_item_050_a_master_silent_for_more_than_20_s_is_dropped() -> None:
    """Departure from 4.9.7, which never does it because its own reports refresh the timer."""
    world = World()
    master = RawMaster(world.loop)
    slave = world.slave(FakeLog(data=data(100)), master)

    async def main() -> None:
        await eventually(lambda: master.peers)
        start_s = world.loop.now_s
        world.loop.network.partition(master.host, slave.host, one_way=True)
        await eventually(lambda: slave.ha.client.link is None, 40)
        assert 20 < world.loop.now_s - start_s < 23
        reason = slave.ha.status().client.last_disconnect_reason
        assert "nothing from the master for 2" in reason

    world.run(main())


def test_item_051_the_silence_timer_counts_data_received_not_reports_sent() -> None:
    async def story(peer: RawPeer, slave: object) -> None:
        for _ in range(4):
            await asyncio.sleep(15)
            assert peer.is_open
            peer.frame(100)
        await asyncio.sleep(19)
        assert peer.is_open
        assert len(peer.reports) > 10
        await eventually(lambda: not peer.is_open, 4)

    with_master(FakeLog(data=data(100)), story)


def test_item_052_after_a_transfer_that_failed_it_pauses_before_dialling_again() -> None:
    """Departure (DECISIONS 15): the pause grows from 1 s to 5 s instead of 5 s at once."""
    world = World()
    master = RawMaster(world.loop, on_open=lambda peer: peer.frame(99, b"wrong"))
    world.slave(FakeLog(data=data(100)), master)

    async def main() -> None:
        await eventually(lambda: len(master.opened_s) == 5, 60)
        moments = master.opened_s
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert [round(pause) for pause in pauses] == [1, 2, 4, 5]

    world.run(main())


def test_item_055_an_ack_does_not_imply_fsync_on_the_slave() -> None:
    """The report follows the write: this log has no notion of a sync at all."""

    async def story(peer: RawPeer, slave: object) -> None:
        peer.frame(100, b"abc")
        await eventually(lambda: peer.reports[-1] == 103, 1)
        assert slave.log.append_sizes == [3]  # type: ignore[attr-defined]

    with_master(FakeLog(data=data(100)), story)
