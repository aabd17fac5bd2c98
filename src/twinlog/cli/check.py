"""`twinlog check`: the health of a cluster as monitoring plugins tell it (Nagios, Icinga, ...).

One line with performance data, and their exit codes: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session, call
from twinlog.cli.exit_codes import CommandError
from twinlog.cli.lazy import of_system
from twinlog.cli.times import parse_duration

if TYPE_CHECKING:
    from twinlog.admin.client import Admin

STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
OK, WARNING, CRITICAL, UNKNOWN = range(4)


class PluginCommand(click.Command):
    """Whatever is wrong with the call is UNKNOWN: 1 and 2 would be alarms about the cluster."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise click.exceptions.Exit(_unknown(error.format_message())) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            return _unknown(error.line)
        except OSError as error:
            return _unknown(of_system(error))


def _unknown(text: str) -> int:
    findings = Findings()
    findings.add(UNKNOWN, text)
    with contextlib.suppress(OSError):
        click.echo(findings.line())
    return findings.level


def _percent(_: click.Context, __: click.Parameter, value: float) -> float:
    if value >= 0:  # Which "nan" is not: nothing would ever be above it.
        return value
    raise click.BadParameter(f"{value:g} is not a percentage")


@click.command(
    cls=PluginCommand,
    short_help="Print one line and an exit code, for Nagios and similar tools.",
    epilog="Example: twinlog check -n ns1:9876 --group billing --lag-warning 1000",
)
@click.option("--brokers", "brokers_min", default=1, show_default=True,
              help="The result is critical with fewer brokers than this.")  # fmt: skip
@click.option("--disk-warning", default=75.0, show_default=True, callback=_percent,
              help="WARNING if this percentage of a disk is used, or more.")  # fmt: skip
@click.option("--disk-critical", default=85.0, show_default=True, callback=_percent,
              help="CRITICAL if this percentage of a disk is used, or more.")  # fmt: skip
@click.option("--replication-warning", default="10s", show_default=True, metavar="TIME",
              help="How far a slave may be behind.")  # fmt: skip
@click.option("--group", "groups", multiple=True, help="Check this group too; may be repeated.")
@click.option("--lag-warning", default=10_000, show_default=True,
              help="WARNING if this many messages wait, or more.")  # fmt: skip
@click.option("--lag-critical", default=100_000, show_default=True,
              help="CRITICAL if this many messages wait, or more.")  # fmt: skip
@connection_options
def check(
    session: Session,
    brokers_min: int,
    disk_warning: float,
    disk_critical: float,
    replication_warning: str,
    groups: tuple[str, ...],
    lag_warning: int,
    lag_critical: int,
) -> int:
    """Print one line for a monitoring plugin. Exit code 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""
    behind_ms = parse_duration(replication_warning) * 1000

    async def action(admin: Admin) -> Findings:
        findings = Findings()
        await _check_cluster(findings, admin, brokers_min, (disk_warning, disk_critical), behind_ms)
        for group in groups:
            await _check_group(findings, admin, group, lag_warning, lag_critical)
        return findings

    try:
        findings = call(session, action)
    except CommandError as error:
        # Nobody there is critical; a question that makes no sense is unknown.
        level = CRITICAL if error.code in (4, 10) else UNKNOWN
        findings = Findings()
        findings.add(level, error.text)
    click.echo(findings.line())
    return findings.level


class Findings:
    """What was found, the worst first, and numbers for charts."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []
        self._data: list[str] = []

    def add(self, level: int, text: str) -> None:
        self._found.append((level, " ".join(text.split()).replace("|", "/")))

    def measure(self, name: str, value: float, unit: str = "", limits: str = ";") -> None:
        self._data.append(f"'{name}'={value:g}{unit};{limits};0")

    def limit(self, name: str, value: float, limits: tuple[float, float], unit: str = "") -> None:
        """A number, and a finding when it is beyond its limits."""
        high = "" if limits[1] == float("inf") else f"{limits[1]:g}"
        self.measure(name, value, unit, f"{limits[0]:g};{high}")
        if value >= limits[1]:
            self.add(CRITICAL, f"{name} is {value:g}{unit}")
        elif value >= limits[0]:
            self.add(WARNING, f"{name} is {value:g}{unit}")

    @property
    def level(self) -> int:
        levels = {level for level, _ in self._found}
        # Plugins count CRITICAL as worse than UNKNOWN.
        return next((level for level in (CRITICAL, UNKNOWN, WARNING) if level in levels), OK)

    def line(self) -> str:
        worst = [text for level, text in self._found if level == self.level]
        others = [text for level, text in self._found if level not in (self.level, OK)]
        text = "; ".join(worst + others)
        data = f" | {' '.join(self._data)}" if self._data else ""
        return f"TWINLOG {STATES[self.level]} - {text}{data}"


async def _check_cluster(
    findings: Findings,
    admin: Admin,
    brokers_min: int,
    disk: tuple[float, float],
    behind_ms: float,
) -> None:
    from twinlog.admin.health import cluster_health
    from twinlog.observe.health import Level

    found = await cluster_health(admin, brokers_min=brokers_min)
    if found.brokers and all(entry.is_denied for entry in found.brokers):
        # The cluster may be well: who asks may not know.
        findings.add(UNKNOWN, f"every broker refuses the account: {found.brokers[0].error}")
        return
    for finding in found.health.findings:
        level = CRITICAL if finding.level is Level.PROBLEM else WARNING
        findings.add(level, f"{finding.text}")
    up = [entry for entry in found.brokers if entry.error is None]
    for entry in up:
        name = f"{entry.name}:{entry.broker_id}"
        findings.limit(f"{name} disk", round(100 * entry.disk_ratio), disk, "%")
    for group in found.groups:
        for replica in group.replicas:
            if replica.lag_ms is not None and replica.is_slave:
                name = f"{group.broker_name}:{replica.broker_id} behind"
                limits = (behind_ms / 1000, float("inf"))
                findings.limit(name, replica.lag_ms / 1000, limits, "s")
    findings.measure("brokers", len(up))
    findings.add(OK, f"{len(up)} of {len(found.brokers)} brokers answer")


async def _check_group(
    findings: Findings, admin: Admin, group: str, warning: int, critical: int
) -> None:
    from twinlog.admin.groups import group_progress
    from twinlog.client.errors import ClientError

    try:
        progress = await group_progress(admin, group)
    except ClientError as error:
        findings.add(UNKNOWN, f"group {group}: {error}")
        return
    if not progress.queues:
        findings.add(UNKNOWN, f"group {group} consumes nothing that is known")
        return
    findings.limit(f"{group} lag", progress.lag, (warning, critical))
    findings.add(OK, f"{progress.lag} messages wait for {group}")
