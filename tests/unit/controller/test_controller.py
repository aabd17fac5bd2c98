"""The controller's rules, one by one; `tests/sim/test_rules_together.py` has them all together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.controller_bench import GROUP, Bench, group
from twinlog.controller import events
from twinlog.controller.core import GROUPS_MAX
from twinlog.controller.events import DEFAULT_TIMING, Reply
from twinlog.controller.group import REPLICAS_MAX
from twinlog.controller.membership import Proposal
from twinlog.controller.record import Election, GroupRecord, Policy, Replica, changed
from twinlog.controller.refusals import RefusalKind

ASYNC = Policy(broker_role="ASYNC_MASTER", total_replicas=2)
LEASE_WAIT = DEFAULT_TIMING.lease_wait_ms
SILENCE = DEFAULT_TIMING.silence_ms


def proposal(record: GroupRecord, wanted: set[int], **fields: Any) -> Proposal:
    given: dict[str, Any] = {
        "broker_id": 1, "incarnation": "i1", "master_epoch": record.master_epoch,
        "set_epoch": record.sync_state_set_epoch, "members": frozenset(wanted),
        "incarnations": {n: f"i{n}" for n in wanted},
    }  # fmt: skip
    return Proposal(**{**given, **fields})


class TestElection:
    """R7."""

    def test_the_longest_living_member_of_the_newest_epoch_wins(self) -> None:
        bench = Bench(group({1, 2, 3}))
        bench.beat(1)
        bench.beat(2, last_epoch=3, end=900, link_ms=None)
        bench.beat(3, last_epoch=4, end=100, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (3, 5)
        assert bench.record.sync_state_set == {2, 3}, "its living members stay"
        assert bench.record.sync_state_set_epoch == 10

    def test_nobody_outside_of_the_set_is_elected(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(3, end=10_000, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        bench.wait(60_000)
        bench.beat(3, end=10_000, link_ms=None)
        assert bench.record.master_epoch == 4
        assert bench.happened[-1].details["waiting_for"] == [1, 2]

    def test_a_master_that_started_again_is_elected_anew(self) -> None:
        bench = Bench(group({1}))
        bench.beat(1)
        reply = bench.beat(1, incarnation="later", connection=50)
        assert bench.record.master_incarnation == "later"
        assert bench.record.master_epoch == 5
        assert reply.lease_ms == 0 or reply.record is not None

    def test_lengths_beyond_32_bits_are_compared(self) -> None:
        bench = Bench(group({1, 2, 3}))
        bench.beat(1)
        bench.beat(2, end=2**40, link_ms=None)
        bench.beat(3, end=2**40 + 2**33, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert bench.record.master_broker_id == 3

    def test_a_closed_connection_has_a_grace_unless_all_members_lost_their_link(self) -> None:
        bench = Bench(group({1, 2, 3}))
        for n in (1, 2, 3):
            bench.beat(n, link_ms=0)
        bench.tell(events.ConnectionClosed(1))
        bench.wait(DEFAULT_TIMING.close_grace_ms + 1)
        assert bench.record.master_epoch == 4, "the members still hear it"
        bench.beat(2, link_ms=None)
        assert bench.record.master_epoch == 4, "one of them does"
        bench.beat(3, link_ms=None)
        assert bench.record.master_epoch == 5

    def test_a_master_that_its_slaves_hear_is_given_ten_seconds(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        for _ in range(20):
            bench.wait(400)
            bench.beat(2, link_ms=10)
        assert bench.record.master_epoch == 4
        for _ in range(10):
            bench.wait(400)
            bench.beat(2, link_ms=10)
        assert bench.record.master_epoch == 5

    def test_a_full_disk_is_a_reason_to_switch_but_not_back_and_forth(self) -> None:
        bench = Bench(group({1, 2}))
        for _ in range(12):
            bench.beat(1, is_writable=False)
            bench.beat(2)
            bench.wait(400)
        assert bench.record.master_broker_id == 2
        for _ in range(12):
            bench.beat(2, is_writable=False)
            bench.beat(1)
            bench.wait(400)
        assert bench.record.master_broker_id == 2


class TestLease:
    """R6: what a deposed master may still believe is waited for."""

    def test_an_async_group_waits_from_the_last_grant(self) -> None:
        bench = Bench(group({1, 2}, policy=ASYNC))
        bench.wait(LEASE_WAIT)
        assert bench.beat(1).lease_ms == DEFAULT_TIMING.lease_ms
        bench.beat(2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        bench.wait(LEASE_WAIT - 1)
        bench.beat(2, link_ms=None)
        assert bench.record.master_epoch == 4
        bench.wait(1)
        assert bench.record.master_epoch == 5

    def test_a_controller_that_begins_counts_from_then(self) -> None:
        bench = Bench(group({1, 2}, policy=ASYNC), age_ms=0)
        bench.beat(2, link_ms=None)
        bench.beat(1, incarnation="later", connection=9)
        bench.wait(LEASE_WAIT - 1)
        bench.beat(2, link_ms=None)
        assert bench.record.master_epoch == 4
        bench.wait(1)
        assert bench.record.master_epoch == 5

    def test_a_sync_group_does_not_wait(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert bench.record.master_epoch == 5

    def test_no_lease_while_an_election_is_being_written(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.answers_commits = False
        bench.beat(2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        assert bench.commits[-1].master_broker_id == 2
        assert bench.beat(1, connection=20).lease_ms == 0

    def test_a_write_of_unknown_outcome_is_fenced_before_anything_else_is_granted(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.answers_commits = False
        bench.beat(2, link_ms=None)
        bench.tell(events.ConnectionClosed(1))
        lost = bench.commits[-1]
        bench.tell(events.CommitUnknown(GROUP, lost.version))
        fence = bench.commits[-1]
        assert (fence.version, fence.master_epoch) == (lost.version, 4), "the late copy is stale"
        assert bench.beat(1, connection=20).lease_ms == 0
        bench.tell(events.CommitDone(GROUP, fence.version))
        assert bench.beat(1, connection=20).lease_ms == DEFAULT_TIMING.lease_ms


class TestSet:
    """R2 and R3."""

    def test_a_member_is_admitted_in_the_incarnation_that_was_checked(self) -> None:
        bench = Bench(group({1}))
        bench.beat(1)
        bench.beat(2)
        reply = bench.ask(events.AlterSyncStateSet(GROUP, proposal(bench.record, {1, 2}), "alter"))
        assert not reply.error
        assert bench.record.sync_state_set == {1, 2}
        assert bench.record.admitted[2] == "i2"
        assert bench.beat(2).is_admitted

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"master_epoch": 3}, "epoch 3"),
            ({"set_epoch": 8}, "sync-state set epoch 8"),
            ({"broker_id": 2, "incarnation": "i2"}, "not the master"),
            ({"incarnation": "earlier"}, "not the master"),
            ({"members": frozenset({2})}, "not in its own"),
            ({"members": frozenset({1, 9})}, "not registered"),
            ({"incarnations": {2: "earlier"}}, "started again"),
            ({"members": frozenset({1, 3}), "incarnations": {3: "i3"}}, "no heartbeats"),
        ],
    )
    def test_what_is_stale_or_unknown_is_refused(self, fields: Any, error: str) -> None:
        bench = Bench(group({1}))
        bench.beat(1)
        bench.beat(2)
        asked = proposal(bench.record, {1, 2}, **fields)
        assert error in bench.ask(events.AlterSyncStateSet(GROUP, asked, "alter")).error
        assert bench.record == bench.stored == group({1})

    def test_the_present_set_makes_earlier_proposals_stale(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        late = proposal(bench.record, {1})
        withdrawn = proposal(bench.record, {1, 2})
        assert not bench.ask(events.AlterSyncStateSet(GROUP, withdrawn, "alter")).error
        assert bench.ask(events.AlterSyncStateSet(GROUP, late, "late")).error
        assert bench.record.sync_state_set == {1, 2}

    def test_learners_are_not_admitted(self) -> None:
        record = group({1})
        learner = Replica(broker_id=2, learner=True)
        bench = Bench(changed(record, replicas={**record.replicas, 2: learner}))
        bench.beat(1)
        bench.beat(2)
        asked = proposal(bench.record, {1, 2})
        assert "learners" in bench.ask(events.AlterSyncStateSet(GROUP, asked, "alter")).error


class TestDoubt:
    """R8."""

    def test_a_member_in_doubt_leaves_the_set(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2, incarnation="later", connection=9, is_complete=False)
        assert bench.record.sync_state_set == {1}

    def test_it_leaves_too_while_the_others_are_silent(self) -> None:
        bench = Bench(group({1, 2}), age_ms=0)
        bench.beat(2, incarnation="later", connection=9, is_complete=False)
        assert bench.record.sync_state_set == {1}, "who is silent is not in doubt"

    def test_it_is_whole_again_once_admitted(self) -> None:
        bench = Bench(group({1}))
        bench.beat(1)
        bench.beat(2, is_complete=False)
        bench.ask(events.AlterSyncStateSet(GROUP, proposal(bench.record, {1, 2}), "alter"))
        bench.beat(2, is_complete=False)
        assert bench.record.sync_state_set == {1, 2}

    def test_a_master_in_doubt_is_not_elected_again(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(2)
        bench.beat(1, incarnation="later", connection=9, is_complete=False, end=10_000)
        assert bench.record.master_broker_id == 2

    def test_all_in_doubt_waits_for_all_and_says_so(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1, incarnation="x", connection=8, is_complete=False, end=50)
        bench.wait(60_000)
        assert bench.record.master_epoch == 4
        bench.beat(1, incarnation="x", connection=8, is_complete=False, end=50)
        bench.beat(2, incarnation="y", connection=9, is_complete=False, end=60)
        assert bench.record.master_broker_id == 2
        assert bench.record.election is Election.INCOMPLETE
        assert bench.kinds[-1] == "incomplete-elected"


def test_an_older_record_freezes_the_group() -> None:
    """R12: a backup of the controller's state must decide nothing."""
    bench = Bench(group({1, 2}))
    bench.beat(1)
    reply = bench.beat(2, known_epoch=6, link_ms=None)
    assert "epoch 6" in reply.frozen
    assert bench.beat(1).lease_ms == 0
    bench.tell(events.ConnectionClosed(1))
    bench.wait(60_000)
    bench.beat(2, known_epoch=6, link_ms=None)
    assert bench.record.master_epoch == 4
    asked = proposal(bench.record, {1})
    assert bench.ask(events.AlterSyncStateSet(GROUP, asked, "alter")).error
    newer = changed(bench.record, master_epoch=6, sync_state_set_epoch=20)
    bench.beat(2, known_epoch=6, link_ms=None, stored=newer)
    assert not bench.ask(events.Adopt(GROUP, GROUP, "adopt")).error
    assert (bench.record.master_epoch, bench.record.master_broker_id) == (7, 2)
    assert bench.record.sync_state_set_epoch == 21


def test_an_older_set_of_the_same_epoch_freezes_the_group() -> None:
    """R12: the backup still has a member that has left since, and lacks what was confirmed."""
    bench = Bench(group({1, 2}))
    newer = changed(bench.record, sync_state_set=frozenset({1}), sync_state_set_epoch=10)
    assert "set epoch 10" in bench.beat(1, stored=newer).frozen
    bench.beat(2)
    bench.tell(events.ConnectionClosed(1))
    bench.wait(60_000)
    bench.beat(2, link_ms=None)
    assert bench.record.master_broker_id == 1


class TestAdoption:
    """Of a group that the controller has forgotten, or remembers as it was."""

    def newer(self, bench: Bench) -> GroupRecord:
        return changed(bench.record, master_epoch=6, sync_state_set_epoch=20)

    def test_it_waits_for_the_lease_of_the_master_that_it_deposes(self) -> None:
        bench = Bench(group({1, 2}, policy=ASYNC))
        bench.beat(1, known_epoch=6, stored=self.newer(bench))
        bench.beat(2, known_epoch=6, stored=self.newer(bench))
        assert "lease" in bench.ask(events.Adopt(GROUP, GROUP, "adopt")).error
        assert bench.record.master_epoch == 4
        bench.wait(LEASE_WAIT)
        bench.beat(1, known_epoch=6, stored=self.newer(bench))
        assert not bench.ask(events.Adopt(GROUP, GROUP, "adopt")).error
        assert bench.record.master_epoch == 7

    def test_a_group_without_a_record_waits_for_the_lease_as_well(self) -> None:
        """The controller whose state is lost may have granted one just before."""
        pair = group({1, 2}, replicas=2, policy=ASYNC)
        known = changed(pair, master_epoch=6, sync_state_set_epoch=20)
        policy = Policy(broker_role="ASYNC_MASTER", total_replicas=2)
        replicas = {n: Replica(broker_id=n) for n in (1, 2)}
        empty = GroupRecord(cluster="c", group=GROUP, policy=policy, replicas=replicas)
        bench = Bench(empty)
        bench.beat(1, known_epoch=6, stored=known)
        bench.beat(2, known_epoch=6, stored=known)
        assert bench.record.master_epoch == 0
        bench.wait(LEASE_WAIT)
        bench.beat(1, known_epoch=6, stored=known)
        bench.beat(2, known_epoch=6, stored=known)
        assert bench.record.master_epoch == 7

    def test_an_id_that_was_given_again_is_not_the_member_that_had_it(self) -> None:
        """A controller that lost its state gave id 2 to a replica that has nothing."""
        before = {n: Replica(broker_id=n, uid=f"u{n}") for n in (1, 2, 3)}
        known = changed(group({1, 2}), replicas=before, master_epoch=6, sync_state_set_epoch=20)
        now = {**before, 2: Replica(broker_id=2, uid="another")}
        bench = Bench(GroupRecord(cluster="c", group=GROUP, replicas=now))
        bench.beat(3, known_epoch=6, stored=known)
        bench.beat(2, known_epoch=0, last_epoch=0, end=0)
        bench.ask(events.Adopt(GROUP, GROUP, "adopt"))
        assert bench.record.master_epoch == 0, "the only living replica with a member's id is empty"
        bench.beat(1, known_epoch=6, stored=known)
        assert (bench.record.master_epoch, bench.record.master_broker_id) == (7, 1)

    def test_it_says_so_when_nobody_is_elected(self) -> None:
        bench = Bench(group({1, 2}))
        for n in (1, 2):
            bench.beat(n, known_epoch=6, was_master=True)
        for _ in range(2):
            reply = bench.ask(events.Adopt(GROUP, GROUP, "adopt"))
            assert reply.kind is RefusalKind.NOT_ELECTED
            assert "2 replicas were the master before" in reply.error
        assert bench.record.master_epoch == 4

    def test_until_it_is_written_the_old_record_decides_nothing(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1, known_epoch=6, stored=self.newer(bench))
        bench.beat(2, known_epoch=6, stored=self.newer(bench))
        bench.answers_commits = False
        bench.tell(events.Adopt(GROUP, GROUP, "adopt"))
        bench.tell(events.CommitUnknown(GROUP, bench.commits[-1].version))
        bench.answers_commits = True
        bench.tell(events.CommitDone(GROUP, bench.commits[-1].version))
        bench.beat(2, known_epoch=4)
        bench.wait(60_000)
        bench.beat(2, known_epoch=4, link_ms=None)
        assert bench.core.groups[GROUP].frozen
        assert bench.record.master_epoch == 4


class TestBeginning:
    """A controller that has just begun knows only its record, which may be old."""

    def test_it_waits_for_everybody_before_it_elects(self) -> None:
        bench = Bench(group({1, 2}, replicas=2), age_ms=0)
        bench.beat(1, incarnation="later")
        assert bench.record.master_epoch == 4, "replica 2 may know a newer epoch"
        bench.beat(2, known_epoch=6, last_epoch=6)
        bench.wait(60_000)
        assert bench.record.master_epoch == 4
        assert "frozen" in bench.kinds

    def test_it_elects_at_once_when_all_have_spoken(self) -> None:
        bench = Bench(group({1, 2}, replicas=2), age_ms=0)
        bench.beat(1, incarnation="later")
        bench.beat(2, link_ms=None)
        assert bench.record.master_epoch == 5

    def test_it_elects_after_a_second_when_nobody_hears_the_master(self) -> None:
        bench = Bench(group({1, 2}, replicas=2), age_ms=0)
        bench.beat(2, link_ms=None)
        bench.wait(DEFAULT_TIMING.settle_ms - 1)
        assert bench.record.master_epoch == 4
        bench.wait(1)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (2, 5)

    def test_it_does_not_while_a_member_hears_the_master(self) -> None:
        bench = Bench(group({1, 2}, replicas=2), age_ms=0)
        for _ in range(6):
            bench.beat(2, link_ms=100)
            bench.wait(400)
        assert bench.record.master_epoch == 4


class TestStranger:
    """Who cannot be a replica of the group is not counted, and cannot replace one that is."""

    def test_a_broker_of_another_cluster(self) -> None:
        bench = Bench(group({1, 2}, replicas=2))
        bench.beat(1)
        reply = bench.beat(2, cluster="other", known_epoch=99)
        assert "belongs to cluster c, not to other" in reply.error
        assert not bench.core.groups[GROUP].frozen
        assert not bench.core.groups[GROUP].is_alive(2, bench.now)

    def test_a_copy_of_a_store_does_not_replace_the_process_it_was_copied_from(self) -> None:
        bench = Bench(group({1, 2}, replicas=2))
        bench.beat(1, address="a:1")
        reply = bench.beat(1, address="b:1", incarnation="copy", connection=99)
        assert "is taken: a:1 has it and is alive" in reply.error
        assert bench.record.master_epoch == 4
        copy = Replica(broker_id=1, address="b:1")
        asked = bench.ask(events.RegisterReplica("c", GROUP, copy, token="register"))
        assert asked.kind is RefusalKind.ID_TAKEN
        assert bench.kinds.count("refused") == 1, "the same reason is said once"
        bench.tell(events.ConnectionClosed(1))
        bench.beat(1, address="b:1", incarnation="moved", connection=99)
        assert bench.record.master_incarnation == "moved", "a broker may move"

    def test_one_that_only_tries_to_register_is_told_of_once(self) -> None:
        """It gets no further, so no heartbeat of it tells."""
        bench = Bench(group({1, 2}, replicas=2))
        bench.beat(1, address="a:1")
        for _ in range(2):
            for cluster, n, address in (("other", 3, "b:3"), ("c", 1, "b:1")):
                stranger = Replica(broker_id=n, address=address)
                asked = events.RegisterReplica(cluster, GROUP, stranger, token="register")
                assert bench.ask(asked).error
        said = [event.details for event in bench.happened if event.kind == "refused"]
        assert [details["address"] for details in said] == ["b:3", "b:1"]
        assert "belongs to cluster c, not to other" in said[0]["reason"]
        assert "is taken: a:1 has it and is alive" in said[1]["reason"]

    def test_a_record_that_does_not_say_where_a_replica_is_has_it_registered_again(self) -> None:
        """An old backup: others could not follow a master of which it knows only the id."""
        bench = Bench(group({1, 2}, replicas=2))
        new = Replica(broker_id=1, address="b:1", ha_address="b:2")
        stored = msgspec.structs.replace(bench.record, replicas={1: new}, sync_state_set_epoch=0)
        assert bench.beat(1, stored=stored).kind is RefusalKind.NOT_REGISTERED
        assert not bench.ask(events.RegisterReplica("c", GROUP, new, token="again")).error
        assert not bench.beat(1, stored=stored).error

    def test_nobody_fills_the_record_with_replicas_or_groups(self) -> None:
        bench = Bench(group({1, 2}, replicas=2))
        for n in range(3, REPLICAS_MAX + 1):
            new = Replica(broker_id=n)
            assert not bench.ask(events.RegisterReplica("c", GROUP, new, token=n)).error
        new = Replica(broker_id=REPLICAS_MAX + 1)
        assert "remove those" in bench.ask(events.RegisterReplica("c", GROUP, new, token=0)).error
        bench.core.groups |= {str(n): bench.core.groups[GROUP] for n in range(GROUPS_MAX)}
        asked = bench.ask(events.RegisterReplica("c", "one more", new, token="group"))
        assert asked.kind is RefusalKind.INVALID

    def test_a_set_of_thousands_is_refused_in_a_line(self) -> None:
        bench = Bench(group({1, 2}, replicas=2))
        bench.beat(1)
        wanted = proposal(bench.record, set(range(1, 10_000)))
        asked = bench.ask(events.AlterSyncStateSet(GROUP, wanted, "alter"))
        assert asked.kind is RefusalKind.REPLICAS
        assert len(asked.error) < 200

    def test_an_alter_that_is_sent_again_finds_another_set_epoch(self) -> None:
        bench = Bench(group({1, 2}, replicas=2))
        bench.beat(1)
        alone = proposal(bench.record, {1})
        assert not bench.ask(events.AlterSyncStateSet(GROUP, alone, "first")).error
        before = bench.record
        for _ in range(5):
            asked = bench.ask(events.AlterSyncStateSet(GROUP, alone, "again"))
            assert asked.kind is RefusalKind.SET_EPOCH
        assert bench.record == before

    def test_it_is_refused_and_named_once(self) -> None:
        record = group({1, 2}, replicas=2)
        bench = Bench(msgspec.structs.replace(record, lineage="ours"))
        theirs = msgspec.structs.replace(record, lineage="theirs", master_epoch=9)
        for _ in range(3):
            reply = bench.beat(2, known_epoch=9, stored=theirs)
            assert "follows another controller" in reply.error
        assert bench.kinds == ["refused"]
        assert not bench.core.groups[GROUP].frozen, "it cannot stop a group that it is none of"
        assert not bench.core.groups[GROUP].is_alive(2, bench.now)

    def test_an_adopted_group_keeps_its_lineage(self) -> None:
        empty = GroupRecord(
            cluster="c", group=GROUP, policy=Policy(total_replicas=1),
            replicas={1: Replica(broker_id=1)},
        )  # fmt: skip
        bench = Bench(empty)
        stored = msgspec.structs.replace(group({1}, replicas=1), lineage="ours")
        bench.beat(1, known_epoch=4, last_epoch=4, stored=stored)
        assert (bench.record.lineage, bench.record.master_epoch) == ("ours", 5)

    def test_a_new_group_is_named_after_its_first_master(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, replicas={1: Replica(broker_id=1)}))
        bench.beat(1, known_epoch=0, last_epoch=0, end=0)
        assert bench.record.lineage == "i1"


class TestHandOver:
    def test_late_words_of_an_earlier_switch_do_not_end_a_later_one(self) -> None:
        """They come over a connection that is heard of last. The master leads by a lease since."""
        bench = Bench(group({1, 2}, policy=ASYNC))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ElectMaster(GROUP, designate=2, token="first"))
        bench.wait(DEFAULT_TIMING.hand_over_ms)
        assert bench.beat(1, connection=8).lease_ms
        bench.beat(2)
        bench.tell(events.ElectMaster(GROUP, designate=2, token="second"))
        bench.beat(1, connection=9, drained_end=100)
        assert bench.record.master_epoch == 4
        assert bench.beat(1, connection=10).hand_over_to == 2
        bench.beat(1, connection=10, drained_end=100)
        assert bench.record.master_broker_id == 2

    def test_a_drained_master_is_replaced_and_stays_a_member(self) -> None:
        bench = Bench(group({1, 2}, policy=ASYNC))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ElectMaster(GROUP, designate=2, token="switch"))
        reply = bench.beat(1)
        assert (reply.hand_over_to, reply.lease_ms) == (2, 0)
        bench.beat(1, drained_end=100)
        assert bench.record.master_broker_id == 2
        assert bench.record.sync_state_set == {1, 2}
        assert not bench.replies["switch"].error

    def test_one_that_does_not_drain_goes_on(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2)
        bench.tell(events.ElectMaster(GROUP, designate=2, token="switch"))
        bench.wait(DEFAULT_TIMING.hand_over_ms)
        assert "did not drain" in bench.replies["switch"].error
        assert bench.beat(1, drained_end=100).hand_over_to is None
        assert bench.record.master_broker_id == 1

    def test_a_replica_that_is_not_in_sync_is_refused(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(3)
        reply = bench.ask(events.ElectMaster(GROUP, designate=3, token="switch"))
        assert "[1, 2]" in reply.error


class TestOperator:
    def test_an_unclean_election_wants_the_name_and_the_end_of_leases(self) -> None:
        bench = Bench(group({1, 2}))
        bench.wait(LEASE_WAIT)
        bench.beat(1)
        bench.beat(3, end=40)
        ask = events.ElectMaster(GROUP, designate=3, is_unclean=True, token="elect")
        assert "type the group's name" in bench.ask(ask).error
        typed = events.ElectMaster(GROUP, 3, is_unclean=True, typed_group=GROUP, token="elect")
        assert "master 1 is alive" in bench.ask(typed).error
        bench.tell(events.ConnectionClosed(1))
        assert "lease" in bench.ask(typed).error
        bench.wait(LEASE_WAIT)
        bench.beat(3, end=40)
        assert not bench.ask(typed).error
        assert (bench.record.master_broker_id, bench.record.election) == (3, Election.UNCLEAN)
        assert bench.record.sync_state_set == {3}

    def test_a_drained_replica_leaves_the_set_and_may_be_removed(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1)
        bench.beat(2)
        refused = bench.ask(events.RemoveReplica(GROUP, 2, token="remove"))
        assert "drain it first" in refused.error
        assert not bench.ask(events.SetLearner(GROUP, 2, True, "drain")).error
        assert bench.record.sync_state_set == {1}
        bench.tell(events.ConnectionClosed(2))
        assert not bench.ask(events.RemoveReplica(GROUP, 2, token="remove")).error
        assert 2 not in bench.record.replicas

    def test_the_master_is_neither_drained_nor_removed(self) -> None:
        bench = Bench(group({1, 2}))
        assert "the master" in bench.ask(events.SetLearner(GROUP, 1, True, "drain")).error
        assert "the master" in bench.ask(events.RemoveReplica(GROUP, 1, token="remove")).error


class TestFirstMaster:
    def test_an_empty_group_begins_with_whoever_is_there(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=2)))
        register(bench, 1)
        bench.beat(1, end=0)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (1, 1)
        assert bench.record.sync_state_set == {1}

    def test_a_group_with_messages_is_adopted_when_all_are_there(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=2)))
        register(bench, 1)
        register(bench, 2)
        bench.beat(1, end=500)
        assert bench.record.master_epoch == 0
        bench.beat(2, end=400, was_master=True)
        assert bench.record.master_broker_id == 2, "the former master of the pair"

    def test_the_only_replica_with_messages_leads_a_group_restored_from_a_backup(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=2)))
        register(bench, 1)
        register(bench, 2)
        bench.beat(1, end=500, last_epoch=7)
        bench.beat(2, end=0)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (1, 8)

    def test_nobody_chooses_between_two_logs_of_unknown_origin(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=2)))
        register(bench, 1)
        register(bench, 2)
        bench.beat(1, end=500)
        bench.beat(2, end=400)
        assert bench.record.master_epoch == 0
        assert "2 have messages" in bench.core.groups[GROUP].waiting

    def test_all_of_the_newest_set_are_waited_for(self) -> None:
        """Whoever is absent may know a newer one, or lead: the file of the one that is here may
        name the wrong controller, and totalReplicas is 1 when nobody said it."""
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=1)))
        register(bench, 1)
        register(bench, 2)
        older, newer = group({1, 2}, replicas=2), group({1}, replicas=2)
        newer = changed(newer, sync_state_set_epoch=12)
        bench.beat(2, end=900, known_epoch=4, stored=older)
        bench.wait(1_000)
        assert bench.record.master_epoch == 0
        assert "waiting for replica 1" in bench.core.groups[GROUP].waiting
        bench.beat(1, end=500, known_epoch=4, stored=newer)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (1, 5)

    def test_a_replica_outside_of_the_last_set_is_waited_for(self) -> None:
        """It may have been admitted just before its master died, and lead by now."""
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=1)))
        register(bench, 1)
        register(bench, 2)
        bench.beat(1, known_epoch=4, stored=group({1}, replicas=2), was_master=True)
        assert bench.record.master_epoch == 0
        assert "waiting for replica 2" in bench.core.groups[GROUP].waiting
        later = changed(group({2}, master=2, replicas=2), master_epoch=5)
        bench.beat(2, known_epoch=5, stored=later)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (2, 6)

    def test_who_was_a_slave_does_not_become_the_master_of_a_group_of_one(self) -> None:
        """Of a fixed pair, whose master is still serving; totalReplicas was forgotten."""
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=1)))
        register(bench, 1)
        bench.beat(1, end=500, known_epoch=0, last_epoch=0)
        assert bench.record.master_epoch == 0
        assert "totalReplicas" in bench.core.groups[GROUP].waiting
        assert not bench.ask(events.Adopt(GROUP, GROUP, "adopt")).error
        assert bench.record.master_broker_id == 1

    def test_the_newest_set_that_anybody_has_stored_wins(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP, policy=Policy(total_replicas=2)))
        register(bench, 1)
        register(bench, 2)
        older, newer = group({1, 2}, replicas=2), group({1}, replicas=2)
        newer = changed(newer, sync_state_set_epoch=12)
        bench.beat(2, end=900, known_epoch=4, stored=older)
        bench.beat(1, end=500, known_epoch=4, stored=newer)
        assert (bench.record.master_broker_id, bench.record.master_epoch) == (1, 5)
        assert bench.record.sync_state_set_epoch == 13


def register(bench: Bench, n: int, **fields: Any) -> Reply:
    replica = Replica(broker_id=n, **{"uid": f"u{n}", "check_code": f"c{n}", **fields})
    return bench.ask(events.RegisterReplica("c", GROUP, replica, Policy(), ("register", n)))


class TestIdentity:
    def test_an_id_belongs_to_one_store(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP))
        assert not register(bench, 1).error
        assert "another store" in register(bench, 1, uid="other").error
        assert "another check code" in register(bench, 1, check_code="other").error
        assert not register(bench, 1, address="127.0.0.1:1").error
        assert bench.record.replicas[1].address == "127.0.0.1:1"

    def test_a_broker_of_another_cluster_is_refused(self) -> None:
        bench = Bench(GroupRecord(cluster="c", group=GROUP))
        asked = events.RegisterReplica("other", GROUP, Replica(broker_id=1), Policy(), "r")
        assert "belongs to cluster c" in bench.ask(asked).error

    def test_the_last_words_of_a_replaced_process_are_not_believed(self) -> None:
        bench = Bench(group({1, 2}))
        bench.beat(1, connection=10)
        assert "newer connection" in bench.beat(1, connection=9, incarnation="old").error
        assert bench.record.master_incarnation == "i1"
