"""What one turn put is answered together, and each message by what became of it."""

from __future__ import annotations

from typing import Any

from twinlog.broker.put.replies import PutReplies
from twinlog.broker.role import Role
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.message.ids import NO_HOST
from twinlog.remoting.codec import decode_header
from twinlog.remoting.framing import FrameSplitter
from twinlog.runtime.config import BrokerConfig, BrokerRole, FlushDiskType
from twinlog.runtime.watermark import Watermark
from twinlog.store.status import AppendResult, PutMessageStatus
from twinlog.testing.manual_clock import ManualClock


class Slave:
    """Replication with one slave that is no further behind than `limit`."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.confirmed = Watermark("confirmed")
        self.limit = limit

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        if end_offset - self.confirmed.value < self.limit:
            return None, ""
        return PutMessageStatus.SLAVE_NOT_AVAILABLE, f"behind at {end_offset}"

    def timeout_reason(self, end_offset: int) -> str:
        return f"not confirmed: {end_offset}"


class Peer:
    def __init__(self) -> None:
        self.data = b""

    def write(self, frame: bytes) -> None:
        self.data += frame

    def write_run(self, data: bytes, count: int) -> None:
        self.data += data

    def write_pieces(self, pieces: Any) -> None:
        self.data += b"".join(pieces)

    @property
    def answers(self) -> dict[int, tuple[int, str | None]]:
        """Code and remark by opaque."""
        commands = [decode_header(*frame) for frame in FrameSplitter().feed(self.data)]
        assert len({command.opaque for command in commands}) == len(commands), "answered twice"
        return {command.opaque: (command.code, command.remark) for command in commands}


class Desk:
    """PutReplies with watermarks moved by hand; records of 100 bytes."""

    def __init__(self, slave: Slave, **config: Any) -> None:
        values = {"broker_role": BrokerRole.SYNC_MASTER, **config}
        self.clock = ManualClock()
        self.appended, self.flushed = Watermark("appended"), Watermark("flushed")
        self.slave = slave
        self.peer = Peer()
        broker_config = BrokerConfig(**values)
        self.replies = PutReplies(
            broker_config,
            clock=self.clock,
            appended=self.appended,
            flushed=self.flushed,
            replication=slave,
            store_host=NO_HOST,
            stats=StoreStats(0),
            role=Role(broker_config),
        )
        self.end = 0

    def turn(self, *opaques: int, must_wait: bool = True) -> None:
        for opaque in opaques:
            offset, self.end = self.end, self.end + 100
            result = AppendResult(PutMessageStatus.PUT_OK, offset, self.end, 0, 0)
            self.replies.add(result, (self.peer, opaque, 0, 0, 0, offset), must_wait)
        self.appended.advance(self.end)


def test_a_turn_is_answered_when_all_of_it_is_confirmed() -> None:
    desk = Desk(Slave())
    desk.turn(1, 2, 3)
    desk.turn(4)
    assert desk.replies.waiting_count == 4
    desk.slave.confirmed.advance(200)
    assert desk.peer.answers == {}
    desk.slave.confirmed.advance(300)
    assert desk.peer.answers == dict.fromkeys((1, 2, 3), (0, None))
    desk.slave.confirmed.advance(400)
    assert desk.peer.answers[4] == (0, None)
    assert desk.replies.waiting_count == 0


def test_of_a_turn_that_runs_out_of_time_each_has_its_own_status() -> None:
    desk = Desk(Slave())
    desk.turn(1, 2, 3)
    desk.slave.confirmed.advance(200)
    desk.clock.advance(2900)
    assert desk.peer.answers == {}
    desk.clock.advance(200)
    assert desk.peer.answers == {1: (0, None), 2: (0, None), 3: (12, "not confirmed: 300")}
    assert desk.replies.waiting_count == 0


def test_where_the_limit_falls_into_a_turn_only_those_beyond_it_are_refused() -> None:
    desk = Desk(Slave(limit=250))
    desk.turn(1, 2, 3)
    assert desk.peer.answers == {3: (11, "behind at 300")}
    desk.slave.confirmed.advance(200)
    assert set(desk.peer.answers) == {1, 2, 3}


def test_flush_and_slave_are_both_waited_for() -> None:
    desk = Desk(Slave(), flush_disk_type=FlushDiskType.SYNC_FLUSH)
    desk.turn(1, 2)
    desk.slave.confirmed.advance(200)
    assert desk.peer.answers == {}
    desk.flushed.advance(200)
    assert set(desk.peer.answers) == {1, 2}


class Nobody(Slave):
    """inSyncReplicas=1: the master's own copy is enough, and no slave is there."""

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        return PutMessageStatus.PUT_OK, ""


def test_a_slow_flush_is_10_where_no_slave_is_waited_for() -> None:
    desk = Desk(Nobody(), flush_disk_type=FlushDiskType.SYNC_FLUSH, in_sync_replicas=1)
    desk.turn(1, 2)
    desk.flushed.advance(100)
    desk.clock.advance(6000)
    assert desk.peer.answers == {1: (0, None), 2: (10, None)}


def test_a_slow_flush_is_10_where_the_slaves_were_in_time() -> None:
    desk = Desk(Slave(), flush_disk_type=FlushDiskType.SYNC_FLUSH)
    desk.turn(1, 2)
    desk.slave.confirmed.advance(200)
    desk.clock.advance(6000)
    assert desk.peer.answers == {1: (10, None), 2: (10, None)}


def test_who_does_not_wait_is_answered_with_the_append() -> None:
    desk = Desk(Slave())
    desk.turn(1, must_wait=False)
    assert desk.peer.answers == {1: (0, None)}


def test_other_puts_of_the_turn_do_not_disturb_the_order() -> None:
    desk = Desk(Slave())
    told: list[PutMessageStatus] = []
    result = AppendResult(PutMessageStatus.PUT_OK, 0, 100, 0, 0)
    desk.end = 100
    desk.replies.add(result, lambda status, _: told.append(status), True)
    desk.turn(1, 2)
    desk.slave.confirmed.advance(100)
    assert told == [PutMessageStatus.PUT_OK]
    desk.slave.confirmed.advance(300)
    assert set(desk.peer.answers) == {1, 2}


def test_a_failed_write_is_told_to_each() -> None:
    desk = Desk(Slave())
    result = AppendResult(PutMessageStatus.PUT_OK, 0, 100, 0, 0)
    desk.replies.add(result, (desk.peer, 7, 0, 0, 0, 0), True)
    desk.appended.fail_above(0, "disk full")
    assert desk.peer.answers == {7: (14, "disk full")}
    assert desk.replies.waiting_count == 0


def test_stop_answers_every_message_of_a_waiting_turn() -> None:
    desk = Desk(Slave())
    desk.turn(1, 2)
    desk.replies.stop()
    assert desk.peer.answers == dict.fromkeys((1, 2), (10, "the broker stops"))


def test_what_an_empty_slave_will_never_have_is_not_called_replicated() -> None:
    desk = Desk(Slave())
    desk.turn(1, 2)
    desk.slave.confirmed.skip(200, "slave s copies the log from 200 on")
    assert {opaque: code for opaque, (code, _) in desk.peer.answers.items()} == {1: 12, 2: 12}
    assert "from 200 on" in str(desk.peer.answers[1][1])
    desk.turn(3)
    desk.slave.confirmed.advance(300)
    assert desk.peer.answers[3][0] == 0
