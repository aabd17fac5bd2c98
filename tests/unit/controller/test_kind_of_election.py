"""A loss that no log tells of yet is not forgotten by the next election (swarm seed 910037)."""

from __future__ import annotations

import pytest

from twinlog.controller.elect import Standing, kind_of
from twinlog.controller.record import Election, GroupRecord


@pytest.mark.parametrize(
    ("before", "last_epoch", "now", "wanted"),
    [
        (Election.INCOMPLETE, 1, Election.CLEAN, Election.INCOMPLETE),
        (Election.UNCLEAN, 1, Election.CLEAN, Election.UNCLEAN),
        (Election.INCOMPLETE, 2, Election.CLEAN, Election.CLEAN),
        (Election.CLEAN, 1, Election.CLEAN, Election.CLEAN),
        (Election.INCOMPLETE, 1, Election.UNCLEAN, Election.UNCLEAN),
    ],
)
def test_an_election_with_losses_is_told_by_the_first_log_that_can(
    before: Election, last_epoch: int, now: Election, wanted: Election
) -> None:
    record = GroupRecord(cluster="c", group="g", master_epoch=2, election=before)
    winner = Standing(
        broker_id=1, incarnation="i", last_epoch=last_epoch, end=10, priority=0, is_alive=True,
        is_complete=True, is_writable=True,
    )  # fmt: skip
    assert kind_of(now, winner, record) is wanted
