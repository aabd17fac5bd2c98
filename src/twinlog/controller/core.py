"""The controller's decisions: `handle(now, event)` returns effects. Pure.

One object decides for all groups while its process leads. What it holds besides the committed
records is rebuilt from heartbeats, so a new leader begins with `Controller(records, now)`.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.controller import events
from twinlog.controller.events import DEFAULT_TIMING, Effect, Reply, Timing
from twinlog.controller.group import Group
from twinlog.controller.record import GroupRecord
from twinlog.controller.refusals import RefusalKind

GROUPS_MAX = 10_000

Event = (
    events.Heartbeat
    | events.ConnectionClosed
    | events.Tick
    | events.AlterSyncStateSet
    | events.RegisterReplica
    | events.ElectMaster
    | events.SetLearner
    | events.RemoveReplica
    | events.Adopt
    | events.CommitDone
    | events.CommitUnknown
    | events.Loaded
)


class Controller:
    """All groups. `records` is what the store holds when this controller begins to lead."""

    def __init__(
        self, records: Iterable[GroupRecord], now_ms: int, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self._timing = timing
        self._since_ms = now_ms
        self.groups = {record.group: Group(record, timing, now_ms) for record in records}

    def handle(self, now_ms: int, event: Event) -> list[Effect]:
        match event:
            case events.Tick():
                return [e for group in self.groups.values() for e in group.consider(now_ms)]
            case events.ConnectionClosed():
                return [
                    e
                    for group in self.groups.values()
                    for e in group.closed(now_ms, event.connection)
                ]
            case events.RegisterReplica():
                return self._register(now_ms, event)
        group = self.groups.get(event.group)
        if group is None:
            token = getattr(event, "token", None)
            error = f"no group {event.group} is registered here"
            return [Reply(token, None, error=error, kind=RefusalKind.UNKNOWN_GROUP)]
        return self._handle_in_group(now_ms, group, event)

    def _handle_in_group(self, now_ms: int, group: Group, event: Event) -> list[Effect]:
        match event:
            case events.Heartbeat():
                return group.heartbeat(now_ms, event)
            case events.AlterSyncStateSet():
                return group.alter(now_ms, event)
            case events.ElectMaster():
                return group.elect_by_request(now_ms, event)
            case events.SetLearner():
                return group.set_learner(now_ms, event)
            case events.RemoveReplica():
                return group.remove(now_ms, event)
            case events.Adopt():
                return group.adopt(now_ms, event.typed_group, event.token)
            case events.CommitDone():
                return group.commit_done(event.version)
            case events.CommitUnknown():
                return group.commit_unknown(event.version)
            case events.Loaded():
                return group.loaded(now_ms, event.record)
        raise AssertionError(event)

    def _register(self, now_ms: int, event: events.RegisterReplica) -> list[Effect]:
        """The first replica of a name makes the group, with its policy."""
        group = self.groups.get(event.group)
        if group is None and len(self.groups) >= GROUPS_MAX:
            error = f"this controller has {GROUPS_MAX} groups"
            return [Reply(event.token, None, error=error, kind=RefusalKind.INVALID)]
        if group is None:
            record = GroupRecord(cluster=event.cluster, group=event.group, policy=event.policy)
            group = self.groups[event.group] = Group(record, self._timing, now_ms)
        return group.register(now_ms, event)
