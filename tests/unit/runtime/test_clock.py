"""Time for what is given up by its age: a wall clock that was ahead changes nothing, nor does a
pause of the process itself."""

from __future__ import annotations

import random

import pytest

from twinlog.runtime.clock import STEP_LASTS_MS, RunningTime, SteadyWall
from twinlog.testing.manual_clock import ManualClock

HOUR_MS = 3_600_000


def test_a_step_ahead_counts_when_it_has_lasted() -> None:
    clock = ManualClock()
    steady = SteadyWall(clock)
    start = clock.now_ms()
    clock.step_wall(100 * HOUR_MS)
    assert steady.now_ms() == start
    clock.advance(STEP_LASTS_MS - 1)
    assert steady.now_ms() == start + STEP_LASTS_MS - 1
    clock.advance(1)
    assert steady.now_ms() == clock.now_ms() == start + 101 * HOUR_MS


def test_a_step_back_counts_at_once() -> None:
    clock = ManualClock()
    steady = SteadyWall(clock)
    clock.step_wall(-7 * HOUR_MS)
    assert steady.now_ms() == clock.now_ms()


@pytest.mark.parametrize("seed", range(50))
def test_steps_ahead_that_are_taken_back_leave_no_trace(seed: int) -> None:
    rng, clock = random.Random(seed), ManualClock()
    steady = SteadyWall(clock)
    for _ in range(50):
        offset = rng.randint(1, 200) * HOUR_MS
        clock.step_wall(offset)
        assert steady.now_ms() == clock.monotonic_ms()
        clock.advance(rng.randrange(STEP_LASTS_MS))
        assert steady.now_ms() == clock.monotonic_ms()
        clock.step_wall(-offset)
        assert steady.now_ms() == clock.monotonic_ms()
        clock.advance(rng.randrange(HOUR_MS))


def test_what_a_process_stood_still_does_not_count() -> None:
    clock = ManualClock()
    running = RunningTime(clock.monotonic_ms, 500)
    start = running.now_ms()
    for _ in range(10):
        clock.advance(500)
        running.now_ms()
    assert running.now_ms() == start + 5_000
    assert not running.has_resumed(1 << 40)
    clock.advance(60_000)
    assert running.has_resumed(1_000)
    assert running.now_ms() == start + 5_500
    clock.advance(400)
    assert running.now_ms() == start + 5_900
    assert running.has_resumed(1_000)
    clock.advance(500)
    running.now_ms()
    clock.advance(100)
    assert not running.has_resumed(1_000)
