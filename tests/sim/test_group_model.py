"""The rules of controlled groups together, on the production cores (`testing/group_model.py`)."""

from __future__ import annotations

import pytest

from twinlog.testing.group_model import GroupModel
from twinlog.testing.group_mutants import MUTANTS, notices

SEEDS = 48
GROUPS = 6
# Where each broken rule is noticed; found by searching from seed 0.
NOTICED_AT = {
    "any_acknowledgement_confirms": 6,
    "own_flush_is_ignored": 19,
    "acknowledgements_outlive_a_promotion": 11,
    "shrinks_before_the_answer": 8,
    "no_compare_and_set": 3,
    "admits_before_it_has_caught_up": 58,
    "promoted_replica_keeps_its_link": 3,
    "no_lease_is_needed": 8,
    "lease_counts_from_the_answer": 38,
    "lease_is_kept_during_a_hand_over": 27,
    "anyone_is_elected": 4,
    "restart_keeps_mastership": 3,
    "nobody_is_in_doubt": 21,
    "logs_are_compared_by_length": 2,
}


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_rules_hold(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        GroupModel(seed).run()


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert notices(name, NOTICED_AT[name]), f"{name} is not noticed at its seed any more"


def test_every_seed_that_is_named_belongs_to_a_mutant() -> None:
    assert NOTICED_AT.keys() <= MUTANTS.keys()
