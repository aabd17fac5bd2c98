"""The twin dialect: two cores driven against each other over a pretended link, no sockets."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ha_fake_store import FakeLog
from support.twin_cores import (
    MAGIC,
    SEGMENT,
    Pair,
    first_record,
    log_of,
    master_facts,
    next_range,
    record_ends,
    stored,
)
from twinlog.ha.receiver import BodyReceived
from twinlog.ha.twin import digests as looking
from twinlog.ha.twin import wire
from twinlog.ha.twin.boundary import last_record_boundary
from twinlog.ha.twin.common import QUESTION_SIZE_MAX, CommonSearch
from twinlog.ha.twin.digests import run_steps
from twinlog.ha.twin.sender import (
    HelloReceived,
    TwinSender,
)
from twinlog.ha.twin.wire import ErrorCode, FrameParser, FrameType, Hello
from twinlog.ha.wire import HAConnectionState, RemoteProtocolError

# ---- a slave that belongs to the master


def test_an_empty_slave_gets_the_whole_log() -> None:
    pair = Pair(log_of(1, 3 * SEGMENT // 2), b"")
    pair.run()
    assert pair.slave == pair.master
    assert pair.acks[-1] == len(pair.master)
    assert pair.ended == {}


def test_an_empty_slave_may_ask_for_the_last_file_only() -> None:
    log = log_of(1, SEGMENT) + log_of(2, 5000)
    pair = Pair(log, b"", hello={"wants_last_file_only": True})
    pair.step()
    assert pair.sender.request_offset == SEGMENT


def test_a_slave_goes_on_where_it_stopped() -> None:
    log = log_of(1, 300_000)
    pair = Pair(log, log[: record_ends(log)[400]])
    pair.run()
    assert pair.slave == pair.master
    assert pair.aside == b""


@given(st.integers(0, 2**32), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_any_split_of_the_bytes_gives_the_same(seed: int, step_max: int) -> None:
    rng = random.Random(seed)
    pair = Pair(log_of(seed, 20_000), b"", cut=lambda _: rng.randrange(1, step_max * 50))
    pair.run()
    assert pair.slave == pair.master


def test_one_byte_at_a_time() -> None:
    pair = Pair(log_of(5, 3000), b"", cut=lambda _: 1)
    pair.run()
    assert pair.slave == pair.master


# ---- divergence


def changed(log: bytes, position: int) -> bytes:
    """Another history from the record that holds `position` on, of the same length."""
    start = max([0, *(end for end in record_ends(log) if end <= position)])
    return log[:start] + log_of(999, len(log) - start)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("extra", [-40_000, 0, 40_000])
def test_another_tail_is_cut_to_the_last_common_record(share: float, extra: int) -> None:
    log = log_of(1, 400_000)
    position = int(share * (len(log) - 50_000))
    other = changed(log, position)
    slave = other[:extra] if extra < 0 else other + (log_of(3, extra) if extra else b"")
    last_common = max(end for end in [0, *record_ends(log)] if log[:end] == slave[:end])
    pair = Pair(log, slave)
    pair.run()
    assert pair.slave == pair.master
    assert pair.aside == slave[last_common:], "exactly the records that are not common are moved"


def test_a_longer_slave_is_cut_to_the_master() -> None:
    log = log_of(1, 200_000)
    pair = Pair(log, log + log_of(2, 500))
    pair.run()
    assert (pair.slave, pair.aside) == (pair.master, log_of(2, 500))


def test_manual_policy_cuts_nothing_and_both_say_why() -> None:
    log = log_of(1, 20_000)
    pair = Pair(log, log + log_of(2, 500), reseed="manual")
    pair.run()
    assert pair.slave == log + log_of(2, 500)
    assert "manual" in pair.ended["slave"]
    assert "manual" in pair.ended["master"]


@pytest.mark.parametrize("reseed", ["tail", "all", "manual"])
@pytest.mark.parametrize("store_id", ["store-1", "drawn again"])
def test_an_empty_master_is_no_reason_to_give_up_a_copy(reseed: str, store_id: str) -> None:
    """Its disk was wiped, with or without its identity."""
    log = log_of(1, 20_000)
    pair = Pair(b"", log, reseed=reseed, facts=master_facts("c", "g", store_id, SEGMENT))
    pair.run()
    assert pair.slave == log
    for end in ("master", "slave"):
        assert "the master's log is empty and the slave has [0, " in pair.ended[end]


def test_another_log_is_refused() -> None:
    pair = Pair(log_of(1, 20_000), log_of(2, 20_000))
    pair.run()
    assert "not one record is common" in pair.ended["slave"]
    assert pair.slave == log_of(2, 20_000)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_search_finds_the_last_common_record(seed: int) -> None:
    rng = random.Random(seed)
    log = log_of(seed, rng.randrange(200, 400_000))
    other = changed(log, rng.randrange(len(log)))
    common, questions = find_common(log, other)
    assert common == max(e for e in [0, *record_ends(log)] if log[:e] == other[:e])
    assert questions < 60


def find_common(log: bytes, other: bytes) -> tuple[int, int]:
    search = CommonSearch(0, min(len(log), len(other)))
    questions = 0
    while not search.is_done:
        if search.wants_record:
            search.record_found(first_record(log, *search.wants_record))
        elif search.wants_boundaries:
            start, end = search.wants_boundaries
            ends = record_ends(log)
            anchor = max([0, *(e for e in ends if e <= start)])
            search.boundaries(anchor, [e for e in ends if anchor < e <= end])
        else:
            start, end = search.question()
            assert end - start <= QUESTION_SIZE_MAX
            search.answer(is_equal=log[start:end] == other[start:end])
            questions += 1
    return search.common, questions


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_large_bodies_that_are_all_the_same_do_not_hide_a_difference(seed: int) -> None:
    """Only the headers differ; most windows are equal in any two logs."""
    rng = random.Random(seed)

    def log(count: int, numbers: random.Random) -> bytes:
        return b"".join(
            struct.pack(">i", size) + MAGIC + numbers.randbytes(56) + b"x" * (size - 64)
            for size in (rng_size.choice((100, 70_000, 300_000)) for _ in range(count))
        )

    rng_size = random.Random(seed)
    count = rng.randrange(3, 30)
    first = log(count, random.Random(1))
    starts = [0, *record_ends(first)]
    cut = starts[rng.randrange(1, count)]
    rng_size = random.Random(seed)
    second = first[:cut] + log(count, random.Random(2))[cut:]
    assert find_common(first, second)[0] == cut


# ---- identity


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"cluster": "x"}, "cluster"),
        ({"group": "x"}, "broker"),
        ({"has_secret": True}, "twinlogHASecret"),
        ({"segment_size": 4096}, "mappedFileSizeCommitLog"),
        ({"version": 9, "version_min": 5}, "versions 5..9"),
        ({"version": 0, "version_min": 0}, "versions 0..0"),
        ({"store_id": "other", "log_end": 500}, "another log"),
        ({"replica_id": 0}, "impossible"),
        ({"log_min": 900, "log_end": 500}, "impossible"),
    ],
)
def test_a_stranger_is_refused_with_the_reason_at_both_ends(
    hello: dict[str, object], words: str
) -> None:
    pair = Pair(log_of(1, 3000), b"", hello=hello)
    pair.run()
    assert words in pair.ended["master"]
    assert words in pair.ended["slave"]
    assert pair.slave == b""


def test_a_newer_peer_is_served_in_the_common_version() -> None:
    pair = Pair(log_of(1, 3000), b"", hello={"version": 7})
    pair.run()
    assert pair.slave == pair.master


def test_secret_is_proved_both_ways() -> None:
    facts = master_facts("c", "g", "store-1", SEGMENT, secret="one")
    pair = Pair(log_of(1, 3000), b"", facts=facts, secret="one")
    pair.run()
    assert pair.slave == pair.master
    wrong = Pair(log_of(1, 3000), b"", facts=facts, secret="two")
    wrong.run()
    assert "secret" in wrong.ended["master"]
    assert "secret" in wrong.ended["slave"]
    assert wrong.slave == b""


# ---- damage on the way


def test_a_flipped_bit_is_found_and_never_stored() -> None:
    """1,000 seeded flips, anywhere in the master's stream after the handshake."""
    log = log_of(7, 60_000)
    found = 0
    for seed in range(1000):
        rng = random.Random(seed)
        flips = [1]

        def tamper(data: bytes, rng: random.Random = rng, flips: list[int] = flips) -> bytes:
            if len(data) > 1000 and flips[0]:
                flips[0] -= 1
                damaged = bytearray(data)
                damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                return bytes(damaged)
            return data

        pair = Pair(log, b"", tamper=tamper)
        pair.run()
        assert flips[0] == 0
        assert log.startswith(bytes(pair.slave)), f"seed {seed}: wrong bytes were stored"
        if pair.ended:
            assert "checksum" in pair.ended["slave"] or "frame" in pair.ended["slave"]
        else:
            assert pair.slave == log
            assert pair.sender.resend_count == 1
        found += bool(pair.ended) or pair.receiver.damaged_count
    assert found == 1000


def test_frames_behind_a_damaged_one_are_dropped_until_it_is_sent_again() -> None:
    log = log_of(7, SEGMENT - 1000)
    state = {"seen": 0}

    def tamper(data: bytes) -> bytes:
        if len(data) > 100_000:
            state["seen"] += 1
            if state["seen"] == 1:
                return data[:5000] + b"?" + data[5001:]
        return data

    pair = Pair(log, b"", tamper=tamper)
    pair.run()
    assert pair.slave == log
    assert pair.receiver.damaged_count == 1


def test_a_frame_that_is_damaged_again_is_asked_for_again() -> None:
    log = log_of(7, 60_000)
    state = {"flips": 3}

    def tamper(data: bytes) -> bytes:
        if len(data) > 1000 and state["flips"]:
            state["flips"] -= 1
            return data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]
        return data

    pair = Pair(log, b"", tamper=tamper)
    pair.run()
    assert pair.slave == log
    assert pair.sender.resend_count == 3


# ---- acknowledgements


def test_durable_acknowledgement_waits_for_the_flush() -> None:
    pair = Pair(log_of(1, 3000), b"", hello={"is_durable": True})
    pair.flush = False
    pair.run()
    assert pair.slave == pair.master
    assert set(pair.acks) <= {0}
    pair.receiver.flushed(3000)
    pair.run()
    assert pair.acks[-1] == 3000


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_slave_that_comes_back_before_it_has_flushed_is_served(is_durable: bool) -> None:
    """What it had is received; how much of it is durable it says itself, and that may be less."""
    log = log_of(1, 3000)
    pair = Pair(log, log[: record_ends(log)[3]], hello={"is_durable": is_durable})
    pair.flush = False
    pair.run()
    assert pair.ended == {}
    assert pair.sender.durable_offset == 0
    assert pair.sender.ack_offset == (0 if is_durable else 3000)


def joined() -> Pair:
    pair = Pair(log_of(1, 3000), b"")
    pair.run()
    assert pair.sender.state is HAConnectionState.TRANSFER
    return pair


@pytest.mark.parametrize(
    "frame",
    [
        wire.encode_ack(3001, 0),
        wire.encode_ack(2999, 0),
        wire.encode_ack(3000, 3001),
        wire.encode_resend(2999),
        wire.encode_resend(-1),
        wire.encode_frame(FrameType.ACK, b"short"),
        wire.encode_frame(FrameType.HELLO, b"{}"),
        wire.encode_frame(FrameType.DATA, b"x" * 40),
        b"\0" * 16,
        wire.encode_ack(3000, 3000)[:-1] + b"?",
    ],
)
def test_what_a_slave_may_not_say_ends_the_connection(frame: bytes) -> None:
    pair = joined()
    pair.sender.receive_data(frame, 0)
    assert pair.sender.state is HAConnectionState.SHUTDOWN
    assert pair.sender.ack_offset == 3000


@pytest.mark.parametrize(
    "frame",
    [
        b"".join(wire.encode_data(2999, 0, 0, b"x")),
        b"".join(wire.encode_data(3001, 0, 0, b"x")),
        b"".join(wire.encode_data(3000, 0, 0, b"")),
        wire.encode_frame(FrameType.HEARTBEAT, b"x"),
        wire.encode_frame(FrameType.START, b"{}"),
        b"\0" * 16,
    ],
)
def test_what_a_master_may_not_say_ends_the_connection(frame: bytes) -> None:
    pair = joined()
    pair.receiver.receive_data(frame, 0)
    assert pair.receiver.state is HAConnectionState.SHUTDOWN
    assert not any(isinstance(event, BodyReceived) for event in pair.receiver.events())


def test_an_older_epoch_is_refused() -> None:
    pair = joined()
    pair.receiver.receive_data(wire.encode_heartbeat(3000, 0, 5), 0)
    pair.receiver.receive_data(wire.encode_heartbeat(3000, 0, 4), 0)
    assert "older master" in pair.receiver.reason


def test_at_most_one_window_is_unacknowledged() -> None:
    facts = master_facts("c", "g", "store-1", SEGMENT, window_size=10_000)
    pair = Pair(log_of(1, 50_000), b"", facts=facts)
    pair.step(), pair.step(), pair.step()
    while pair.next_frames():
        pass
    assert pair.sender.next_offset - pair.sender.ack_offset == 10_000


def test_silence_ends_both_ends_and_idle_ends_speak() -> None:
    pair = joined()
    assert next_range(pair.sender, 5000) is None
    assert next_range(pair.sender, 5001) == (3000, 3000)
    pair.receiver.tick(5001)
    assert pair.receiver.data_to_send(5001) == wire.encode_ack(3000, 3000)
    pair.sender.tick(20_001)
    pair.receiver.tick(20_001)
    assert "housekeeping" in pair.sender.reason
    assert "housekeeping" in pair.receiver.reason


# ---- frames


def test_the_magic_is_no_offset_of_the_classic_dialect() -> None:
    assert struct.unpack(">q", wire.MAGIC)[0] < 0


def test_a_first_byte_that_is_not_ours_is_refused() -> None:
    sender = TwinSender(master_facts("c", "g", "s", SEGMENT), 0, 0, 0, "m")
    sender.receive_data(b"GET / HT", 0)
    assert "magic" in sender.reason


def test_a_giant_frame_is_refused_before_it_is_waited_for() -> None:
    start = struct.pack(">HHII", FrameType.HELLO, 0, 0x7FFFFFFF, 0)
    parser = FrameParser()
    with pytest.raises(RemoteProtocolError, match="2147483647"):
        list(parser.feed(start + wire.crc32(start, 0).to_bytes(4, "big")))


@given(st.binary(max_size=200))
def test_garbage_never_raises(data: bytes) -> None:
    sender = TwinSender(master_facts("c", "g", "s", SEGMENT), 0, 0, 0, "m")
    sender.receive_data(wire.MAGIC + data, 0)
    receiver = Pair(b"", b"").receiver
    receiver.receive_data(data, 0)


def test_boundary_of_whole_records() -> None:
    sizes = [100, 3000, 1500, 90, 400]
    log = stored(7000, sizes)
    for cut, whole in ((5090, 5090), (5089, 4690), (4691, 4690), (4600, 4600), (50, 0), (3, 0)):
        assert last_record_boundary(log[:cut], 7000, is_file_end=False) == whole
    assert last_record_boundary(log[:777], 7000, is_file_end=True) == 777
    middle = 100 + 36 + 500
    forged = log[:middle] + MAGIC + log[middle + 4 :]
    assert last_record_boundary(forged[:3000], 7000, is_file_end=False) == 100, "not at its place"
    assert last_record_boundary(log[100:600], 7100, is_file_end=False) == 0, "in pieces"


def test_error_codes_are_part_of_the_wire() -> None:
    assert [code.value for code in ErrorCode] == [*range(1, 21)]


# ---- looking into a log


def test_a_record_is_found_without_walking_the_file() -> None:
    sizes = [100, 3000, 1500, 90]
    fake = MAGIC + b"h" * 20 + struct.pack(">q", 7)  # Looks like one, at another place.
    body = stored(0, sizes)
    body = body[:400] + fake + body[400 + len(fake) :]
    filler = struct.pack(">iI", 8000 - len(body), 0xCBD43194).ljust(8000 - len(body), b"\0")
    log = FakeLog(8000, body + filler + stored(8000, sizes))
    assert run_steps(looking.first_record(log, 0, 16_000)) == 0
    assert run_steps(looking.first_record(log, 1, 16_000)) == 100
    assert run_steps(looking.first_record(log, 101, 16_000)) == 3100
    assert run_steps(looking.first_record(log, 4601, 16_000)) == 8000
    assert run_steps(looking.first_record(log, 4601, 8000)) is None
    assert run_steps(looking.first_record(log, 4600, 4663)) is None, "not the whole header"
    ends = [3100, 4600, 4690, 8000, 8100, 11_100]
    assert run_steps(looking.record_ends(log, 200, 11_100)) == (100, ends)


def test_boundaries_far_into_a_large_file_are_found_from_near() -> None:
    sizes = [1000] * 900
    log = FakeLog(SEGMENT, stored(0, sizes))
    steps = looking.record_ends(log, 850_500, 852_000)
    assert sum(1 for _ in steps) < 5
    assert run_steps(looking.record_ends(log, 850_500, 852_000)) == (850_000, [851_000, 852_000])


# ---- odd ends


def test_an_unknown_code_in_a_truncate_is_no_failure() -> None:
    log = log_of(1, 3000)
    receiver = Pair(log, log, reseed="manual").receiver
    receiver.receive_data(wire.encode_json(FrameType.CHALLENGE, wire.Challenge(version=1)), 0)
    truncate = wire.Truncate(offset=500, code=4711, reason="because")
    receiver.receive_data(wire.encode_json(FrameType.TRUNCATE, truncate), 0)
    assert "manual" in receiver.reason


def test_an_empty_log_that_began_somewhere_begins_where_the_master_says() -> None:
    pair = Pair(log_of(1, SEGMENT + 5000), b"", hello={"log_min": SEGMENT, "log_end": SEGMENT})
    pair.run()
    assert pair.slave == pair.master


@pytest.mark.parametrize(("start", "end"), [(3000, 4000), (0, 3000)])
def test_ranges_that_only_touch_have_nothing_in_common(start: int, end: int) -> None:
    sender = TwinSender(master_facts("c", "g", "s", SEGMENT), 0, 3000, 0, "m")
    if not start:
        sender.log_min, sender.log_end = 3000, 6000
    hello = Hello(
        version=1, version_min=1, cluster="c", group="g", replica_id=1, replica_uid="u",
        store_id="s", segment_size=SEGMENT, log_min=start, log_end=end,
    )  # fmt: skip
    sender.receive_data(wire.MAGIC + wire.encode_hello(hello)[0], 0)
    assert any(isinstance(event, HelloReceived) for event in sender.events())
    sender.admit()
    assert "nothing is common" in sender.reason


def test_a_first_offset_at_which_no_record_begins_harms_nobody() -> None:
    pair = Pair(log_of(1, 3000), log_of(2, 3000), hello={"log_min": 5})
    pair.run()
    assert "common" in pair.ended["slave"]
