"""What an operator is answered while a group is not as it should be."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support.controller_bench import GROUP, Bench, group
from twinlog.controller import events
from twinlog.controller.events import DEFAULT_TIMING, Reply
from twinlog.controller.record import Policy, changed
from twinlog.controller.refusals import RefusalKind

SWITCH = events.ElectMaster(GROUP, designate=2, token="switch")


def switching(*members: int, **fields: Any) -> Bench:
    bench = Bench(group(set(members), replicas=len(members)))
    bench.beat(1)
    for n in members[1:]:
        bench.beat(n, **fields)
    bench.tell(SWITCH)
    return bench


class TestSwitch:
    def test_one_whose_master_dies_ends_with_the_election(self) -> None:
        bench = switching(1, 2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert bench.record.master_broker_id == 2
        assert not bench.replies["switch"].error, "who was wanted is the master"

    def test_one_that_another_replica_wins_says_so(self) -> None:
        bench = switching(1, 2, 3, link_ms=None)
        bench.beat(3, end=200, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert bench.record.master_broker_id == 3
        assert "replica 3 was elected" in bench.replies["switch"].error
        assert "the connection of master 1 closed" in bench.replies["switch"].error

    def test_one_whose_master_is_not_heard_says_so(self) -> None:
        bench = switching(1, 2)
        bench.tell(events.ConnectionClosed(1))
        bench.beat(2, link_ms=0)
        bench.now += DEFAULT_TIMING.hand_over_ms
        bench.beat(2, link_ms=0)
        assert "master 1 is not heard any more" in bench.replies["switch"].error

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"end": 40}, "did not drain within a second: replica 2 is 60 bytes behind"),
            ({}, "master 1 did not drain within a second"),
        ],
    )
    def test_one_that_does_not_drain_names_who_is_late(
        self, fields: dict[str, Any], why: str
    ) -> None:
        bench = switching(1, 2, **fields)
        bench.wait(DEFAULT_TIMING.hand_over_ms)
        assert bench.replies["switch"].error.endswith(why)

    def test_one_that_does_not_drain_names_who_is_silent(self) -> None:
        bench = switching(1, 2)
        bench.tell(events.ConnectionClosed(2))
        bench.wait(DEFAULT_TIMING.hand_over_ms)
        assert "replica 2 sends no heartbeats" in bench.replies["switch"].error

    def test_another_controller_that_elects_meanwhile_ends_it(self) -> None:
        bench = switching(1, 2)
        bench.answers_commits = False
        bench.tell(events.SetLearner(GROUP, 2, True, "drain"))
        stored = group({1, 2}, replicas=2)
        bench.stored = changed(stored, master_epoch=5, master_broker_id=2, master_incarnation="i2")
        bench.tell(events.CommitUnknown(GROUP, 8))
        assert "another controller elected" in bench.replies["switch"].error


class TestElect:
    ask = events.ElectMaster(GROUP, token="elect")

    def asked(self, bench: Bench) -> Reply:
        return bench.ask(self.ask)

    def test_the_living_master_is_the_answer(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        assert not self.asked(bench).error

    def test_a_dead_one_is_none(self) -> None:
        bench = Bench(group({1}, replicas=2))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ConnectionClosed(1))
        reply = self.asked(bench)
        assert reply.kind is RefusalKind.NOT_ELECTED
        assert "nobody is elected" in reply.error
        bench.wait(DEFAULT_TIMING.silence_ms)
        assert "waiting for replica 1" in self.asked(bench).error

    def test_one_that_only_has_its_id_is_none(self) -> None:
        bench = Bench(group({1}, replicas=2))
        bench.beat(1, incarnation="again", is_writable=False)
        assert self.asked(bench).kind is RefusalKind.NOT_ELECTED

    def test_a_group_without_replicas_has_none(self) -> None:
        bench = Bench(group(set(), master=1, replicas=0))
        assert self.asked(bench).kind is RefusalKind.NOT_ELECTED

    def test_a_master_that_began_again_and_cannot_write_may_be_replaced_uncleanly(self) -> None:
        bench = Bench(group({1}, replicas=2), age_ms=DEFAULT_TIMING.lease_wait_ms)
        bench.beat(1, incarnation="again", is_writable=False)
        bench.beat(2)
        typed = events.ElectMaster(GROUP, 2, is_unclean=True, typed_group=GROUP, token="elect")
        assert not bench.ask(typed).error
        assert bench.record.master_broker_id == 2

    @pytest.mark.parametrize(
        ("wanted", "why"),
        [
            (1, "replica 1 sends no heartbeats"),
            (3, "replica 3 is a learner: undrain it first"),
            (4, "replica 4 sends no heartbeats"),
            (9, "replica 9 is not registered"),
        ],
    )
    def test_an_unclean_wish_that_cannot_be_met_elects_nobody(self, wanted: int, why: str) -> None:
        """It loses what the one that is taken lacks: another one may lack more."""
        record = group({1}, replicas=4)
        learner = replace(record.replicas[3], learner=True)
        record = changed(record, replicas={**record.replicas, 3: learner})
        bench = Bench(record, age_ms=DEFAULT_TIMING.lease_wait_ms)
        for n in (2, 3):
            bench.beat(n, end=40)
        typed = events.ElectMaster(GROUP, wanted, is_unclean=True, typed_group=GROUP, token="elect")
        reply = bench.ask(typed)
        assert why in reply.error
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (1, 4)

    def test_a_switch_to_one_that_cannot_write_does_not_begin(self) -> None:
        bench = switching(1, 2, is_writable=False)
        assert "replica 2 cannot write" in bench.replies["switch"].error
        assert "hand-over" not in bench.kinds, "no send is held for it"


class TestDrain:
    def test_what_is_so_already_is_no_change(self) -> None:
        """An event `undrained` of a member would say that it was no member before."""
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2)
        version = bench.record.version
        assert not bench.ask(events.SetLearner(GROUP, 2, False, "undrain")).error
        assert bench.record.version == version
        assert "undrained" not in bench.kinds
        for token in ("first", "again"):
            assert not bench.ask(events.SetLearner(GROUP, 2, True, token)).error
        assert bench.kinds.count("drained") == 1

    def test_it_is_refused_while_there_is_no_master(self) -> None:
        """It may be the only one that can be elected."""
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ConnectionClosed(1))
        refused = bench.ask(events.SetLearner(GROUP, 2, True, "drain"))
        assert refused.error.startswith("master 1 is not heard")
        assert bench.record.sync_state_set == {1, 2}
        assert not bench.ask(events.SetLearner(GROUP, 3, True, "other")).error, "not a member"
        bench.wait(DEFAULT_TIMING.close_grace_ms)
        bench.beat(2, link_ms=None)
        assert bench.record.master_broker_id == 2

    def test_a_master_that_is_gone_is_not_called_the_master(self) -> None:
        """One cannot switch to another one first when nobody leads."""
        bench = Bench(group({1}))
        bench.beat(1)
        bench.tell(events.ConnectionClosed(1))
        bench.wait(DEFAULT_TIMING.close_grace_ms)
        for ask in (
            events.SetLearner(GROUP, 1, True, "a"),
            events.RemoveReplica(GROUP, 1, False, "b"),
        ):
            assert bench.ask(ask).error.startswith("replica 1 was the master and is not heard")

    def test_it_is_refused_when_sends_would_be(self) -> None:
        bench = Bench(group({1, 2}, policy=Policy(min_in_sync_replicas=2)))
        bench.beat(1)
        bench.beat(2)
        drained = bench.ask(events.SetLearner(GROUP, 2, True, "drain"))
        assert drained.error.startswith("without replica 2 the set has 1 of minInSyncReplicas 2")
        assert bench.record.sync_state_set == {1, 2}
        assert not bench.ask(events.SetLearner(GROUP, 3, True, "drain")).error, "not a member"

    def test_it_is_not_refused_when_sends_are_refused_already(self) -> None:
        bench = Bench(group({1, 2}, policy=Policy(min_in_sync_replicas=3)))
        bench.beat(1)
        assert not bench.ask(events.SetLearner(GROUP, 2, True, "drain")).error


class TestRemove:
    def test_one_that_lives_is_not_forgotten_unless_that_is_meant(self) -> None:
        """It would register again at once, and be no learner any more."""
        bench = Bench(group({1}, replicas=2))
        bench.beat(1)
        bench.beat(2)
        assert not bench.ask(events.SetLearner(GROUP, 2, True, "drain")).error
        refused = bench.ask(events.RemoveReplica(GROUP, 2, token="remove"))
        assert refused.kind is RefusalKind.NOT_REMOVED
        assert "replica 2 is alive: stop it first" in refused.error
        meant = events.RemoveReplica(GROUP, 2, is_living=True, token="remove")
        assert not bench.ask(meant).error
        assert 2 not in bench.record.replicas

    def test_a_member_is_not_forgotten_while_there_is_no_master(self) -> None:
        """Whoever comes back with everything must still be known as the one that has it."""
        bench = Bench(group({1, 2}))
        refused = bench.ask(events.RemoveReplica(GROUP, 2, token="remove"))
        assert refused.error.startswith("master 1 is not heard")
        bench.beat(1)
        assert not bench.ask(events.RemoveReplica(GROUP, 2, token="remove")).error

    def test_its_id_says_nothing_of_the_store_that_has_it_next(self) -> None:
        record = changed(group({1}, replicas=2), former_set=frozenset({1, 2}))
        bench = Bench(record)
        assert not bench.ask(events.RemoveReplica(GROUP, 2, token="remove")).error
        assert bench.record.former_set == {1}


class TestFullDisk:
    def test_a_planned_switch_just_before_does_not_delay_the_one_that_is_needed(self) -> None:
        bench = switching(1, 2)
        assert bench.beat(1).hand_over_to == 2
        bench.beat(1, drained_end=100)
        assert bench.record.master_broker_id == 2
        bench.beat(1)
        bench.beat(2, is_writable=False)
        bench.now += DEFAULT_TIMING.unwritable_ms
        bench.beat(1)
        bench.beat(2, is_writable=False)
        assert bench.record.master_broker_id == 1
        assert bench.record.sync_state_set == {1}, "who cannot write cannot be waited for"

    def test_disks_that_fill_one_after_the_other_are_not_run_after(self) -> None:
        bench = Bench(group({1, 2, 3}))

        def fill(full: int, ms: int) -> None:
            for _ in range(ms // 1_000 + 1):
                for n in (1, 2, 3):
                    bench.beat(n, is_writable=n > full)
                bench.now += 1_000

        fill(1, DEFAULT_TIMING.unwritable_ms)
        assert bench.record.master_broker_id == 2
        fill(2, DEFAULT_TIMING.unwritable_ms)
        assert bench.record.master_broker_id == 2, "not so soon again"
        fill(2, DEFAULT_TIMING.switch_pause_ms)
        assert bench.record.master_broker_id == 3
