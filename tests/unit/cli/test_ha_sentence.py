"""What `twinlog ha status` says in one sentence."""

from __future__ import annotations

import pytest

from twinlog.admin.ha import GroupHAStatus, ReplicaState
from twinlog.cli.admin.ha import _sentence
from twinlog.observe.health import GroupFacts


def group(name: str, slaves: int) -> GroupHAStatus:
    connected = tuple(
        ReplicaState(f"h:{port}/1", 5, 0, True, "TRANSFER", 0, 0, 1) for port in range(slaves)
    )
    facts = GroupFacts(name=name, master_address="h:1", role="ASYNC_MASTER")
    return GroupHAStatus(name, "h:1", 5, 5, "ASYNC_MASTER", connected, facts)


@pytest.mark.parametrize(
    ("slaves", "sentence"),
    [
        ((0, 0), "all 2 groups are healthy: none of them has a slave"),
        ((1, 0), "all 2 groups are healthy: 1 slave in sync; without a slave: g1"),
        ((1, 1, 0), "all 3 groups are healthy: 2 slaves in sync; without a slave: g2"),
        ((1, 2), "all 2 groups are healthy: 3 slaves in sync"),
        ((), "no broker is registered: nothing is replicated"),
    ],
)
def test_several_groups_in_one_sentence(slaves: tuple[int, ...], sentence: str) -> None:
    groups = [group(f"g{number}", count) for number, count in enumerate(slaves)]
    assert [one for one in groups if not one.is_healthy] == []
    assert _sentence(groups) == sentence
