"""Slaves that begin in the middle of the log: what they lack, they never confirm."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.acks import AckTable
from twinlog.ha.group_transfer import GroupTransferService
from twinlog.runtime.watermark import Outcome
from twinlog.testing.manual_clock import ManualClock

TIMEOUT_MS = 3000
FILE = 50


class Master:
    """Puts of ten bytes that wait for their slaves, and what each slave really has."""

    def __init__(self, ack_count: int) -> None:
        self.clock, self.acks = ManualClock(), AckTable()
        self.service = GroupTransferService(
            self.acks, self.clock, ack_count=ack_count, fall_behind_max=1 << 20,
            timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        self.end = 0
        self.has: dict[str, tuple[int, int]] = {}
        self.answers: dict[int, tuple[Outcome, str]] = {}

    def put(self) -> None:
        self.end += 10
        if self.service.check_sync(self.end)[0] is None:
            self.service.wait(self.end, self._answered, self.end)

    def _answered(self, end: Any, outcome: Outcome, reason: str) -> None:
        self.answers[end] = (outcome, reason)
        if outcome is Outcome.REACHED:
            count = sum(start < end <= ack for start, ack in self.has.values())
            assert count >= self.service.ack_count, f"{count} slaves have {end}: {self.has}"
        else:
            assert reason

    def join(self, name: str, *, is_empty: bool) -> None:
        start = self.end // FILE * FILE if is_empty else 0
        self.has[name] = (start, start)
        self.acks.join(name, 0, self.clock.monotonic_ms(), start_offset=start)
        self.service.acks_changed()

    def ack(self, name: str) -> None:
        start, _ = self.has[name]
        self.has[name] = (start, self.end)
        now_ms = self.clock.monotonic_ms()
        self.acks.ack(name, self.end, sent_offset=self.end, end_offset=self.end, now_ms=now_ms)
        self.service.acks_changed()

    def leave(self, name: str) -> None:
        del self.has[name]
        self.acks.leave(name)


def with_one_that_has_more() -> Master:
    """Six puts wait for "a", which has all before them, when "b" comes with nothing."""
    master = Master(1)
    master.join("a", is_empty=False)
    for _ in range(6):
        master.put()
    master.join("b", is_empty=True)
    return master


def test_an_empty_slave_confirms_nothing_before_its_first_file() -> None:
    master = Master(1)
    master.join("a", is_empty=True)  # The log is empty, too: it has all of it.
    for _ in range(6):
        master.put()
    master.leave("a")
    master.join("b", is_empty=True)
    assert {outcome for outcome, _ in master.answers.values()} == {Outcome.FAILED}
    assert set(master.answers) == {10, 20, 30, 40, 50}
    assert "copies the log from 50 on" in master.answers[10][1]
    master.ack("b")
    assert master.answers[60][0] is Outcome.REACHED


def test_only_what_lies_before_the_first_file_is_said_to_be_missing() -> None:
    master = Master(1)
    for _ in range(6):
        master.put()  # Answered 11: nobody is there.
    master.join("b", is_empty=True)
    master.ack("b")
    passed_over = master.service.passed_over
    assert passed_over(50, 60) == ""
    assert passed_over(20, 30).endswith("from 50 on, without this message")
    for start, end in ((0, 60), (40, 60)):  # It is somewhere in this part of the log.
        assert passed_over(start, end).endswith("from 50 on, perhaps without this message")


def test_a_slave_that_has_more_is_waited_for() -> None:
    master = with_one_that_has_more()
    master.ack("b")
    assert not master.answers
    master.ack("a")
    assert len(master.answers) == 6
    assert master.acks.partial != []
    master.ack("b")
    assert master.acks.partial == []


def test_a_slave_that_has_more_is_not_waited_for_without_end() -> None:
    master = with_one_that_has_more()
    master.clock.advance(2 * TIMEOUT_MS + 1)
    assert {outcome for outcome, _ in master.answers.values()} == {Outcome.TIMEOUT}
    master.put()
    master.ack("b")
    assert master.answers[70][0] is Outcome.REACHED


_NAMES = st.sampled_from("ab")
_STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["empty", "whole", "ack", "leave"]), _NAMES),
    st.tuples(st.just("time"), st.integers(1, 2 * TIMEOUT_MS)),
)


@given(st.integers(1, 2), st.lists(_STEPS, min_size=20, max_size=60))
def test_what_is_confirmed_enough_slaves_have(count: int, steps: list[tuple[str, Any]]) -> None:
    master = Master(count)
    for kind, value in steps:
        if kind == "put":
            for _ in range(value):
                master.put()
        elif kind == "time":
            master.clock.advance(value)
        elif kind in ("empty", "whole"):
            if value not in master.has:
                master.join(value, is_empty=kind == "empty")
        elif value in master.has:
            master.ack(value) if kind == "ack" else master.leave(value)
