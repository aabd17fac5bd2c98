"""The rules of controlled groups together, on the production cores (`testing/model`)."""

from __future__ import annotations

import pytest

from twinlog.testing.model.mutants import MUTANTS, notices
from twinlog.testing.model.world import GroupModel

SEEDS = 48
GROUPS = 6
# Where each broken rule is noticed; found by searching from seed 0.
NOTICED_AT = {
    "any_acknowledgement_confirms": 0,
    "own_flush_is_ignored": 12,
    "stale_connection_is_counted": 15,
    "acknowledgements_outlive_a_promotion": 0,
    "proposed_set_is_not_counted": 2,
    "shrinks_before_the_answer": 3,
    "rejected_proposal_is_dropped": 10,
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
