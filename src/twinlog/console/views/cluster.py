"""Replication and the overview."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from twinlog.admin import brokers
from twinlog.console.operations import Context, Nothing, Operation
from twinlog.console.replication import EventView, GroupView, LagPoint, Snapshot

ANSWER_MS = 2_000
"""How long the overview waits for a broker."""


class Replication(Struct, frozen=True, kw_only=True):
    """Replication now and in the last hour."""

    time_ms: int
    is_healthy: bool
    error: str
    controller_error: str
    groups: list[GroupView]
    lag: dict[str, list[LagPoint]]
    events: list[EventView]


class BrokerRow(Struct, frozen=True, kw_only=True):
    """One broker."""

    name: str
    broker_id: int
    cluster: str
    address: str
    role: str
    version: str = ""
    in_rate: float | None = None
    out_rate: float | None = None
    disk_ratio: float | None = None
    log_bytes: int | None = None
    messages_today: int | None = None
    error: str = ""


class Overview(Struct, frozen=True, kw_only=True):
    """The cluster at a glance."""

    replication: Snapshot
    is_healthy: bool
    brokers: list[BrokerRow]
    in_rate: float
    out_rate: float


def replication_of(context: Context, snapshot: Snapshot) -> Replication:
    memory = context.watcher.memory
    return Replication(
        time_ms=snapshot.time_ms,
        is_healthy=snapshot.is_healthy,
        error=snapshot.error,
        controller_error=snapshot.controller_error,
        groups=snapshot.groups,
        lag={name: list(points) for name, points in memory.lag.items()},
        events=sorted([*memory.events, *context.watcher.journal], key=lambda event: -event.time_ms),
    )


async def replication(context: Context, _: Nothing) -> Replication:
    snapshot = context.watcher.snapshot
    if context.clock.now_ms() - snapshot.time_ms > 2_000:
        snapshot = await context.watcher.look()
    return replication_of(context, snapshot)


async def overview(context: Context, _: Nothing) -> Overview:
    found = await brokers.list_brokers(context.admin, timeout_ms=ANSWER_MS)
    rows = [_row(entry) for entry in found]
    snapshot = context.watcher.snapshot
    masters = [row for row in rows if row.broker_id == 0]
    return Overview(
        replication=snapshot,
        is_healthy=snapshot.is_healthy,
        brokers=rows,
        in_rate=sum(row.in_rate or 0 for row in masters),
        out_rate=sum(row.out_rate or 0 for row in rows),
    )


def _row(entry: brokers.BrokerSummary) -> BrokerRow:
    role = entry.runtime.get("haRole") or ("MASTER" if entry.broker_id == 0 else "SLAVE")
    if entry.error is not None:
        return BrokerRow(
            name=entry.name, broker_id=entry.broker_id, cluster=entry.cluster,
            address=entry.address, role=role, error=entry.error,
        )  # fmt: skip
    return BrokerRow(
        name=entry.name,
        broker_id=entry.broker_id,
        cluster=entry.cluster,
        address=entry.address,
        role=role,
        version=entry.version,
        in_rate=entry.put_tps,
        out_rate=entry.get_tps,
        disk_ratio=entry.disk_ratio,
        log_bytes=entry.max_offset - _number(entry.runtime, "commitLogMinOffset"),
        messages_today=_number(entry.runtime, "msgPutTotalTodayNow")
        - _number(entry.runtime, "msgPutTotalTodayMorning"),
    )


def _number(runtime: Any, key: str) -> int:
    return int(brokers.first_number(runtime.get(key, "")))


OPERATIONS = [
    Operation(
        name="replication", method="GET", path="/replication", run=replication,
        result=Replication, summary="Every group with its replicas, their marks, lag and events.",
    ),
    Operation(
        name="overview", method="GET", path="/overview", run=overview, result=Overview,
        summary="The brokers of the cluster, their rates and disks, and whether all is well.",
    ),
]  # fmt: skip
