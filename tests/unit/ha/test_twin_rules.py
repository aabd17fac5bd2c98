"""Every rule of the twin dialect's two cores, one by one: what each end refuses, and what it says.

`test_twin.py` drives the two against each other; here one end is told what an honest peer never
says, and the rest of what can become of a connection.
"""

from __future__ import annotations

import msgspec
import pytest

from support.twin_cores import (
    MAGIC,
    SEGMENT,
    Pair,
    log_of,
    master_facts,
    next_range,
    record_ends,
    slave_facts,
)
from twinlog.ha.receiver import BodyReceived, MasterGone
from twinlog.ha.twin import wire
from twinlog.ha.twin.common import TAIL_SIZE, CommonSearch, DigestsWanted
from twinlog.ha.twin.receiver import (
    Refused,
    TailWanted,
    TruncateWanted,
    TwinReceiver,
)
from twinlog.ha.twin.sender import MasterFacts, SlaveIsLonger, TwinSender, history_of
from twinlog.ha.twin.wire import EpochEntry, ErrorCode, FrameType, Hello
from twinlog.ha.wire import HAConnectionState, LocalProtocolError

END = 3000
FACTS = master_facts("c", "g", "store-1", SEGMENT)


def hello(**changes: object) -> Hello:
    values = {
        "version": 2, "version_min": 1, "cluster": "c", "group": "g", "replica_id": 1,
        "replica_uid": "u", "store_id": "store-1", "segment_size": SEGMENT, "log_min": 0,
        "log_end": END, "nonce": "s",
    }  # fmt: skip
    return Hello(**{**values, **changes})  # type: ignore[arg-type]


def json_frame(kind: FrameType, value: msgspec.Struct) -> bytes:
    return wire.encode_json(kind, value)


# ---- the slave's end


def slave(*, challenged: bool = True, reseed: str = "tail", **changes: object) -> TwinReceiver:
    receiver = TwinReceiver(slave_facts(hello(**changes), reseed=reseed), 0)
    if challenged:
        receiver.receive_data(json_frame(FrameType.CHALLENGE, challenge()), 0)
        assert receiver.state is HAConnectionState.HANDSHAKE
    receiver.data_to_send(0)
    return receiver


def challenge(version: int = 2, **values: object) -> wire.Challenge:
    return wire.Challenge(version=version, nonce="m", **values)  # type: ignore[arg-type]


def started(offset: int = END, **changes: object) -> TwinReceiver:
    receiver = slave(**changes)
    start = wire.Start(offset=offset, store_id="store-1")
    receiver.receive_data(json_frame(FrameType.START, start), 0)
    assert receiver.state is HAConnectionState.TRANSFER, receiver.reason
    receiver.events()
    return receiver


def refusal(receiver: TwinReceiver) -> tuple[int, str]:
    """Code and reason; the master is told the same."""
    events = receiver.events()
    (refused,) = [event for event in events if isinstance(event, Refused)]
    assert any(isinstance(event, MasterGone) for event in events)
    assert refused.reason.encode() in receiver.data_to_send(0)
    return refused.code, refused.reason


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (json_frame(FrameType.START, wire.Start(offset=0, store_id="")), "expected CHALLENGE"),
        (json_frame(FrameType.CHALLENGE, challenge(3)), "chose version 3"),
        (json_frame(FrameType.CHALLENGE, challenge(0)), "chose version 0"),
    ],
)
def test_a_first_frame_that_is_no_challenge_of_a_known_version(frame: bytes, reason: str) -> None:
    receiver = slave(challenged=False)
    receiver.receive_data(frame, 0)
    assert reason in refusal(receiver)[1]


def test_a_master_of_another_epoch_is_not_followed() -> None:
    receiver = slave(challenged=False, epoch=7)
    receiver.receive_data(json_frame(FrameType.CHALLENGE, challenge(epoch=8)), 0)
    assert refusal(receiver)[0] == ErrorCode.STALE_EPOCH


def probe(*ranges: tuple[int, int]) -> bytes:
    return json_frame(FrameType.PROBE, wire.Probe(ranges=list(ranges)))


def cut_to(offset: int) -> bytes:
    truncate = wire.Truncate(offset=offset, code=ErrorCode.DIVERGED, reason="it differs")
    return json_frame(FrameType.TRUNCATE, truncate)


def fetch(offset: int, size: int) -> bytes:
    return json_frame(FrameType.FETCH, wire.Fetch(offset=offset, size=size))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (probe((0, END + 1)), "probe of [0, 3001)"),
        (probe((5, 5)), "probe of [5, 5)"),
        (probe(), "probe of 0 ranges"),
        (probe(*[(0, 1)] * 17), "probe of 17 ranges"),
        (cut_to(0), "asked to cut to 0"),
        (cut_to(END), "asked to cut to 3000"),
        (fetch(0, END + 1), "asked for 3001 bytes at 0"),
        (fetch(END, 1), "asked for 1 bytes at 3000"),
        (json_frame(FrameType.START, wire.Start(offset=1, store_id="")), "this log ends at 3000"),
        (json_frame(FrameType.READY, wire.Ready(log_end=1)), "in the handshake"),
        (probe((0, 1)) + probe((0, 1)), "before the answer"),
        (cut_to(100) + probe((0, 1)), "before the answer"),
        (probe((0, 1))[:-1] + b"?", "checksum"),
        (wire.encode_frame(FrameType.PROBE, b"[]"), ""),
    ],
)
def test_what_a_master_may_not_ask_in_the_handshake(frame: bytes, reason: str) -> None:
    receiver = slave()
    receiver.receive_data(frame, 0)
    code, said = refusal(receiver)
    assert code == ErrorCode.PROTOCOL
    assert reason in said


def test_an_empty_log_does_not_start_below_zero() -> None:
    receiver = slave(log_end=0)
    receiver.receive_data(json_frame(FrameType.START, wire.Start(offset=-1, store_id="")), 0)
    assert "cannot start at -1" in refusal(receiver)[1]


def test_what_is_asked_for_is_answered_and_the_next_question_may_come() -> None:
    receiver = slave()
    receiver.receive_data(probe((0, 10)), 0)
    assert receiver.events() == [DigestsWanted([(0, 10)])]
    receiver.digests_computed(["d"])
    receiver.receive_data(fetch(2990, 10), 0)
    assert receiver.events() == [TailWanted(2990, 10)]
    receiver.tail_read(2990, b"0123456789")
    said = receiver.data_to_send(0)
    digests = json_frame(FrameType.DIGESTS, wire.Digests(digests=["d"]))
    assert said == digests + wire.encode_tail(2990, b"0123456789")
    receiver.receive_data(cut_to(2000), 0)
    assert receiver.events() == [TruncateWanted(2000, "it differs")]
    receiver.truncated(2000)
    assert receiver.data_to_send(0) == json_frame(FrameType.READY, wire.Ready(log_end=2000))


@pytest.mark.parametrize(
    ("epochs", "is_cut"),
    [
        ([EpochEntry(1, 0), EpochEntry(2, 2000, is_clean=False)], True),
        ([EpochEntry(1, 0), EpochEntry(2, 2000)], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("own", [[], [EpochEntry(1, 0)]])
def test_r9_confirmed_records_go_only_when_someone_decided_so(
    epochs: list[EpochEntry], is_cut: bool, own: list[EpochEntry]
) -> None:
    receiver = slave(challenged=False, confirmed=2500, epochs=own)
    receiver.receive_data(json_frame(FrameType.CHALLENGE, challenge(epochs=epochs)), 0)
    receiver.receive_data(cut_to(2000), 0)
    if is_cut:
        assert receiver.events() == [TruncateWanted(2000, "it differs")]
    else:
        assert refusal(receiver)[0] == ErrorCode.CONFIRMED_DIFFERS


def test_a_master_that_refuses_is_heard() -> None:
    receiver = slave()
    error = wire.Error(code=ErrorCode.OTHER_STORE, reason="another log", log_min=40)
    receiver.receive_data(json_frame(FrameType.ERROR, error), 0)
    refused, gone = receiver.events()
    assert refused == Refused(ErrorCode.OTHER_STORE, "another log", 40)
    assert gone == MasterGone("the master refused: another log")


def test_frames_behind_the_end_are_not_looked_at() -> None:
    receiver = slave()
    error = json_frame(FrameType.ERROR, wire.Error(code=1, reason="no"))
    receiver.receive_data(error + probe((0, 1)), 0)
    assert not any(isinstance(event, DigestsWanted) for event in receiver.events())
    with pytest.raises(LocalProtocolError):
        receiver.receive_data(b"x", 0)


def test_an_end_is_an_end_once() -> None:
    receiver = slave()
    receiver.receive_eof()
    receiver.receive_eof()
    receiver.stop("too late")
    receiver.tick(10**9)
    assert receiver.events() == [MasterGone("the master closed the connection")]
    assert receiver.data_to_send(0) == b""


@pytest.mark.parametrize("way", ["append_failed", "stop"])
def test_a_slave_that_goes_says_why(way: str) -> None:
    receiver = started()
    getattr(receiver, way)("the disk is full")
    code, reason = refusal(receiver)
    assert code == (ErrorCode.DISK if way == "append_failed" else ErrorCode.STOPPING)
    assert reason == "the disk is full"


def test_data_that_crosses_a_file_or_comes_with_another_epoch_is_refused() -> None:
    crossing = started(SEGMENT - 10, log_end=SEGMENT - 10)
    crossing.receive_data(b"".join(wire.encode_data(SEGMENT - 10, 0, 0, b"x" * 11)), 0)
    assert "crosses the end of a file" in crossing.reason
    receiver = slave(challenged=False, epoch=7)
    receiver.receive_data(json_frame(FrameType.CHALLENGE, challenge(epoch=7)), 0)
    receiver.receive_data(json_frame(FrameType.START, wire.Start(offset=END, store_id="")), 0)
    receiver.receive_data(wire.encode_heartbeat(END, 0, 8), 0)
    assert "epoch 8 on a connection of epoch 7" in receiver.reason


def test_r10_what_is_confirmed_counts_as_far_as_it_is_here() -> None:
    receiver = started()
    receiver.receive_data(wire.encode_heartbeat(5000, 4000, 0), 0)
    assert (receiver.confirmed, receiver.known_confirmed, receiver.master_end) == (4000, END, 5000)


def test_bytes_may_be_put_into_the_cores_own_buffer() -> None:
    receiver = started()
    frame = b"".join(wire.encode_data(END, 0, 0, b"body"))
    receiver.get_buffer()[: len(frame)] = frame
    receiver.buffer_filled(len(frame), 5)
    (event,) = receiver.events()
    assert isinstance(event, BodyReceived)
    assert (event.offset, bytes(event.bodies[0]), receiver.last_read_ms) == (END, b"body", 5)


def test_an_idle_slave_repeats_its_acknowledgement_only_when_it_is_due() -> None:
    receiver = started()
    first = receiver.data_to_send(0)
    receiver.tick(5000)
    assert receiver.data_to_send(5000) == b""
    receiver.tick(5001)
    assert receiver.data_to_send(5001) == first


# ---- the master's end


def master(
    *, facts: MasterFacts = FACTS, log: tuple[int, int] = (0, END), is_admitted: bool = True,
    **changes: object,
) -> TwinSender:  # fmt: skip
    sender = TwinSender(facts, *log, 0, "m")
    sender.receive_data(wire.MAGIC + wire.encode_hello(hello(**changes))[0], 0)
    if is_admitted:
        sender.admit()
    return sender


def said(sender: TwinSender) -> str:
    """The reason, which went to the slave too unless it was the slave's."""
    assert sender.is_ended
    return sender.reason


def joined() -> TwinSender:
    sender = master(log_end=0, store_id="")
    assert sender.state is HAConnectionState.TRANSFER
    sender.events()
    return sender


def test_bytes_of_another_protocol_end_at_the_first_that_is_wrong() -> None:
    sender = TwinSender(FACTS, 0, END, 0, "m")
    sender.receive_data(wire.MAGIC[:3], 0)
    assert not sender.is_ended
    sender.receive_data(b"?", 0)
    assert "magic" in said(sender)
    with pytest.raises(LocalProtocolError):
        sender.receive_data(b"x", 0)


def test_the_magic_alone_says_nothing_yet() -> None:
    sender = TwinSender(FACTS, 0, END, 0, "m")
    sender.receive_data(wire.MAGIC, 0)
    assert (sender.state, sender.data_to_send()) == (HAConnectionState.READY, b"")


def test_the_first_frame_is_a_hello() -> None:
    sender = TwinSender(FACTS, 0, END, 0, "m")
    sender.receive_data(wire.MAGIC + wire.encode_ack(0, 0), 0)
    assert "expected HELLO" in said(sender)


@pytest.mark.parametrize(
    ("changes", "facts", "reason"),
    [
        ({"log_min": 5, "log_end": 4}, FACTS, "impossible log range"),
        ({"replica_id": 0}, FACTS, "impossible log range"),
        ({"has_secret": True}, FACTS, "the slave has a secret"),
        ({}, master_facts("c", "g", "store-1", SEGMENT, secret="x"), "the master has a secret"),
        ({}, master_facts("c", "g", "s", SEGMENT, is_controlled=True), "speaks version 3"),
    ],
)
def test_a_hello_that_does_not_fit(
    changes: dict[str, object], facts: MasterFacts, reason: str
) -> None:
    assert reason in said(master(facts=facts, is_admitted=False, **changes))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (json_frame(FrameType.DIGESTS, wire.Digests(digests=[])), "got 0"),
        (json_frame(FrameType.READY, wire.Ready(log_end=1)), "in the handshake"),
        (wire.encode_tail(0, b"x"), "in the handshake"),
        (json_frame(FrameType.PROOF, wire.Proof(proof="")), "in the handshake"),
        (json_frame(FrameType.ERROR, wire.Error(code=1, reason="no room")), "no room"),
    ],
)
def test_what_a_slave_may_not_say_in_the_handshake(frame: bytes, reason: str) -> None:
    sender = master()
    sender.record_found(None)
    sender.receive_data(frame, 0)
    assert reason in said(sender)


def test_a_slave_that_cut_elsewhere_is_not_served() -> None:
    sender = master()
    sender.truncate_slave(2000)
    sender.receive_data(json_frame(FrameType.READY, wire.Ready(log_end=1999)), 0)
    assert "asked to cut to 2000, the slave is at 1999" in said(sender)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (wire.encode_frame(FrameType.TAIL, bytes(wire.DATA_PREFIX.size)), "without data"),
        (wire.encode_tail(2001, b"x"), "a tail of 1 bytes at 2001"),
        (wire.encode_tail(2000, b"x" * 1001), "a tail of 1001 bytes at 2000"),
    ],
)
def test_a_tail_that_was_not_asked_for(frame: bytes, reason: str) -> None:
    sender = master(log=(0, 2000))
    sender.fetch(2000)
    assert not sender.can_fetch
    sender.receive_data(frame, 0)
    assert reason in said(sender)


def test_frames_behind_the_masters_refusal_are_not_looked_at() -> None:
    sender = joined()
    sender.receive_data(wire.encode_ack(END + 1, 0) + wire.encode_ack(0, 0), 0)
    assert "acknowledged 3001" in said(sender)


def test_the_end_of_a_master_is_an_end_once() -> None:
    sender = joined()
    sender.receive_eof()
    before = sender.reason
    sender.receive_eof()
    sender.refuse(ErrorCode.PROTOCOL, "too late")
    sender.tick(10**9)
    assert (sender.reason, before) == (before, "the slave closed the connection")
    sender.log_moved(0, END + 1)
    assert next_range(sender, 10**9) is None


def test_who_never_proves_itself_does_not_keep_its_place() -> None:
    facts = master_facts("c", "g", "store-1", SEGMENT, secret="x")
    sender = master(facts=facts, is_admitted=False, has_secret=True)
    sender.receive_data(b"", 19_000)
    sender.tick(20_000)
    assert not sender.is_ended
    sender.tick(20_001)
    assert "no proof within" in said(sender)


def test_an_owner_may_refuse_whom_it_would_have_to_admit() -> None:
    sender = master(is_admitted=False)
    sender.refuse(ErrorCode.WRONG_GROUP, "not this one")
    sender.admit()
    assert sender.state is HAConnectionState.SHUTDOWN


def test_what_a_slave_needs_next_may_be_gone() -> None:
    sender = joined()
    sender.log_moved(100, END)
    assert "the slave needs offset 0, the oldest kept is 100" in said(sender)


def test_nothing_is_sent_while_a_write_is_blocked() -> None:
    sender = joined()
    sender.write_blocked()
    assert next_range(sender, 0) is None
    sender.write_completed(0)
    assert next_range(sender, 0) == (0, END)


def test_a_range_may_be_shortened_and_a_heartbeat_hurried() -> None:
    sender = joined()
    assert next_range(sender, 0) == (0, END)
    sender.shortened(2000)
    assert next_range(sender, 0) == (2000, END)
    assert next_range(sender, 0) is None
    sender.hurry_heartbeat()
    assert next_range(sender, 0) == (END, END)
    assert next_range(sender, 0) is None


def test_a_copy_of_a_log_that_was_lost_is_asked_for() -> None:
    sender = master(log=(0, 0), confirmed=2000)
    assert SlaveIsLonger(0) in sender.events()


def test_logs_of_a_group_are_not_compared_above_the_end_of_their_common_epoch() -> None:
    epochs = (EpochEntry(1, 0), EpochEntry(2, 2000))
    facts = master_facts("c", "g", "store-1", SEGMENT, epochs=epochs, is_controlled=True)
    theirs = [EpochEntry(1, 0), EpochEntry(3, 2500)]
    for given, high in ((theirs, 2000), ([EpochEntry(2, 9), EpochEntry(1, 0)], END)):
        sender = master(facts=facts, version=3, epochs=given)
        (wanted,) = [e for e in sender.events() if type(e).__name__ == "RecordWanted"]
        assert wanted.end == high


def test_epochs_of_a_peer_that_are_in_no_order_are_no_history() -> None:
    assert history_of([EpochEntry(1, 5), EpochEntry(2, 5)]) is None
    assert history_of([EpochEntry(2, 0), EpochEntry(2, 5)]) is None
    assert history_of([]) is not None


def test_no_record_of_the_master_near_the_end_leads_to_the_search() -> None:
    """A body larger than what is looked through first."""
    search = CommonSearch(0, 4 * TAIL_SIZE)
    assert search.wants_record == (3 * TAIL_SIZE, 4 * TAIL_SIZE)
    search.record_found(None)
    assert not search.is_done
    log = log_of(1, 20_000)
    size = 2 * TAIL_SIZE
    giant = log + size.to_bytes(4, "big") + MAGIC + bytes(size - 8)
    assert record_ends(giant)[-1] == len(giant)
    pair = Pair(giant, giant)
    pair.run()
    assert pair.sender.state is HAConnectionState.TRANSFER


def test_a_slave_that_does_not_know_the_secret_is_found_out() -> None:
    facts = master_facts("c", "g", "store-1", SEGMENT, secret="x")
    sender = master(facts=facts, is_admitted=False, has_secret=True)
    sender.receive_data(json_frame(FrameType.PROOF, wire.Proof(proof="guessed")), 0)
    assert "the slave's secret is not this master's" in said(sender)
    assert not sender.is_proved


def test_frames_behind_a_slaves_refusal_are_not_looked_at() -> None:
    sender = joined()
    error = json_frame(FrameType.ERROR, wire.Error(code=1, reason="no room"))
    sender.receive_data(error + wire.encode_ack(END, END), 0)
    assert said(sender) == "the slave refused: no room"
    assert sender.received_offset == 0


def test_a_frame_of_a_slave_that_is_damaged_ends_the_connection() -> None:
    sender = joined()
    frame = bytearray(wire.encode_ack(0, 0))
    frame[-1] ^= 1
    sender.receive_data(bytes(frame), 0)
    assert "checksum" in said(sender)


def test_data_without_data_ends_the_connection() -> None:
    receiver = started()
    receiver.receive_data(wire.encode_frame(FrameType.DATA, bytes(wire.DATA_PREFIX.size)), 0)
    assert receiver.reason == "a DATA frame without data"


def test_data_of_an_earlier_round_is_dropped_without_a_word() -> None:
    receiver = started()
    body = b"".join(wire.encode_data(END, 0, 0, b"body"))
    receiver.receive_data(body[:-1] + b"?", 0)
    assert (receiver.damaged_count, receiver.events()) == (1, [])
    receiver.receive_data(body, 0)
    assert receiver.events() == []
    receiver.receive_data(b"".join(wire.encode_data(END, 0, 0, b"body", round_number=1)), 0)
    assert len(receiver.events()) == 1


def test_an_empty_range_is_sent_as_a_heartbeat() -> None:
    sender = joined()
    assert sender.frame(END, b"", 5) == [wire.encode_heartbeat(END, 5, 0)]
