"""Waiters on a watermark: released in offset order, once, at their deadline at the latest."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from twinlog.runtime.failures import Failures
from twinlog.runtime.watermark import Outcome, Watermark


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[Any, Outcome]] = []

    def __call__(self, argument: Any, outcome: Outcome, reason: str) -> None:
        self.events.append((argument, outcome))


def test_waiters_are_released_in_offset_order_in_one_advance() -> None:
    mark, log = Watermark("appended"), Log()
    for offset in (30, 10, 20, 40):
        mark.wait(offset, 1000, log, offset)
    mark.advance(30)
    assert log.events == [(10, Outcome.REACHED), (20, Outcome.REACHED), (30, Outcome.REACHED)]
    assert mark.waiter_count == 1


def test_wait_for_a_passed_offset_is_answered_at_once() -> None:
    mark, log = Watermark("appended", 100), Log()
    mark.wait(100, 0, log, "a")
    assert log.events == [("a", Outcome.REACHED)]


def test_expire_releases_only_what_is_due() -> None:
    mark, log = Watermark("flushed"), Log()
    mark.wait(10, 50, log, "early")
    mark.wait(20, 500, log, "late")
    mark.expire(49)
    assert log.events == []
    mark.expire(50)
    assert log.events == [("early", Outcome.TIMEOUT)]
    mark.advance(20)
    assert log.events[-1] == ("late", Outcome.REACHED)


def test_fail_above_tells_those_beyond_and_keeps_the_rest() -> None:
    mark, log = Watermark("appended"), Log()
    mark.wait(10, 50, log, "kept")
    mark.wait(20, 50, log, "lost")
    mark.fail_above(10, "disk full")
    assert log.events == [("lost", Outcome.FAILED)]
    assert mark.waiter_count == 1


async def test_reached_can_be_awaited() -> None:
    mark = Watermark("confirmed")
    seen: list[int] = []
    stop = mark.subscribe(seen.append)
    mark.advance(5)
    assert await mark.reached(5, 0) is Outcome.REACHED
    stop()
    mark.advance(6)
    assert seen == [5]


def test_who_subscribed_first_is_called_before_the_waiters() -> None:
    mark, order = Watermark("appended"), []
    mark.subscribe(lambda value: order.append(("later", value)))
    end = mark.subscribe(lambda value: order.append(("first", value)), is_first=True)
    mark.wait(5, 1000, lambda *_: order.append(("waiter", mark.value)))
    mark.advance(7)
    assert order == [("first", 7), ("waiter", 7), ("later", 7)]
    end()
    mark.advance(8)
    assert order[3:] == [("later", 8)]


def test_a_wait_out_of_order_within_an_advance_calls_nobody_twice() -> None:
    mark, log = Watermark("appended"), Log()

    def first(argument: Any, outcome: Outcome, reason: str) -> None:
        log(argument, outcome, reason)
        mark.wait(40, 1000, log, 40)

    mark.wait(10, 1000, first, 10)
    for offset in (30, 50):
        mark.wait(offset, 1000, log, offset)
    mark.advance(30)
    mark.advance(50)
    assert [argument for argument, _ in log.events] == [10, 30, 40, 50]


class Storm:
    """Waiters whose callbacks do something to the watermark, everything counted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mark = Watermark("storm")
        self.calls: dict[int, list[Outcome]] = {}
        self.depth = 0
        self.now = 0

    def wait(self) -> None:
        number = len(self.calls)
        self.calls[number] = []
        offset = self.mark.value + self.rng.randint(-5, 30)
        self.mark.wait(offset, self.now + self.rng.randint(1, 40), self.called, (number, offset))

    def called(self, argument: tuple[int, int], outcome: Outcome, reason: str) -> None:
        number, offset = argument
        self.calls[number].append(outcome)
        assert (outcome is Outcome.REACHED) == (reason == "")
        if outcome is Outcome.REACHED:
            assert self.mark.value >= offset
        if self.depth < 3 and self.rng.random() < 0.5:
            self.depth += 1
            self.act()
            self.depth -= 1

    def act(self) -> None:
        kind = self.rng.randrange(12)
        if kind < 6:
            self.wait()
        elif kind < 9:
            self.mark.advance(self.mark.value + self.rng.randint(0, 12))
        elif kind == 9:
            self.now += self.rng.randint(0, 15)
            self.mark.expire(self.now)
        elif kind == 10:
            self.mark.fail_above(self.mark.value + self.rng.randint(0, 20), "cut")
        else:
            self.mark.reset(max(0, self.mark.value - self.rng.randint(0, 20)), "cut")


@pytest.mark.parametrize("seed", range(300))
def test_every_waiter_is_called_once_whatever_callbacks_do(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(60):
        storm.act()
    left = storm.mark.waiter_count
    assert sum(not calls for calls in storm.calls.values()) == left
    storm.depth = 99  # Whoever is called now does nothing more.
    storm.mark.fail_above(-1, "end")
    assert [len(calls) for calls in storm.calls.values()] == [1] * len(storm.calls)


def failing(*_: Any) -> None:
    raise RuntimeError("a waiter's own fault")


def test_without_a_place_for_failures_an_error_goes_to_whoever_advances() -> None:
    mark = Watermark("appended")
    mark.wait(10, 50, failing)
    with pytest.raises(RuntimeError, match="own fault"):
        mark.advance(10)


def test_an_error_of_one_who_waits_costs_no_other() -> None:
    mark, log = Watermark("appended"), Log()
    mark.failures = Failures(lambda: 0)
    mark.subscribe(failing, is_first=True)
    mark.subscribe(failing)
    for offset in (10, 30, 50):
        mark.wait(offset, 50, failing)
        mark.wait(offset, 50, log, offset)
    mark.advance(10)
    mark.fail_above(40, "disk full")
    assert mark.deadline_ms == 50
    mark.expire(50)
    assert log.events == [(10, Outcome.REACHED), (50, Outcome.FAILED), (30, Outcome.TIMEOUT)]
    assert mark.deadline_ms is None


def test_an_advance_to_the_same_value_calls_nobody_and_a_subscription_ends_once() -> None:
    mark, seen = Watermark("appended", 10), []
    stop = mark.subscribe(seen.append)
    mark.advance(10)
    stop()
    stop()
    mark.advance(11)
    assert seen == []


async def test_an_awaited_offset_is_answered_once() -> None:
    mark = Watermark("confirmed")
    reached = asyncio.ensure_future(mark.reached(10, 50))
    await asyncio.sleep(0)
    reached.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reached
    mark.advance(10)
    assert mark.waiter_count == 0


def test_what_is_passed_over_was_not_reached() -> None:
    mark, told = Watermark("confirmed", 10), list[str]()
    answers: dict[int, Outcome] = {}
    mark.on_skip(told.append)
    for offset in (20, 30, 40):
        mark.wait(offset, 99, lambda at, outcome, _: answers.update({at: outcome}), offset)
    mark.skip(30, "a slave begins there")
    assert told == ["a slave begins there"]
    assert answers == {20: Outcome.FAILED, 30: Outcome.FAILED}
    mark.advance(50)
    assert answers[40] is Outcome.REACHED
