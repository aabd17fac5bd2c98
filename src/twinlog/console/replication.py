"""The picture of replication: what all replicas said, put together. Pure.

`picture` makes the view of a moment out of facts; `Memory` keeps what one moment does not know: who
was there before, since when something is wrong, the lag of the last hour, what changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from twinlog.admin.ha import ReplicaState
from twinlog.admin.replicas import ReplicaFacts, slave_of
from twinlog.controller.group_status import ControlledGroup
from twinlog.remoting.bodies.controller import GroupFacts
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.runtime.event_journal import event_time

HISTORY_MS = 3_600_000
BUCKET_MS = 5_000
EVENTS_MAX = 500
SPAN_MIN = 64 * 1024  # The picture never shows less of the log: a few bytes are not a gap.


class Mark(Struct, frozen=True):
    """How far one stage of a replica is. `behind` is the distance to the end of the group."""

    name: str
    offset: int | None
    behind: int | None
    share: float
    """Of the part of the log that the picture shows, 0 to 1."""


class ReplicaView(Struct, frozen=True, kw_only=True):
    """One replica. `state`: ok, behind, silent (registered, no answer) or gone."""

    name: str
    address: str
    broker_id: int
    role: str
    state: str
    is_master: bool
    is_in_sync: bool | None
    marks: list[Mark]
    lag_bytes: int | None = None
    lag_ms: int | None = None
    bytes_per_second: int | None = None
    reason: str = ""
    since_ms: int | None = None
    replica_id: int | None = None
    """The controller's number of it, where one decides."""
    is_learner: bool = False


class FindingView(Struct, frozen=True, kw_only=True):
    """Something that is wrong: a sentence, since when, and what to do about it."""

    level: str
    code: str
    about: str
    text: str
    next_step: str
    since_ms: int = 0


class EventView(Struct, frozen=True):
    """Something that changed."""

    time_ms: int
    group: str
    kind: str
    text: str
    source: str = ""
    """The server whose journal has it; empty for what was seen from here."""


class GroupView(Struct, frozen=True, kw_only=True):
    """One group of replicas."""

    name: str
    cluster: str
    policy: str
    master: str
    end: int | None
    start: int | None
    """Where the picture begins."""
    replicas: list[ReplicaView]
    findings: list[FindingView]
    in_sync: list[str]
    epoch: int | None = None
    state: str = ""
    """With a controller: healthy, DEGRADED, READ ONLY, NO MASTER or FROZEN."""
    state_reason: str = ""
    is_controlled: bool = False
    version: str = ""
    """Of what the controller decided, for a change that depends on it."""

    @property
    def is_healthy(self) -> bool:
        return not any(finding.level == "problem" for finding in self.findings)


class Snapshot(Struct, frozen=True, kw_only=True):
    """Replication at one moment."""

    time_ms: int
    groups: list[GroupView]
    name_server: str
    error: str = ""
    controller_error: str = ""
    """Why what the controller decided is only the last that it told."""

    @property
    def is_healthy(self) -> bool:
        is_answered = not self.error and not self.controller_error
        return is_answered and bool(self.groups) and all(g.is_healthy for g in self.groups)


class LagPoint(Struct, frozen=True):
    """The worst of five seconds."""

    time_ms: int
    lag_bytes: int
    lag_ms: int


_BAD_EVENTS = ("left", "lost", "refus", "full", "error", "cut", "damage", "failed", "unlinked")


def journal_event(event: Mapping[str, Any]) -> EventView:
    """A line of a server's journal; what its details are is the server's business."""
    name = str(event.get("event", ""))
    details = ", ".join(
        f"{key} {value}"
        for key, value in event.items()
        if key not in ("event", "time", "group", "from") and value not in ("", None, [])
    )
    # A request that is refused is the matter of who asked, this console often among them.
    is_bad = name != "requests-refused" and any(word in name for word in _BAD_EVENTS)
    kind = "problem" if is_bad else "journal"
    if name.endswith("elected") or name == "role":
        kind = "master"
    text = f"{name}: {details}" if details else name
    return EventView(
        event_time(dict(event)), str(event.get("group", "")), kind, text, str(event.get("from", ""))
    )


# The picture of a moment


def group_view(
    name: str, cluster: str, members: Sequence[ReplicaFacts], gone: Sequence[ReplicaFacts]
) -> GroupView:
    """What the replicas of a group say, side by side."""
    master = next((facts for facts in members if facts.is_master), None)
    ends = [facts.appended for facts in (*members, *gone) if facts.appended is not None]
    end = max(ends, default=None)
    slaves = [facts for facts in members if facts.broker_id != MASTER_ID]
    states = {
        facts.address: slave_of(master, facts, slaves) if master is not None else None
        for facts in slaves
    }
    start = _picture_start(end, [*members, *gone], states)
    views = [_replica_view(facts, states.get(facts.address), end, start) for facts in members]
    names = {view.name for view in views}
    views += [_gone_view(facts, end, start, names) for facts in gone]
    return GroupView(
        name=name,
        cluster=cluster,
        policy=master.role if master is not None else "",
        master=master.address if master is not None else "",
        end=end,
        start=start,
        replicas=views,
        findings=[],
        in_sync=[view.name for view in views if view.is_in_sync],
    )


def _picture_start(
    end: int | None,
    members: Iterable[ReplicaFacts],
    states: dict[str, ReplicaState | None],
) -> int | None:
    """So much of the log that the mark which is furthest behind is seen with some room."""
    if end is None:
        return None
    offsets = [
        offset
        for facts in members
        for offset in (facts.appended, facts.flushed, facts.confirmed, facts.dispatched)
        if offset is not None
    ]
    offsets += [state.ack_offset for state in states.values() if state is not None]
    span = max(SPAN_MIN, round(1.25 * (end - min(offsets, default=end))))
    return max(0, end - span)


def _replica_view(
    facts: ReplicaFacts, state: ReplicaState | None, end: int | None, start: int | None
) -> ReplicaView:
    is_slave = facts.broker_id != MASTER_ID
    lag_bytes = lag_ms = rate = None
    if is_slave and state is not None:
        lag_bytes, lag_ms, rate = state.lag_bytes, state.lag_ms, state.bytes_per_second
    elif is_slave and facts.appended is not None and end is not None:
        lag_bytes = end - facts.appended
    in_sync: bool | None = None
    if not is_slave:
        in_sync = facts.is_reached
    elif state is not None:
        in_sync = state.is_in_sync and facts.is_reached
    if not facts.is_reached:
        shown = "silent"
    elif in_sync or (not is_slave):
        shown = "ok"
    else:
        shown = "behind"
    reason = facts.error or (state.reason if state is not None else facts.link_reason)
    return ReplicaView(
        name=f"{facts.group}:{facts.broker_id}",
        address=facts.address,
        broker_id=facts.broker_id,
        role=facts.role or ("SLAVE" if is_slave else "MASTER"),
        state=shown,
        is_master=not is_slave,
        is_in_sync=in_sync,
        marks=list(_marks(facts, state, end, start)),
        lag_bytes=lag_bytes,
        lag_ms=lag_ms,
        bytes_per_second=rate,
        reason="" if shown == "ok" else reason,
        since_ms=state.since_ms if state is not None else None,
    )


def _gone_view(
    facts: ReplicaFacts, end: int | None, start: int | None, names: set[str]
) -> ReplicaView:
    """One whose id another has now is called by its address."""
    view = _replica_view(facts, None, end, start)
    lag = None if facts.appended is None or end is None else end - facts.appended
    return ReplicaView(
        name=view.name if view.name not in names else view.address,
        address=view.address, broker_id=view.broker_id, role=view.role,
        state="gone", is_master=view.is_master, is_in_sync=False, marks=view.marks,
        lag_bytes=lag,
    )  # fmt: skip


def _marks(
    facts: ReplicaFacts, state: ReplicaState | None, end: int | None, start: int | None
) -> Iterator[Mark]:
    acknowledged = state.ack_offset if state is not None else None
    is_slave = facts.broker_id != MASTER_ID
    for name, offset in (
        ("appended", facts.appended),
        ("flushed", facts.flushed),
        (
            "acknowledged" if is_slave else "confirmed",
            acknowledged if is_slave else facts.confirmed,
        ),
        ("dispatched", facts.dispatched),
    ):
        if offset is None or end is None or start is None:
            yield Mark(name, None, None, 0.0)
            continue
        share = (offset - start) / max(1, end - start)
        yield Mark(name, offset, max(0, end - offset), min(1.0, max(0.0, share)))


# What one moment does not know


class Memory:
    """What changed since the console began to look."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], tuple[ReplicaFacts, int]] = {}
        self._since: dict[tuple[str, str, str], tuple[int, str]] = {}
        self._masters: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self.lag: dict[str, deque[LagPoint]] = {}
        self.events: deque[EventView] = deque(maxlen=EVENTS_MAX)

    def last_known(self, facts: ReplicaFacts) -> ReplicaFacts:
        """With the marks that a replica had when it last answered, if it does not now."""
        if facts.is_reached:
            return facts
        known = self._members.get((facts.group, facts.address))
        if known is None or known[0].appended is None:
            return facts
        return _with_error(known[0], facts.error, facts.broker_id)

    def gone(self, group: str, present: Iterable[ReplicaFacts], now_ms: int) -> list[ReplicaFacts]:
        """Members that were here within the last hour and are not registered any more.

        A replica is known by its address: its id changes with its role.
        """
        addresses = {facts.address for facts in present}
        return [
            facts
            for (name, address), (facts, seen_ms) in self._members.items()
            if name == group and address not in addresses and now_ms - seen_ms < HISTORY_MS
        ]

    def groups(self, now_ms: int) -> set[str]:
        return {
            name for (name, _), (_, seen) in self._members.items() if now_ms - seen < HISTORY_MS
        }

    def take(self, facts: Iterable[ReplicaFacts], now_ms: int) -> None:
        for entry in facts:
            if entry.is_reached:
                self._members[entry.group, entry.address] = (entry, now_ms)

    def since(self, group: str, findings: Iterable[FindingView], now_ms: int) -> list[FindingView]:
        """The findings with the time when each was first seen; events for what is new or over."""
        current: dict[tuple[str, str, str], FindingView] = {}
        for finding in findings:
            current.setdefault((group, finding.code, finding.about), finding)
        for key in [key for key in self._since if key[0] == group and key not in current]:
            _, text = self._since.pop(key)
            self.note(now_ms, group, "over", f"no longer: {text}")
        result = []
        for key, finding in current.items():
            if key not in self._since:
                self._since[key] = (now_ms, finding.text)
                self.note(now_ms, group, finding.level, finding.text)
            result.append(
                FindingView(
                    level=finding.level, code=finding.code, about=finding.about,
                    text=finding.text, next_step=finding.next_step, since_ms=self._since[key][0],
                )
            )  # fmt: skip
        return result

    def watch(self, group: GroupView, now_ms: int) -> None:
        """Lag for the charts, and events for changed roles and states."""
        before = self._masters.get(group.name)
        if group.master and before != group.master:
            if before is not None:
                text = f"{group.master} is the master now; before it was {before}"
                self.note(now_ms, group.name, "master", text)
            self._masters[group.name] = group.master
        for replica in group.replicas:
            self._watch_replica(group, replica, now_ms)

    def _watch_replica(self, group: GroupView, replica: ReplicaView, now_ms: int) -> None:
        before = self._states.get(replica.name)
        if before is not None and before != replica.state:
            text = f"{replica.name} was {before} and is {replica.state}"
            self.note(now_ms, group.name, "state", text)
        self._states[replica.name] = replica.state
        if not replica.is_master and replica.lag_bytes is not None:
            self._note_lag(replica.name, now_ms, replica.lag_bytes, replica.lag_ms or 0)

    def _note_lag(self, name: str, now_ms: int, lag_bytes: int, lag_ms: int) -> None:
        points = self.lag.setdefault(name, deque(maxlen=HISTORY_MS // BUCKET_MS))
        bucket = now_ms - now_ms % BUCKET_MS
        if points and points[-1].time_ms == bucket:
            last = points.pop()
            lag_bytes, lag_ms = max(last.lag_bytes, lag_bytes), max(last.lag_ms, lag_ms)
        points.append(LagPoint(bucket, lag_bytes, lag_ms))

    def note(self, now_ms: int, group: str, kind: str, text: str) -> None:
        self.events.append(EventView(now_ms, group, kind, text))


def _with_error(facts: ReplicaFacts, error: str, broker_id: int) -> ReplicaFacts:
    return ReplicaFacts(
        group=facts.group, broker_id=broker_id, address=facts.address, error=error,
        role=facts.role, min_offset=facts.min_offset, appended=facts.appended,
        flushed=facts.flushed, confirmed=facts.confirmed, dispatched=facts.dispatched,
        is_twinlog=facts.is_twinlog,
    )  # fmt: skip


def decided_of(group: GroupFacts) -> dict[str, Any]:
    """What somebody decides by who switches or drains."""
    return {
        "master": group.master_broker_id,
        "epoch": group.master_epoch,
        "members": sorted(r.broker_id for r in group.replicas if r.is_member),
        "learners": sorted(r.broker_id for r in group.replicas if r.is_learner),
    }


def with_controller(view: GroupView, control: ControlledGroup, version: str) -> GroupView:
    """The group with what its controller decided: epoch, set, numbers of the replicas."""
    lines = {line.address: line for line in control.replicas}
    replicas = [
        msgspec.structs.replace(
            replica,
            replica_id=lines[replica.address].broker_id,
            is_learner=lines[replica.address].role == "LEARNER",
        )
        if replica.address in lines
        else replica
        for replica in view.replicas
    ]
    members = [line.address for line in control.replicas if line.is_in_sync]
    return msgspec.structs.replace(
        view,
        replicas=replicas,
        in_sync=[r.name for r in replicas if r.address in members],
        epoch=control.epoch,
        state=control.state.value,
        state_reason=control.reason,
        is_controlled=True,
        version=version,
    )
