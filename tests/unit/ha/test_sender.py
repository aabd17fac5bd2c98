"""HASender told as stories: what a slave says, what it is sent, what its word is worth."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.sender import (
    ConnectionEnded,
    HASender,
    Run,
    SenderSettings,
    SlaveAcked,
    SlaveJoined,
    SlaveRefused,
)
from twinlog.ha.wire import HAConnectionState, LocalProtocolError

SETTINGS = SenderSettings(
    segment_size=1000, batch_size=100, heartbeat_interval_ms=5000, housekeeping_interval_ms=20000
)
BIG = 1 << 20


def report(offset: int) -> bytes:
    return struct.pack(">q", offset)


def sender(log_min: int = 0, log_end: int = 2350, now_ms: int = 0) -> HASender:
    return HASender(SETTINGS, log_min=log_min, log_end=log_end, now_ms=now_ms)


def frames(core: HASender, now_ms: int = 0, size_max: int = BIG) -> list[tuple[int, int]]:
    sent = []
    while run := core.next_run(now_ms, size_max):
        sent += run.frames()
    return sent


def test_silence_until_the_first_report() -> None:
    core = sender()
    assert frames(core, now_ms=19_000) == []
    core.tick(19_000)
    assert core.events() == []
    assert core.state is HAConnectionState.READY


def test_empty_slave_gets_the_last_file() -> None:
    core = sender()
    core.receive_data(report(0), 1)
    assert core.events() == [SlaveJoined(request_offset=0, start_offset=2000)]
    assert frames(core, 1) == [(2000, 100), (2100, 100), (2200, 100), (2300, 50)]


def test_empty_slave_of_a_master_on_a_file_boundary_skips_the_full_file() -> None:
    core = sender(log_end=2000)
    core.receive_data(report(0), 1)
    assert core.events() == [SlaveJoined(0, 2000)]
    assert frames(core, 1) == []


def test_slave_resumes_exactly_where_it_is_and_frames_stop_at_the_end_of_a_file() -> None:
    core = sender()
    core.receive_data(report(1855), 1)
    assert core.events() == [SlaveJoined(1855, 1855)]
    assert frames(core, 1) == [
        (1855, 100), (1955, 45), (2000, 100), (2100, 100), (2200, 100), (2300, 50),
    ]  # fmt: skip


def test_frames_are_the_same_whatever_is_asked_for_at_a_time() -> None:
    for size_max in (100, 150, 250, 999, BIG):
        core = sender()
        core.receive_data(report(1855), 1)
        assert frames(core, 1, size_max)[:3] == [(1855, 100), (1955, 45), (2000, 100)]


def test_report_one_byte_at_a_time() -> None:
    core = sender()
    for byte in report(1855):
        assert core.events() == []
        core.receive_data(bytes([byte]), 1)
    assert core.events() == [SlaveJoined(1855, 1855)]


def test_of_several_reports_in_one_read_the_last_complete_one_counts_and_a_part_is_kept() -> None:
    core = sender()
    core.receive_data(report(1000), 1)
    frames(core, 1)
    core.events()
    core.receive_data(report(1100) + report(1200) + report(1300) + report(1400)[:5], 2)
    assert core.events() == [SlaveAcked(1300)]
    core.receive_data(report(1400)[5:], 3)
    assert core.events() == [SlaveAcked(1400)]


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (-1, "negative"),
        (-(1 << 63), "negative"),
        (2351, "beyond this master's end 2350"),
        ((1 << 63) - 1, "beyond"),
        (struct.unpack(">q", b"GET / HT")[0], "beyond"),
        (999, "below this master's oldest offset 1000"),
    ],
)
def test_bad_first_report_is_held_silent_and_uncounted(first: int, words: str) -> None:
    core = sender(log_min=1000)
    core.receive_data(report(first), 1)
    (event,) = core.events()
    assert isinstance(event, SlaveRefused)
    assert words in event.reason
    assert core.ack_offset == -1
    core.log_moved(1000, 5000)
    assert frames(core, 10_000) == []
    core.receive_data(report(1500), 15_000)
    assert core.events() == []
    core.tick(20_001)
    assert core.events() == []
    core.tick(20_002)
    assert isinstance(core.events()[0], ConnectionEnded)


def test_first_report_at_the_ends_of_the_log_is_good() -> None:
    for first in (1000, 2350):
        core = sender(log_min=1000)
        core.receive_data(report(first), 1)
        assert core.events() == [SlaveJoined(first, first)]


def test_ack_beyond_what_was_sent_closes_and_is_not_counted() -> None:
    core = sender()
    core.receive_data(report(2000), 1)
    core.next_run(1, 100)
    core.receive_data(report(2101), 2)
    joined, ended = core.events()
    assert joined == SlaveJoined(2000, 2000)
    assert isinstance(ended, ConnectionEnded)
    assert "acknowledged 2101, only 2100 was sent" in ended.reason
    assert core.ack_offset == 2000


def test_ack_that_goes_back_closes() -> None:
    core = sender()
    core.receive_data(report(2000), 1)
    core.events()
    core.receive_data(report(1999), 2)
    assert core.events() == [ConnectionEnded("its report went back from 2000 to 1999")]


def test_heartbeat_after_more_than_the_interval_without_a_write() -> None:
    core = sender()
    core.receive_data(report(2350), 1)
    assert frames(core, 5000) == []
    assert frames(core, 5001) == [(2350, 0)]
    assert frames(core, 10_001) == []
    assert frames(core, 10_002) == [(2350, 0)]


def test_first_frame_is_a_heartbeat_when_the_report_came_late() -> None:
    core = sender()
    core.receive_data(report(0), 5011)
    assert frames(core, 5022)[:2] == [(2000, 0), (2000, 100)]


def test_incomplete_write_blocks_data_and_heartbeats() -> None:
    core = sender()
    core.receive_data(report(2000), 1)
    core.next_run(1, 100)
    core.write_blocked()
    assert frames(core, 30_000) == []
    core.write_completed(30_000)
    assert frames(core, 30_000)[0] == (2100, 100)


def test_silent_slave_is_closed_after_the_housekeeping_interval() -> None:
    core = sender()
    core.receive_data(report(2000), 1)
    core.events()
    core.tick(20_001)
    assert core.events() == []
    core.tick(20_002)
    assert core.events() == [ConnectionEnded("housekeeping: no report for 20001 ms")]
    with pytest.raises(LocalProtocolError):
        core.receive_data(report(2000), 20_003)


def test_slave_whose_next_file_was_deleted_is_closed_with_the_reason() -> None:
    core = sender()
    core.receive_data(report(500), 1)
    core.events()
    core.log_moved(1000, 2350)
    (event,) = core.events()
    assert isinstance(event, ConnectionEnded)
    assert "the oldest kept is 1000" in event.reason


def test_end_of_stream_ends_once() -> None:
    core = sender()
    core.receive_eof()
    core.receive_eof()
    core.tick(99_999)
    assert core.events() == [ConnectionEnded("the slave closed the connection")]


def test_pieces_of_a_run_are_the_bytes_of_the_wire() -> None:
    body = bytes(range(250))
    pieces = Run(5, 250, 100).pieces(body)
    wire = b"".join(pieces)
    expected = b"".join(
        struct.pack(">qi", 5 + start, len(body[start : start + 100])) + body[start : start + 100]
        for start in (0, 100, 200)
    )
    assert wire == expected
    assert b"".join(Run(7, 0, 100).pieces(b"")) == struct.pack(">qi", 7, 0)


@given(
    start=st.integers(0, 3000),
    grow=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 500)), max_size=20),
    data=st.data(),
)
def test_whatever_happens_frames_are_contiguous_and_acks_are_within_what_was_sent(
    start: int, grow: list[tuple[int, int]], data: st.DataObject
) -> None:
    core = sender(log_end=3000)
    core.receive_data(report(start), 0)
    position = core.next_offset
    end, stream = 3000, b""
    for more, size_max in grow:
        end += more
        core.log_moved(0, end)
        for offset, size in frames(core, 1, size_max):
            assert offset == position
            assert 0 < size <= 100
            assert offset // 1000 == (offset + size - 1) // 1000
            position += size
        stream += report(data.draw(st.integers(max(core.ack_offset, 0), position)))
        cut = data.draw(st.integers(0, len(stream)))
        core.receive_data(stream[:cut], 2)
        stream = stream[cut:]
        if core.state is not HAConnectionState.TRANSFER:
            break  # A later report may be lower than an earlier one here: that ends it.
        assert core.ack_offset <= core.next_offset <= end
    else:
        assert position == end or not grow or grow[-1][1] > 0


def test_it_answers_as_a_twin_connection_would_and_knows_nothing_of_disks() -> None:
    core = sender()
    assert not core.is_proved
    core.receive_data(report(2000), 0)
    assert core.is_proved
    assert core.received_offset == 2000
    assert (core.durable_offset, core.is_durable) == (-1, False)


def test_a_connection_that_is_held_is_refused_once() -> None:
    core = sender()
    core.refuse("another store", 0)
    core.refuse("a second reason", 0)
    assert core.reason == "another store"
    assert [type(event).__name__ for event in core.events()] == ["SlaveRefused"]
