"""HAReceiver told as stories: what the master sends, what is stored, what is reported."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.receiver import (
    BodyReceived,
    HAReceiver,
    LogStarted,
    MasterGone,
    ReceiverSettings,
    begins_record,
)
from twinlog.ha.wire import HAConnectionState, LocalProtocolError

SETTINGS = ReceiverSettings(
    segment_size=1000, heartbeat_interval_ms=5000, housekeeping_interval_ms=20000
)
MAGIC = -626843481


def frame(offset: int, body: bytes = b"") -> bytes:
    return struct.pack(">qi", offset, len(body)) + body


def reports(data: bytes) -> list[int]:
    assert len(data) % 8 == 0
    return [value for (value,) in struct.iter_unpack(">q", data)]


def record(offset: int, size: int = 64) -> bytes:
    head = struct.pack(">iiiiiqq", size, MAGIC, 0, 0, 0, 0, offset)
    return head.ljust(size, b"r")


class Slave:
    """A receiver and the log it fills, as the shell would."""

    def __init__(self, log_end: int = 0, settings: ReceiverSettings = SETTINGS) -> None:
        self.core = HAReceiver(settings, log_end=log_end, now_ms=0)
        self.start = log_end
        self.log = b""
        self.gone = ""
        self.appends = 0

    def take(self, data: bytes, now_ms: int = 1) -> list[int]:
        self.core.receive_data(data, now_ms)
        return self.run(now_ms)

    def run(self, now_ms: int = 1) -> list[int]:
        for event in self.core.events():
            if isinstance(event, LogStarted):
                assert self.log == b""
                self.start = event.offset
                self.core.appended(event.offset)
            elif isinstance(event, BodyReceived):
                assert event.offset == self.start + len(self.log)
                self.log += b"".join(event.bodies)
                self.appends += 1
                self.core.appended(event.offset + event.size)
            else:
                self.gone = event.reason
        return reports(self.core.data_to_send(now_ms))


def test_first_report_leaves_at_once_with_the_end_of_the_log() -> None:
    slave = Slave(4711)
    assert slave.run() == [4711]
    assert slave.run() == []


def test_every_frame_is_stored_and_reported() -> None:
    slave = Slave(100)
    slave.run()
    assert slave.take(frame(100, b"abc")) == [103]
    assert slave.take(frame(103, b"defg") + frame(107, b"h")) == [107, 108]
    assert slave.log == b"abcdefgh"
    assert slave.appends == 2


def test_one_byte_at_a_time() -> None:
    slave = Slave(100)
    slave.run()
    out = []
    for byte in frame(100, b"abc") + frame(103) + frame(103, b"defg"):
        out += slave.take(bytes([byte]))
    assert out == [103, 107]
    assert slave.log == b"abcdefg"


def test_heartbeats_store_and_report_nothing() -> None:
    slave = Slave(100)
    slave.run()
    assert slave.take(frame(100) * 3) == []
    assert slave.gone == ""


def test_nothing_is_reported_before_the_store_has_it() -> None:
    core = HAReceiver(SETTINGS, log_end=100, now_ms=0)
    core.data_to_send(0)
    core.receive_data(frame(100, b"abc") + frame(103, b"def"), 1)
    assert core.data_to_send(1) == b""
    core.appended(103)
    assert reports(core.data_to_send(1)) == [103]
    core.appended(105)
    assert core.data_to_send(1) == b""
    core.appended(106)
    assert reports(core.data_to_send(1)) == [106]


def test_empty_slave_starts_where_the_first_heartbeat_says() -> None:
    slave = Slave(0)
    assert slave.run() == [0]
    assert slave.take(frame(3000)) == [3000]
    assert slave.start == 3000
    assert slave.take(frame(3000, b"xy")) == [3002]


def test_empty_slave_starts_where_the_first_data_says() -> None:
    slave = Slave(0)
    assert slave.run() == [0]
    assert slave.take(frame(3000, b"xy") + frame(3002, b"z")) == [3000, 3002, 3003]
    assert (slave.start, slave.log) == (3000, b"xyz")


def test_empty_slave_of_an_empty_master() -> None:
    slave = Slave(0)
    slave.run()
    assert slave.take(frame(0)) == []
    assert slave.take(frame(0, b"ab")) == [2]
    assert slave.start == 0


def test_empty_slave_takes_a_first_frame_inside_a_file_only_if_it_begins_a_record() -> None:
    slave = Slave(0)
    slave.run()
    assert slave.take(frame(3064, record(3064))) == [3064, 3128]
    for body in (b"xyz", b"not a record at all", record(3000), record(3064, size=64)[:7]):
        other = Slave(0)
        other.run()
        assert other.take(frame(3064, body)) == []
        assert "neither the start of a file nor of a record" in other.gone
        assert other.log == b""


def test_a_heartbeat_inside_a_file_starts_the_log_there_and_data_must_begin_a_record() -> None:
    slave = Slave(0)
    slave.run()
    assert slave.take(frame(3064)) == [3064]
    assert slave.take(frame(3064, b"x" * 50)) == []
    assert slave.gone


@pytest.mark.parametrize("offset", [99, 101, 0, 1000, (1 << 63) - 1])
@pytest.mark.parametrize("size", [0, 5])
def test_wrong_offset_closes_and_stores_nothing(offset: int, size: int) -> None:
    slave = Slave(100)
    slave.run()
    assert slave.take(frame(offset, b"x" * size)) == []
    assert slave.gone == (
        f"master pushed offset not equal the max phy offset in slave, SLAVE: 100 MASTER: {offset}"
    )
    assert slave.log == b""


def test_wrong_offset_is_seen_before_the_body_is_there() -> None:
    slave = Slave(100)
    slave.run()
    slave.take(struct.pack(">qi", 99, 500))
    assert slave.gone


def test_what_came_before_the_wrong_frame_is_stored() -> None:
    slave = Slave(100)
    slave.run()
    assert slave.take(frame(100, b"abc") + frame(104, b"def")) == [103]
    assert slave.log == b"abc"
    assert slave.gone


@pytest.mark.parametrize("size", [-1, -(1 << 31), (1 << 31) - 1, (1 << 31) - 12, 4 * 1024 * 1024])
def test_absurd_size_closes_at_once_and_moves_nothing(size: int) -> None:
    settings = ReceiverSettings(1 << 30, 5000, 20000)
    slave = Slave(100, settings)
    slave.run()
    slave.take(struct.pack(">qi", 100, size))
    assert f"size {size}" in slave.gone
    assert slave.core.log_end == 100


def test_negative_offset_on_an_empty_slave_closes() -> None:
    slave = Slave(0)
    slave.run()
    slave.take(struct.pack(">qi", -5, 0))
    assert "negative offset" in slave.gone


def test_frame_across_the_end_of_a_file_closes_and_stores_nothing() -> None:
    slave = Slave(990)
    slave.run()
    slave.take(frame(990, b"x" * 11))
    assert "crosses the end of a file" in slave.gone
    assert slave.log == b""


def test_bodies_of_two_files_come_out_as_two_appends() -> None:
    slave = Slave(990)
    slave.run()
    assert slave.take(frame(990, b"x" * 10) + frame(1000, b"yy")) == [1000, 1002]
    assert slave.appends == 2


def test_a_frame_larger_than_the_buffer_is_kept_until_complete() -> None:
    settings = ReceiverSettings(1 << 30, 5000, 20000)
    slave = Slave(64, settings)
    slave.run()
    body = bytes(range(256)) * 4096
    wire = frame(64, b"abc") + frame(67, body) + frame(67 + len(body), b"end")
    out = []
    for start in range(0, len(wire), 50_000):
        out += slave.take(wire[start : start + 50_000])
    assert out == [67, 67 + len(body), 70 + len(body)]
    assert slave.log == b"abc" + body + b"end"


def test_idle_report_after_more_than_the_interval_since_the_last_report() -> None:
    slave = Slave(100)
    slave.run(0)
    slave.core.tick(5000)
    assert slave.run(5000) == []
    slave.core.tick(5001)
    assert slave.run(5001) == [100]
    slave.take(frame(100, b"a"), 6000)
    slave.core.tick(11_000)
    assert slave.run(11_000) == []
    slave.core.tick(11_001)
    assert slave.run(11_001) == [101]


def test_silent_master_is_dropped_although_reports_go_out() -> None:
    slave = Slave(100)
    slave.run(0)
    slave.take(frame(100), 1000)
    for now_ms in range(1000, 21_001, 1000):
        slave.core.tick(now_ms)
        slave.run(now_ms)
    assert slave.gone == ""
    slave.core.tick(21_001)
    slave.run(21_001)
    assert slave.gone == "housekeeping: nothing from the master for 20001 ms"


def test_failed_append_reports_nothing_and_ends() -> None:
    core = HAReceiver(SETTINGS, log_end=100, now_ms=0)
    core.data_to_send(0)
    core.receive_data(frame(100, b"abc"), 1)
    core.events()
    core.append_failed("disk full")
    assert core.events() == [MasterGone("disk full")]
    assert core.data_to_send(2) == b""
    with pytest.raises(LocalProtocolError):
        core.buffer_filled(1, 3)


def test_end_of_stream_ends_once() -> None:
    core = HAReceiver(SETTINGS, log_end=100, now_ms=0)
    core.receive_eof()
    core.receive_eof()
    core.tick(99_999)
    assert core.events() == [MasterGone("the master closed the connection")]
    assert core.state is HAConnectionState.SHUTDOWN


def test_begins_record() -> None:
    assert begins_record(memoryview(record(50)), 50)
    assert not begins_record(memoryview(record(50)), 51)
    assert begins_record(memoryview(struct.pack(">ii", 8, -875286124)), 50)
    assert not begins_record(memoryview(struct.pack(">ii", -8, MAGIC)), 50)
    assert not begins_record(memoryview(struct.pack(">ii", 8, 5)), 50)


@given(
    sizes=st.lists(st.integers(0, 300), max_size=30),
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=60),
)
def test_any_split_gives_the_same_log_and_the_same_reports(
    sizes: list[int], cuts: list[int]
) -> None:
    position, wire, log, ends = 3000, b"", b"", []
    for size in sizes:
        size = min(size, 1000 - position % 1000)
        body = bytes((position + i) % 251 for i in range(size))
        wire += frame(position, body)
        log += body
        position += size
        if size:
            ends.append(position)
    slave = Slave(3000)
    out = slave.run()
    while wire:
        cut = cuts.pop(0) if cuts else len(wire)
        out += slave.take(wire[:cut])
        wire = wire[cut:]
    assert slave.gone == ""
    assert slave.log == log
    assert out == [3000, *ends]


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_garbage_never_moves_the_log_except_by_whole_good_frames(noise: bytes, end: int) -> None:
    slave = Slave(end)
    slave.run()
    out = slave.take(noise) if noise else []
    assert out == sorted(out)
    if out and end:
        assert out[-1] == end + len(slave.log)
