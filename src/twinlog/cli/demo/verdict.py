"""What the run proved, in numbers that all come from the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from twinlog.cli.demo.ledger import Ledger


@dataclass(slots=True)
class Moments:
    """Seconds since the start of the run."""

    kill: float = 0.0
    switched: float = 0.0  # the first acknowledgement of the slave that took over; 0: none did
    restart: float = 0.0
    returned: float = 0.0  # the first acknowledgement after the restart, or in sync again
    caught_up: float = 0.0
    stopped: float = 0.0


@dataclass(slots=True)
class Findings:
    """What was found in the stores and by the pipeline."""

    is_pipeline_expected: bool = True
    in_flight_at_kill: int = 0
    unread_at_kill: int = 0
    acknowledged_at_kill: int = 0
    missing_on_slave: int = -1  # -1: not looked up
    audit_result: str = "not run"
    audit_differences: int = -1
    archived_rows: int = -1
    archive_missing: int = -1  # -1: there is no archive; `archive_refusal` says why
    archive_refusal: str = "not run"
    problems: list[str] = field(default_factory=list)


class Verdict(msgspec.Struct, kw_only=True):
    """The last word. `--json` prints exactly this."""

    is_good: bool
    reasons: list[str]
    acknowledged: int
    consumed: int
    lost: int
    duplicates: int
    order_violations: int
    unknown: dict[str, int]
    in_flight_at_kill: int
    acknowledged_before_kill: int
    missing_on_slave: int
    seconds_without_reads: float | None
    seconds_without_writes: float | None
    has_switched: bool
    seconds_to_catch_up: float
    rate_before: float
    rate_after: float
    latency_ms_before: dict[str, float]
    latency_ms_after: dict[str, float]
    audit: str
    rows_archived: int  # -1 when there is no archive.

    @property
    def rows_archived_text(self) -> str:
        return "none" if self.rows_archived < 0 else f"{self.rows_archived:,}"

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value


def judge(ledger: Ledger, moments: Moments, findings: Findings) -> Verdict:
    """Good only if nothing acknowledged was lost anywhere and the two replicas are equal."""
    lost = ledger.lost()
    reasons = list(findings.problems)
    if lost:
        reasons.append(f"{len(lost)} acknowledged messages were never consumed")
    if findings.missing_on_slave:
        reasons.append(
            f"{findings.missing_on_slave} messages acknowledged before the kill are not in the"
            " slave's store, or are damaged there"
            if findings.missing_on_slave > 0
            else "the slave's store was not looked into"
        )
    if ledger.order_violations:
        reasons.append(f"{ledger.order_violations} messages came out of order")
    if findings.is_pipeline_expected and findings.audit_differences != 0:
        reasons.append(f"audit of master against slave: {findings.audit_result}")
    if findings.is_pipeline_expected and findings.archive_missing != 0:
        reasons.append(
            f"the archive lacks {findings.archive_missing} acknowledged messages"
            if findings.archive_missing > 0
            else f"nothing was archived: {findings.archive_refusal}"
        )
    if ledger.seconds_without_reads(moments.kill, moments.restart) is None:
        reasons.append("nothing was read from the slave while the master was away")
    if ledger.first_write_after(moments.restart) is None:
        reasons.append("nothing was acknowledged after the master came back")
    return Verdict(
        is_good=not reasons,
        reasons=reasons,
        acknowledged=len(ledger.acknowledged),
        consumed=len(ledger.consumed),
        lost=len(lost),
        duplicates=ledger.duplicates,
        order_violations=ledger.order_violations,
        unknown=ledger.unknown,
        in_flight_at_kill=findings.in_flight_at_kill,
        acknowledged_before_kill=findings.acknowledged_at_kill,
        missing_on_slave=findings.missing_on_slave,
        seconds_without_reads=_rounded(ledger.seconds_without_reads(moments.kill, moments.restart)),
        seconds_without_writes=_rounded(ledger.seconds_without_writes(moments.kill)),
        has_switched=moments.switched > 0,
        seconds_to_catch_up=round(max(0.0, moments.caught_up - moments.restart), 3),
        rate_before=_rate(ledger, 0.0, moments.kill),
        rate_after=_rate(ledger, moments.returned, moments.stopped),
        latency_ms_before=ledger.latency_percentiles(0.0, moments.kill),
        latency_ms_after=ledger.latency_percentiles(moments.returned, moments.stopped),
        audit=findings.audit_result,
        rows_archived=findings.archived_rows,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _rate(ledger: Ledger, start: float, end: float) -> float:
    if end <= start:
        return 0.0
    count = sum(1 for at in ledger.acknowledged.values() if start <= at < end)
    return round(count / (end - start), 1)
