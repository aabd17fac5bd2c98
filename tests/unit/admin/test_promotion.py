"""Which replica may become the master: the comparison, as a pure function of what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.admin.promotion import Comparison, Digest, Replica, choose, digest_ranges, judge
from twinlog.cli.admin.ha import _promotion_report

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
    digests=(Digest(0, 1000, 7),),
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


def test_messages_are_counted_only_where_a_copy_has_all_that_would_be_lost() -> None:
    longer = replace(TWO, log_end=1500)
    assert judge([ONE, TWO], ONE).is_countable
    assert judge([ONE, longer], ONE).is_countable
    assert judge([ONE, replace(longer, confirmed=1400)], ONE).is_countable
    verdict = judge([ONE, replace(longer, confirmed=1800)], ONE)
    assert (verdict.lost_bytes, verdict.is_countable) == (800, False)
    for others in ([SILENT, longer], [replace(longer, store_id="other")]):
        assert not judge([ONE, *others], ONE).is_countable
    assert not judge([ONE], ONE).is_countable, "a slave is missing"
    unheard = replace(ONE, replica_ids=(), in_sync_replicas=0)
    assert not judge([GONE, unheard], unheard).is_countable


def test_a_living_master_is_a_refusal_that_nothing_overrules() -> None:
    assert "lives" in judge([MASTER, ONE, TWO], ONE).refusals[0]
    linked = replace(TWO, is_linked=True)
    assert "h2:10911 (brokerId 2) is connected" in judge([ONE, linked], ONE).refusals[0]
    assert choose([MASTER]) is None


def test_a_damaged_log_is_a_refusal_that_nothing_overrules() -> None:
    damaged = replace(ONE, damage="the record at 7 of the log is damaged")
    refusals = judge([damaged, TWO], damaged).refusals
    assert refusals == ("h1:10911 (brokerId 1): the record at 7 of the log is damaged",)
    assert judge([damaged, TWO], TWO).refusals == ()


def test_a_registered_master_that_is_silent_may_live_one_that_refuses_does_not() -> None:
    assert "may live" in judge([SILENT, ONE, TWO], ONE).losses[0]
    assert judge([GONE, ONE, TWO], ONE).losses == ()


def test_logs_that_differ_are_seen_though_they_are_as_long() -> None:
    assert "diverged" in judge([ONE, replace(TWO, digests=(Digest(0, 1000, 8),))], ONE).losses[0]
    assert "another log" in judge([ONE, replace(TWO, store_id="other")], ONE).losses[0]


def test_what_was_confirmed_and_is_nowhere_is_a_loss() -> None:
    for teller in (ONE, TWO):
        replicas = [ONE, TWO]
        replicas[replicas.index(teller)] = replace(teller, confirmed=1200, master_end=1200)
        target = next(r for r in replicas if r.broker_id == 1)
        verdict = judge(replicas, target)
        assert "200 bytes were acknowledged" in verdict.losses[0]
        assert (verdict.lost_bytes, verdict.is_countable) == (200, False), "no copy has them"


def test_the_masters_tail_is_a_loss_when_it_was_acknowledged_without_a_slave() -> None:
    ahead = replace(ONE, master_end=1300)
    sync = judge([ahead, TWO], ahead)
    assert sync.losses == ()
    assert "300 bytes beyond" in sync.warnings[0]
    for mode in ({"master_role": "ASYNC_MASTER"}, {"in_sync_replicas": 1}):
        asynchronous = replace(ahead, **mode)
        verdict = judge([asynchronous, TWO], asynchronous)
        assert "300 bytes beyond" in verdict.losses[0]
        assert (verdict.lost_bytes, verdict.is_countable) == (300, False)
        assert asynchronous.master_role in verdict.warnings[0]


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
    assert judge([unheard, TWO], unheard).losses == ()
    # A copy of an Apache master's log never hears of the group, and has no store id.
    apache = replace(unheard, store_id="")
    verdict = judge([GONE, apache], apache)
    assert verdict.losses == ()
    assert "which slaves the lost master had is not known" in verdict.warnings


def test_a_group_with_a_controller_is_refused_whatever_else_is_found() -> None:
    controlled = replace(ONE, is_controlled=True, is_linked=True, replica_ids=(), master_address="")
    for other in (GONE, MASTER, SILENT):
        verdict = judge([controlled, other], controlled)
        assert verdict.refusals == ("a controller decides who is the master of this group",)
        assert (verdict.losses, verdict.warnings) == ((), ()), "which are about fixed pairs"


# Of two logs: (promotion, confirmed, log end) of brokers 1 and 2, whether their bytes differ, which
# one is to be promoted, and why.
CHOICES = [
    ((0, 900, 1000), (0, 900, 1000), False, 1, "the lower id of equals"),
    ((0, 900, 1000), (0, 900, 1500), False, 2, "the longer one has all of the other"),
    ((0, 900, 1500), (5, 900, 1000), False, 1, "the same, whoever followed a newer master"),
    ((0, 900, 1500), (5, 900, 1000), True, 2, "the later promotion, not the longer log"),
    ((5, 900, 1000), (0, 900, 1500), True, 1, "in either order"),
    ((5, 100, 1000), (0, 900, 1500), True, 1, "a promotion counts more than a confirmed mark"),
    ((5, 800, 1500), (5, 900, 1000), True, 2, "of one promotion, the more confirmed"),
    ((5, 900, 1000), (5, 800, 1500), True, 1, "in either order"),
    ((5, 900, 1000), (5, 900, 1500), True, 2, "nothing else differs: the longer one"),
    ((5, 900, 1000), (5, 900, 1000), True, 1, "nothing at all: the lower id"),
]


def _of(replica: Replica, facts: tuple[int, int, int], crc: int) -> Replica:
    promotion, confirmed, end = facts
    digests = (Digest(0, 1000, crc),)
    return replace(
        replica, promotion=promotion, confirmed=confirmed, log_end=end, master_end=end,
        digests=digests,
    )  # fmt: skip


@pytest.mark.parametrize(("first", "second", "differ", "chosen", "reason"), CHOICES)
def test_the_choice_between_two_logs(
    first: tuple[int, int, int],
    second: tuple[int, int, int],
    differ: bool,
    chosen: int,
    reason: str,
) -> None:
    one, two = _of(ONE, first, 7), _of(TWO, second, 8 if differ else 7)
    for replicas in ([one, two], [two, one]):
        found = choose(replicas)
        assert found is not None
        assert found.broker_id == chosen, reason
    right, wrong = (one, two) if chosen == 1 else (two, one)
    against_right = judge([one, two], right).losses
    against_wrong = judge([one, two], wrong).losses
    assert not any(f"Promote {wrong.name}" in loss for loss in against_right), against_right
    assert any("diverged" in loss for loss in against_right) == differ
    if differ:
        assert any(f"Promote {right.name}" in loss for loss in against_wrong), against_wrong
        assert judge([one, two], right).has_diverged


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(0, 1)),
        min_size=1,
        max_size=4,
    )
)
def test_the_choice_among_many_is_in_nobodys_way(
    facts: list[tuple[int, int, int, int]],
) -> None:
    """Whatever three or four replicas say: the choice depends on no order, nobody that has all of
    it and more is passed over, and among diverged logs none is later."""
    replicas = [
        replace(
            ONE, address=f"h{number}:1", broker_id=number, promotion=promotion,
            confirmed=confirmed * 100, log_end=end * 100,
            # Logs of two kinds that part after the first 100 bytes.
            digests=tuple(
                Digest(0, at * 100, 0 if at == 1 else kind) for at in range(1, end + 1)
            ),
        )
        for number, (promotion, confirmed, end, kind) in enumerate(facts, 1)
    ]  # fmt: skip
    chosen = choose(replicas)
    assert chosen is not None
    assert choose(replicas[::-1]) == chosen
    assert not any(
        other.log_end > chosen.log_end and not other.differs_from(chosen) for other in replicas
    )
    diverged = [r for r in replicas if any(r.differs_from(o) for o in replicas)]
    if diverged:
        latest = max(r.promotion for r in diverged)
        family = [r for r in replicas if not r.differs_from(chosen)]
        assert max(r.promotion for r in family) >= latest


def test_copies_are_compared_in_pairs() -> None:
    """The third copy is short, or begins late: it must not hide that the others differ."""
    one, two = replace(ONE, log_end=5000), replace(TWO, log_end=6000)
    short = replace(ONE, address="h3:1", broker_id=3, log_end=100)
    late = replace(ONE, address="h4:1", broker_id=4, log_min=5000, log_end=5500)
    ranges = digest_ranges([one, two, short, late, MASTER, GONE])
    assert (0, 5000) in ranges[one.address] & ranges[two.address]
    assert (0, 100) in ranges[one.address] & ranges[two.address] & ranges[short.address]
    assert ranges[late.address] == {(5000, 5500)}
    assert set(ranges) == {one.address, two.address, short.address, late.address}


def test_a_copy_that_begins_later_is_not_taken_for_a_whole_one() -> None:
    """RocketMQ's dialect begins an empty slave with the last file of its master."""
    late = replace(ONE, log_min=600)
    assert choose([late, TWO]) == TWO
    verdict = judge([late, TWO], late)
    assert "begins at 0" in verdict.losses[0]
    assert "600 bytes" in verdict.losses[0]
    assert "Promote h2:10911" in verdict.losses[0]
    assert judge([late, TWO], TWO).losses == ()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=4))
def test_the_chosen_copy_loses_nothing_that_another_choice_keeps(
    spans: list[tuple[int, int]],
) -> None:
    """Whole bytes, counted: no copy that ends as late has a byte that the chosen one lacks."""
    copies = [
        replace(ONE, address=f"h{n}", broker_id=n, log_min=min(span), log_end=max(span),
                confirmed=0, master_end=0, replica_ids=tuple(range(1, len(spans) + 1)), digests=())
        for n, span in enumerate(spans, 1)
    ]  # fmt: skip
    best = choose(copies)
    assert best is not None
    kept = set(range(best.log_min, best.log_end))
    for copy in copies:
        others = set(range(copy.log_min, copy.log_end))
        assert not others - kept or copy.log_end < best.log_end or not others
        if copy.log_end >= best.log_end and others < kept:
            assert judge(copies, copy).losses
    assert judge(copies, best).losses == ()


@pytest.mark.parametrize(
    ("target", "count", "words"),
    [
        (replace(ONE, confirmed=1200), None, "messages lost: unknown, bytes: at least 200"),
        (replace(ONE, replica_ids=(1, 2, 3)), None, "messages lost: unknown, bytes: unknown"),
        (replace(ONE, log_end=600), 4, "messages lost: 4, bytes: 400"),
    ],
)
def test_the_sentence_never_says_that_nothing_is_lost_when_something_is(
    target: Replica, count: int | None, words: str
) -> None:
    verdict = judge([target, TWO], target)
    assert verdict.is_countable == (count is not None)
    lost = Comparison("a", (target, TWO), verdict, count)
    assert words in (_promotion_report(lost, "would be promoted").sentence or "")
