"""A reply leaves when its promise holds, or at its deadline with the status that says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.broker.put.durability import Demand, DurabilityQueue
from twinlog.store.status import PutMessageStatus

BOTH = Demand.FLUSH | Demand.REPLICATE
OK = PutMessageStatus.PUT_OK


def queue_with(*entries: tuple[Demand, int]) -> DurabilityQueue[str]:
    queue: DurabilityQueue[str] = DurabilityQueue()
    for number, (demand, end) in enumerate(entries):
        queue.add(demand, end, f"r{number}", flush_deadline_ms=5000, slave_deadline_ms=3000)
    return queue


@pytest.mark.parametrize(
    ("demand", "flushed", "confirmed", "is_released"),
    [
        (Demand.FLUSH, 100, 0, True),
        (Demand.FLUSH, 99, 1000, False),
        (Demand.REPLICATE, 0, 100, True),
        (Demand.REPLICATE, 1000, 99, False),
        (BOTH, 100, 100, True),
        (BOTH, 100, 99, False),
        (BOTH, 99, 100, False),
    ],
)
def test_reply_waits_for_the_watermarks_of_its_mode(
    demand: Demand, flushed: int, confirmed: int, is_released: bool
) -> None:
    queue = queue_with((demand, 100))
    assert queue.advance(flushed, confirmed) == ([("r0", OK, 100)] if is_released else [])
    assert len(queue) == (0 if is_released else 1)


def test_replies_of_one_mode_leave_in_log_order() -> None:
    queue = queue_with((Demand.FLUSH, 10), (Demand.FLUSH, 20), (Demand.FLUSH, 30))
    assert [reply for reply, _, _ in queue.advance(20, 0)] == ["r0", "r1"]
    assert [reply for reply, _, _ in queue.advance(30, 0)] == ["r2"]


def test_a_repeat_of_an_old_record_waits_for_its_own_marks_and_no_newer_ones() -> None:
    queue = queue_with((Demand.REPLICATE, 100), (Demand.REPLICATE, 300), (Demand.REPLICATE, 200))
    queue.add(Demand.REPLICATE, 100, "again", flush_deadline_ms=5000, slave_deadline_ms=4000)
    assert len(queue) == 4
    assert [reply for reply, _, _ in queue.advance(0, 99)] == []
    assert [reply for reply, _, _ in queue.advance(0, 200)] == ["r0", "again", "r2"]
    assert [reply for reply, _, _ in queue.advance(0, 300)] == ["r1"]
    assert len(queue) == 0


def test_repeats_run_out_of_time_by_their_own_deadlines() -> None:
    queue = queue_with((BOTH, 300))
    queue.add(BOTH, 100, "again", flush_deadline_ms=9000, slave_deadline_ms=7000)
    slow = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert queue.expire(3000, 0, 0) == [("r0", slow, 300)]
    assert queue.expire(6999, 0, 0) == []
    assert queue.expire(7000, 0, 0) == [("again", slow, 100)]
    assert len(queue) == 0


def test_weaker_mode_is_not_held_up_by_a_stronger_one_before_it() -> None:
    queue = queue_with((BOTH, 10), (Demand.FLUSH, 20))
    assert [reply for reply, _, _ in queue.advance(20, 0)] == ["r1"]


@pytest.mark.parametrize(
    ("demand", "now", "flushed", "confirmed", "status"),
    [
        (Demand.FLUSH, 4999, 0, 0, None),
        (Demand.FLUSH, 5000, 0, 0, PutMessageStatus.FLUSH_DISK_TIMEOUT),
        (Demand.REPLICATE, 2999, 0, 0, None),
        (Demand.REPLICATE, 3000, 0, 0, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, 3000, 0, 0, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, 3000, 0, 100, None),
        (BOTH, 5000, 0, 100, PutMessageStatus.FLUSH_DISK_TIMEOUT),
        (BOTH, 5000, 0, 0, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
        (BOTH, 9999, 100, 100, OK),
    ],
)
def test_deadline_gives_the_status_of_what_was_missing(
    demand: Demand, now: int, flushed: int, confirmed: int, status: PutMessageStatus | None
) -> None:
    queue = queue_with((demand, 100))
    assert queue.expire(now, flushed, confirmed) == (
        [] if status is None else [("r0", status, 100)]
    )


def test_stop_empties_the_queue() -> None:
    queue = queue_with((Demand.FLUSH, 10), (BOTH, 20), (BOTH, 10))
    assert sorted(queue.fail_all()) == ["r0", "r1", "r2"]
    assert len(queue) == 0


def test_what_waits_for_slaves_is_taken_out_alone() -> None:
    queue = queue_with((Demand.FLUSH, 10), (BOTH, 20), (BOTH, 10), (Demand.REPLICATE, 15))
    assert sorted(queue.fail_replicated()) == ["r1", "r2", "r3"]
    assert len(queue) == 1
    assert [reply for reply, _, _ in queue.advance(10, 0)] == ["r0"]


@given(
    st.lists(
        st.tuples(st.sampled_from([Demand.FLUSH, Demand.REPLICATE, BOTH]), st.integers(1, 40)),
        max_size=30,
    ),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=30),
)
def test_every_reply_is_decided_once_and_never_early(
    demands: list[tuple[Demand, int]], steps: list[tuple[int, int, bool]]
) -> None:
    queue = queue_with(*demands)
    seen: list[str] = []
    flushed = confirmed = 0
    for flush_step, confirm_step, is_late in steps:
        flushed, confirmed = max(flushed, flush_step), max(confirmed, confirm_step)
        decided = (
            queue.expire(10_000, flushed, confirmed)
            if is_late
            else queue.advance(flushed, confirmed)
        )
        for reply, status, end in decided:
            demand, asked = demands[int(reply[1:])]
            assert asked == end
            if status is OK:
                assert not demand & Demand.FLUSH or flushed >= end
                assert not demand & Demand.REPLICATE or confirmed >= end
            seen.append(reply)
    assert len(seen) == len(set(seen))
    assert len(seen) + len(queue) == len(demands)
