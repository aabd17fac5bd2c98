"""Waiters on a watermark: released in offset order, once, at their deadline at the latest."""

from __future__ import annotations

from typing import Any

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
