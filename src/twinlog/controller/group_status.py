"""How a group with a controller is, in words: state, since when, why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts
from twinlog.runtime.event_journal import event_time

_SET_CHANGES = {"admitted", "removed", "drained", "undrained", "forgotten"}
_LINK_LOST_MS = 1_500  # As the controller counts.
_OF_REPLICA = {*_SET_CHANGES, "registered", "cut"}


class GroupState(StrEnum):
    """From the worst on."""

    FROZEN = "FROZEN"
    NO_MASTER = "NO MASTER"
    NOT_ADOPTED = "NOT ADOPTED"
    READ_ONLY = "READ ONLY"
    DEGRADED = "DEGRADED"
    HEALTHY = "healthy"


class ReplicaLine(msgspec.Struct, frozen=True):
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
    unconfirmed: int | None = None
    """Of a master: the end of its log that not every member has."""


class ControlledGroup(msgspec.Struct, frozen=True):
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

    @property
    def problem(self) -> str:
        """What is wrong with it; empty when it is healthy."""
        return "" if self.is_healthy else f"{self.state}: {self.reason}"


def controlled_group(
    facts: GroupFacts,
    events: Sequence[dict[str, Any]],
    *,
    silent: Collection[str] = (),
    fixed_master: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> ControlledGroup:
    """`events` are those of this group, oldest first; `silent` are addresses that did not answer;
    `fixed_master` is the master in the route: who serves while the group is not adopted;
    `elsewhere` says of addresses that the controller does not hear what lives there."""
    places = elsewhere or {}
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
    state, reason = _state(facts, master, len(members), places)
    if fixed_master and not facts.master_epoch:
        state = GroupState.NOT_ADOPTED
        reason = f"{fixed_master} serves as its file says; {facts.waiting or 'nobody is heard'}"
    elif fixed_master and not any(replica.is_alive for replica in facts.replicas):
        who = f"the route has the master {fixed_master}"
        reason = f"no replica reports to this controller, but {who}; {reason}"
    # Of one that its controller does not hear either this is said already.
    hung = [r for r in facts.replicas if r.address in silent and r.is_alive]
    if hung and state is not GroupState.FROZEN:
        state = min(state, GroupState.DEGRADED, key=list(GroupState).index)
        names = " and ".join(_name(facts, replica) for replica in hung)
        verb = "does not answer" if len(hung) == 1 else "do not answer"
        reason = "; ".join(text for text in (f"{names} {verb}", reason) if text)
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
        replicas=tuple(_line(facts, replica, master, events, places) for replica in facts.replicas),
    )


def problem_of(facts: GroupFacts) -> str:
    """What is wrong with a group for its controller; empty when nothing is."""
    return controlled_group(facts, ()).problem


def _find(facts: GroupFacts, broker_id: int | None) -> ReplicaFacts | None:
    return next((r for r in facts.replicas if r.broker_id == broker_id), None)


def _newest(events: Sequence[dict[str, Any]], is_meant: Any) -> dict[str, Any] | None:
    return next((event for event in reversed(events) if is_meant(event)), None)


def _state(
    facts: GroupFacts, master: ReplicaFacts | None, copies: int, places: Mapping[str, str]
) -> tuple[GroupState, str]:
    if facts.frozen:
        how = f"twinlog controller adopt {facts.broker_name} --group {facts.broker_name}"
        return GroupState.FROZEN, f"{facts.frozen} ({how})"
    if master is None:
        return GroupState.NO_MASTER, facts.waiting or "none was elected yet"
    if not master.is_alive:
        silent = f"master {master.broker_id} {places.get(master.address, 'is not heard')}"
        return GroupState.NO_MASTER, facts.waiting or silent
    expected = [replica for replica in facts.replicas if not replica.is_learner]
    missing = [_missing(facts, r, master, places) for r in expected if not r.is_member]
    if not master.is_writable:
        return GroupState.READ_ONLY, _unwritable_master(facts, master)
    if copies < facts.min_in_sync_replicas:
        drained = [_drained(facts, replica) for replica in facts.replicas if replica.is_learner]
        count = len(facts.replicas)
        registered = "replica has" if count == 1 else "replicas have"
        absent = f"{count} {registered} ever registered, {facts.min_in_sync_replicas} are needed"
        return GroupState.READ_ONLY, "; ".join(missing + drained) or absent
    if missing or len(facts.replicas) < facts.total_replicas:
        absent = f"{len(facts.replicas)} of {facts.total_replicas} replicas have ever registered"
        return GroupState.DEGRADED, "; ".join(missing) or absent
    silent_members = [r for r in expected if not r.is_alive]
    if silent_members:
        first = silent_members[0]
        how = places.get(first.address, "is not heard")
        return GroupState.DEGRADED, f"replica {first.broker_id} {how}"
    unwritable = [r.broker_id for r in expected if not r.is_writable]
    if unwritable:
        return GroupState.DEGRADED, f"replica {unwritable[0]} cannot write: is its disk full?"
    return GroupState.HEALTHY, ""


def _name(facts: GroupFacts, replica: ReplicaFacts) -> str:
    kind = "master" if replica.broker_id == facts.master_broker_id else "replica"
    return f"{kind} {replica.broker_id} at {replica.address}"


def _unwritable_master(facts: GroupFacts, master: ReplicaFacts) -> str:
    """Sends are refused with 14 until it can, or another one leads."""
    others = [
        r.broker_id
        for r in facts.replicas
        if r is not master and r.is_member and r.is_alive and r.is_writable
    ]
    text = f"master {master.broker_id} cannot write: is its disk full?"
    return f"{text} Replica {others[0]} takes over" if others else f"{text} No other member can"


def _drained(facts: GroupFacts, replica: ReplicaFacts) -> str:
    n, name = replica.broker_id, facts.broker_name
    return f"replica {n} is drained (twinlog ha undrain {name} {n})"


def _missing(
    facts: GroupFacts, replica: ReplicaFacts, master: ReplicaFacts, places: Mapping[str, str]
) -> str:
    who = f"replica {replica.broker_id}"
    behind = _behind(replica, master)
    distance = f", {behind} bytes behind" if behind else ""
    if not replica.is_alive:
        return f"{who} {places.get(replica.address) or _absence(facts, replica)}"
    if not replica.is_writable:
        return f"{who} cannot write: is its disk full?{distance}"
    if replica.link_ms is None or replica.link_ms > _LINK_LOST_MS:
        return f"{who} has no link to the master{distance}"
    return f"{who} rejoins{distance}"


def _absence(facts: GroupFacts, replica: ReplicaFacts) -> str:
    """A store that was wiped comes back with another id; the old one is known until an operator
    says that it is gone."""
    is_replaced = any(
        other.address == replica.address and other.broker_id > replica.broker_id
        for other in facts.replicas
    )
    if is_replaced:
        forget = f"twinlog ha remove {facts.broker_name} {replica.broker_id}"
        return f"is down, and another one has its address: forget it ({forget})"
    if replica.is_closed or replica.heard_ms is None:
        return "is down"
    return f"is silent for {replica.heard_ms / 1000:.1f} s"


def _behind(replica: ReplicaFacts, master: ReplicaFacts | None) -> int | None:
    if master is None or master.end is None or replica.end is None or replica is master:
        return None
    return max(0, master.end - replica.end)


def _line(
    facts: GroupFacts,
    replica: ReplicaFacts,
    master: ReplicaFacts | None,
    events: Sequence[dict[str, Any]],
    places: Mapping[str, str],
) -> ReplicaLine:
    is_master = replica is master and replica.is_alive
    role = "LEARNER" if replica.is_learner else "SLAVE"
    if replica is master:
        role = "MASTER" if is_master else "WAS MASTER"
    return ReplicaLine(
        broker_id=replica.broker_id,
        address=replica.address,
        role=role,
        is_in_sync=replica.is_member,
        why=(not replica.is_alive and places.get(replica.address))
        or _why(facts, replica, is_master, events),
        end=replica.end,
        behind=_behind(replica, master),
        lease_ms=facts.lease_left_ms if is_master else None,
        is_doubtful=replica.is_doubtful,
        unconfirmed=_unconfirmed(replica) if is_master else None,
    )


def _unconfirmed(master: ReplicaFacts) -> int | None:
    if master.end is None or master.confirmed is None:
        return None
    return max(0, master.end - master.confirmed)


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
        return "cannot write: is its disk full?"
    if replica.clock:
        return replica.clock
    if is_master:
        return f"{facts.election} election, log ends in epoch {replica.last_epoch}"
    if facts.hand_over_to == replica.broker_id:
        return "takes over"
    event = _newest(events, lambda e: _concerns(e, replica.broker_id))
    kind = "" if event is None else str(event["event"])
    if replica.is_member:
        return kind if kind == "admitted" else "in the set of the election"
    if event is None or kind == "admitted":
        return "not in the set"
    if kind.endswith("elected"):
        return f"not in the set of the election of epoch {event.get('epoch')}"
    reason = event.get("reason")
    return f"{kind}: {reason}" if reason else kind


def _concerns(event: dict[str, Any], broker_id: int) -> bool:
    if str(event.get("event", "")).endswith("elected"):
        return isinstance(event.get("members"), list) and broker_id not in event["members"]
    return event.get("replica") == broker_id and event.get("event") in _OF_REPLICA
