"""What a slave has and its master lost, between the two cores."""

from __future__ import annotations

import pytest

from support.twin_cores import (
    SEGMENT,
    Pair,
    log_of,
    record_ends,
)
from twinlog.ha.twin import wire
from twinlog.ha.twin.completeness import TailVerdict
from twinlog.ha.twin.tail import TailChecker
from twinlog.ha.wire import HAConnectionState, RemoteProtocolError

# ---- a slave that has what its master lost

V2 = {"version": 2}


@pytest.mark.parametrize("confirmed", [0, 200_000, 300_000])
def test_a_master_with_a_shorter_log_takes_the_slaves_tail(confirmed: int) -> None:
    log = log_of(1, 3 * SEGMENT // 2)
    pair = Pair(log[: record_ends(log)[500]], log, hello=V2 | {"confirmed": confirmed})
    pair.run()
    assert pair.verdict is TailVerdict.FETCH
    assert pair.master == pair.slave == log
    assert pair.aside == b""
    assert pair.sender.state is HAConnectionState.TRANSFER


def test_an_empty_master_of_the_same_store_takes_all_that_was_confirmed() -> None:
    log = log_of(1, 50_000)
    pair = Pair(b"", log, hello=V2 | {"confirmed": 40_000})
    pair.run()
    assert pair.master == pair.slave == log
    stranger = Pair(b"", log, hello=V2 | {"confirmed": 40_000, "store_id": "other"})
    stranger.run()
    assert "empty" in stranger.ended["slave"]


def test_a_master_gives_its_own_unconfirmed_tail_up_for_a_confirmed_one() -> None:
    log = log_of(1, 400_000)
    position = record_ends(log)[700]
    pair = Pair(log[:position] + log_of(9, 3000), log, hello=V2 | {"confirmed": position + 1})
    pair.own_confirmed = position
    pair.run()
    assert pair.verdict is TailVerdict.CUT_AND_FETCH
    assert pair.master == pair.slave == log


@pytest.mark.parametrize("version", [1, 2])
def test_two_confirmed_tails_are_left_to_a_person(version: int) -> None:
    log = log_of(1, 400_000)
    position = record_ends(log)[700]
    hello: dict[str, object] = {"version": version, "confirmed": position + 1}
    pair = Pair(log[:position] + log_of(9, 3000), log, hello=hello)
    pair.own_confirmed = position + 1
    before = bytes(pair.master)
    pair.run()
    assert "differs" in pair.ended["slave"]
    assert (pair.master, pair.slave) == (before, log)


def test_a_slave_refuses_a_cut_below_what_it_knows_as_confirmed() -> None:
    """A master of the first version asks for it: it does not know better."""
    log = log_of(1, 400_000)
    position = record_ends(log)[700]
    pair = Pair(log[:position], log, hello={"version": 1, "confirmed": position + 1})
    pair.run()
    assert pair.slave == log
    assert "confirmed up to" in pair.ended["master"]
    assert "PAIR.md" in pair.ended["slave"]


def test_what_is_not_confirmed_is_cut_as_before() -> None:
    log = log_of(1, 400_000)
    position = record_ends(log)[700]
    master = log[:position] + log_of(9, 3000)
    pair = Pair(master, log, hello=V2 | {"confirmed": position})
    pair.run()
    assert pair.verdict is TailVerdict.TRUNCATE
    assert pair.slave == master


def test_a_tail_that_was_not_asked_for_ends_the_connection() -> None:
    log = log_of(1, 400_000)
    pair = Pair(log[: record_ends(log)[700]], log, hello=V2)
    while pair.verdict is None:
        pair.step()
    pair.deliver(wire.encode_tail(1, b"anything"), pair.sender)
    pair.run()
    assert "a tail of 8 bytes at 1" in pair.ended["master"]


def test_a_record_of_a_tail_that_crosses_its_file_is_damage() -> None:
    tail = TailChecker(0, 100)
    with pytest.raises(RemoteProtocolError, match="crosses the end of its file"):
        tail.take(log_of(1, 5_000)[:60])


def test_a_handshake_that_is_no_json_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        wire.decode_json(memoryview(b"{"), wire.Hello)
