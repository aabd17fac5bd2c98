"""AckTable: acknowledgements per replica, and what k of them have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.acks import AckTable


def test_one_of_two_is_enough_and_both_have_the_smaller() -> None:
    table = AckTable()
    assert table.acked_by(1) is None
    table.join("a", 100, 0)
    table.join("b", 70, 0)
    assert table.acked_by(1) == 100
    assert table.acked_by(2) == 70
    assert table.acked_by(3) is None
    nearest = table.nearest(2)
    assert nearest is not None
    assert nearest.name == "b"


def test_a_replica_that_left_confirms_nothing() -> None:
    table = AckTable()
    table.join("a", 100, 0)
    table.join("b", 70, 0)
    table.leave("a")
    table.leave("a")
    assert table.acked_by(1) == 70
    last = table.nearest(1)
    assert last is not None
    assert last.name == "b"
    table.leave("b")
    assert table.acked_by(1) is None
    assert len(table) == 0


def test_an_ack_above_what_was_sent_is_a_bug_of_the_caller() -> None:
    table = AckTable()
    table.join("a", 100, 0)
    with pytest.raises(AssertionError):
        table.ack("a", 201, sent_offset=200, end_offset=300, now_ms=1)
    assert table.acked_by(1) == 100


def test_the_same_replica_twice_counts_once() -> None:
    table = AckTable()
    table.join("a", 100, 0)
    table.join("a", 90, 5)
    assert table.acked_by(2) is None
    assert table.acked_by(1) == 90


def test_a_second_connection_from_one_host_puts_the_first_in_doubt_until_it_acks_new_bytes() -> (
    None
):
    table = AckTable()
    table.join("h:1", 100, 0)
    table.doubt("h:1", sent_offset=150)
    assert table.acked_by(1) == 100
    table.join("h:2", 100, 5)
    assert table.acked_by(1) == 100
    assert table.acked_by(2) is None
    table.ack("h:1", 150, sent_offset=200, end_offset=200, now_ms=6)
    assert table.acked_by(2) is None
    table.ack("h:1", 151, sent_offset=200, end_offset=200, now_ms=7)
    assert table.acked_by(2) == 100
    table.doubt("gone", sent_offset=1)


def test_caught_up_time_is_when_it_last_had_everything() -> None:
    table = AckTable()
    replica = table.join("a", 100, 0)
    table.ack("a", 150, sent_offset=200, end_offset=200, now_ms=10)
    assert (replica.acked_ms, replica.caught_up_ms) == (10, 0)
    table.ack("a", 200, sent_offset=200, end_offset=200, now_ms=20)
    assert replica.caught_up_ms == 20


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 1000)), max_size=40))
def test_kth_offset_is_what_at_least_k_replicas_have(steps: list[tuple[str, int]]) -> None:
    table, model = AckTable(), dict[str, int]()
    for name, offset in steps:
        if offset % 7 == 0:
            table.leave(name)
            model.pop(name, None)
        elif name not in model:
            table.join(name, offset, 0)
            model[name] = offset
        else:
            table.ack(name, offset, sent_offset=1000, end_offset=1000, now_ms=0)
            model[name] = max(model[name], offset)
        for count in range(1, 5):
            acked = table.acked_by(count)
            if len(model) < count:
                assert acked is None
            else:
                assert acked is not None
                assert sum(value >= acked for value in model.values()) >= count
                assert sum(value > acked for value in model.values()) < count


def test_too_few_replicas_have_no_nearest_one_and_doubt_of_a_stranger_is_nothing() -> None:
    table = AckTable()
    table.join("a", 100, 0)
    table.doubt("b", sent_offset=500)
    assert table.nearest(2) is None
    assert [replica.name for replica in table.replicas] == ["a"]


def test_the_only_replica_is_the_nearest_unless_it_is_partial() -> None:
    table = AckTable()
    replica = table.join("a", 100, 0, start_offset=50)
    assert table.nearest(1) is None
    replica.is_partial = False
    assert table.nearest(1) is replica


def test_lag_counts_from_the_time_of_which_it_has_everything() -> None:
    """Under load nobody has all of this moment; who is 10 ms behind is not an hour behind."""
    table = AckTable()
    replica = table.join("a", 0, 0)
    for step in range(2, 1000):
        # Each acknowledgement is of what there was 10 ms ago; the log has grown since.
        now_ms, end = 10 * step, 100 * step
        table.ack("a", end - 100, sent_offset=end, end_offset=end, now_ms=now_ms)
        assert now_ms - replica.caught_up_ms <= 20  # Between two reports.
        assert replica.moved_ms == now_ms
    # It goes on reporting and acknowledges nothing new.
    table.ack("a", replica.ack_offset, sent_offset=end, end_offset=end, now_ms=now_ms + 5000)
    assert now_ms + 5000 - replica.caught_up_ms >= 5000
    assert replica.moved_ms == now_ms
    assert replica.acked_ms == now_ms + 5000


def test_silence_begins_when_there_is_something_to_acknowledge() -> None:
    table = AckTable()
    replica = table.join("a", 100, 0)
    table.ack("a", 100, sent_offset=100, end_offset=100, now_ms=0)
    # An hour without a message; then one.
    table.log_extended(100, 3_600_000)
    assert (replica.moved_ms, replica.caught_up_ms) == (3_600_000, 3_600_000)
    # The next one does not hide that the first is not acknowledged.
    table.log_extended(200, 3_601_000)
    assert (replica.moved_ms, replica.caught_up_ms) == (3_600_000, 3_600_000)
