"""`twinlog cluster ...`: the brokers together, their health, who is connected."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.broker import broker_report
from twinlog.cli.admin.options import cluster_options, cluster_report
from twinlog.cli.admin.session import Session, call, missing_of, run, show, slave_notes
from twinlog.cli.exit_codes import CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table
from twinlog.cli.times import parse_duration

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.observe.health import Finding, ServerFacts

WAIT_STEP_SECONDS = 0.3


_LATER = {
    "upgrade-check": (
        "twinlog.cli.admin.upgrade",
        "upgrade_check",
        "Say whether an upgrade may begin, and in which order.",
    ),
    "rolling-restart": (
        "twinlog.cli.admin.upgrade", "rolling_restart", "Restart all brokers, one by one, in sync.",
    ),
}  # fmt: skip


@click.group(cls=LazyGroup, table=_LATER, short_help="Brokers, name servers, health, clients.")
def cluster() -> None:
    """Show, check and restart a cluster as a whole."""


@cluster.command("show", epilog="Example: twinlog cluster show -o json")
@cluster_report
async def show_command(admin: Admin) -> Report:
    """Show every broker with its role, rates and state."""
    return await broker_report(admin, None)


@cluster.command("list", epilog="Example: twinlog cluster list")
@cluster_report
async def list_command(admin: Admin) -> Report:
    """List clusters and their brokers."""
    info = await admin.cluster()
    rows: list[dict[str, Any]] = []
    for name in sorted(info.clusters):
        members = info.names(name)
        count = sum(len(info.brokers[member].broker_addrs) for member in members)
        rows.append({"cluster": name, "groups": members, "brokers": count})
    columns = [Column("cluster"), Column("brokers", is_right=True), Column("groups")]
    return Report([Table(columns, rows, empty="no broker has registered")])


@cluster.command(epilog="Example: twinlog cluster health --wait 30s")
@click.option("--wait", "wait", is_flag=False, flag_value="30s", metavar="[TIME]",
              help="Ask again until it is healthy, for at most this time (30s).")  # fmt: skip
@click.option("--brokers", "brokers_min", default=1, show_default=True,
              help="The cluster is unhealthy with fewer brokers than this.")  # fmt: skip
@cluster_options
def health(session: Session, wait: str | None, brokers_min: int) -> int:
    """Say whether the cluster is healthy, and why not. Exit code 0 or 10."""
    if wait is None:
        return run(session, lambda admin: health_report(admin, brokers_min))
    deadline = time.monotonic() + parse_duration(wait)
    while True:
        try:
            report = call(session, lambda admin: health_report(admin, brokers_min))
        except CommandError:
            if time.monotonic() > deadline:
                raise
        else:
            if report.is_healthy or time.monotonic() > deadline:
                return show(session, report)
        time.sleep(WAIT_STEP_SECONDS)


async def health_report(admin: Admin, brokers_min: int = 1) -> Report:
    """Name servers, brokers and replication in one look."""
    from twinlog.admin.health import cluster_health

    found = await cluster_health(admin, brokers_min=brokers_min)
    rows = [_server_row(server) for server in found.servers]
    rows += (
        {"what": "replication", "name": group.broker_name,
         "state": "healthy" if group.is_healthy else "unhealthy", "detail": group.sentence}
        for group in found.groups
    )  # fmt: skip
    columns = [Column("what"), Column("name"), Column("state"), Column("detail")]
    tables = [Table(columns, rows, "checks")]
    if found.health.findings:
        findings = [_finding_row(finding) for finding in found.health.findings]
        tables.append(Table(_FINDING_COLUMNS, findings, "findings"))
    return Report(
        tables,
        sentence=found.health.sentence("the cluster"),
        is_healthy=found.health.is_healthy,
    )


_FINDING_COLUMNS = [Column("level"), Column("finding"), Column("next_step", "NEXT STEP")]


def _server_row(server: ServerFacts) -> dict[str, Any]:
    from twinlog.observe.health import judge_server

    health = judge_server(server)
    state = "down" if server.error else "up" if health.is_healthy else "unhealthy"
    detail = server.error or "; ".join(health.problems) or server.address
    return {"what": server.kind, "name": server.name, "state": state, "detail": detail}


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level.value,
        "code": finding.code.value,
        "about": finding.about,
        "finding": finding.text,
        "next_step": finding.next_step,
    }


@cluster.command(epilog="Example: twinlog cluster clients")
@cluster_report
async def clients(admin: Admin) -> Report:
    """List the producers and consumers that are connected."""
    from msgspec.structs import asdict

    from twinlog.admin.clients import connections

    found = await connections(admin)
    rows: list[dict[str, Any]] = [asdict(entry) for entry in found.values[""]]
    columns = [
        Column("kind"), Column("group"), Column("client_id"), Column("address"),
        Column("language"), Column("version"),
    ]  # fmt: skip
    return Report([Table(columns, rows, empty="nobody is connected")],
                  missing=missing_of(found), notes=await slave_notes(admin))  # fmt: skip
