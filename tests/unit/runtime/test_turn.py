"""What is done at the end of a turn, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiers import TIERS
from twinlog.runtime.compiled import load
from twinlog.runtime.turn import Phase, TurnInPython

PHASES = [
    Phase.WRITE_LOG,
    Phase.WAKE_REPLICAS,
    Phase.RELEASE_REPLIES,
    Phase.NOTIFY_QUEUES,
    Phase.FLUSH_SOCKETS,
]


@pytest.fixture(params=TIERS)
def Turn(request: Any) -> Any:  # noqa: N802
    """The class: the reference and its compiled form."""
    return kind_of(request.param)


def kind_of(tier: str) -> Any:
    compiled: Any = load("twinlog.runtime._turn") if tier == "compiled" else None
    return TurnInPython if compiled is None else compiled.Turn


async def passes(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_phases_are_done_in_their_order_whatever_came_first(Turn: Any) -> None:  # noqa: N803
    turn, done = Turn(), []
    for phase in reversed(PHASES):
        turn.add(phase, lambda phase=phase: done.append(phase))
    assert done == []
    await passes()
    assert done == PHASES


async def test_work_for_a_later_phase_is_done_in_the_same_turn(Turn: Any) -> None:  # noqa: N803
    turn, done = Turn(), []

    def write() -> None:
        turn.add(Phase.FLUSH_SOCKETS, lambda: done.append("flushed"))
        turn.add(Phase.RELEASE_REPLIES, lambda: done.append("answered"))

    turn.add(Phase.WRITE_LOG, write)
    turn.run()
    assert done == ["answered", "flushed"]


async def test_work_for_a_phase_that_has_begun_waits_for_the_next_turn(Turn: Any) -> None:  # noqa: N803
    turn, done = Turn(), []

    def notify() -> None:
        done.append("notified")
        turn.add(Phase.NOTIFY_QUEUES, lambda: done.append("notified again"))
        turn.add(Phase.WRITE_LOG, lambda: done.append("written"))
        asyncio.get_running_loop().call_soon(lambda: done.append("the loop ran"))

    turn.add(Phase.NOTIFY_QUEUES, notify)
    turn.run()
    assert done == ["notified"]
    await passes(2)
    assert done[1:] == ["written", "notified again", "the loop ran"]


async def test_a_turn_that_is_ended_within_a_turn_goes_on_as_it_was(Turn: Any) -> None:  # noqa: N803
    turn, done = Turn(), []

    def early() -> None:
        turn.add(Phase.FLUSH_SOCKETS, lambda: done.append("flushed"))
        turn.run()
        done.append("early")

    turn.add(Phase.WRITE_LOG, early)
    await passes()
    assert done == ["early", "flushed"]


async def test_the_loop_is_asked_once_a_turn(Turn: Any) -> None:  # noqa: N803
    turn, calls = Turn(), []
    loop = asyncio.get_running_loop()
    original: Callable[..., asyncio.Handle] = loop.call_soon
    try:
        loop.call_soon = lambda *a, **k: calls.append(a) or original(*a, **k)  # type: ignore[assignment]
        for phase in PHASES:
            for _ in range(3):
                turn.add(phase, lambda: None)
        assert len(calls) == 1
    finally:
        del loop.call_soon  # type: ignore[attr-defined]
    await passes()


async def test_an_error_costs_neither_the_others_nor_the_later_phases(Turn: Any) -> None:  # noqa: N803
    turn, done = Turn(), []

    def fail() -> None:
        raise ValueError("a bug")

    turn.add(Phase.WRITE_LOG, fail)
    turn.add(Phase.WRITE_LOG, lambda: done.append(1))
    turn.add(Phase.FLUSH_SOCKETS, lambda: done.append(2))
    with pytest.raises(ValueError, match="a bug"):
        turn.run()
    assert done == [1, 2]
    turn.add(Phase.WRITE_LOG, lambda: done.append(3))
    turn.run()
    assert done == [1, 2, 3]


@pytest.mark.parametrize("tier", TIERS)
@given(
    plan=st.lists(st.tuples(st.sampled_from(PHASES), st.lists(st.sampled_from(PHASES), max_size=3)))
)
def test_everything_is_done_once_and_no_phase_before_an_earlier_one(
    tier: str, plan: list[tuple[int, list[int]]]
) -> None:
    """Against a model: work that adds work, each noted with the turn that did it."""

    async def scenario() -> None:
        turn = kind_of(tier)()
        done: list[tuple[int, int]] = []
        number = 0  # Of the turn.

        def work(phase: int, more: list[int]) -> None:
            done.append((number, phase))
            for later in more:
                turn.add(later, lambda later=later: done.append((number, later)))

        for phase, more in plan:
            turn.add(phase, lambda phase=phase, more=more: work(phase, more))
        turn.run()
        first = [phase for _, phase in done]
        assert first == sorted(first)
        number = 1
        await passes(2)
        second = [phase for _, phase in done[len(first) :]]
        assert second == sorted(second)
        assert len(done) == len(plan) + sum(len(more) for _, more in plan)

    asyncio.run(scenario())
