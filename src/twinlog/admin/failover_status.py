"""How a group with a controller is, in words: state, since when, why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts
from twinlog.runtime.event_journal import event_time

_SET_CHANGES = {"admitted", "removed", "drained", "undrained", "forgotten"}
_OF_REPLICA = {*_SET_CHANGES, "registered", "cut"}


class GroupState(StrEnum):
    """From the worst on."""

    FROZEN = "FROZEN"
    NO_MASTER = "NO MASTER"
    READ_ONLY = "READ ONLY"
    DEGRADED = "DEGRADED"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class ReplicaLine:
    """One row of the status."""

    broker_id: int
    address: str
    role: str
    is_in_sync: bool
    why: str
    end: int | None
    behind: int | None
    lease_ms: int | None
    is_doubtful: bool


@dataclass(frozen=True, slots=True)
class ControlledGroup:
    """One group: its state, how it came to be, and each replica."""

    name: str
    state: GroupState
    copies: int
    min_copies: int
    since_ms: int | None
    """Since when it has so many copies."""
    reason: str
    epoch: int
    master_id: int | None
    master_address: str
    elected_ms: int | None
    elected_why: str
    members: tuple[int, ...]
    replicas: tuple[ReplicaLine, ...]

    @property
    def is_healthy(self) -> bool:
        return self.state is GroupState.HEALTHY


def controlled_group(facts: GroupFacts, events: Sequence[dict[str, Any]]) -> ControlledGroup:
    """`events` are those of this group, oldest first."""
    master = _find(facts, facts.master_broker_id)
    election = _newest(
        events,
        lambda e: (
            str(e.get("event", "")).endswith("elected") and e.get("epoch") == facts.master_epoch
        ),
    )
    change = _newest(
        events,
        lambda e: e.get("event") in _SET_CHANGES or str(e.get("event", "")).endswith("elected"),
    )
    members = [replica for replica in facts.replicas if replica.is_member]
    state, reason = _state(facts, master, len(members))
    return ControlledGroup(
        name=facts.broker_name,
        state=state,
        copies=len(members),
        min_copies=facts.min_in_sync_replicas,
        since_ms=None if change is None else event_time(change),
        reason=reason,
        epoch=facts.master_epoch,
        master_id=facts.master_broker_id,
        master_address="" if master is None else master.address,
        elected_ms=None if election is None else event_time(election),
        elected_why="" if election is None else str(election.get("reason", "")),
        members=tuple(replica.broker_id for replica in members),
        replicas=tuple(_line(facts, replica, master, events) for replica in facts.replicas),
    )


def _find(facts: GroupFacts, broker_id: int | None) -> ReplicaFacts | None:
    return next((r for r in facts.replicas if r.broker_id == broker_id), None)


def _newest(events: Sequence[dict[str, Any]], is_meant: Any) -> dict[str, Any] | None:
    return next((event for event in reversed(events) if is_meant(event)), None)


def _state(facts: GroupFacts, master: ReplicaFacts | None, copies: int) -> tuple[GroupState, str]:
    if facts.frozen:
        return GroupState.FROZEN, facts.frozen
    if master is None:
        return GroupState.NO_MASTER, facts.waiting or "none was elected yet"
    if not master.is_alive:
        silent = f"master {master.broker_id} is not heard"
        return GroupState.NO_MASTER, facts.waiting or silent
    expected = [replica for replica in facts.replicas if not replica.is_learner]
    missing = [_missing(facts, replica, master) for replica in expected if not replica.is_member]
    if copies < facts.min_in_sync_replicas:
        return GroupState.READ_ONLY, "; ".join(missing)
    if missing or len(facts.replicas) < facts.total_replicas:
        absent = f"{len(facts.replicas)} of {facts.total_replicas} replicas have ever registered"
        return GroupState.DEGRADED, "; ".join(missing) or absent
    silent_members = [r.broker_id for r in expected if not r.is_alive]
    if silent_members:
        return GroupState.DEGRADED, f"replica {silent_members[0]} is not heard"
    return GroupState.HEALTHY, ""


def _missing(facts: GroupFacts, replica: ReplicaFacts, master: ReplicaFacts) -> str:
    who = f"replica {replica.broker_id}"
    if not replica.is_alive:
        return f"{who} is down"
    behind = _behind(replica, master)
    return f"{who} rejoins" + (f", {behind} bytes behind" if behind else "")


def _behind(replica: ReplicaFacts, master: ReplicaFacts | None) -> int | None:
    if master is None or master.end is None or replica.end is None or replica is master:
        return None
    return max(0, master.end - replica.end)


def _line(
    facts: GroupFacts,
    replica: ReplicaFacts,
    master: ReplicaFacts | None,
    events: Sequence[dict[str, Any]],
) -> ReplicaLine:
    is_master = replica is master
    role = "MASTER" if is_master else "LEARNER" if replica.is_learner else "SLAVE"
    return ReplicaLine(
        broker_id=replica.broker_id,
        address=replica.address,
        role=role,
        is_in_sync=replica.is_member,
        why=_why(facts, replica, is_master, events),
        end=replica.end,
        behind=_behind(replica, master),
        lease_ms=facts.lease_left_ms if is_master else None,
        is_doubtful=replica.is_doubtful,
    )


def _why(
    facts: GroupFacts, replica: ReplicaFacts, is_master: bool, events: Sequence[dict[str, Any]]
) -> str:
    """Why a replica is where it is; what is wrong now comes first."""
    if replica.heard_ms is None:
        return "not heard since the controller started"
    if not replica.is_alive:
        return f"silent for {replica.heard_ms / 1000:.1f} s"
    if replica.is_doubtful:
        return "lost power, in doubt until it is admitted again"
    if not replica.is_writable:
        return "cannot write"
    if is_master:
        return f"{facts.election} election, log ends in epoch {replica.last_epoch}"
    if facts.hand_over_to == replica.broker_id:
        return "takes over"
    event = _newest(
        events,
        lambda e: e.get("replica") == replica.broker_id and e.get("event") in _OF_REPLICA,
    )
    if event is None or (replica.is_member and event["event"] == "registered"):
        return "in the set of the election" if replica.is_member else ""
    reason = event.get("reason")
    return f"{event['event']}: {reason}" if reason else str(event["event"])
