"""Where a classic slave goes on, and what it does with bytes that it has already."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ha_fake_store import FakeLog
from twinlog.ha.resume import append_again, resume_offset
from twinlog.message.layout import MAGIC_BLANK, MAGIC_V1

SEGMENT = 1000


def record(offset: int, size: int) -> bytes:
    return struct.pack(">iI20xq", size, MAGIC_V1, offset).ljust(size, b"r")


def records(start: int, *sizes: int) -> bytes:
    data = b""
    for size in sizes:
        data += record(start + len(data), size)
    return data


def filler(size: int) -> bytes:
    return struct.pack(">iI", size, MAGIC_BLANK).ljust(size, b"\0")


FULL = records(0, 300, 400, 200) + filler(100)


def log_with(data: bytes, start: int = 0) -> FakeLog:
    return FakeLog(SEGMENT, data, start)


def test_without_a_filler_it_goes_on_at_the_end() -> None:
    for data in (b"", FULL[:900], FULL[:1], FULL[:650], FULL + records(1000, 100)):
        assert resume_offset(log_with(data)) == len(data)
    assert resume_offset(log_with(b"", 5000)) == 5000


@pytest.mark.parametrize("held", [8, 9, 50, 99, 100])
def test_a_filler_at_the_end_is_asked_for_again_whole_or_not(held: int) -> None:
    assert resume_offset(log_with(FULL[: 900 + held])) == 900


@pytest.mark.parametrize("held", range(1, 8))
def test_the_first_bytes_of_what_may_be_a_filler_are_asked_for_again(held: int) -> None:
    assert resume_offset(log_with(FULL[: 900 + held])) == 900


def test_the_first_bytes_of_a_record_are_kept() -> None:
    for held in (4, 7, 8, 50):
        assert resume_offset(log_with((FULL[:900] + record(900, 60))[: 900 + held])) == 900 + held


def test_a_filler_in_a_later_file_and_in_a_log_that_began_late() -> None:
    assert resume_offset(log_with(FULL + records(1000, 600) + filler(400))) == 1600
    assert resume_offset(log_with(records(4200, 600) + filler(200), 4200)) == 4800


def test_the_last_file_of_the_master_is_never_asked_for() -> None:
    """A report of 0 would: RocketMQ's rule for an empty slave."""
    assert resume_offset(log_with(filler(SEGMENT))) == SEGMENT


def test_a_body_that_looks_like_a_filler_is_none() -> None:
    inner = record(0, 400)[:300] + filler(100)
    assert resume_offset(log_with(inner)) == 400
    whole = records(0, 600) + record(600, 400)[:300] + filler(100)
    assert resume_offset(log_with(whole)) == 1000


def test_bytes_that_it_has_change_nothing() -> None:
    log = log_with(FULL)
    assert append_again(log, 900, 900, FULL[900:940]) == 0
    assert append_again(log, 900, 940, memoryview(FULL)[940:]) == 0
    assert (bytes(log.data), log.cuts, log.append_sizes) == (FULL, [], [])


def test_the_rest_of_a_filler_is_appended() -> None:
    log = log_with(FULL[:930])
    assert append_again(log, 900, 900, FULL[900:]) == 70
    assert (bytes(log.data), log.cuts) == (FULL, [])


def test_records_in_place_of_the_filler_are_taken_and_the_filler_is_moved_aside() -> None:
    log = log_with(FULL)
    assert append_again(log, 900, 900, records(900, 60)) == 60
    assert bytes(log.data) == FULL[:900] + records(900, 60)
    assert [offset for offset, _ in log.cuts] == [900]


@given(st.integers(0, 100), st.integers(40, 92), st.integers(1, 100))
def test_whatever_the_frames_the_log_ends_as_the_master_has_it(
    held: int, size: int, step: int
) -> None:
    """A master that put a record and another filler there; cut only where a record begins."""
    wanted = FULL[:900] + records(900, size) + filler(100 - size)
    log = log_with(FULL[: 900 + held])
    start = resume_offset(log)
    assert start == 900
    for offset in range(900, SEGMENT, step):
        append_again(log, start, offset, wanted[offset : min(offset + step, SEGMENT)])
    assert bytes(log.data) == wanted
    assert {offset for offset, _ in log.cuts} <= {900}
