"""Which replica may become the master: the comparison, as a pure function of what they say."""

from __future__ import annotations

from dataclasses import replace

from twinlog.admin.promotion import Replica, choose, judge

ONE = Replica(
    address="h1:10911",
    broker_id=1,
    role="SLAVE",
    store_id="lineage",
    log_end=1000,
    confirmed=900,
    master_end=1000,
    replica_ids=(1, 2),
    in_sync_replicas=2,
    master_role="SYNC_MASTER",
    master_address="h0:10911",
    digest=7,
)
TWO = replace(ONE, address="h2:10911", broker_id=2)
MASTER = replace(ONE, address="h0:10911", broker_id=0, role="SYNC_MASTER")
GONE = Replica(address="h0:10911", broker_id=0, error="refused", is_refusing=True)
SILENT = Replica(address="h0:10911", broker_id=0, error="no answer within 3000 ms")


def test_equal_copies_may_be_promoted_and_the_first_is_chosen() -> None:
    verdict = judge([ONE, TWO], ONE)
    assert (verdict.refusals, verdict.losses, verdict.warnings) == ((), (), ())
    assert verdict.lost_bytes == 0
    assert choose([TWO, ONE]) == ONE


def test_the_longest_is_chosen_and_a_shorter_one_would_lose() -> None:
    longer = replace(TWO, log_end=1500)
    assert choose([ONE, longer]) == longer
    verdict = judge([ONE, longer], ONE)
    assert verdict.lost_bytes == 500
    assert ["h2:10911 (brokerId 2) has 500 bytes more" in loss for loss in verdict.losses] == [True]
    assert judge([ONE, longer], longer).losses == ()


def test_a_living_master_is_a_refusal_that_nothing_overrules() -> None:
    assert "lives" in judge([MASTER, ONE, TWO], ONE).refusals[0]
    linked = replace(TWO, is_linked=True)
    assert "h2:10911 (brokerId 2) is connected" in judge([ONE, linked], ONE).refusals[0]
    assert choose([MASTER]) is None


def test_a_registered_master_that_is_silent_may_live_one_that_refuses_does_not() -> None:
    assert "may live" in judge([SILENT, ONE, TWO], ONE).losses[0]
    assert judge([GONE, ONE, TWO], ONE).losses == ()


def test_logs_that_differ_are_seen_though_they_are_as_long() -> None:
    assert "diverged" in judge([ONE, replace(TWO, digest=8)], ONE).losses[0]
    assert "another log" in judge([ONE, replace(TWO, store_id="other")], ONE).losses[0]


def test_what_was_confirmed_and_is_nowhere_is_a_loss() -> None:
    for teller in (ONE, TWO):
        replicas = [ONE, TWO]
        replicas[replicas.index(teller)] = replace(teller, confirmed=1200, master_end=1200)
        target = next(r for r in replicas if r.broker_id == 1)
        assert "200 bytes were acknowledged" in judge(replicas, target).losses[0]


def test_the_masters_tail_is_a_loss_when_it_was_acknowledged_without_a_slave() -> None:
    ahead = replace(ONE, master_end=1300)
    sync = judge([ahead, TWO], ahead)
    assert sync.losses == ()
    assert "300 bytes beyond" in sync.warnings[0]
    asynchronous = replace(ahead, master_role="ASYNC_MASTER")
    verdict = judge([asynchronous, TWO], asynchronous)
    assert "300 bytes beyond" in verdict.losses[0]
    assert "ASYNC_MASTER" in verdict.warnings[0]


def test_missing_slaves_matter_when_so_many_could_have_acknowledged_alone() -> None:
    assert "brokerId 2" in judge([ONE], ONE).losses[0]
    # Two slaves acknowledge each message: one that is missing had none alone.
    two_acks = replace(ONE, in_sync_replicas=3)
    assert judge([two_acks], two_acks).losses == ()
    three = replace(two_acks, replica_ids=(1, 2, 3))
    assert "brokerId 2, 3" in judge([three], three).losses[0]
    alone = replace(ONE, replica_ids=(1,))
    assert judge([GONE, alone], alone).losses == ()


def test_an_apache_slave_is_compared_and_never_chosen() -> None:
    apache = Replica(address="h2:10911", broker_id=2, role="SLAVE", log_end=2000, is_twinlog=False)
    assert choose([ONE, apache]) == ONE
    assert "1000 bytes more" in judge([ONE, apache], ONE).losses[0]


def test_a_slave_that_never_heard_a_master_is_not_called_safe() -> None:
    unheard = replace(ONE, replica_ids=(), in_sync_replicas=0, master_role="", master_address="")
    empty = replace(unheard, store_id="", log_end=0, confirmed=0, master_end=0)
    for target in (unheard, empty):
        assert "has not been connected to a master" in judge([GONE, target], target).losses[0]
    # Another one knows the group: what it has is compared.
    assert judge([unheard, replace(TWO, digest=7)], unheard).losses == ()
    # A copy of an Apache master's log never hears of the group, and has no store id.
    apache = replace(unheard, store_id="")
    verdict = judge([GONE, apache], apache)
    assert verdict.losses == ()
    assert "which slaves the lost master had is not known" in verdict.warnings


def test_a_group_with_a_controller_is_refused_whatever_else_is_found() -> None:
    controlled = replace(ONE, is_controlled=True)
    verdict = judge([controlled, GONE], controlled)
    assert verdict.refusals == ("a controller decides who is the master of this group",)
