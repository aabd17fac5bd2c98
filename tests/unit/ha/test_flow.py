"""FlowMonitor: the rate of the last second, and the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.flow import FlowMonitor


def test_rate_is_that_of_the_last_whole_second() -> None:
    flow = FlowMonitor(0)
    flow.add(500, 10)
    assert flow.rate(999) == 0
    flow.add(700, 1000)
    assert flow.rate(1999) == 500
    assert flow.rate(2000) == 700
    assert flow.rate(5000) == 0
    assert flow.total == 1200
    assert flow.budget(5000) is None
    assert not flow.is_limited
    assert flow.wait_ms(1 << 40) == 0


def test_budget_is_spent_by_bodies_and_comes_back_with_time() -> None:
    flow = FlowMonitor(0, bytes_per_second_max=1000)
    assert flow.budget(0) == 1000
    flow.add(1500, 0)
    assert flow.budget(0) == 0
    assert flow.wait_ms(1) >= 500
    assert flow.budget(500) == 0
    assert flow.budget(800) == 300
    assert flow.budget(60_000) == 1000


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 900)), max_size=60))
def test_with_the_budget_respected_no_span_exceeds_the_limit(
    steps: list[tuple[int, int]],
) -> None:
    flow, now_ms, sent = FlowMonitor(0, bytes_per_second_max=1000), 0, 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        budget = flow.budget(now_ms)
        assert budget is not None
        size = min(size, budget)
        flow.add(size, now_ms)
        sent += size
        # One bucket at the start, and what the time since then earned.
        assert sent <= 1000 + now_ms


def test_another_limit_forgets_what_was_saved_up_and_the_same_one_does_not() -> None:
    flow = FlowMonitor(0, 1000)
    flow.limit(100, 5)
    assert flow.budget(5) == 100
    flow.add(60, 5)
    flow.limit(100, 5)
    assert flow.budget(5) == 40
