"""The rules of controlled groups together, on the production cores (`testing/model`)."""

from __future__ import annotations

import pytest

from twinlog.testing.model.mutants import MUTANTS, notices
from twinlog.testing.model.world import GroupModel

SEEDS = 48
GROUPS = 6
# Where each broken rule is noticed; found by searching from seed 0.
NOTICED_AT = {
    "any_acknowledgement_confirms": 5,
    "own_flush_is_ignored": 12,
    "stale_connection_is_counted": 15,
    "acknowledgements_outlive_a_promotion": 5,
    "proposed_set_is_not_counted": 2,
    "shrinks_before_the_answer": 3,
    "rejected_proposal_is_dropped": 10,
    "admits_before_it_has_caught_up": 12,
    "incarnation_is_not_checked": 95,
    "slaves_do_not_fence": 7,
    "epoch_is_not_durable": 0,
    "promoted_replica_keeps_its_link": 0,
    "no_lease_is_needed": 19,
    "election_waits_too_short": 19,
    "controller_forgets_leases": 49,
    "lease_counts_from_the_answer": 73,
    "lease_is_kept_during_a_hand_over": 20,
    "anyone_is_elected": 0,
    "restart_keeps_mastership": 0,
    "nobody_is_in_doubt": 0,
    "logs_are_compared_by_length": 2,
    "doubt_is_forgotten_by_a_second_restart": 41,
    "acknowledges_before_flush": 34,
    "no_compare_and_set": 0,
    "incarnation_is_refreshed": 132,
    "lease_is_granted_while_an_election_is_written": 220,
    "old_reports_are_believed": 300,
}


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_rules_hold(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        GroupModel(seed).run()


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert notices(name, NOTICED_AT[name]), f"{name} is not noticed at its seed any more"


def test_every_mutant_has_a_seed() -> None:
    assert NOTICED_AT.keys() == MUTANTS.keys()
