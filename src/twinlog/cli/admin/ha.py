"""`twinlog ha ...`: replication in one sentence, then a row for each replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_options
from twinlog.cli.admin.session import Session, not_found, run
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, show_bytes, show_seconds, show_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.ha import GroupHAStatus


@click.group(cls=LazyGroup, short_help="Replication: is it healthy, and if not, why.")
def ha() -> None:
    """Replication between master and slaves."""


def _show_rate(value: Any) -> str:
    return "-" if value is None else f"{show_bytes(value)}/s"


def _show_age(value: Any) -> str:
    return "not yet" if value is None else f"{show_seconds(value)} ago"


_COLUMNS = [
    Column("broker"),
    Column("role"),
    Column("address"),
    Column("offset", is_right=True),
    Column("received_offset", "RECEIVED", is_right=True),
    Column("durable_offset", "DURABLE", is_right=True),
    Column("lag_bytes", "LAG", show_bytes, is_right=True),
    Column("lag_ms", "LAG TIME", show_seconds, is_right=True),
    Column("bytes_per_second", "RATE", _show_rate, is_right=True),
    Column("since_ms", "SINCE", show_time),
    Column("state"),
    Column("reason", is_wide=True),
]


_METADATA_COLUMNS = [
    Column("broker"),
    Column("slave"),
    Column("behind_records", "METADATA BEHIND", is_right=True),
    Column("sync_age_ms", "SAME AS MASTER", _show_age, is_right=True),
    Column("problem", is_wide=True),
]


@ha.command("status", epilog="Example: twinlog ha status --watch 1s")
@click.option("--cluster", help="Only this cluster.")
@cluster_options
def status(session: Session, cluster: str | None) -> int:
    """Healthy or not and why; then each replica. Exit code 0 or 10."""
    return run(session, lambda admin: ha_report(admin, cluster))


async def ha_report(admin: Admin, cluster: str | None) -> Report:
    from twinlog.admin import ha as ha_admin

    if cluster is not None:
        known = (await admin.cluster()).clusters
        if cluster not in known:
            raise not_found("cluster", cluster, list(known))
    groups = await ha_admin.ha_status(admin, cluster=cluster)
    is_healthy = bool(groups) and all(group.is_healthy for group in groups)
    rows = [row for group in groups for row in _rows(group)]
    tables = [Table(_COLUMNS, rows, "replicas")]
    metadata = [row for group in groups for row in _metadata_rows(group)]
    if metadata:
        tables.append(Table(_METADATA_COLUMNS, metadata, "metadata"))
    return Report(tables, sentence=_sentence(groups), is_healthy=is_healthy)


def _sentence(groups: list[GroupHAStatus]) -> str:
    if not groups:
        return "no broker is registered: nothing is replicated"
    bad = [group for group in groups if not group.is_healthy]
    if not bad and len(groups) > 1:
        slaves = sum(len(group.replicas) for group in groups)
        alone = [group.broker_name for group in groups if not group.replicas]
        text = f"all {len(groups)} groups are healthy: {slaves} slaves in sync"
        return f"{text}; without a slave: {', '.join(alone)}" if alone else text
    return "; ".join(group.sentence for group in (bad or groups))


def _rows(group: GroupHAStatus) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if group.master_address is not None:
        rows.append(
            {
                "broker": group.broker_name,
                "role": group.role or "MASTER",
                "address": group.master_address,
                "offset": group.max_offset,
                "confirmed_offset": group.confirmed_offset,
                "state": "ok" if group.is_healthy else "see above",
            }
        )
    rows += (
        {
            "broker": group.broker_name,
            "role": "SLAVE",
            "address": replica.address,
            "offset": replica.ack_offset,
            "received_offset": replica.received_offset,
            "durable_offset": replica.durable_offset,
            "lag_bytes": replica.lag_bytes,
            "lag_ms": replica.lag_ms,
            "bytes_per_second": replica.bytes_per_second,
            "since_ms": replica.since_ms,
            "state": "in sync" if replica.is_in_sync else (replica.state or "behind"),
            "reason": replica.reason,
        }
        for replica in group.replicas
    )
    return rows


def _metadata_rows(group: GroupHAStatus) -> list[dict[str, Any]]:
    """Topics, groups and offsets beside the data: how far each slave is with them."""
    return [
        {
            "broker": group.broker_name,
            "slave": state.address,
            "behind_records": state.behind_records,
            "sync_age_ms": state.sync_age_ms,
            "problem": "; ".join(state.problems),
        }
        for state in group.metadata
    ]
