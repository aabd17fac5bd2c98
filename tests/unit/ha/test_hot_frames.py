"""The short way of a transfer's frames: the same bytes and the same outcome as the long way."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiers import TIERS
from support.twin_cores import SEGMENT, Pair, log_of
from twinlog.ha.receiver import BodyReceived
from twinlog.ha.twin import hot_frames, wire
from twinlog.ha.twin.receiver import TwinReceiver
from twinlog.ha.twin.sender import TwinSender
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.compiled import load

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT32 = st.integers(0, (1 << 32) - 1)
BODY = st.binary(min_size=1, max_size=300)


class Forms:
    """The four functions, in one of the two tiers."""

    def __init__(self, tier: str) -> None:
        compiled: Any = load("twinlog.ha.twin._hot_frames") if tier == "compiled" else None
        assert compiled is not None or tier == "pure"
        self.data_head = compiled.data_head if compiled else hot_frames.data_head_in_python
        self.ack_frame = compiled.ack_frame if compiled else wire.encode_ack
        self.only_data = compiled.only_data if compiled else hot_frames.only_data_in_python
        self.only_ack = compiled.only_ack if compiled else hot_frames.only_ack_in_python


@pytest.fixture(params=TIERS, scope="module")
def forms(request: Any) -> Forms:
    return Forms(request.param)


@given(INT64, INT64, UINT32, BODY, st.integers(0, 1 << 40), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_a_data_frame_is_the_one_of_the_wire(
    forms: Forms, offset: int, confirmed: int, epoch: int, body: bytes, rounds: int, start: int
) -> None:
    head, _ = wire.encode_data(offset, confirmed, epoch, body, round_number=rounds)
    assert forms.data_head(offset, confirmed, epoch, body, rounds) == head
    assert forms.data_head(offset, confirmed, epoch, memoryview(body), rounds) == head
    buffer = bytearray(b"x" * start + bytes(head) + body + b"behind")
    found = forms.only_data(buffer, start, start + len(head) + len(body))
    assert found is not None
    assert (*found[:4], bytes(found[4])) == (rounds & 0xFFFF, offset, confirmed, epoch, body)


@given(INT64, INT64)
@settings(max_examples=200, deadline=None)
def test_an_acknowledgement_is_the_one_of_the_wire(
    forms: Forms, received: int, durable: int
) -> None:
    frame = wire.encode_ack(received, durable)
    assert forms.ack_frame(received, durable) == frame
    assert forms.only_ack(frame) == (received, durable)


def other_frames() -> list[bytes]:
    return [
        b"", b"x", wire.encode_heartbeat(1, 2, 3), wire.encode_resend(7), wire.encode_ack(1, 1),
        wire.encode_frame(wire.FrameType.ACK, b"short"),
        wire.encode_frame(wire.FrameType.DATA, wire.DATA_PREFIX.pack(1, 2, 3)),
        wire.encode_ack(1, 1) * 2, b"".join(wire.encode_data(0, 0, 0, b"body")) * 2,
        b"".join(wire.encode_data(0, 0, 0, b"body")) + b"x",
    ]  # fmt: skip


def test_everything_else_is_left_to_the_parser(forms: Forms) -> None:
    for data in other_frames():
        assert forms.only_data(bytearray(data), 0, len(data)) is None, data
        is_ack = data == wire.encode_ack(1, 1)
        assert (forms.only_ack(data) is None) is not is_ack, data


def test_a_changed_or_missing_bit_is_left_to_the_parser(forms: Forms) -> None:
    data = b"".join(wire.encode_data(5, 6, 7, b"some bytes of a log", round_number=3))
    ack = wire.encode_ack(12, 11)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert forms.only_data(changed, 0, len(data)) is None, bit
    for size in range(len(data)):
        assert forms.only_data(bytearray(data), 0, size) is None, size
    for bit in range(8 * len(ack)):
        changed = bytearray(ack)
        changed[bit // 8] ^= 1 << bit % 8
        assert forms.only_ack(bytes(changed)) is None, bit


# ---- the cores take the short way where it leads to the same place


def joined() -> Pair:
    log = log_of(1, 2000)
    pair = Pair(log, log)
    pair.run()
    assert pair.receiver.state is HAConnectionState.TRANSFER
    return pair


def fill(receiver: TwinReceiver, data: bytes, *, is_short: bool) -> list[tuple[int, bytes]]:
    """What is to be stored of these bytes, in one read or, where they do not fit, in several."""
    bodies: list[tuple[int, bytes]] = []
    while data and not receiver.is_ended:
        room = receiver.get_buffer()
        size = min(len(room), len(data))
        room[:size], data = data[:size], data[size:]
        run = receiver.take_run(size, 5) if is_short else None
        if run is not None:
            bodies.append((run[0], bytes(run[1])))
        else:
            receiver.buffer_filled(size, 5)
            events = [e for e in receiver.events() if isinstance(e, BodyReceived)]
            bodies += [(e.offset, bytes(e.bodies[0])) for e in events]
    for offset, body in bodies:
        if not receiver.is_ended:
            receiver.appended(offset + len(body))
    return bodies


def some_frame(rng: random.Random, offset: int) -> bytes:
    """Mostly the next one; all that may be wrong with one, too."""
    body = rng.randbytes(rng.randrange(1, 500))
    kind = rng.randrange(14)
    if kind == 0:
        return wire.encode_heartbeat(offset, rng.randrange(offset), 0)
    if kind == 1:
        offset += rng.choice([-1, 1, 1 << 40])
    if kind == 2:
        body = body * (1 + SEGMENT // len(body))
        body = body[: wire.BODY_SIZE_MAX]
    epoch, rounds = (1 if kind == 3 else 0), (1 if kind == 4 else 0)
    confirmed = rng.randrange(offset + 1)
    frame = b"".join(wire.encode_data(offset, confirmed, epoch, body, round_number=rounds))
    if kind == 5:
        return frame[:-1] + bytes([frame[-1] ^ 1])
    return frame


@pytest.mark.parametrize("seed", range(60))
def test_the_short_way_of_a_slave_is_the_long_way(seed: int) -> None:
    rng = random.Random(seed)
    short, long = joined().receiver, joined().receiver
    for _ in range(12):
        data = b"".join(some_frame(rng, short.log_end) for _ in range(rng.choice([1, 1, 1, 2])))
        cut = rng.choice([len(data), len(data), rng.randrange(1, len(data) + 1)])
        for piece in (data[:cut], data[cut:]):
            if short.is_ended or not piece:
                break
            assert fill(short, piece, is_short=True) == fill(long, piece, is_short=False)
            for name in ("state", "log_end", "confirmed", "master_end", "epoch", "last_read_ms",
                         "damaged_count", "reason", "reported_offset"):  # fmt: skip
                assert getattr(short, name) == getattr(long, name), name
            assert short.data_to_send(6) == long.data_to_send(6)


def hear(sender: TwinSender, data: bytes, *, is_short: bool) -> None:
    if not (is_short and sender.take_ack(data, 5)):
        sender.receive_data(data, 5)
    sender.events()


@pytest.mark.parametrize("seed", range(60))
def test_the_short_way_of_a_master_is_the_long_way(seed: int) -> None:
    rng = random.Random(seed)
    short, long = joined().sender, joined().sender
    for sender in (short, long):
        sender.log_moved(0, 100_000)
        assert sender.next_run(5, 50_000) is not None
    for _ in range(12):
        received = rng.choice([*range(2000, 52_000, 1000), short.received_offset, 1 << 40])
        durable = rng.choice([short.durable_offset, received, received - 1, received + 1])
        data = wire.encode_ack(received, durable)
        if rng.randrange(8) == 0:
            data = rng.choice([data * 2, data[:20], wire.encode_resend(received), data[:-1] + b"x"])
        if short.is_ended:
            break
        hear(short, data, is_short=True)
        hear(long, data, is_short=False)
        for name in ("state", "received_offset", "durable_offset", "next_offset", "reason",
                     "ack_offset", "resend_count"):  # fmt: skip
            assert getattr(short, name) == getattr(long, name), name
        assert short.data_to_send() == long.data_to_send()


def test_a_run_is_taken_only_after_the_handshake_and_leaves_what_the_master_said() -> None:
    log = log_of(1, 2000)
    assert Pair(log, log).receiver.take_run(0, 5) is None
    receiver = joined().receiver
    end = receiver.log_end
    fill(receiver, wire.encode_heartbeat(end + 1000, 0, 0), is_short=False)
    data = b"".join(wire.encode_data(end, 0, 0, b"some bytes", round_number=0))
    assert fill(receiver, data, is_short=True) == [(end, b"some bytes")]
    assert receiver.master_end == end + 1000
