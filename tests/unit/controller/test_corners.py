"""The controller's answers where something is refused, repeated, too late or missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.controller_bench import GROUP, Bench, group
from twinlog.controller import events
from twinlog.controller.elect import elect_unclean
from twinlog.controller.events import DEFAULT_TIMING
from twinlog.controller.record import (
    GroupRecord,
    Policy,
    Replica,
    changed,
    next_broker_id,
)
from twinlog.controller.refusals import RefusalKind

ASYNC = Policy(broker_role="ASYNC_MASTER")
LEASE_WAIT = DEFAULT_TIMING.lease_wait_ms


def frozen_bench() -> Bench:
    bench = Bench(group({1, 2}))
    bench.beat(2, known_epoch=6)
    assert bench.core.groups[GROUP].frozen
    return bench


def busy_bench(record: GroupRecord | None = None) -> Bench:
    """A commit is on its way and its outcome not known."""
    bench = Bench(record or group({1, 2}))
    bench.answers_commits = False
    bench.tell(events.RegisterReplica("c", GROUP, Replica(broker_id=7), token="first"))
    assert not bench.core.groups[GROUP].is_settled
    return bench


def switching_bench(record: GroupRecord | None = None) -> Bench:
    """Replica 2 shall lead; the master has not drained yet."""
    bench = Bench(record or group({1, 2}))
    bench.beat(1)
    bench.beat(2)
    bench.tell(events.ElectMaster(GROUP, designate=2, token="switch"))
    assert bench.core.groups[GROUP].hand_over_to == 2
    return bench


class TestEvents:
    def test_of_an_unknown_group_nothing_is_changed(self) -> None:
        bench = Bench(group({1, 2}))
        asked = bench.ask(events.SetLearner("nowhere", 2, True, "drain"))
        assert asked.kind is RefusalKind.UNKNOWN_GROUP
        (silent,) = bench.core.handle(bench.now, events.CommitDone("nowhere", 1))
        assert isinstance(silent, events.Reply)
        assert silent.token is None

    def test_an_event_that_nobody_handles_is_a_bug(self) -> None:
        bench = Bench(group({1, 2}))
        unknown: Any = SimpleNamespace(group=GROUP)
        with pytest.raises(AssertionError):
            bench.core.handle(bench.now, unknown)


class TestRecord:
    def test_what_the_policy_promises(self) -> None:
        assert Policy(flush_disk_type="SYNC_FLUSH").is_durable
        assert not Policy().is_durable

    def test_a_member_that_leaves_is_not_admitted_any_more(self) -> None:
        before = changed(group({1, 2}), admitted={1: "i1", 2: "i2"})
        after = changed(before, sync_state_set=frozenset({1}))
        assert after.admitted == {1: "i1"}

    def test_ids_begin_with_one_and_go_on_behind_the_largest(self) -> None:
        assert next_broker_id(GroupRecord(cluster="c", group=GROUP)) == 1
        assert next_broker_id(group({1, 3})) == 4


class TestLease:
    def test_what_is_left_of_it_is_counted_from_the_last_grant(self) -> None:
        bench = Bench(group({1, 2}))
        state = bench.core.groups[GROUP]
        assert state.lease_left_ms(bench.now) == 0
        bench.beat(1)
        assert state.lease_left_ms(bench.now + 500) == DEFAULT_TIMING.lease_ms - 500
        assert state.lease_left_ms(bench.now + 60_000) == 0
        assert state.living(bench.now) == {1: "i1"}

    def test_a_group_that_answers_early_says_how_much_its_master_had_alone(self) -> None:
        bench = Bench(group({1, 2}, policy=ASYNC))
        bench.beat(1, end=900, confirmed=700)
        bench.beat(2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        bench.wait(LEASE_WAIT)
        bench.beat(2, link_ms=None)
        elected = next(said for said in bench.happened if said.kind == "elected")
        assert elected.details["unconfirmed_bytes"] == 200


def test_a_full_disk_is_no_reason_when_nobody_else_can_write() -> None:
    bench = Bench(group({1, 2}))
    for _ in range(12):
        bench.beat(1, is_writable=False)
        bench.beat(2, is_writable=False)
        bench.wait(400)
    assert bench.record.master_broker_id == 1


class TestUnclean:
    def test_without_anybody_alive_there_is_no_winner(self) -> None:
        assert elect_unclean([]).winner is None
        bench = Bench(group({1, 2}))
        bench.wait(LEASE_WAIT)
        typed = events.ElectMaster(GROUP, is_unclean=True, typed_group=GROUP, token="elect")
        assert bench.ask(typed).kind is RefusalKind.NOT_ALIVE


class TestSwitch:
    def test_nothing_is_switched_while_the_group_is_frozen_or_being_written(self) -> None:
        wish = events.ElectMaster(GROUP, designate=2, token="switch")
        assert frozen_bench().ask(wish).kind is RefusalKind.FROZEN
        assert busy_bench().ask(wish).kind is RefusalKind.BUSY

    def test_one_at_a_time(self) -> None:
        bench = switching_bench(group({1, 2, 3}))
        bench.beat(3)
        second = bench.ask(events.ElectMaster(GROUP, designate=3, token="second"))
        assert second.kind is RefusalKind.BUSY
        assert "replica 2 is under way" in second.error

    def test_a_wish_is_an_election_when_the_master_is_dead_and_its_lease_over(self) -> None:
        bench = Bench(group({1, 2, 3}, policy=ASYNC))
        bench.beat(1)
        bench.beat(2, link_ms=0, end=900)
        bench.beat(3, link_ms=0)
        bench.tell(events.ConnectionClosed(1))
        wish = events.ElectMaster(GROUP, designate=3, token="switch")
        assert "lease" in bench.ask(wish).error
        # The others still hear it, so that nobody is elected but by this wish.
        bench.now += LEASE_WAIT
        bench.beat(2, link_ms=0, end=900)
        bench.beat(3, link_ms=0)
        assert bench.record.master_epoch == 4
        assert not bench.ask(wish).error
        assert bench.record.master_broker_id == 3, "the one that was wished for, not the longest"

    def test_a_wish_waits_for_a_master_that_has_just_lost_its_connection(self) -> None:
        """It comes over its next one, and hands over: nobody elects without it meanwhile."""
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ConnectionClosed(1))
        wish = events.ElectMaster(GROUP, designate=2, token="switch")
        assert bench.ask(wish).kind is RefusalKind.BUSY
        bench.beat(1, connection=8)
        bench.tell(wish)
        assert bench.beat(1, connection=8).hand_over_to == 2

    def test_a_wish_to_a_controller_that_has_just_begun_waits_for_the_master(self) -> None:
        bench = Bench(group({1, 2}, replicas=2), age_ms=0)
        bench.beat(2)
        wish = events.ElectMaster(GROUP, designate=2, token="switch")
        assert bench.ask(wish).kind is RefusalKind.BUSY
        bench.beat(1)
        bench.tell(wish)
        assert bench.beat(1).hand_over_to == 2

    def test_a_wish_elects_nobody_by_a_record_that_may_be_old(self) -> None:
        """Replica 2 was away while 3 became the master, and knows no more than the backup."""
        bench = Bench(group({1, 2}), age_ms=0)
        bench.beat(2, known_epoch=4)
        wish = events.ElectMaster(GROUP, designate=2, token="switch")
        assert bench.ask(wish).kind is RefusalKind.BUSY
        bench.beat(3, known_epoch=7, last_epoch=7)
        assert bench.ask(wish).kind is RefusalKind.FROZEN
        assert bench.record.master_epoch == 4

    @pytest.mark.parametrize("members", [{1, 2}, {1, 2, 3}])
    def test_a_wish_that_cannot_be_met_is_answered_with_the_reason(self, members: set[int]) -> None:
        bench = Bench(group(members))
        for n in members:
            bench.beat(n, link_ms=0, is_writable=n != 2)
        bench.tell(events.ConnectionClosed(1))
        asked = bench.ask(events.ElectMaster(GROUP, designate=2, token="switch"))
        assert bench.record.master_epoch == 4, "no other one, either"
        assert asked.kind is RefusalKind.NOT_ELECTED
        assert asked.error == "replica 2 cannot write"

    def test_a_drained_master_goes_on_while_nothing_may_be_changed(self) -> None:
        bench = switching_bench()
        bench.beat(3, known_epoch=9)
        assert bench.beat(1).hand_over_to == 2
        bench.beat(1, drained_end=100)
        assert bench.record.master_broker_id == 1
        assert bench.core.groups[GROUP].hand_over_to == 2

    def test_it_is_cancelled_when_the_target_cannot_lead_any_more(self) -> None:
        bench = switching_bench()
        bench.beat(2, is_writable=False)
        assert bench.beat(1).hand_over_to == 2
        bench.beat(1, drained_end=100)
        assert "not a candidate any more" in bench.replies["switch"].error
        assert bench.record.master_broker_id == 1

    def test_it_is_cancelled_when_another_controller_has_elected(self) -> None:
        bench = switching_bench()
        bench.answers_commits = False
        bench.tell(events.RegisterReplica("c", GROUP, Replica(broker_id=7), token="register"))
        bench.stored = changed(bench.record, master_epoch=5, master_incarnation="later")
        bench.tell(events.CommitUnknown(GROUP, bench.commits[-1].version))
        assert "another controller elected" in bench.replies["switch"].error
        assert bench.replies["register"].error
        assert bench.record.master_epoch == 5


class TestReplicas:
    def test_who_registers_again_as_it_was_is_answered_at_once(self) -> None:
        bench = Bench(group({1, 2}))
        assert not bench.ask(
            events.RegisterReplica("c", GROUP, Replica(broker_id=2), token="again")
        ).error
        assert not bench.commits

    def test_nobody_registers_while_the_group_is_being_written(self) -> None:
        asked = events.RegisterReplica("c", GROUP, Replica(broker_id=8), token="second")
        assert busy_bench().ask(asked).kind is RefusalKind.BUSY

    def test_a_member_does_not_become_a_learner_by_registering(self) -> None:
        bench = Bench(group({1, 2}))
        learner = Replica(broker_id=2, learner=True)
        asked = bench.ask(events.RegisterReplica("c", GROUP, learner, token="learn"))
        assert "drain it first" in asked.error

    def test_a_drained_replica_may_come_back(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        assert not bench.ask(events.SetLearner(GROUP, 2, True, "drain")).error
        assert not bench.ask(events.SetLearner(GROUP, 2, False, "undrain")).error
        assert not bench.record.replicas[2].learner
        assert bench.kinds[-1] == "undrained"

    def test_one_that_is_not_registered_is_neither_drained_nor_removed(self) -> None:
        bench = Bench(group({1, 2}))
        drain, remove = events.SetLearner(GROUP, 9, True, "a"), events.RemoveReplica(GROUP, 9)
        for asked in (drain, remove):
            assert bench.ask(asked).kind is RefusalKind.NOT_REGISTERED


class TestAdopting:
    def test_it_is_refused_unless_it_is_meant_possible_and_needed(self) -> None:
        bench = Bench(group({1, 2}))
        assert "type the group's name" in bench.ask(events.Adopt(GROUP, "other", "adopt")).error
        assert "nothing is to be adopted" in bench.ask(events.Adopt(GROUP, GROUP, "adopt")).error
        assert busy_bench().ask(events.Adopt(GROUP, GROUP, "adopt")).kind is RefusalKind.BUSY

    def test_it_waits_for_the_members_of_the_newest_set(self) -> None:
        known = changed(group({1, 2}, replicas=3), sync_state_set_epoch=20)
        replicas = {n: Replica(broker_id=n) for n in (1, 2, 3)}
        empty = GroupRecord(
            cluster="c", group=GROUP, policy=Policy(total_replicas=1), replicas=replicas
        )
        bench = Bench(empty)
        bench.beat(3, known_epoch=4, stored=known)
        assert bench.record.master_epoch == 0
        assert bench.happened[-1].details["waiting_for"] == [1, 2]


class TestWriting:
    def test_what_is_said_of_another_version_changes_nothing(self) -> None:
        bench = busy_bench()
        version = bench.commits[-1].version
        for late in (events.CommitDone(GROUP, version - 1), events.CommitUnknown(GROUP, 99)):
            assert bench.core.handle(bench.now, late) == []
        assert not bench.core.groups[GROUP].is_settled

    def test_a_record_that_is_loaded_when_nothing_is_being_written_changes_nothing(self) -> None:
        bench = Bench(group({1, 2}))
        newer = changed(bench.record, master_epoch=9)
        assert bench.core.handle(bench.now, events.Loaded(GROUP, newer)) == []
        assert bench.record.master_epoch == 4

    def test_a_write_that_happened_after_all_is_answered(self) -> None:
        bench = busy_bench()
        bench.stored = bench.commits[-1]
        bench.tell(events.CommitUnknown(GROUP, bench.stored.version))
        assert not bench.replies["first"].error
        assert bench.record == bench.stored

    def test_a_store_that_has_nothing_is_written_again(self) -> None:
        bench = busy_bench()
        refused = bench.core.handle(bench.now, events.Loaded(GROUP, None))
        assert [type(effect).__name__ for effect in refused] == ["Reply", "Commit"]
        assert bench.record == group({1, 2})
