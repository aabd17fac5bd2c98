"""When a starting master may take sends, and what it makes of a slave that has more."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.ha.twin.completeness import Completeness, TailVerdict, judge_tail
from twinlog.ha.twin.tail import TailChecker
from twinlog.ha.wire import RemoteProtocolError
from twinlog.message.model import PutMessage
from twinlog.message.record import blank_record, encode_record

SEGMENT = 4096


def test_a_mark_beyond_the_log_is_waited_for_without_limit() -> None:
    known = Completeness(confirmed=100, deadline_ms=10)
    assert "confirmed up to 100" in known.reason(99, 1 << 40)
    assert known.reason(100, 0) == ""


@pytest.mark.parametrize(
    ("replicas", "ack_count", "heard", "is_complete"),
    [
        ((1,), 1, (), False),
        ((1,), 1, (1,), True),
        ((1, 2), 1, (1,), False),  # the other may have what this one never got
        ((1, 2), 1, (1, 2), True),
        ((1, 2), 2, (2,), True),  # each record was on both
        ((1, 2, 3), 2, (1,), False),
        ((1, 2, 3), 2, (1, 3), True),
        ((1,), 1, (7,), False),  # not one of those that were counted
        ((), 1, (), True),
    ],
)
def test_a_master_in_doubt_hears_enough_replicas_to_be_sure(
    replicas: tuple[int, ...], ack_count: int, heard: tuple[int, ...], is_complete: bool
) -> None:
    known = Completeness(awaited=frozenset(replicas), ack_count=ack_count)
    known.heard.update(heard)
    assert (known.reason(0, 1 << 40) == "") is is_complete


def test_an_asynchronous_master_waits_only_for_a_while() -> None:
    known = Completeness(awaited=frozenset({1}), deadline_ms=10_000)
    assert "brokerId 1" in known.reason(5, 9_999)
    assert known.reason(5, 10_000) == ""


@given(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=500, deadline=None)
def test_no_verdict_gives_up_what_is_confirmed(
    common: int, more: int, own: int, slave: int, is_sync: bool, can_fetch: bool
) -> None:
    verdict = judge_tail(
        common,
        own_end=common + more,
        own_confirmed=own,
        slave_confirmed=slave,
        is_sync=is_sync,
        can_fetch=can_fetch,
    )
    if verdict is TailVerdict.TRUNCATE:
        assert slave <= common or more == 0, "a slave with more is cut only by its own leave"
        assert own <= common or more > 0
    if verdict is TailVerdict.CUT_AND_FETCH:
        assert own <= common
        assert is_sync, "an ASYNC_MASTER has answered SEND_OK for its tail"
    if verdict is TailVerdict.FETCH:
        assert more == 0


def tail_of(seed: int) -> bytes:
    """Two files and a half of records, as a log has them."""
    rng, log = random.Random(seed), b""
    while len(log) < 2 * SEGMENT + 1000:
        message = PutMessage("t", 0, rng.randbytes(rng.randrange(0, 900)))
        record = encode_record(message, 0, len(log), 1)
        rest = SEGMENT - len(log) % SEGMENT
        if len(record) + 8 > rest:
            log += blank_record(rest).ljust(rest, b"\0")
            record = encode_record(message, 0, len(log), 1)
        log += record
    return log


def pieces_of(log: bytes, rng: random.Random) -> list[bytes]:
    pieces, position = [], 0
    while position < len(log):
        rest = SEGMENT - position % SEGMENT
        size = min(rest, rng.randrange(1, 700))
        pieces.append(log[position : position + size])
        position += size
    return pieces


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_any_cut_of_the_tail_gives_whole_records(seed: int) -> None:
    log = tail_of(seed)
    checker = TailChecker(0, SEGMENT)
    taken = b"".join(checker.take(piece) for piece in pieces_of(log, random.Random(seed)))
    assert taken == log
    assert checker.offset == len(log)


@given(st.integers(0, 2**32), st.integers(0, 2 * SEGMENT))
@settings(max_examples=100, deadline=None)
def test_nothing_behind_a_damaged_byte_is_taken(seed: int, at: int) -> None:
    log = tail_of(seed)
    damaged = bytearray(log)
    damaged[at] ^= 0xFF
    checker, taken = TailChecker(0, SEGMENT), b""
    with suppress(RemoteProtocolError):
        for piece in pieces_of(bytes(damaged), random.Random(seed)):
            taken += checker.take(piece)
    # What no CRC covers (born time, flags, properties) may pass; the frame's checksum has it.
    assert all(a == b for a, b in zip(taken[:at], log[:at], strict=False))


def test_records_of_another_place_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="record says offset 0"):
        TailChecker(SEGMENT, SEGMENT).take(tail_of(1)[:1000])
