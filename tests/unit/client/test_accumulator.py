"""Batches leave when full or old, and keyed ones one after the other."""

from __future__ import annotations

import pytest

from twinlog.client.producer.accumulator import Accumulator, LaneKey
from twinlog.client.queues import MessageQueue

FREE = LaneKey("T", None, True)
QUEUE = MessageQueue("T", "b", 0)
KEYED = LaneKey("T", QUEUE, True)


def make(linger_ms: float = 10, size_max: int = 100, count_max: int = 3) -> Accumulator:
    return Accumulator(linger_ms=linger_ms, size_max=size_max, count_max=count_max)


def tickets(batches: list) -> list[list[object]]:  # type: ignore[type-arg]
    return [batch.tickets for batch in batches]


def test_a_batch_waits_for_its_linger_time() -> None:
    accumulator = make()
    assert not accumulator.add(FREE, b"x" * 10, 1, 0)
    assert accumulator.next_ready_ms() == 10
    assert accumulator.take_ready(9) == []
    assert not accumulator.is_empty
    assert tickets(accumulator.take_ready(10)) == [[1]]
    assert accumulator.is_empty
    assert accumulator.next_ready_ms() is None


def test_a_batch_leaves_when_it_has_its_count() -> None:
    accumulator = make()
    assert [accumulator.add(FREE, b"x", number, 0) for number in range(4)] == [
        False, False, True, False,
    ]  # fmt: skip
    assert accumulator.next_ready_ms() == 0
    assert tickets(accumulator.take_ready(0)) == [[0, 1, 2]]
    assert accumulator.size == 1


def test_a_batch_leaves_when_the_next_message_would_not_fit() -> None:
    accumulator = make(count_max=100)
    accumulator.add(FREE, b"x" * 60, 1, 0)
    assert accumulator.add(FREE, b"x" * 60, 2, 0)
    assert accumulator.add(FREE, b"x" * 100, 3, 0)
    assert tickets(accumulator.take_ready(0)) == [[1], [2], [3]]


def test_a_message_larger_than_a_batch_travels_alone() -> None:
    accumulator = make()
    assert accumulator.add(FREE, b"x" * 500, 1, 0)
    (batch,) = accumulator.take_ready(0)
    assert batch.size == 500


def test_wait_and_topic_separate_batches() -> None:
    accumulator = make()
    for key in (FREE, FREE._replace(wait_store_ok=False), FREE._replace(topic="U")):
        accumulator.add(key, b"x", key, 0)
    assert len(accumulator.take_ready(0, force=True)) == 3


def test_a_keyed_lane_has_one_batch_on_its_way() -> None:
    accumulator = make()
    for number in range(5):
        accumulator.add(KEYED, b"x", number, 0)
    (first,) = accumulator.take_ready(100)
    assert first.tickets == [0, 1, 2]
    assert accumulator.take_ready(100) == []
    assert accumulator.next_ready_ms() is None
    accumulator.finished(first)
    assert accumulator.next_ready_ms() == 10
    (second,) = accumulator.take_ready(100)
    assert second.tickets == [3, 4]
    accumulator.finished(second)
    assert accumulator.take_ready(100) == []
    assert accumulator.is_empty


def test_what_waits_behind_a_batch_is_due_at_once_when_it_is_done() -> None:
    accumulator = make(count_max=1)
    accumulator.add(KEYED, b"x", 1, 0)
    accumulator.add(KEYED, b"x", 2, 0)
    (first,) = accumulator.take_ready(0)
    assert accumulator.take_ready(100) == []
    accumulator.finished(first)
    assert accumulator.next_ready_ms() == 0


def test_a_single_message_keeps_its_place_among_the_others() -> None:
    accumulator = make()
    accumulator.add(KEYED, b"x", 1, 0)
    accumulator.add_single(KEYED, b"y", 2, 0)
    accumulator.add(KEYED, b"x", 3, 0)
    order = []
    for _ in range(3):
        (batch,) = accumulator.take_ready(100)
        order.append((batch.tickets, batch.is_single))
        accumulator.finished(batch)
    assert order == [([1], False), ([2], True), ([3], False)]


def test_a_single_message_without_key_leaves_at_once() -> None:
    accumulator = make()
    accumulator.add_single(FREE, b"y", 2, 0)
    assert tickets(accumulator.take_ready(0)) == [[2]]


def test_finishing_something_unknown_or_without_key_is_harmless() -> None:
    accumulator = make()
    accumulator.add(FREE, b"x", 1, 0)
    (batch,) = accumulator.take_ready(100)
    accumulator.finished(batch)
    accumulator.add(FREE, b"x", 2, 0)
    accumulator.finished(batch)
    assert tickets(accumulator.take_ready(100)) == [[2]]


@pytest.mark.parametrize(("linger_ms", "size_max", "count_max"), [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_limits_must_make_sense(linger_ms: float, size_max: int, count_max: int) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        make(linger_ms, size_max, count_max)
