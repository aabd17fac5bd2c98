"""Clocks that run at a wrong rate: they are named, and leases do not outlive an election's wait."""

from __future__ import annotations

import random

import pytest

from support.controller_bench import Bench, group
from twinlog.controller.clocks import WINDOW_MS
from twinlog.controller.events import DEFAULT_TIMING
from twinlog.controller.record import Policy

BEAT_MS = 400
ASYNC = Policy(broker_role="ASYNC_MASTER")


def run(bench: Bench, rate: float, ms: int, *, late_ms: int = 0, began_ms: int = 0) -> int:
    """Heartbeats of master and slave, of which each may be late; the last lease of the master."""
    rng, lease_ms = random.Random(7), 0
    for _ in range(ms // BEAT_MS):
        sent_ms = int((bench.now - began_ms) * rate)
        delay_ms = rng.randint(0, late_ms) if late_ms else 0
        bench.wait(delay_ms)
        lease_ms = bench.beat(1, clock_ms=sent_ms, link_ms=None).lease_ms
        bench.beat(2, clock_ms=bench.now)
        bench.wait(BEAT_MS - delay_ms % BEAT_MS)
    return lease_ms


def said(bench: Bench) -> list[tuple[int, str]]:
    return [
        (happened.details["replica"], happened.details["reason"])
        for happened in bench.happened
        if happened.kind == "clock-rate"
    ]


@pytest.mark.parametrize("rate", [0.96, 1.0, 1.04])
def test_rates_that_differ_a_little_are_nothing(rate: float) -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    assert run(bench, rate, 5 * WINDOW_MS) == DEFAULT_TIMING.lease_ms
    assert said(bench) == []


@pytest.mark.parametrize("rate", [0.1, 0.6, 0.94])
def test_a_slow_clock_is_named_and_its_lease_ends_in_time(rate: float) -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    lease_ms = run(bench, rate, 3 * WINDOW_MS)
    assert 0 < lease_ms / rate <= DEFAULT_TIMING.lease_wait_ms
    assert said(bench) == [
        (1, f"its clock runs at {rate:.2f} of the rate of the controller's clock: its leases are"
            " shorter")
    ]  # fmt: skip


def test_a_fast_clock_is_named_and_harmless() -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    assert run(bench, 1.5, 3 * WINDOW_MS) == DEFAULT_TIMING.lease_ms
    assert said(bench) == [(1, "its clock runs at 1.50 of the rate of the controller's clock")]


def test_a_clock_that_is_right_again_is_said_once() -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    run(bench, 0.5, 3 * WINDOW_MS)
    assert run(bench, 1.0, 3 * WINDOW_MS) == DEFAULT_TIMING.lease_ms
    assert [reason for _, reason in said(bench)][-1] == "it is as fast as the controller's again"


def test_late_heartbeats_are_no_wrong_rate() -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    run(bench, 1.0, 2 * WINDOW_MS)
    run(bench, 1.0, 4 * WINDOW_MS, late_ms=1_500)
    assert said(bench) == []


def test_another_process_is_measured_anew() -> None:
    bench = Bench(group({1, 2}, policy=ASYNC))
    for n in range(20):
        bench.beat(2, incarnation=f"i2-{n}", clock_ms=n)
        bench.beat(1, clock_ms=bench.now, link_ms=None)
        bench.wait(WINDOW_MS // 10)
    assert said(bench) == []
