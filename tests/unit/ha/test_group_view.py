"""R4 and R11: what a replica does when it learns more about its group."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole, StepKind

A = GroupState(3, 5, 1, "i1", "a:1", frozenset({1, 2}))


def view(own_id: int = 2, incarnation: str = "i2") -> GroupView:
    return GroupView(own_id, incarnation, GroupState(), 0)


def kinds(steps: list) -> list[StepKind]:
    return [step.kind for step in steps]


def test_an_epoch_is_stored_before_it_is_acted_on() -> None:
    replica = view()
    assert kinds(replica.learn(A)) == [StepKind.STORE, StepKind.FOLLOW]
    elected = replace(A, epoch=4, set_epoch=6, master_id=2, master_incarnation="i2")
    assert kinds(replica.learn(elected)) == [StepKind.STORE, StepKind.PROMOTE]
    assert replica.is_stale(3)
    assert not replica.is_stale(4)


def test_the_same_record_again_does_nothing() -> None:
    replica = view()
    replica.learn(A)
    assert replica.learn(A) == []
    assert kinds(replica.learn(replace(A, set_epoch=6))) == [StepKind.STORE]
    assert kinds(replica.learn(replace(A, set_epoch=7, master_ha_address="b:1"))) == [
        StepKind.STORE,
        StepKind.FOLLOW,
    ]


def test_a_process_that_started_again_is_not_the_master_that_it_was() -> None:
    replica = GroupView(1, "later", A, 3)
    assert replica.learn(A) == []
    assert replica.role is ReplicaRole.FENCED
    elected = replace(A, epoch=4, set_epoch=6, master_incarnation="later")
    assert kinds(replica.learn(elected)) == [StepKind.STORE, StepKind.PROMOTE]


def test_a_master_that_meets_a_newer_epoch_steps_down() -> None:
    replica = view(1, "i1")
    replica.learn(A)
    assert replica.role is ReplicaRole.MASTER
    assert replica.met(3) == []
    assert kinds(replica.met(5)) == [StepKind.STORE, StepKind.FENCE]
    assert replica.learn(replace(A, set_epoch=9)) == [], "of an epoch that is over"
    assert kinds(replica.learn(replace(A, epoch=5, set_epoch=9, master_id=2))) == [
        StepKind.STORE,
        StepKind.FOLLOW,
    ]


def test_the_master_takes_newer_sets_of_its_epoch() -> None:
    replica = view(1, "i1")
    replica.learn(A)
    smaller = replace(A, set_epoch=6, members=frozenset({1}))
    assert kinds(replica.learn(smaller)) == [StepKind.STORE, StepKind.SET_CHANGED]
    assert replica.learn(smaller) == [], "the same record again"
    assert replica.learn(A) == [], "an older one"


states = st.builds(
    lambda epoch, set_epoch: GroupState(
        epoch, epoch * 10 + set_epoch, 1 + epoch % 3, f"i{1 + epoch % 3}", "", frozenset({1, 2, 3})
    ),
    st.integers(0, 6),
    st.integers(0, 3),
)


@given(st.lists(st.one_of(states, st.integers(0, 7))), st.integers(1, 3))
def test_in_any_order_epochs_only_grow_and_one_leads_its_own_only(
    news: list[GroupState | int], own_id: int
) -> None:
    replica = view(own_id, f"i{own_id}")
    for item in news:
        before = replica.known_epoch
        steps = replica.met(item) if isinstance(item, int) else replica.learn(item)
        assert replica.known_epoch >= before
        assert not steps or steps[0].kind is StepKind.STORE
        if replica.role is ReplicaRole.MASTER:
            assert replica.state.master_id == own_id
            assert replica.known_epoch == replica.state.epoch


def test_within_an_epoch_there_is_one_master() -> None:
    replica = view()
    leading = replace(A, epoch=4, set_epoch=6, master_id=2, master_incarnation="i2")
    replica.learn(leading)
    assert replica.learn(replace(leading, set_epoch=7, master_id=3)) == []
    assert replica.role is ReplicaRole.MASTER
