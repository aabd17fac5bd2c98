"""Who was in the set before the epoch, when all who are in it lost power."""

from __future__ import annotations

import pytest

from twinlog.controller.elect import Ballot, Standing, elect
from twinlog.controller.former import former_set, unless_former_have_more
from twinlog.controller.record import Election, GroupRecord, Replica, changed

RECORD = GroupRecord(
    cluster="c",
    group="g",
    master_epoch=5,
    master_broker_id=2,
    sync_state_set=frozenset({2}),
    former_set=frozenset({1, 2}),
    replicas={n: Replica(broker_id=n, address=f"10.0.0.{n}:1") for n in (1, 2, 3)},
)


def standing(
    n: int, last_epoch: int, end: int, *, is_complete: bool = False, is_alive: bool = True
) -> Standing:
    return Standing(n, f"{n}.1", last_epoch, end, 0, is_alive, is_complete, is_writable=True)


def ballot(record: GroupRecord, *standings: Standing) -> Ballot:
    known = {s.broker_id: s for s in standings}
    return unless_former_have_more(elect(record.sync_state_set, known), record, known)


def test_a_former_member_is_waited_for_while_nobody_has_the_beginning_of_the_epoch() -> None:
    mine = standing(2, 4, 10)
    assert ballot(RECORD, mine).waiting_for == (1,)
    assert ballot(RECORD, mine, standing(1, 4, 90, is_alive=False)).waiting_for == (1,)
    assert ballot(RECORD, standing(2, 5, 10)).winner == standing(2, 5, 10)


@pytest.mark.parametrize("is_complete", [True, False])
def test_with_all_of_them_here_the_longest_log_wins(is_complete: bool) -> None:
    its = standing(1, 4, 90, is_complete=is_complete)
    found = ballot(RECORD, standing(2, 4, 10), its)
    assert (found.winner, found.members) == (its, {1})
    assert found.election is Election.INCOMPLETE


def test_one_that_lost_nothing_is_enough() -> None:
    record = changed(RECORD, former_set=frozenset({1, 2, 3}))
    its = standing(1, 4, 90, is_complete=True)
    assert ballot(record, standing(2, 4, 10), its).winner == its
    assert ballot(record, standing(2, 4, 10), standing(1, 4, 90)).waiting_for == (3,)


def test_ids_that_are_gone_are_not_waited_for() -> None:
    mine = standing(2, 4, 10)
    again = {**RECORD.replicas, 4: Replica(broker_id=4, address="10.0.0.1:1")}
    assert ballot(changed(RECORD, replicas=again), mine).winner == mine
    without = {n: replica for n, replica in RECORD.replicas.items() if n != 1}
    assert ballot(changed(RECORD, replicas=without), mine).winner == mine


def test_epochs_that_left_nothing_in_the_log_do_not_count() -> None:
    assert former_set(RECORD, standing(2, 5, 10), Election.CLEAN) == {2}
    assert former_set(RECORD, standing(2, 4, 10), Election.CLEAN) == {1, 2}
    assert former_set(RECORD, standing(2, 4, 10), Election.INCOMPLETE) == frozenset()
