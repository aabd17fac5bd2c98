"""Each rule of docs/FAILOVER.md that the pure cores decide, by its number and in one breath.

R9 and R10 are carried out by replication and store: `tests/unit/ha/test_twin.py`, `tests/sim`.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.controller_bench import GROUP, Bench, group
from twinlog.controller import events, membership
from twinlog.controller.core import Controller
from twinlog.controller.elect import Standing, elect
from twinlog.controller.membership import Proposal
from twinlog.controller.record import Election, GroupRecord, Policy, Replica, changed
from twinlog.ha.authority import Authority
from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole, StepKind

RECORD = GroupRecord(
    cluster="c",
    group="g",
    version=7,
    master_epoch=4,
    master_broker_id=1,
    master_incarnation="1.1",
    sync_state_set=frozenset({1, 2}),
    sync_state_set_epoch=9,
    replicas={n: Replica(broker_id=n) for n in (1, 2, 3)},
)


def leader(*members: int) -> Authority:
    authority = Authority(
        own_id=1,
        incarnation="1.1",
        epoch=4,
        epoch_start=10,
        members=frozenset(members),
        set_epoch=9,
    )
    authority.own_end(100)
    return authority


def standing(n: int, **fields: Any) -> Standing:
    given = {"last_epoch": 4, "end": 50, "priority": 0, "is_alive": True, "is_complete": True}
    return Standing(broker_id=n, incarnation=f"{n}.1", is_writable=True, **{**given, **fields})


def test_r1_confirmed_is_what_every_member_has() -> None:
    authority = leader(1, 2, 3)
    authority.connected(2, 20, "2.1", 100)
    assert authority.confirmed == 0
    authority.connected(3, 30, "3.1", 60)
    assert authority.confirmed == 60


def test_r2_a_proposed_set_counts_in_addition_until_its_outcome_is_known() -> None:
    authority = leader(1, 2)
    authority.connected(2, 20, "2.1", 50)
    authority.shrink(2)
    assert (authority.required, authority.confirmed) == ({2}, 50)
    authority.rejected(9)
    again = authority.proposal()
    assert again is not None
    assert (again.set_epoch, again.members) == (9, {1, 2}), "withdrawn by committing it again"


def test_r3_the_process_that_was_checked_is_admitted_and_no_other() -> None:
    asked = Proposal(1, "1.1", 4, 9, frozenset({1, 2, 3}), {3: "3.1"})
    assert not membership.refusal(RECORD, asked, {1: "1.1", 3: "3.1"}).text
    assert membership.refusal(RECORD, asked, {1: "1.1", 3: "3.2"}).text


def test_r4_an_epoch_is_stored_before_it_is_acted_on_and_older_ones_are_refused() -> None:
    view = GroupView(2, "2.1", GroupState(), 0)
    steps = view.learn(GroupState(epoch=4, set_epoch=9, master_id=1, members=frozenset({1, 2})))
    assert [step.kind for step in steps] == [StepKind.STORE, StepKind.FOLLOW]
    assert view.is_stale(3)


def test_r4_a_slave_goes_on_without_a_controller_by_what_it_stored_and_a_master_does_not() -> None:
    known = GroupState(epoch=4, set_epoch=9, master_id=1, members=frozenset({1, 2}))
    slave = GroupView(2, "2.2", known, 4)
    assert slave.role is ReplicaRole.FENCED
    assert slave.go_on()
    assert slave.role is ReplicaRole.SLAVE
    assert not slave.go_on(), "once"
    assert slave.is_stale(3)
    assert not GroupView(1, "1.2", known, 4).go_on(), "a master is elected anew or not at all"
    assert not GroupView(2, "2.2", known, 5).go_on(), "who leads the epoch it met is not known"
    assert not GroupView(2, "2.2", GroupState(), 0).go_on()


def test_r4_a_master_that_meets_a_newer_epoch_demotes_itself() -> None:
    view = GroupView(1, "1.1", GroupState(), 0)
    members = frozenset({1, 2})
    view.learn(GroupState(4, 9, master_id=1, master_incarnation="1.1", members=members))
    assert view.role is ReplicaRole.MASTER
    assert StepKind.FENCE in [step.kind for step in view.met(5)]


def test_r5_early_answers_need_a_lease_when_they_leave() -> None:
    authority = leader(1, 2)
    assert not authority.may_answer_early(0)
    authority.granted(1_000, 2_000, 4, "1.1")
    assert authority.may_answer_early(2_999)
    assert not authority.may_answer_early(3_000)


def test_r6_an_election_waits_for_the_lease_where_answers_leave_early() -> None:
    for role, waits in (("SYNC_MASTER", False), ("ASYNC_MASTER", True)):
        record = changed(RECORD, policy=Policy(broker_role=role))
        core = Controller([record], 0)
        for n in (1, 2):
            core.handle(3_000, beat(n))
        core.handle(3_000, events.ConnectionClosed(1))
        core.handle(4_000, beat(2, link_ms=None))
        commits = core.handle(4_000, events.Tick())
        assert bool(core.groups["g"].is_settled and not commits) == waits


def test_r7_the_longest_log_of_the_newest_epoch_among_living_members_wins() -> None:
    standings = {
        1: standing(1, is_alive=False, end=99),
        2: standing(2, end=50),
        3: standing(3, last_epoch=5, end=20),
        4: standing(4, last_epoch=9, end=99),
    }
    ballot = elect({1, 2, 3}, standings)
    assert ballot.winner is standings[3]
    assert ballot.members == {2, 3}


def test_r8_who_is_in_doubt_is_elected_only_when_all_are() -> None:
    standings = {1: standing(1, is_complete=False, end=99), 2: standing(2)}
    assert elect({1, 2}, standings).winner is standings[2]
    standings[2] = standing(2, is_complete=False)
    ballot = elect({1, 2}, standings)
    assert (ballot.winner, ballot.election) == (standings[1], Election.INCOMPLETE)
    assert elect({1, 2, 3}, standings).winner is None
    standings[3] = standing(3, is_complete=False, last_epoch=3, end=99)
    assert elect({1, 2}, standings).winner is standings[1]
    standings[3] = standing(3, end=100)
    ballot = elect({1, 2}, standings)
    assert (ballot.winner, ballot.election) == (standings[3], Election.INCOMPLETE), "it has more"


def test_r8_a_member_that_begins_without_what_was_confirmed_is_in_doubt() -> None:
    """An older copy of its store, or a disk that lost the end of the log, took its place."""
    bench = Bench(group({1, 2}))
    bench.beat(2, end=900)
    bench.beat(1, end=1_000, confirmed=900)
    bench.tell(events.ConnectionClosed(2))
    bench.tell(events.ConnectionClosed(1))
    bench.beat(2, end=800, connection=12, incarnation="copy", link_ms=None)
    bench.wait(60_000)
    bench.beat(2, end=800, connection=12, incarnation="copy", link_ms=None)
    assert "elected" not in bench.kinds
    removed = next(said for said in bench.happened if said.kind == "removed")
    assert removed.details["reason"].startswith("it began 100 bytes before what the group had")
    bench.beat(1, end=1_000, connection=11, incarnation="again", confirmed=900)
    assert bench.record.master_broker_id == 1
    assert bench.record.sync_state_set == {1}


@pytest.mark.parametrize("is_controller_first", [True, False])
def test_r8_an_older_copy_is_in_doubt_after_a_restart_of_the_controller(
    is_controller_first: bool,
) -> None:
    """Of the master's store, while the other member is away: the controller forgot what had been
    confirmed and elected it. It starts again in between, too."""
    bench = Bench(group({1, 2}))
    bench.beat(2, end=900)
    bench.beat(1, end=1_000, confirmed=900)
    bench.tell(events.ConnectionClosed(2))
    bench.tell(events.ConnectionClosed(1))
    bench.wait(60_000)
    if is_controller_first:
        bench.restart()
    for process in ("copy", "copy again"):
        bench.beat(1, end=800, connection=bench.now, incarnation=process, link_ms=None)
        bench.wait(60_000)
        bench.restart()
        bench.beat(1, end=800, connection=bench.now, incarnation=process, link_ms=None)
        bench.wait(60_000)
        bench.beat(1, end=800, connection=bench.now, incarnation=process, link_ms=None)
    assert "elected" not in bench.kinds
    bench.beat(2, end=900, connection=bench.now, incarnation="again", link_ms=None)
    assert bench.record.master_broker_id == 2
    assert bench.record.election is Election.CLEAN
    assert bench.record.sync_state_set == {2}


def test_r8_a_controller_that_restarts_doubts_nobody_who_has_what_was_confirmed() -> None:
    """Also when words of before come after newer ones of the master."""
    bench = Bench(group({1, 2}))
    bench.beat(2, end=900)
    bench.beat(1, end=1_000, confirmed=900)
    bench.tell(events.RegisterReplica("c", GROUP, Replica(broker_id=3, address="here")))
    assert bench.stored.confirmed == 900
    bench.restart()
    bench.beat(1, end=1_000, confirmed=950)
    bench.beat(2, end=900)
    assert bench.record.sync_state_set == {1, 2}


@pytest.mark.parametrize("end", [900, 950])
def test_r8_a_member_that_begins_with_what_was_confirmed_is_elected(end: int) -> None:
    """Also when more than that was known of it: the rest may be cut when it rejoins."""
    bench = Bench(group({1, 2}))
    bench.beat(2, end=980)
    bench.beat(1, end=1_000, confirmed=900)
    bench.tell(events.ConnectionClosed(2))
    bench.tell(events.ConnectionClosed(1))
    bench.beat(2, end=end, connection=12, incarnation="again", link_ms=None)
    bench.wait(500)
    bench.beat(2, end=end, connection=12, incarnation="again", link_ms=None)
    assert bench.record.master_broker_id == 2


def test_r8_after_an_unclean_election_what_was_confirmed_before_is_lost() -> None:
    bench = Bench(group({1, 2}))
    bench.beat(2, end=1_000)
    bench.beat(3, end=500)
    bench.beat(1, end=1_000, confirmed=1_000)
    for n in (1, 2):
        bench.tell(events.ConnectionClosed(n))
    bench.wait(60_000)
    bench.beat(3, end=500)
    bench.tell(events.ElectMaster(GROUP, 3, is_unclean=True, typed_group=GROUP))
    assert bench.record.master_broker_id == 3
    bench.beat(3, end=600, connection=13, incarnation="again")
    bench.wait(500)
    assert bench.record.master_incarnation == "again"
    assert bench.record.election is Election.CLEAN


def test_r8_doubt_ends_with_the_admission_of_any_process_since_the_power_loss() -> None:
    """One that ended before it heard of its admission has what it had all the same."""
    for processes, members in ((("2.0", "2.1"), {1, 2}), (("2.1",), {1})):
        core = Controller([changed(RECORD, admitted={2: "2.0"})], 0)
        core.handle(1, beat(1))
        effects = core.handle(2, beat(2, is_complete=False, processes=processes))
        written = [effect.record for effect in effects if isinstance(effect, events.Commit)]
        assert (written or [RECORD])[-1].sync_state_set == members
        replies = [effect for effect in effects if isinstance(effect, events.Reply)]
        assert replies[-1].is_admitted == (2 in members)


def test_r11_the_controllers_answer_counts_and_nothing_else() -> None:
    view = GroupView(2, "2.1", GroupState(), 0)
    view.met(5)
    assert view.role is ReplicaRole.FENCED
    assert view.learn(GroupState(epoch=4, set_epoch=9, master_id=1)) == []


def test_r12_a_record_that_is_older_than_the_group_decides_nothing() -> None:
    core = Controller([RECORD], 0)
    core.handle(3_000, beat(2, known_epoch=6))
    assert "epoch 6" in core.groups["g"].frozen
    assert core.handle(90_000, events.Tick()) == []


def beat(n: int, **fields: Any) -> events.Heartbeat:
    given: dict[str, Any] = {"known_epoch": 4, "last_epoch": 4, "end": 50, "link_ms": 0}
    return events.Heartbeat(
        group="g", broker_id=n, connection=n, incarnation=f"{n}.1", **{**given, **fields}
    )
