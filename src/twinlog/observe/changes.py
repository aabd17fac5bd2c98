"""What changed between two looks at a broker, as events. Pure.

A journal is written by whoever looks every half second: what a broker is, who follows it, how full
its disks are. A change that comes and goes between two looks leaves its trace in counters and in
the list of connections that ended, so it is told as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Departed:
    """A connection to the HA port that ended."""

    replica: str
    until_ms: int
    reason: str
    was_slave: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A broker at one moment. Counters only grow."""

    role: str = ""
    epoch: int = 0
    replicas: Mapping[str, str] = field(default_factory=dict)
    """Connected slaves, and why each is not in sync; empty when it is."""
    departed: tuple[Departed, ...] = ()
    master: str = ""
    is_linked: bool = True
    link_reason: str = ""
    damage: str = ""
    refusal: str = ""
    disks: Mapping[str, str] = field(default_factory=dict)
    """Level of each directory: ok, cleaning, full."""
    contained: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Errors by what failed: how many, and the last one."""
    refused: Mapping[str, int] = field(default_factory=dict)
    cut_count: int = 0
    log_end: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    unsaved: Mapping[str, str] = field(default_factory=dict)


def changes(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """What to write, in an order that reads well."""
    yield from _role(before, after)
    yield from _replicas(before, after)
    yield from _link(before, after)
    if after.cut_count > before.cut_count:
        details = {"logEnd": after.log_end, "logEndBefore": before.log_end}
        yield "log-cut", details
    yield from _refusal(before, after)
    for path, level in after.disks.items():
        if level != before.disks.get(path, "ok"):
            yield "disk-level", {"directory": path, "level": level}
    yield from _tables(before, after)
    yield from _counts(before, after)
    changed = {k: v for k, v in after.settings.items() if before.settings.get(k, v) != v}
    if changed:
        yield "configuration-changed", {"changed": changed}


def _role(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    if (before.role, before.epoch) != (after.role, after.epoch):
        # Not "from": that is who wrote an event, where journals are merged.
        yield "role-changed", {"was": before.role, "to": after.role, "epoch": after.epoch}


def _replicas(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    for departed in after.departed:
        if departed not in before.departed:
            kind = "replica-left" if departed.was_slave else "replica-refused"
            yield kind, {"replica": departed.replica, "reason": departed.reason}
    for replica, why in after.replicas.items():
        was = before.replicas.get(replica)
        if was is None:
            yield "replica-joined", {"replica": replica}
        if why and not was:
            yield "replica-not-in-sync", {"replica": replica, "reason": why}
        elif was and not why:
            yield "replica-in-sync", {"replica": replica}


def _link(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    is_same_role = (before.role, before.epoch) == (after.role, after.epoch)
    if before.is_linked and not after.is_linked and is_same_role:  # Else it has yet to dial.
        yield "master-lost", {"master": after.master, "reason": after.link_reason}
    elif after.master and after.is_linked and not before.is_linked:
        yield "master-found", {"master": after.master}
    if after.damage and after.damage != before.damage:
        yield "replication-stopped", {"reason": after.damage}
    elif before.damage and not after.damage:
        yield "replication-goes-on", {}


def _refusal(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    if after.refusal and not before.refusal:
        yield "sends-refused", {"reason": after.refusal}
    elif before.refusal and not after.refusal:
        yield "sends-taken", {}


def _tables(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    for table, reason in after.unsaved.items():
        if table not in before.unsaved:
            yield "table-not-saved", {"table": table, "reason": reason}
    for table in before.unsaved.keys() - after.unsaved.keys():
        yield "table-saved", {"table": table}


def _counts(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    for what, (count, error) in after.contained.items():
        if _is_news(before.contained.get(what, (0, ""))[0], count):
            yield "contained-error", {"what": what, "count": count, "error": error}
    for what, count in after.refused.items():
        if _is_news(before.refused.get(what, 0), count):
            yield "requests-refused", {"what": what, "count": count}


def _is_news(before: int, after: int) -> bool:
    """The first, and each time another power of ten is reached."""
    return after > before and (before == 0 or len(str(after)) > len(str(before)))
