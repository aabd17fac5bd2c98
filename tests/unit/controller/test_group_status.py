"""How a controlled group is told: each state, from facts and events alone."""

from __future__ import annotations

from typing import Any

import pytest

from twinlog.controller.group_status import GroupState, controlled_group
from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts


def replica(n: int, **fields: Any) -> ReplicaFacts:
    given: dict[str, Any] = {
        "is_member": True, "is_alive": True, "heard_ms": 100, "last_epoch": 3, "end": 1000,
        "link_ms": 5, "confirmed": 900,
    }  # fmt: skip
    return ReplicaFacts(n, f"127.0.0.1:{n}", **{**given, **fields})


def facts(*replicas: ReplicaFacts, **fields: Any) -> GroupFacts:
    given: dict[str, Any] = {
        "master_broker_id": 1, "master_epoch": 3, "election": "clean", "total_replicas": 2,
    }  # fmt: skip
    return GroupFacts("c", "g", replicas=list(replicas), **{**given, **fields})


OUT = {"is_member": False}
DOWN = {"is_member": False, "is_alive": False, "is_closed": True}
SILENT = {"is_member": False, "is_alive": False, "heard_ms": 2500}
FULL = {"is_writable": False}


@pytest.mark.parametrize(
    ("known", "state", "reason"),
    [
        (facts(replica(1), replica(2)), GroupState.HEALTHY, ""),
        (facts(replica(1), replica(2, **DOWN)), GroupState.DEGRADED, "replica 2 is down"),
        (facts(replica(1), replica(2, **OUT, end=10)), GroupState.DEGRADED,
         "replica 2 rejoins, 990 bytes behind"),
        (facts(replica(1), replica(2, **OUT, **FULL, end=10)), GroupState.DEGRADED,
         "replica 2 cannot write: is its disk full?, 990 bytes behind"),
        (facts(replica(1), replica(2, **OUT, end=10, link_ms=None)), GroupState.DEGRADED,
         "replica 2 has no link to the master, 990 bytes behind"),
        (facts(replica(1), replica(2, **SILENT)), GroupState.DEGRADED,
         "replica 2 is silent for 2.5 s"),
        (facts(replica(1), replica(2, **FULL)), GroupState.DEGRADED,
         "replica 2 cannot write: is its disk full?"),
        (facts(replica(1, **FULL), replica(2)), GroupState.READ_ONLY,
         "master 1 cannot write: is its disk full? Replica 2 takes over"),
        (facts(replica(1, **FULL), replica(2, **DOWN)), GroupState.READ_ONLY,
         "master 1 cannot write: is its disk full? No other member can"),
        (facts(replica(1), replica(2, is_learner=True, **OUT), min_in_sync_replicas=2),
         GroupState.READ_ONLY, "replica 2 is drained (twinlog ha undrain g 2)"),
        (facts(replica(1), min_in_sync_replicas=2), GroupState.READ_ONLY,
         "1 replica has ever registered, 2 are needed"),
        (facts(replica(1), replica(2), min_in_sync_replicas=3), GroupState.READ_ONLY,
         "2 replicas have ever registered, 3 are needed"),
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
         "older than the group (twinlog controller adopt g --group g)"),
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
        {"time": 3, "event": "removed", "replica": 2, "reason": "its connection closed"},
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
        (FULL, "cannot write: is its disk full?"),
        ({"clock": "its clock is slow"}, "its clock is slow"),
        ({}, "in the set of the election"),
    ],
)
def test_why_a_replica_is_where_it_is(fields: dict[str, Any], why: str) -> None:
    told = controlled_group(facts(replica(1), replica(2, **fields)), [])
    assert told.replicas[1].why == why


def test_who_takes_over_is_named() -> None:
    told = controlled_group(facts(replica(1), replica(2), hand_over_to=2), [])
    assert told.replicas[1].why == "takes over"


def test_a_replica_that_an_election_left_out_is_not_called_admitted() -> None:
    events = [
        {"time": 1, "event": "admitted", "replica": 2},
        {"time": 2, "event": "elected", "epoch": 3, "members": [1], "reason": "2 was silent"},
    ]
    told = controlled_group(facts(replica(1), replica(2, **OUT)), events)
    assert told.replicas[1].why == "not in the set of the election of epoch 3"
    told = controlled_group(facts(replica(1), replica(2, **OUT)), events[:1])
    assert told.replicas[1].why == "not in the set"


def test_a_dead_master_has_neither_the_role_nor_a_lease() -> None:
    known = facts(replica(1, is_alive=False), replica(2), lease_left_ms=900)
    dead = controlled_group(known, []).replicas[0]
    assert (dead.role, dead.lease_ms, dead.unconfirmed) == ("WAS MASTER", None, None)
    known = facts(replica(1), replica(2), lease_left_ms=900)
    living = controlled_group(known, []).replicas[0]
    assert (living.role, living.lease_ms, living.unconfirmed) == ("MASTER", 900, 100)


def test_a_broker_that_does_not_answer_is_named_and_not_healthy() -> None:
    told = controlled_group(facts(replica(1), replica(2)), [], silent={"127.0.0.1:1"})
    assert not told.is_healthy
    assert (told.state, told.reason) == (
        GroupState.DEGRADED, "master 1 at 127.0.0.1:1 does not answer",
    )  # fmt: skip
    both = {"127.0.0.1:1", "127.0.0.1:2"}
    told = controlled_group(facts(replica(1), replica(2)), [], silent=both)
    assert told.reason == "master 1 at 127.0.0.1:1 and replica 2 at 127.0.0.1:2 do not answer"
    told = controlled_group(facts(replica(1, is_alive=False), replica(2)), [], silent=both)
    assert told.state is GroupState.NO_MASTER, "the worst counts"
    assert told.reason == "replica 2 at 127.0.0.1:2 does not answer; master 1 is not heard"


def test_a_pair_that_is_not_adopted_is_served_by_its_fixed_master() -> None:
    known = facts(
        replica(1), master_broker_id=None, master_epoch=0, waiting="adoption: 1 of 2 are here"
    )
    told = controlled_group(known, [], fixed_master="127.0.0.1:7")
    assert (told.state, told.reason) == (
        GroupState.NOT_ADOPTED,
        "127.0.0.1:7 serves as its file says; adoption: 1 of 2 are here",
    )
    adopted = controlled_group(facts(replica(1), replica(2)), [], fixed_master="127.0.0.1:1")
    assert adopted.is_healthy


def test_who_serves_without_the_controller_is_named() -> None:
    """A fixed pair again, or cut off from this controller: the route still has a master."""
    known = facts(replica(1, **DOWN), replica(2, **DOWN), waiting="waiting for replica 1")
    told = controlled_group(known, [], fixed_master="127.0.0.1:1")
    assert (told.state, told.reason) == (
        GroupState.NO_MASTER,
        "no replica reports to this controller, but the route has the master 127.0.0.1:1;"
        " waiting for replica 1",
    )
    known = facts(replica(1, **DOWN), replica(2), waiting="waiting for replica 1")
    assert controlled_group(known, [], fixed_master="h:1").reason == "waiting for replica 1"


def test_a_store_that_was_wiped_leaves_an_id_to_forget() -> None:
    old, new = replica(2, **DOWN), replica(3)
    new.address = old.address
    told = controlled_group(facts(replica(1), old, new), [])
    assert told.reason == (
        "replica 2 is down, and another one has its address: forget it (twinlog ha remove g 2)"
    )


@pytest.mark.parametrize(
    "known",
    [
        facts(replica(1), replica(2, **DOWN)),
        facts(replica(1), replica(2, **SILENT)),
        facts(replica(1), replica(2, is_alive=False)),
    ],
)
def test_one_that_is_not_heard_and_lives_elsewhere_is_not_called_down(known: GroupFacts) -> None:
    where = "is alive, but follows the controller 127.0.0.1:9"
    told = controlled_group(known, [], elsewhere={"127.0.0.1:2": where})
    assert told.reason == f"replica 2 {where}"
    assert told.replicas[1].why == where
    heard = controlled_group(facts(replica(1), replica(2)), [], elsewhere={"127.0.0.1:2": where})
    assert heard.is_healthy
    assert heard.replicas[1].why != where
