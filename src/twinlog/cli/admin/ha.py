"""`twinlog ha ...`: replication in one sentence, then a row for each replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_options, once_options
from twinlog.cli.admin.session import Session, call, confirm, not_found, run, show
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, UNREACHABLE, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, counted, show_bytes, show_seconds, show_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.ha import GroupHAStatus, RemainingReplica
    from twinlog.admin.promotion import Comparison, Replica
    from twinlog.observe.health import Finding, MissingFacts


_GROUP = "twinlog.cli.admin.ha_group"
COMMANDS = {
    "switch": (_GROUP, "switch", "Make another replica the master, without a failed send."),
    "elect": (_GROUP, "elect", "Ask the controller for a master; or force one."),
    "drain": (_GROUP, "drain", "Let a replica follow without being counted."),
    "undrain": (_GROUP, "undrain", "Count a drained replica again."),
    "remove": (_GROUP, "remove", "Forget a replica that was drained or is gone."),
    "forget": (
        "twinlog.cli.admin.ha_forget",
        "forget",
        "Give up messages that only lost replicas have.",
    ),
    "events": ("twinlog.cli.admin.ha_events", "events", "Show what changed in groups, and why."),
    "tail": (
        "twinlog.cli.admin.ha_tail",
        "tail",
        "Show and resend messages that were cut from a log.",
    ),
}


@click.group(
    cls=LazyGroup, table=COMMANDS, short_help="Replication: its health, switches and elections."
)
def ha() -> None:
    """Show the state of replication; switch, elect and repair masters and slaves."""


def _show_rate(value: Any) -> str:
    return "-" if value is None else f"{show_bytes(value)}/s"


def _show_age(value: Any) -> str:
    return "not yet" if value is None else f"{show_seconds(value)} ago"


_COLUMNS = [
    Column("broker"),
    Column("id", is_right=True),
    Column("role"),
    Column("address"),
    Column("connection", is_wide=True),
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


_FINDING_COLUMNS = [
    Column("broker"),
    Column("level"),
    Column("finding"),
    Column("next_step", "NEXT STEP"),
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
@click.option("--controller", metavar="ADDR[;ADDR]",
              help="Address of the controller, if no name server or broker knows it.")  # fmt: skip
@cluster_options
def status(session: Session, cluster: str | None, controller: str | None) -> int:
    """Say whether replication is healthy or why not, and show each replica. Exit code 0 or 10."""
    return run(session, lambda admin: ha_report(admin, cluster, controller))


async def ha_report(admin: Admin, cluster: str | None, controller: str | None = None) -> Report:
    """Groups with a controller by what it knows, the others by what their masters say."""
    from twinlog.admin.ha_groups import ha_status
    from twinlog.cli.admin.ha_group import controlled_report

    if cluster is not None:
        known = (await admin.cluster()).clusters
        if cluster not in known:
            raise not_found("cluster", cluster, list(known))
    controlled, decided = await controlled_report(admin, cluster, controller)
    found = await ha_status(admin, cluster=cluster, controlled=decided)
    groups = [group for group in found if group.broker_name not in decided]
    if controlled is None:
        return _fixed_report(groups)
    controlled = _with_findings(
        controlled,
        [g.with_decided(decided[g.broker_name]) for g in found if g.broker_name in decided],
    )
    return _both(controlled, _fixed_report(groups)) if groups else controlled


def _with_findings(controlled: Report, groups: list[GroupHAStatus]) -> Report:
    """A controller knows who may lead; the replicas know what else is wrong with them."""
    findings = [_finding_row(group, f) for group in groups for f in group.health.findings]
    bad = [group.sentence for group in groups if not group.is_healthy]
    if not findings:
        return controlled
    return dataclasses.replace(
        controlled,
        tables=[*controlled.tables, Table(_FINDING_COLUMNS, findings, "findings")],
        sentence="; ".join(bad) if controlled.is_healthy and bad else controlled.sentence,
        is_healthy=controlled.is_healthy and not bad,
    )


def _both(controlled: Report, fixed: Report) -> Report:
    return Report(
        [*controlled.tables, *fixed.tables],
        sentence="; ".join(text for text in (controlled.sentence, fixed.sentence) if text),
        is_healthy=controlled.is_healthy and fixed.is_healthy,
        explanation=controlled.explanation,
        missing=controlled.missing,
    )


def _fixed_report(groups: list[GroupHAStatus]) -> Report:
    is_healthy = bool(groups) and all(group.is_healthy for group in groups)
    rows = [row for group in groups for row in _rows(group)]
    tables = [Table(_COLUMNS, rows, "replicas")]
    metadata = [row for group in groups for row in _metadata_rows(group)]
    if metadata:
        tables.append(Table(_METADATA_COLUMNS, metadata, "metadata"))
    findings = [_finding_row(group, f) for group in groups for f in group.health.findings]
    if findings:
        tables.append(Table(_FINDING_COLUMNS, findings, "findings"))
    return Report(tables, sentence=_sentence(groups), is_healthy=is_healthy)


def _sentence(groups: list[GroupHAStatus]) -> str:
    if not groups:
        return "no broker is registered: nothing is replicated"
    bad = [group for group in groups if not group.is_healthy]
    if not bad and len(groups) > 1:
        alone = [group.broker_name for group in groups if not group.replicas]
        text = f"all {len(groups)} groups are healthy"
        if len(alone) == len(groups):
            return f"{text}: none of them has a slave"
        slaves = sum(len(group.replicas) for group in groups)
        text = f"{text}: {counted(slaves, 'slave')} in sync"
        return f"{text}; without a slave: {', '.join(alone)}" if alone else text
    return "; ".join(group.sentence for group in (bad or groups))


def _finding_row(group: GroupHAStatus, finding: Finding) -> dict[str, Any]:
    return {
        "broker": group.broker_name,
        "level": finding.level.value,
        "code": finding.code.value,
        "finding": finding.text,
        "next_step": finding.next_step,
    }


def _remaining_row(group: GroupHAStatus, replica: RemainingReplica) -> dict[str, Any]:
    """A replica whose master is lost: how far it is, and what it knows that it lacks."""
    known = max(replica.master_end or 0, replica.confirmed_offset or 0)
    missing = max(0, known - replica.max_offset)
    seen = show_time(replica.master_seen_ms) if replica.master_seen_ms else "never"
    state = "does not answer" if replica.error else f"left alone, {missing} bytes known missing"
    return {
        "broker": group.broker_name,
        "id": replica.broker_id,
        "role": "SLAVE",
        "address": replica.address,
        "offset": None if replica.error else replica.max_offset,
        "confirmed_offset": replica.confirmed_offset,
        "lag_bytes": None if replica.error else missing,
        "missing_bytes": None if replica.error else missing,
        "master_seen_ms": replica.master_seen_ms or None,
        "state": state,
        "reason": replica.error or replica.damage or f"its master was last seen {seen}",
    }


def _rows(group: GroupHAStatus) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if group.is_master_lost:
        if group.master_address is not None:
            rows.append({"broker": group.broker_name, "id": 0, "role": "MASTER",
                         "address": group.master_address, "state": "does not answer"})  # fmt: skip
        return rows + [_remaining_row(group, replica) for replica in group.remaining]
    if group.master_address is not None:
        rows.append(
            {
                "broker": group.broker_name,
                "role": group.role or "MASTER",
                "id": 0,
                "address": group.master_address,
                "offset": group.max_offset,
                "confirmed_offset": group.confirmed_offset,
                "state": "ok" if group.is_healthy else "see above",
            }
        )
    rows += (
        {
            "broker": group.broker_name,
            "id": replica.broker_id,
            "role": "SLAVE",
            "address": replica.known_address,
            "connection": replica.address,
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
    return rows + [_missing_row(group, slave) for slave in group.facts.missing]


def _missing_row(group: GroupHAStatus, slave: MissingFacts) -> dict[str, Any]:
    return {
        "broker": group.broker_name,
        "role": "SLAVE",
        "address": slave.name,
        "state": f"gone since {slave.since}" if slave.since else "gone",
        "reason": slave.reason,
    }


def _metadata_rows(group: GroupHAStatus) -> list[dict[str, Any]]:
    """Topics, groups and offsets besides the data: how far each slave is with them."""
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


_PROMOTE_COLUMNS = [
    Column("broker_id", "ID", is_right=True),
    Column("address"),
    Column("role"),
    Column("log_end", "LOG END", is_right=True),
    Column("confirmed", is_right=True),
    Column("state"),
    Column("store_id", is_wide=True),
    Column("promotion", is_wide=True, is_right=True),
]


@ha.command("promote", epilog="Example: twinlog ha promote broker-a --dry-run")
@click.argument("name", metavar="BROKER")
@click.option("--to", "wanted", metavar="ID|ADDRESS",
              help="The slave to promote; by default the one with the longest log.")  # fmt: skip
@click.option("--role", type=click.Choice(["ASYNC_MASTER", "SYNC_MASTER"]),
              help="Role of the new master; by default that of the lost one.")  # fmt: skip
@click.option("--also", multiple=True, metavar="ADDRESS",
              help="Also compare this replica, which no name server knows.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Compare, and say what would happen; change nothing.")
@click.option("--force", metavar="BROKER",
              help="Promote although messages are lost: type the name of the group.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@once_options
def promote(
    session: Session,
    name: str,
    wanted: str | None,
    role: str | None,
    also: tuple[str, ...],
    dry_run: bool,
    force: str | None,
    yes: bool,
) -> int:
    """Make a slave of BROKER its master, when the master is lost or stopped.

    Compares all replicas that can be reached, chooses the one with the most (of logs that have
    diverged, the one of the latest promotion), and refuses what would lose messages or make two
    masters. Exit code 1 when it is refused.
    """
    if force is not None and force != name:
        raise CommandError(f"--force {force}: the name of the group is {name}", USAGE)
    wish = _Promotion(name, wanted, role, also, force is not None)
    comparison = call(session, wish.compare)
    if comparison is None:
        return 0
    wish.check_role(comparison)
    report = _promotion_report(comparison, "would be promoted" if dry_run else "is the choice")
    refusals = comparison.verdict.refusals or (() if wish.is_forced else comparison.reasons)
    if refusals or dry_run:
        show(session, report)
        if refusals:
            raise CommandError(f"not promoted: {'; '.join(refusals)}", hint=wish.hint(comparison))
        return 0
    target = comparison.verdict.target
    if not wish.is_forced and not yes:
        if session.output == "table":
            show(session, report)
        confirm(f"make {target.name} the master of {name}?", yes)
    call(session, lambda admin: wish.execute(admin, comparison))
    report = _promotion_report(comparison, f"is the master of {name} now")
    report.is_healthy = True
    return show(session, report)


class _Promotion:
    """What the user wants."""

    def __init__(
        self, name: str, wanted: str | None, role: str | None, also: Sequence[str], is_forced: bool
    ) -> None:
        self.name = name
        self.wanted = wanted
        self.role = role
        self.also = also
        self.is_forced = is_forced

    async def compare(self, admin: Admin) -> Comparison | None:
        """What was found; None when there is nothing to do."""
        from twinlog.admin import promotion

        brokers = (await admin.cluster()).brokers
        if self.name not in brokers:
            raise not_found("broker", self.name, list(brokers))
        broker = brokers[self.name]
        comparison = await promotion.compare(admin, broker, self.wanted, self.also)
        if comparison is None and self.wanted is not None:
            known = ", ".join(f"{number} at {a}" for number, a in broker.broker_addrs.items())
            raise CommandError(f"no replica {self.wanted!r} of {self.name}", NOT_FOUND,
                               hint=f"there is: {known}")  # fmt: skip
        if comparison is None:
            raise CommandError(f"no slave of {self.name} answers", UNREACHABLE)
        target = comparison.verdict.target
        if target.error:
            raise CommandError(f"{target.name} does not answer: {target.error}", UNREACHABLE)
        if not target.is_twinlog:
            raise CommandError(f"{target.name} is not twinlog", hint="edit its file, and start it")
        if target.is_master and not any(
            r.is_master for r in comparison.replicas if r.address != target.address
        ):
            click.echo(f"{target.name} is the master of {self.name} already")
            return None
        return comparison

    def check_role(self, comparison: Comparison) -> None:
        self.role = self.role or comparison.role
        if not self.role and not comparison.verdict.refusals:
            raise CommandError("the role of the lost master is not known", USAGE,
                               hint="add --role SYNC_MASTER or ASYNC_MASTER")  # fmt: skip

    async def execute(self, admin: Admin, comparison: Comparison) -> None:
        from twinlog.admin import promotion

        assert self.role is not None
        try:
            await promotion.promote(admin, comparison, self.role)
        except TimeoutError as error:
            raise CommandError(str(error), FAILED) from error

    def hint(self, comparison: Comparison) -> str:
        if any(replica.is_controlled for replica in comparison.replicas):
            name = self.name
            return (
                f"twinlog ha switch {name}, or without a master: ha elect {name} --unclean {name}"
            )
        if comparison.verdict.refusals:
            return "stop the master first (SIGTERM), and try again"
        count, size = comparison.lost_messages, comparison.verdict.lost_bytes
        lost = "an unknown number of messages" if count is None else f"{count} messages"
        lost += f" ({'at least ' if count is None else ''}{size} bytes)" if size else ""
        return f"--force {self.name} does it anyway and loses {lost}"


def _promotion_report(comparison: Comparison, done: str) -> Report:
    verdict = comparison.verdict
    target = verdict.target
    sentence = f"{target.name} {done}"
    if not comparison.is_safe:
        count = "unknown" if comparison.lost_messages is None else comparison.lost_messages
        at_least = "at least " if count == "unknown" else ""
        size = f"{at_least}{verdict.lost_bytes}" if verdict.lost_bytes or not at_least else count
        sentence += f"; messages lost: {count}, bytes: {size}"
    return Report(
        [Table(_PROMOTE_COLUMNS, [_replica_row(r, target) for r in comparison.replicas],
               "replicas")],
        fields={
            "broker": comparison.group,
            "target": target.address,
            "is_safe": comparison.is_safe,
            "refusals": list(verdict.refusals),
            "losses": list(verdict.losses),
            "warnings": list(verdict.warnings),
            "lost_messages": comparison.lost_messages,
            "lost_bytes": verdict.lost_bytes,
        },
        sentence=sentence,
        is_healthy=comparison.is_safe,
    )  # fmt: skip


def _replica_row(replica: Replica, target: Replica) -> dict[str, Any]:
    state = replica.error or ("connected to its master" if replica.is_linked else "answers")
    is_known = replica.is_reached
    return {
        "broker_id": replica.broker_id,
        "address": replica.address,
        "role": replica.role,
        "log_end": replica.log_end if is_known else None,
        "confirmed": replica.confirmed if is_known else None,
        "state": "chosen" if replica.address == target.address and is_known else state,
        "store_id": replica.store_id,
        "promotion": replica.promotion,
    }
