"""`twinlog doctor`: what is wrong with a cluster or this machine, and what to change.

It connects to every address that the name servers hand out, as clients would, and looks at disks,
clocks and limits. Each finding is one line with the change that helps.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_options
from twinlog.cli.admin.session import Session, run
from twinlog.cli.exit_codes import CommandError
from twinlog.cli.output import Column, Report, Table, show_bytes
from twinlog.cli.times import now_ms

if TYPE_CHECKING:
    from pathlib import Path

    from twinlog.admin.brokers import BrokerSummary
    from twinlog.admin.client import Admin
    from twinlog.admin.ha import GroupHAStatus
    from twinlog.observe.health import ServerFacts

OK, WARNING, PROBLEM = "ok", "warning", "problem"
DESCRIPTORS_MIN = 65_535
CLOCK_DIFFERENCE_MS_MAX = 2_000
FREE_BYTES_MIN = 2 << 30
CONNECT_SECONDS = 3.0
SWAPPINESS = "/proc/sys/vm/swappiness"
SWAPPINESS_MAX = 10
_RUNTIME = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_LOOPBACK = ("127.", "localhost:", "[::1]")


class Findings:
    """Lines of the report."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, level: str, check: str, text: str, change: str = "") -> None:
        self.rows.append({"level": level, "check": check, "finding": text, "change": change})

    @property
    def problems(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["level"] == PROBLEM]


@click.command(epilog="Example: twinlog doctor; twinlog doctor -c broker.conf",
               short_help="Find problems and say what to change.")  # fmt: skip
@click.option("-c", "--configFile", "path", help="Also check this file and its directories.")
@cluster_options
def doctor(session: Session, path: str | None) -> int:
    """Check name servers, brokers, addresses, disks, clocks and limits. Exit code 0 or 10."""
    return run(session, lambda admin: examine(admin, path))


async def examine(admin: Admin, path: str | None) -> Report:
    findings = Findings()
    check_machine(findings)
    if path is not None:
        check_file(findings, path)
    await check_name_servers(findings, admin)
    await check_brokers(findings, admin)
    count = len(findings.problems)
    warnings = sum(row["level"] == WARNING for row in findings.rows)
    said = f"{count} problem{'s' * (count != 1)}" if count else "no problem"
    sentence = f"{said}, {warnings} warning{'s' * (warnings != 1)}, {len(findings.rows)} checks"
    columns = [Column("level"), Column("check"), Column("finding"), Column("change")]
    order = {PROBLEM: 0, WARNING: 1, OK: 2}
    findings.rows.sort(key=lambda row: order[row["level"]])
    return Report([Table(columns, findings.rows, "findings")], sentence=sentence,
                  is_healthy=not count)  # fmt: skip


# This machine


def check_machine(findings: Findings) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS_MIN:
        findings.add(
            WARNING, "descriptors", f"this shell may open {soft} files (hard limit {hard})",
            "a broker here wants LimitNOFILE=655350 in its unit, or `ulimit -n 655350`",
        )  # fmt: skip
    else:
        findings.add(OK, "descriptors", f"{soft} files may be open")
    swappiness = read_swappiness()
    if swappiness > SWAPPINESS_MAX:
        findings.add(
            WARNING, "memory", f"vm.swappiness is {swappiness}",
            "sysctl vm.swappiness=1: a broker that is swapped out answers late",
        )  # fmt: skip


def read_swappiness() -> int:
    """0 where there is no such file. (`pathlib` would cost more than the check does.)"""
    try:
        with open(SWAPPINESS, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def check_file(findings: Findings, path: str) -> None:
    from pathlib import Path

    from twinlog.cli.config import guess_role, lint_file, load

    role = guess_role(path)
    rows = lint_file(path, role)
    for row in rows:
        if row["level"] != "info":
            level = PROBLEM if row["level"] == "error" else WARNING
            findings.add(level, "configuration", row["text"], f"edit {path}")
    if role != "broker" or any(row["level"] == "error" for row in rows):
        return
    config = load(path, role).config
    check_directory(findings, Path(config.store_path_root_dir), config.mapped_file_size_commit_log)


def check_directory(findings: Findings, directory: Path, segment_size: int) -> None:
    """Whether a broker could keep its store there."""
    import shutil

    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK):
        findings.add(
            PROBLEM, "store", f"{place} is not writable for user id {os.getuid()}",
            f"chown it to the broker's user, or change storePathRootDir ({directory})",
        )  # fmt: skip
        return
    usage = shutil.disk_usage(place)
    needed = max(FREE_BYTES_MIN, 2 * segment_size)
    text = f"{directory}: {show_bytes(usage.free)} free of {show_bytes(usage.total)}"
    if usage.free < needed:
        findings.add(
            PROBLEM, "store", text, f"free at least {show_bytes(needed)}, or move the store"
        )
    else:
        findings.add(OK, "store", text)


# The cluster


async def check_name_servers(findings: Findings, admin: Admin) -> None:
    from twinlog.admin import brokers

    found = await brokers.name_server_config(admin)
    for address in found.values:
        findings.add(OK, "name server", f"{address} answers")
    for address, error in found.failures.items():
        findings.add(
            PROBLEM, "name server", f"{address}: {error}",
            "start it, or take its address out of -n, NAMESRV_ADDR and namesrvAddr",
        )  # fmt: skip


async def check_brokers(findings: Findings, admin: Admin) -> None:
    from twinlog.admin.health import cluster_health

    try:
        found = await cluster_health(admin)
    except CommandError as error:
        findings.add(PROBLEM, "brokers", str(error))
        return
    if not found.brokers:
        findings.add(PROBLEM, "brokers", "no broker is registered",
                     "start one with namesrvAddr set to this name server")  # fmt: skip
    servers = {server.address: server for server in found.servers}
    for entry in found.brokers:
        await check_broker(findings, admin, entry, servers[entry.address])
    for server in found.servers:
        if server.kind == "controller":
            check_server(findings, server)
    for group in found.groups:
        check_group(findings, group)


async def check_broker(
    findings: Findings, admin: Admin, entry: BrokerSummary, server: ServerFacts
) -> None:
    name = f"{entry.name}:{entry.broker_id}"
    if entry.is_denied:
        findings.add(
            PROBLEM, "account", f"{name} at {entry.address} refuses the account: {entry.error}",
            "give --access-key and --secret-key of an account that may ask for its state",
        )  # fmt: skip
        return
    if entry.error is not None:
        findings.add(
            PROBLEM, "advertised address",
            f"{name} is advertised as {entry.address}, which does not answer from here: "
            f"{entry.error}",
            "is it running? else set brokerIP1 in its file to an address that clients reach",
        )  # fmt: skip
        return
    findings.add(OK, "advertised address", f"{name} answers at {entry.address}")
    if entry.address.startswith(_LOOPBACK):
        findings.add(
            WARNING, "advertised address", f"{name} is advertised as {entry.address}",
            "clients on other machines cannot reach it: set bindAddress and brokerIP1",
        )  # fmt: skip
    check_server(findings, server)
    await check_clock(findings, admin, name, entry.address)
    await check_ports(findings, admin, name, entry)


def check_server(findings: Findings, server: ServerFacts) -> None:
    """What the broker says of itself: its disks, and whether it takes messages."""
    from twinlog.observe.health import judge_server

    health = judge_server(server)
    for finding in health.findings:
        findings.add(finding.level.value, server.kind, finding.text, finding.next_step)
    if not health.findings:
        used = max((disk.used_ratio for disk in server.disks), default=0.0)
        findings.add(OK, "broker", f"{server.name} works; its fullest disk is used to {used:.0%}")


async def check_clock(findings: Findings, admin: Admin, name: str, address: str) -> None:
    """A broker is asked now: since the cluster was asked, some server may have been waited for."""
    from twinlog.admin.brokers import broker_runtime
    from twinlog.client.errors import ClientError

    asked_ms = now_ms()
    try:
        runtime = await broker_runtime(admin, address)
    except ClientError:
        return  # It answered a moment ago, and says nothing about its clock now.
    judge_clock(findings, name, runtime, (asked_ms + now_ms()) // 2)


def judge_clock(findings: Findings, name: str, runtime: Mapping[str, str], here_ms: int) -> None:
    """A broker says when it started and how long it runs: together its own time, to a second."""
    match = _RUNTIME.match(str(runtime.get("runtime", "")))
    if match is None or not runtime.get("bootTimestamp"):
        return
    days, hours, minutes, seconds = map(int, match.groups())
    uptime = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    difference = int(runtime["bootTimestamp"]) + uptime * 1000 - here_ms
    text = f"{name}: its clock differs by {abs(difference) / 1000:.1f} s"
    if abs(difference) > CLOCK_DIFFERENCE_MS_MAX:
        findings.add(
            PROBLEM, "clock", text,
            "run chrony or ntpd on both: delays, retention and offsets by time use this clock",
        )  # fmt: skip
    else:
        findings.add(
            OK, "clock", f"{name}: its clock agrees to {CLOCK_DIFFERENCE_MS_MAX // 1000} s"
        )


async def check_ports(findings: Findings, admin: Admin, name: str, entry: BrokerSummary) -> None:
    """The VIP port that old clients prefer, and the port for slaves."""
    from twinlog.admin import brokers
    from twinlog.client.errors import ClientError

    try:
        config = await brokers.broker_config(admin, entry.address)
    except ClientError as error:
        findings.add(WARNING, "settings", f"{name}: {error}", "")
        return
    host, _, port = entry.address.rpartition(":")
    ports = [("VIP port", host, int(port) - 2)]
    if entry.broker_id == 0:
        ha_host = config.get("brokerIP2") or host
        ports.append(("HA port", ha_host, int(config.get("haListenPort", int(port) + 1))))
    for kind, place, number in ports:
        keys = "brokerIP2 and haListenPort" if kind == "HA port" else "listenPort"
        error_text = await connect(place, number)
        if error_text is None:
            findings.add(OK, kind, f"{name}: {place}:{number} accepts connections")
        else:
            findings.add(
                PROBLEM, kind, f"{name}: {place}:{number}: {error_text}",
                f"open the port, or set {keys}",
            )  # fmt: skip


async def connect(host: str, port: int) -> str | None:
    """None when somebody accepts the connection, else why not."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except (OSError, TimeoutError) as error:
        return str(error) or "no answer in time"
    writer.close()
    return None


def check_group(findings: Findings, group: GroupHAStatus) -> None:
    found = group.health.findings
    for finding in found:
        text = f"{group.broker_name}: {finding.text}"
        findings.add(finding.level.value, "replication", text, finding.next_step)
    if not found:
        findings.add(OK, "replication", group.sentence)
