"""The offset to commit is the lowest one not finished, whatever the order of finishing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.client.consumer.process_queue import ProcessQueue


@dataclass(frozen=True)
class Item:
    queue_offset: int
    body_size: int = 10


def filled(start: int, count: int) -> ProcessQueue:
    queue = ProcessQueue(start)
    queue.add(Item(start + index) for index in range(count))
    return queue


def test_a_new_queue_commits_its_start() -> None:
    queue = ProcessQueue(7)
    assert (queue.commit_offset, queue.count, queue.size, queue.span) == (7, 0, 0, 0)


def test_finishing_out_of_order_holds_the_offset_back() -> None:
    queue = filled(100, 4)
    assert queue.finish(102) == 100
    assert queue.finish(101) == 100
    assert queue.finish(100) == 103
    assert queue.finish(103) == 104
    assert (queue.count, queue.size) == (0, 0)


def test_finishing_twice_or_something_unknown_changes_nothing() -> None:
    queue = filled(0, 2)
    queue.finish(0)
    assert queue.finish(0) == 1
    assert queue.finish(55) == 1
    assert queue.count == 1


def test_skipping_moves_the_commit_offset_of_an_empty_queue_only() -> None:
    queue = filled(0, 1)
    queue.skip_to(50)
    assert queue.commit_offset == 0
    queue.finish(0)
    assert (queue.commit_offset, queue.end_offset) == (50, 50)
    queue.skip_to(10)
    assert queue.commit_offset == 50


def test_offsets_that_go_back_are_a_bug() -> None:
    queue = filled(10, 3)
    with pytest.raises(AssertionError):
        queue.add([Item(11)])


def test_flow_control_by_count_size_and_span() -> None:
    queue = filled(0, 3)
    roomy = {"count_max": 10, "size_max": 1000, "span_max": 100}
    assert not queue.is_full(**roomy)
    assert queue.is_full(**{**roomy, "count_max": 3})
    assert queue.is_full(**{**roomy, "size_max": 30})
    assert queue.is_full(**{**roomy, "span_max": 1})


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_commit_offset_is_always_the_lowest_unfinished(order: list[int], gaps: set[int]) -> None:
    offsets = [offset for offset in range(12) if offset not in gaps]
    queue = ProcessQueue(0)
    queue.add(Item(offset) for offset in offsets)
    left = set(offsets)
    before = queue.commit_offset
    for offset in order:
        if offset not in left:
            continue
        left.discard(offset)
        committed = queue.finish(offset)
        assert committed == (min(left) if left else max(offsets) + 1)
        assert committed >= before
        before = committed
