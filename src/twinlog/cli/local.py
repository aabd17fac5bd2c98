"""`twinlog up`, `down`, `ps` and `logs`: a local cluster for development, in one directory."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from twinlog.cli import local_cluster
from twinlog.cli.exit_codes import INTERRUPTED
from twinlog.cli.local_cluster import ClusterError, ClusterPlan, LocalCluster, Node
from twinlog.cli.modes import MODES
from twinlog.cli.output import OUTPUTS, Column, Report, Table, render, show_bytes, terminal_width

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_UNHEALTHY = 10
HEALTHY_SECONDS_MAX = 30.0


def default_directory() -> Path:
    home = os.environ.get("TWINLOG_HOME")
    return Path(home) if home else Path.home() / ".twinlog" / "cluster"


_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_directory,
    show_default="$TWINLOG_HOME, else ~/.twinlog/cluster",
    help="Where configuration, stores and logs of this cluster are kept.",
)


def _fail(text: str, code: int) -> None:
    click.echo(f"twinlog: {text}", err=True)
    sys.exit(code)


def _found(directory: Path) -> LocalCluster:
    try:
        cluster = local_cluster.load_cluster(directory)
    except ClusterError as error:
        _fail(str(error), EXIT_FAILED)
        raise
    if cluster is None:
        _fail(f"no cluster in {directory}; start one with: twinlog up", EXIT_NOT_FOUND)
    assert cluster is not None
    return cluster


@click.command(
    epilog="Example: twinlog up --sync && twinlog topic list -n 127.0.0.1:9876",
    short_help="Start a local cluster in the background.",
)
@click.option("--brokers", default=2, show_default=True, type=click.IntRange(1, 8),
              help="Replicas of each group: one master, the rest slaves.")  # fmt: skip
@click.option("--groups", default=1, show_default=True, type=click.IntRange(1, 26),
              help="Broker groups, each with its own master.")  # fmt: skip
@click.option("--sync", "is_sync", is_flag=True,
              help="SYNC_MASTER: SEND_OK means that two brokers have the message.")  # fmt: skip
@click.option("--failover", is_flag=True,
              help="A controller in the name server elects the masters; SYNC_MASTER.")  # fmt: skip
@click.option("--mode", type=click.Choice(tuple(MODES)),
              help="A deployment mode by name, instead of the options above.")  # fmt: skip
@click.option("--free-ports", is_flag=True, help="Use free ports instead of 9876, 10911, ...")
@click.option("--no-console", is_flag=True, help="Do not start the web console (port 8082).")
@click.option("--fresh", is_flag=True, help="Remove what an earlier cluster left in the directory.")
@_DIRECTORY
def up(
    brokers: int,
    groups: int,
    is_sync: bool,
    failover: bool,
    mode: str | None,
    free_ports: bool,
    no_console: bool,
    fresh: bool,
    directory: Path,
) -> None:
    """Start a name server and broker groups in the background; returns when they are healthy."""
    if mode is not None:
        _refuse_besides_mode()
        chosen = MODES[mode]
        brokers, groups, is_sync = chosen.brokers, chosen.groups, chosen.is_sync
        failover = chosen.has_failover
    asked = ClusterPlan(directory, brokers, groups, is_sync, has_failover=failover)
    try:
        existing = local_cluster.load_cluster(directory)
        if existing is not None and existing.running():
            _refuse_another(existing, asked)
            _complete(existing, directory)
            return
        if fresh and existing is not None:
            _purge(existing)
            existing = None
        has_failover = failover or _keeps_elections(existing, asked, mode)
        if has_failover and brokers < 2:
            _fail("--failover needs --brokers 2 or more: no broker could take over", EXIT_USAGE)
        plan = ClusterPlan(
            directory, brokers, groups, is_sync, free_ports, not no_console, has_failover
        )
        cluster = local_cluster.start_cluster(plan)
    except ClusterError as error:
        _fail(str(error), EXIT_FAILED)
        return
    except OSError as error:
        _fail(f"cannot use {directory}: {error.strerror}; choose another with --dir", EXIT_FAILED)
        return
    problem = _wait_healthy(cluster)
    _print_nodes(cluster)
    _print_hints(cluster, directory)
    if problem:
        _fail(f"started, but {problem}; see: twinlog logs", EXIT_UNHEALTHY)


SHAPE = ("brokers", "groups", "is_sync", "failover")
"""The parameters of `up` that say what to start."""


def _given(names: Iterable[str]) -> list[str]:
    """Those of `names` that stand on the command line."""
    source = click.get_current_context().get_parameter_source
    return [name for name in names if source(name) is ParameterSource.COMMANDLINE]


def _refuse_besides_mode() -> None:
    """A mode says it all: what contradicts it would be passed over in silence."""
    for name in _given(SHAPE):
        option = name.removeprefix("is_")
        _fail(f"--mode decides this: leave out --{option}", EXIT_USAGE)


def _refuse_another(running: LocalCluster, asked: ClusterPlan) -> None:
    """What runs is left alone if it is what was asked for, and must not be taken for it if not."""
    differs = {
        "brokers": asked.brokers != running.brokers_per_group,
        "groups": asked.groups != running.groups,
        "is_sync": asked.is_sync != running.is_sync and not running.controller_port,
        "failover": asked.has_failover != bool(running.controller_port),
    }
    names = SHAPE if _given(["mode"]) else _given(SHAPE)
    if any(differs[name] for name in names):
        _fail(
            f"another cluster runs in {asked.directory}: {_shape_of(running)}. Stop it first: "
            f"twinlog down{_where(asked.directory)}   (and its files: --purge); or choose another "
            "directory with --dir",
            EXIT_FAILED,
        )


def _shape_of(cluster: LocalCluster) -> str:
    groups, brokers = cluster.groups, cluster.brokers_per_group
    roles = "fixed roles (SYNC_MASTER)" if cluster.is_sync else "fixed roles (ASYNC_MASTER)"
    if cluster.controller_port:
        roles = "masters elected by a controller"
    return (
        f"{groups} group{'s' if groups > 1 else ''} of {brokers} "
        f"broker{'s' if brokers > 1 else ''} with {roles}"
    )


def _keeps_elections(stopped: LocalCluster | None, asked: ClusterPlan, mode: str | None) -> bool:
    """Stores whose masters were elected stay so: fixed roles could make an old copy the master."""
    if stopped is None or not stopped.controller_port:
        return False
    if asked.brokers < 2 or (mode is not None and not asked.has_failover):
        _fail(
            f"a controller elected the masters of the stores in {asked.directory}, and fixed "
            "roles could make an old copy the master. Add --failover with 2 or more --brokers, "
            "remove the stores with --fresh, or choose another directory with --dir",
            EXIT_FAILED,
        )
    return True


def _complete(cluster: LocalCluster, directory: Path) -> None:
    """A cluster runs already: start what is down."""
    dead = [node for node in cluster.nodes if node.process() is None]
    click.echo(f"A cluster is running in {directory}:\n")
    for node in dead:
        cluster.start_node(node)
    problem = _wait_healthy(cluster) if dead else ""
    _print_nodes(cluster)
    if dead:
        click.echo(f"\nstarted again: {', '.join(node.name for node in dead)}")
    _print_hints(cluster, directory)
    if problem:
        _fail(f"started, but {problem}; see: twinlog logs", EXIT_UNHEALTHY)


@click.command(
    epilog="Example: twinlog restart broker-a-0",
    short_help="Stop one process of the local cluster and start it again.",
)
@click.argument("name", metavar="NODE")
@_DIRECTORY
def restart(name: str, directory: Path) -> None:
    """Stop NODE (see `twinlog ps`) cleanly if it runs, and start it again.

    Returns when the cluster is healthy.
    """
    cluster = _found(directory)
    try:
        node = cluster.node(name)
    except ClusterError as error:
        _fail(str(error), EXIT_NOT_FOUND)
        return
    was_running = node.process() is not None
    was_pid = node.pid
    try:
        if local_cluster.stop_process(node):
            click.echo(f"twinlog: {name} had to be killed", err=True)
        cluster.start_node(node)
    except ClusterError as error:
        _fail(str(error), EXIT_FAILED)
        return
    except KeyboardInterrupt:
        text = f"was told to stop; start it again with: twinlog restart {name}"
        if node.pid != was_pid:
            text = "is starting; see: twinlog ps"
        _fail(f"interrupted: {name} {text}{_where(directory)}", INTERRUPTED)
        return
    click.echo(f"{name} {'was stopped and' if was_running else 'was down and'} runs again")
    if problem := _wait_healthy(cluster):
        _fail(f"started, but {problem}; see: twinlog logs", EXIT_UNHEALTHY)


def _wait_healthy(cluster: LocalCluster) -> str:
    """Wait until every broker is registered and every slave in sync; else what is missing."""
    from twinlog.cli.admin.cluster import health_report
    from twinlog.cli.admin.ha import ha_report
    from twinlog.cli.admin.session import call, find_cluster
    from twinlog.cli.exit_codes import CommandError

    # With the account of the environment, as any command: an operator may have switched ACL on.
    found = find_cluster(cluster.name_server.address, None)
    session = dataclasses.replace(found, source="twinlog up", timeout_ms=2000)
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    problem = ""
    while time.monotonic() < deadline:
        try:
            report = call(session, lambda admin: health_report(admin, len(cluster.brokers)))
            if report.is_healthy and cluster.controller_port:
                # In sync is not yet admitted: until it is, nobody could take over.
                report = call(session, lambda admin: ha_report(admin, None))
        except CommandError as error:
            problem = error.text
        else:
            if report.is_healthy:
                return ""
            problem = report.sentence
        time.sleep(0.1)
    return problem


@click.command(short_help="Stop the local cluster.")
@click.option("--purge", is_flag=True, help="Also remove its stores, logs and configuration.")
@_DIRECTORY
def down(purge: bool, directory: Path) -> None:
    """Stop every process of the cluster cleanly, with SIGTERM; after 15 s with SIGKILL."""
    cluster = _found(directory)
    count = len(cluster.running())
    killed = cluster.stop()
    click.echo(f"stopped {count} processes")
    if killed:
        click.echo(f"twinlog: had to be killed: {', '.join(killed)}", err=True)
    if purge:
        _purge(cluster)
        rest = directory.exists()
        click.echo(f"{directory} stays: it has other files" if rest else f"removed {directory}")
    if killed:
        sys.exit(EXIT_UNHEALTHY)


def _purge(cluster: LocalCluster) -> None:
    """Remove what `up` made, and the directory only when nothing else is in it."""
    directory = Path(cluster.directory)
    # A larger cluster may have run here before: its brokers are not among the nodes any more.
    former = [path.parent for path in directory.glob("broker-*/broker.conf")]
    for path in {*former, *(Path(node.directory) for node in cluster.nodes)}:
        shutil.rmtree(path, ignore_errors=True)
    (directory / "cluster.json").unlink(missing_ok=True)
    if directory.exists() and not any(directory.iterdir()):
        directory.rmdir()


@click.command(short_help="Show the processes of the local cluster.")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table",
              help="Form of the output.")  # fmt: skip
@_DIRECTORY
def ps(directory: Path, output: str) -> None:
    """List the processes, their addresses, memory and state. Exit code 10 when one is down."""
    cluster = _found(directory)
    _print_nodes(cluster, output)
    if len(cluster.running()) < len(cluster.nodes):
        sys.exit(EXIT_UNHEALTHY)


@click.command(short_help="Print or follow the logs of the local cluster.")
@click.argument("names", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until interrupted.")
@click.option("-n", "--lines", default=20, show_default=True, help="Number of lines of each log.")
@_DIRECTORY
def logs(names: tuple[str, ...], follow: bool, lines: int, directory: Path) -> None:
    """Print the last lines of each log, or of NAMES (see `twinlog ps`)."""
    cluster = _found(directory)
    try:
        nodes = [cluster.node(name) for name in names] or cluster.nodes
    except ClusterError as error:
        _fail(str(error), EXIT_NOT_FOUND)
        return
    positions = {node.name: _print_tail(node, lines) for node in nodes}
    while follow:
        time.sleep(0.3)
        for node in nodes:
            positions[node.name] = _print_since(node, positions[node.name])


def _print_tail(node: Node, lines: int) -> int:
    data = node.log_path.read_bytes() if node.log_path.exists() else b""
    for line in data.decode("utf-8", "replace").splitlines()[-lines:]:
        click.echo(f"{node.name} | {line}")
    return len(data)


def _print_since(node: Node, position: int) -> int:
    with node.log_path.open("rb") as log:
        log.seek(position)
        data = log.read()
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.decode("utf-8", "replace").splitlines():
        click.echo(f"{node.name} | {line}")
    return position + len(whole)


_COLUMNS = [
    Column("name"), Column("role"), Column("address"), Column("pid"),
    Column("memory_bytes", "MEMORY", show_bytes), Column("state"),
    Column("directory", is_wide=True),
]  # fmt: skip


def _print_nodes(cluster: LocalCluster, output: str = "table") -> None:
    report = Report([Table(_COLUMNS, [_node_row(node) for node in cluster.nodes])])
    click.echo(render(report, output, width=terminal_width()), nl=False)


def _node_row(node: Node) -> dict[str, Any]:
    process = node.process()
    return {
        "name": node.name,
        "role": node.role or node.kind.upper(),
        "kind": node.kind,
        "address": node.address,
        "pid": None if process is None else node.pid,
        "memory_bytes": None if process is None else process.memory_info().rss,
        "state": "down" if process is None else "up",
        "directory": str(node.directory),
        "log": str(node.log_path),
    }


def _where(directory: Path) -> str:
    """The option that a command about this cluster needs."""
    return "" if directory == default_directory() else f" --dir {shlex.quote(str(directory))}"


def _print_hints(cluster: LocalCluster, directory: Path) -> None:
    for node in cluster.nodes:
        if node.kind == "console" and node.process() is not None:
            click.echo(f"\nconsole       {_console_url(node)}", nl=False)
    port = cluster.controller_port
    controller = f"\ncontroller    127.0.0.1:{port}" if port else ""
    click.echo(
        f"\nconnect with  NAMESRV_ADDR={cluster.name_server.address}{controller}"
        f"\ndata and logs {directory}"
        f"\nstop with     twinlog down{_where(directory)}   (and its files: --purge)"
    )


def _console_url(node: Node) -> str:
    from twinlog.cli.console import load_tokens

    return f"http://{node.address}/?token={load_tokens(node.token_path).admin}"
