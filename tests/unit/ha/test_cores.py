"""What the two shells ask of every core, in either dialect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.twin_cores import SEGMENT, master_facts, slave_facts, stored
from twinlog.ha.receiver import HAReceiver, ReceiverSettings
from twinlog.ha.sender import HASender, Run, SenderSettings
from twinlog.ha.twin import wire
from twinlog.ha.twin.receiver import TwinReceiver
from twinlog.ha.twin.sender import TwinSender
from twinlog.ha.wire import HAConnectionState, encode_frame_header

SENDER = SenderSettings(SEGMENT, 100, 5000, 20_000)
RECEIVER = ReceiverSettings(SEGMENT, 5000, 20_000)
END = 3000


def hello(log_end: int = 0) -> wire.Hello:
    return wire.Hello(
        version=wire.VERSION, version_min=wire.VERSION_MIN, cluster="c", group="g", replica_id=1,
        replica_uid="u", store_id="", segment_size=SEGMENT, log_min=0, log_end=log_end, nonce="n",
        has_secret=False, is_durable=False, wants_last_file_only=False,
    )  # fmt: skip


def cores() -> list[HASender | TwinSender | HAReceiver | TwinReceiver]:
    return [
        HASender(SENDER, log_min=0, log_end=END, now_ms=0),
        TwinSender(master_facts("c", "g", "s", SEGMENT), 0, END, 0, "m"),
        HAReceiver(RECEIVER, log_end=0, now_ms=0),
        TwinReceiver(slave_facts(hello()), 0),
    ]


def joined(log_end: int = END) -> TwinSender:
    sender = TwinSender(master_facts("c", "g", "s", SEGMENT), 0, log_end, 0, "m")
    sender.receive_data(wire.MAGIC + wire.encode_hello(hello())[0], 0)
    sender.admit()
    assert sender.state is HAConnectionState.TRANSFER
    return sender


@pytest.mark.parametrize("index", range(4))
def test_a_core_ends_when_its_own_side_wants_it(index: int) -> None:
    core = cores()[index]
    assert not core.is_ended
    core.stop("enough")
    assert (core.is_ended, core.reason) == (True, "enough")
    assert type(core.events()[-1]).__name__ in ("ConnectionEnded", "MasterGone")
    core.stop("again")
    assert core.reason == "enough"


@pytest.mark.parametrize("index", range(4))
def test_only_the_twin_dialect_says_why(index: int) -> None:
    core = cores()[index]
    core.stop("enough")
    now_ms = (0,) if isinstance(core, HAReceiver | TwinReceiver) else ()
    said = core.data_to_send(*now_ms)
    assert core.tells_why == (b"enough" in said) == isinstance(core, TwinSender | TwinReceiver)


@pytest.mark.parametrize("index", range(4))
def test_intervals_change_while_it_runs(index: int) -> None:
    core = cores()[index]
    if isinstance(core, HASender | TwinSender):
        core.configure(replace(SENDER, housekeeping_interval_ms=10))
    else:
        core.configure(replace(RECEIVER, housekeeping_interval_ms=10))
    core.tick(10)
    assert not core.is_ended
    core.tick(11)
    assert core.is_ended


def test_what_a_slave_has_reported() -> None:
    receivers = [core for core in cores() if isinstance(core, HAReceiver | TwinReceiver)]
    assert [core.reported_offset for core in receivers] == [0, 0]


@pytest.mark.parametrize(("heartbeat_ms", "period_ms"), [(5000, 1000), (400, 100), (3, 1)])
def test_timers_are_looked_at_often_enough(heartbeat_ms: int, period_ms: int) -> None:
    assert replace(RECEIVER, heartbeat_interval_ms=heartbeat_ms).tick_period_ms == period_ms


def test_frames_of_a_run_in_the_classic_dialect() -> None:
    core = HASender(SENDER, log_min=0, log_end=END, now_ms=0)
    pieces = core.frames(Run(5, 150, 100), b"x" * 150, confirmed=7)
    assert b"".join(pieces) == b"".join(
        encode_frame_header(start, size) + b"x" * size for start, size in ((5, 100), (105, 50))
    )


def test_a_run_of_the_twin_dialect_ends_with_a_whole_record() -> None:
    log = stored(0, [100, 900, 1500, 90, 400])
    core = joined(len(log))
    run = core.next_run(0, 1500)
    assert run == Run(0, 1500, wire.BODY_SIZE_MAX)
    core.frames(run, log[:1500], 0)
    whole = core.next_offset
    assert whole == 1000
    rest = core.next_run(0, wire.BODY_SIZE_MAX)
    assert rest == Run(whole, len(log) - whole, wire.BODY_SIZE_MAX)
    core.frames(rest, log[whole:], 0)
    assert core.next_offset == len(log)


def test_digests_that_nobody_asked_for_and_a_resend_without_a_place() -> None:
    asked = TwinSender(master_facts("c", "g", "s", SEGMENT), 0, END, 0, "m")
    asked.receive_data(wire.MAGIC + wire.encode_hello(hello(END))[0], 0)
    digests = wire.encode_json(wire.FrameType.DIGESTS, wire.Digests(digests=["x"]))
    asked.receive_data(digests, 0)
    assert asked.reason == f"frame type {wire.FrameType.DIGESTS} in the handshake"
    sender = joined()
    sender.receive_data(wire.encode_frame(wire.FrameType.RESEND, b"short"), 0)
    assert sender.reason == f"frame type {wire.FrameType.RESEND} while transferring"
