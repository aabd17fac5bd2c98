"""Checklist items of the wire and of the master's side (spec, section 18), on virtual time."""

from __future__ import annotations

import asyncio
import struct

import pytest

from support.ha_fake_store import FakeLog
from support.ha_world import World, eventually
from twinlog.ha.wire import HAConnectionState
from twinlog.store.status import PutMessageStatus

SETTINGS = {"transfer_batch_size": 100}


def data(size: int, start: int = 0) -> bytes:
    return bytes((start + i) % 251 for i in range(size))


def test_item_013_a_report_is_exactly_8_bytes_big_endian() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.transport.write(b"\0\0\0\0\0\0\x09")
        await asyncio.sleep(1)
        assert master.ha.connections[0].state is HAConnectionState.READY
        peer.transport.write(b"\x2e")
        await eventually(lambda: master.ha.connections[0].core.ack_offset == 0x092E)

    world.run(main())


def test_item_014_a_frame_is_12_bytes_and_its_body() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2300)
        await eventually(lambda: len(peer.data) >= 62)
        assert peer.data == struct.pack(">qi", 2300, 50) + data(50, 2300)

    world.run(main())


def test_item_015_a_heartbeat_has_size_0_and_the_next_offset() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2300)
        await eventually(lambda: len(peer.frames) == 2)
        assert peer.frames[1] == (2350, b"")
        assert world.loop.now_s > 5

    world.run(main())


@pytest.mark.parametrize("batch_size", [1, 99, 100, 32_768])
def test_item_016_no_body_exceeds_the_batch_size(batch_size: int) -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), transfer_batch_size=batch_size)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2000)
        await eventually(lambda: sum(len(body) for _, body in peer.frames) == 350)
        sizes = [len(body) for _, body in peer.frames]
        assert max(sizes) == min(batch_size, 350)
        assert master.settings.transfer_batch_size == batch_size

    world.run(main())


def test_item_017_a_body_is_cut_anywhere_and_stored_unchanged() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), transfer_batch_size=7)
    slave = world.slave(FakeLog(), master)

    async def main() -> None:
        await eventually(lambda: slave.log.max_offset == 2350)
        assert slave.log.data == data(350, 2000)

    world.run(main())


def test_item_018_a_body_never_spans_two_files_and_filler_is_replicated() -> None:
    world = World()
    filler = data(1990) + b"\0\0\0\x0a\xcb\xd4\x31\x94\0\0" + data(5, 2000)
    master = world.master(FakeLog(data=filler), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(1950)
        await eventually(lambda: len(peer.frames) == 2)
        assert peer.frames == [(1950, filler[1950:2000]), (2000, filler[2000:])]

    world.run(main())


def test_item_019_after_catch_up_the_logs_are_identical() -> None:
    world = World()
    master = world.master(FakeLog(data=data(700)), **SETTINGS)
    slave = world.slave(FakeLog(), master)

    async def main() -> None:
        for step in range(30):
            master.log.put(data(1 + 37 * step, step))
            await asyncio.sleep(0.01)
        await eventually(lambda: slave.log.max_offset == master.log.max_offset)
        assert slave.log.start == 0
        assert slave.log.data == master.log.data

    world.run(main())


def test_item_020_nothing_is_sent_before_the_first_report() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        await asyncio.sleep(19)
        assert peer.data == b""
        assert peer.is_open

    world.run(main())


def test_item_021_the_writer_answers_the_first_report_at_once_instead_of_polling() -> None:
    """Departure (DECISIONS 19): RocketMQ polls every 10 ms, here the report itself wakes."""
    world = World()
    world.loop.network.delay_s = (0.0, 0.0)
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        await asyncio.sleep(1)
        sent_s = world.loop.now_s
        peer.report(2000)
        await eventually(lambda: peer.pieces)
        assert peer.pieces[0][0] - sent_s < 0.001

    world.run(main())


def test_item_022_of_several_buffered_reports_the_last_complete_one_counts() -> None:
    world = World()
    world.loop.network.tiny_pieces = 0
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2000, 2100, 2200)
        await eventually(lambda: peer.data)
        assert master.ha.connections[0].core.request_offset == 2200
        assert peer.frames[0][0] == 2200

    world.run(main())


def test_item_023_a_partial_report_is_kept_and_does_not_end_the_connection() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        for byte in struct.pack(">q", 2300):
            peer.transport.write(bytes([byte]))
            await asyncio.sleep(2)
        await eventually(lambda: peer.data)
        assert peer.frames[0][0] in (2300,)

    world.run(main())


def test_item_024_reads_that_bring_nothing_do_not_close() -> None:
    """RocketMQ counts empty reads; here an empty pass is simply no event."""
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        for _ in range(5):
            await asyncio.sleep(15)
            assert peer.is_open
            peer.report(2350)

    world.run(main())


@pytest.mark.parametrize("how", ["close", "reset"])
def test_item_025_end_of_stream_or_an_error_closes_and_the_count_falls(how: str) -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        await eventually(lambda: len(master.ha.acks) == 1)
        if how == "close":
            peer.transport.close()
        else:
            world.loop.network.reset_all()
        await eventually(lambda: not master.ha.connections)
        assert len(master.ha.acks) == 0
        assert master.ha.status().departed[-1].reason

    world.run(main())


def test_item_026_a_slave_silent_for_more_than_20_s_is_disconnected() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        start_s = world.loop.now_s
        await eventually(lambda: not peer.is_open)
        assert 20 < world.loop.now_s - start_s < 22
        assert "housekeeping: no report for" in master.ha.status().departed[-1].reason

    world.run(main())


def test_item_027_a_heartbeat_follows_more_than_5_s_without_a_write() -> None:
    world = World()
    world.loop.network.tiny_pieces = 0
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        await eventually(lambda: len(peer.frames) == 2, 15)
        first, second = (when for when, _ in peer.pieces)
        assert 5 < first < 7
        assert 5 < second - first < 7

    world.run(main())


def test_item_028_an_incomplete_write_is_finished_before_anything_new() -> None:
    world = World()
    log = FakeLog(segment_size=1 << 30, data=data(3_000_000))
    master = world.master(log, transfer_batch_size=32_768)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(1)
        await asyncio.sleep(0.001)
        world.loop.network.partition(master.host, world.loop.network.hosts["10.0.0.2"])
        await asyncio.sleep(12)
        world.loop.network.heal()
        await eventually(lambda: sum(len(b) for _, b in peer.frames) == 2_999_999)
        position = 1
        for offset, body in peer.frames:
            assert offset == position
            position += len(body)
        core = master.ha.connections[0].core
        assert core.next_offset == 3_000_000

    world.run(main())


def append_reaches_idle_slave_at_once(role: str) -> None:
    world = World()
    world.loop.network.delay_s = (0.0, 0.0)
    master = world.master(FakeLog(data=data(2350)), role=role, **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        await asyncio.sleep(1)
        appended_s = world.loop.now_s
        master.log.put(b"new")
        await eventually(lambda: peer.frames)
        assert peer.frames == [(2350, b"new")]
        assert peer.pieces[0][0] - appended_s < 0.001

    world.run(main())


def test_item_029_a_writer_with_nothing_to_send_is_woken_by_the_append() -> None:
    """Departure (DECISIONS 19): RocketMQ looks every 100 ms, here every append wakes."""
    append_reaches_idle_slave_at_once("SYNC_MASTER")


def test_item_031_async_master_reaches_an_idle_slave_at_once() -> None:
    """Departure (DECISIONS 19): within the network's time, not within 100 ms."""
    append_reaches_idle_slave_at_once("ASYNC_MASTER")


def test_item_030_a_sync_put_wakes_the_writers_at_once() -> None:
    world = World()
    world.loop.network.delay_s = (0.0, 0.0)
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)
    slave = world.slave(FakeLog(data=data(2350)), master)

    async def main() -> None:
        await eventually(lambda: master.ha.check_sync(2350) == (None, ""))
        put_s = world.loop.now_s
        end = master.log.put(b"new")
        await eventually(lambda: master.ha.confirmed.value == end)
        assert world.loop.now_s - put_s < 0.005
        assert slave.log.max_offset == end

    world.run(main())


def test_item_032_an_ack_beyond_what_was_sent_closes_at_once_and_is_not_counted() -> None:
    """Departure (DECISIONS 16): the limit is what was sent, which is never above the end."""
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        await eventually(lambda: len(master.ha.acks) == 1)
        peer.report(2351)
        start_s = world.loop.now_s
        await eventually(lambda: not peer.is_open)
        assert world.loop.now_s - start_s < 0.1
        assert master.ha.confirmed.value == 2350

    world.run(main())


def test_item_033_the_confirmed_mark_only_grows_but_a_gone_slave_has_no_ack() -> None:
    """Departure (DECISIONS 16): RocketMQ keeps one number, the largest of all comers, forever."""
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        ahead, behind = await world.dial(master, "ahead"), await world.dial(master, "behind")
        ahead.report(2300)
        behind.report(2100)
        await eventually(lambda: len(master.ha.acks) == 2)
        assert master.ha.confirmed.value == 2300
        ahead.transport.close()
        await eventually(lambda: len(master.ha.acks) == 1)
        assert master.ha.confirmed.value == 2300
        assert master.ha.acks.acked_by(1) == 2100

    world.run(main())


def test_item_034_a_connection_that_ends_leaves_the_list_and_sends_no_more() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)

    async def main() -> None:
        peer = await world.dial(master)
        peer.report(2350)
        await eventually(lambda: len(master.ha.acks) == 1)
        peer.report(-7)
        await eventually(lambda: not peer.is_open)
        await eventually(lambda: not master.ha.connections)
        before = peer.data
        master.log.put(b"more")
        await asyncio.sleep(6)
        assert peer.data == before

    world.run(main())


def test_item_035_the_rate_limit_holds_with_bodies_counted() -> None:
    world = World()
    log = FakeLog(segment_size=1 << 30, data=data(100_000))
    master = world.master(log, transfer_bytes_per_second_max=10_000, transfer_batch_size=1000)

    async def main() -> None:
        peer = await world.dial(master)
        start_s = world.loop.now_s
        peer.report(1)
        while world.loop.now_s - start_s < 5:
            await asyncio.sleep(0.1)
            elapsed_s = world.loop.now_s - start_s
            # One bucket at the start, one frame beyond what is left of the budget.
            assert len(peer.data) <= 10_000 * (1 + elapsed_s) + 1012
        assert len(peer.data) > 40_000

    world.run(main())


def test_item_056_an_empty_slave_gets_the_last_file_only() -> None:
    """The classic dialect; the twin dialect copies the whole log (DECISIONS 19)."""
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)
    slave = world.slave(FakeLog(), master)

    async def main() -> None:
        await eventually(lambda: slave.log.max_offset == 2350)
        assert slave.log.start == 2000

    world.run(main())


def test_item_057_a_slave_with_data_gets_exactly_what_it_lacks() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)
    slave = world.slave(FakeLog(data=data(123)), master)

    async def main() -> None:
        await eventually(lambda: slave.log.max_offset == 2350)
        assert slave.log.data == master.log.data
        assert sum(slave.log.append_sizes) == 2350 - 123

    world.run(main())


def test_item_058_a_slave_below_the_oldest_offset_gets_no_data_and_the_status_says_why() -> None:
    """Departure (DECISIONS 16): held silent, not fed heartbeats; both leave it where it is."""
    world = World()
    master = world.master(FakeLog(data=data(1350, 1000), start=1000), **SETTINGS)
    slave = world.slave(FakeLog(data=data(500)), master)

    async def main() -> None:
        await asyncio.sleep(10)
        (replica,) = master.ha.status().replicas
        assert replica.state == "SUSPEND"
        assert "below this master's oldest offset 1000" in replica.reason
        assert slave.log.max_offset == 500
        assert master.ha.check_sync(2350)[0] is PutMessageStatus.SLAVE_NOT_AVAILABLE

    world.run(main())


def test_item_003_several_slaves_of_one_master() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2350)), **SETTINGS)
    slaves = [world.slave(FakeLog(), master, name=f"slave {i}") for i in range(5)]

    async def main() -> None:
        end = master.log.put(data(700))
        await eventually(lambda: all(s.log.max_offset == end for s in slaves))
        assert len({bytes(s.log.data) for s in slaves}) == 1
        await eventually(lambda: all(r.lag_bytes == 0 for r in master.ha.status().replicas))
        assert len(master.ha.status().replicas) == 5

    world.run(main())
