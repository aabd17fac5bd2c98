"""How a controlled group is told: each state, from facts and events alone."""

from __future__ import annotations

from typing import Any

import pytest

from twinlog.admin.failover_status import GroupState, controlled_group
from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts


def replica(n: int, **fields: Any) -> ReplicaFacts:
    given: dict[str, Any] = {
        "is_member": True, "is_alive": True, "heard_ms": 100, "last_epoch": 3, "end": 1000,
    }  # fmt: skip
    return ReplicaFacts(n, f"127.0.0.1:{n}", **{**given, **fields})


def facts(*replicas: ReplicaFacts, **fields: Any) -> GroupFacts:
    given: dict[str, Any] = {
        "master_broker_id": 1, "master_epoch": 3, "election": "clean", "total_replicas": 2,
    }  # fmt: skip
    return GroupFacts("c", "g", replicas=list(replicas), **{**given, **fields})


OUT = {"is_member": False}
DOWN = {"is_member": False, "is_alive": False}


@pytest.mark.parametrize(
    ("known", "state", "reason"),
    [
        (facts(replica(1), replica(2)), GroupState.HEALTHY, ""),
        (facts(replica(1), replica(2, **DOWN)), GroupState.DEGRADED, "replica 2 is down"),
        (facts(replica(1), replica(2, **OUT, end=10)), GroupState.DEGRADED,
         "replica 2 rejoins, 990 bytes behind"),
        (facts(replica(1), replica(2, is_alive=False)), GroupState.DEGRADED,
         "replica 2 is not heard"),
        (facts(replica(1)), GroupState.DEGRADED, "1 of 2 replicas have ever registered"),
        (facts(replica(1), replica(2, is_learner=True, **OUT)), GroupState.HEALTHY, ""),
        (facts(replica(1), replica(2, **DOWN), min_in_sync_replicas=2), GroupState.READ_ONLY,
         "replica 2 is down"),
        (facts(replica(1, is_alive=False), replica(2, **OUT), waiting="waiting for replica 1"),
         GroupState.NO_MASTER, "waiting for replica 1"),
        (facts(replica(1, is_alive=False), replica(2)), GroupState.NO_MASTER,
         "master 1 is not heard"),
        (facts(replica(1), master_broker_id=None), GroupState.NO_MASTER, "none was elected yet"),
        (facts(replica(1), replica(2), frozen="older than the group"), GroupState.FROZEN,
         "older than the group"),
    ],
)  # fmt: skip
def test_the_state_and_its_reason(known: GroupFacts, state: GroupState, reason: str) -> None:
    told = controlled_group(known, [])
    assert (told.state, told.reason) == (state, reason)
    assert told.is_healthy == (state is GroupState.HEALTHY)


def test_since_when_and_why_come_from_the_events() -> None:
    events = [
        {"time": 1, "event": "elected", "epoch": 2, "reason": "older"},
        {"time": 2, "event": "elected", "epoch": 3, "reason": "master 2 was silent"},
        {"time": 3, "event": "removed", "replica": 2, "reason": "the master proposed it"},
        {"time": 4, "event": "registered", "replica": 2},
        {"event": "a line that a person edited"},
    ]
    told = controlled_group(facts(replica(1), replica(2, **OUT)), events)
    assert (told.since_ms, told.elected_ms, told.elected_why) == (3, 2, "master 2 was silent")
    assert [line.why for line in told.replicas] == [
        "clean election, log ends in epoch 3",
        "registered",
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"heard_ms": None}, "not heard since the controller started"),
        ({"is_alive": False, "heard_ms": 2500}, "silent for 2.5 s"),
        ({"is_doubtful": True}, "lost power, in doubt until it is admitted again"),
        ({"is_writable": False}, "cannot write"),
        ({}, "in the set of the election"),
    ],
)
def test_why_a_replica_is_where_it_is(fields: dict[str, Any], why: str) -> None:
    told = controlled_group(facts(replica(1), replica(2, **fields)), [])
    assert told.replicas[1].why == why


def test_who_takes_over_is_named() -> None:
    told = controlled_group(facts(replica(1), replica(2), hand_over_to=2), [])
    assert told.replicas[1].why == "takes over"
