"""A local cluster in the background: name server and broker groups as separate processes.

Used by `twinlog up` and by the demo. The state of a cluster is one directory: configuration files,
stores, logs, and `cluster.json`, which says which processes belong to it. A process is ended only
when its id and its start time are those that were written down, so a reused id is never hit.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from twinlog.runtime.config_format import parse_properties
from twinlog.runtime.controller_config import CONTROLLER_PORT

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0
CONSOLE_PORT = 8082
HTTP_PORT = 5557  # Of the first process; the others follow.
BROKER_PORT_STEP = 10  # VIP is port - 2 and HA is port + 1: ten keeps the groups apart.


REPLICA = "REPLICA"  # The role of a broker whose controller decides.


class ClusterError(Exception):
    """A local cluster cannot be started, found or stopped. The text says what to do."""


class Node(msgspec.Struct):
    """One server process of the cluster."""

    name: str
    kind: str  # "namesrv", "broker" or "console"
    port: int
    directory: str
    role: str = ""
    group: str = ""
    broker_id: int = 0
    pid: int = 0
    started: float = 0.0  # process creation time: tells a reused process id from ours
    http_port: int = 0  # metrics and health

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def config_path(self) -> Path:
        return Path(self.directory) / f"{self.kind}.conf"

    @property
    def log_path(self) -> Path:
        return Path(self.directory) / f"{self.kind}.log"

    @property
    def token_path(self) -> Path:
        """Where a console keeps its tokens."""
        return Path(self.directory) / "tokens.json"

    @property
    def store_path(self) -> Path:
        return Path(self.directory) / "store"

    def process(self) -> psutil.Process | None:
        """The running process, or None when it is gone."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > 1.0:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start."""

    directory: Path
    brokers: int = 2
    groups: int = 1
    is_sync: bool = False
    uses_free_ports: bool = False
    has_console: bool = False
    has_failover: bool = False
    overrides: dict[str, str] = field(default_factory=dict)


class LocalCluster(msgspec.Struct):
    """The processes of one directory."""

    directory: str
    nodes: list[Node]
    is_sync: bool = False
    controller_port: int = 0  # 0: fixed roles

    @property
    def name_server(self) -> Node:
        return next(node for node in self.nodes if node.kind == "namesrv")

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.nodes if node.kind == "broker"]

    @property
    def groups(self) -> int:
        return len({node.group for node in self.brokers})

    @property
    def brokers_per_group(self) -> int:
        return len(self.brokers) // self.groups

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ClusterError(f"no process named {name!r} in this cluster; there is: {known}")

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.process() is not None]

    def save(self) -> None:
        path = Path(self.directory) / "cluster.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        temporary.replace(path)

    def start_node(self, node: Node) -> None:
        """Start one process and return when it says that it is ready."""
        with node.log_path.open("ab") as log:
            start_of_run = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "twinlog.cli.main", *_arguments(self, node)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        node.pid = process.pid
        node.started = psutil.Process(process.pid).create_time()
        self.save()
        _wait_until_ready(node, process, start_of_run)

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> list[str]:
        """Stop all processes; returns the names of those that had to be killed.

        Brokers before the name server, which they tell; but a controller before its brokers, or it
        would elect another master for each one that stops.
        """
        consoles = [node for node in self.nodes if node.kind == "console"]
        order = [*self.brokers[::-1], self.name_server]
        if self.controller_port:
            order.reverse()
        order = [*consoles, *order]
        return [node.name for node in order if stop_process(node, seconds)]


def stop_process(node: Node, seconds: float = STOP_SECONDS_MAX) -> bool:
    """SIGTERM, then SIGKILL after `seconds`. True when it had to be killed."""
    process = node.process()
    if process is None:
        return False
    process.terminate()
    try:
        process.wait(seconds)
        return False
    except psutil.TimeoutExpired:
        process.kill()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(seconds)
        return True


def kill_process(node: Node) -> None:
    """SIGKILL: what the demo does to its master."""
    process = node.process()
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_SECONDS_MAX)


def load_cluster(directory: Path) -> LocalCluster | None:
    path = directory / "cluster.json"
    if not path.exists():
        return None
    try:
        cluster = msgspec.json.decode(path.read_bytes(), type=LocalCluster)
    except msgspec.DecodeError as error:
        raise ClusterError(f"{path} is damaged ({error}); remove it and start again") from error
    for node in cluster.brokers:
        _take_role(node)
    return cluster


def _take_role(node: Node) -> None:
    """A promotion changes the role in a broker's file: that is the one that counts."""
    with contextlib.suppress(OSError, ValueError):
        entries = parse_properties(node.config_path.read_bytes())
        values = {entry.key: entry.value for entry in entries}
        if values.get("enableControllerMode") == "true":
            node.role, node.broker_id = REPLICA, -1
            return
        node.role = values.get("brokerRole", node.role)
        node.broker_id = int(values.get("brokerId", node.broker_id))


def _keep_promotions(nodes: list[Node]) -> None:
    """Of a cluster that is started again: who was promoted stays the master of its group.

    The old master's file may say 0 as well, when it did not come back since: the newer promotion
    wins, and the other becomes a slave.
    """
    role, planned = nodes[0].role, [node.broker_id for node in nodes]
    for node in nodes:
        _take_role(node)
    masters = [node for node in nodes if node.broker_id == 0]
    master = max(masters, key=_promotion, default=nodes[0])
    free = [number for number in planned if number != 0]
    for node in nodes:
        node.role, node.broker_id = ("SLAVE", free.pop(0)) if node is not master else (role, 0)


def _promotion(node: Node) -> int:
    try:
        saved = msgspec.json.decode((node.store_path / "twinlog" / "identity.json").read_bytes())
        return int(saved.get("promotion", 0))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0


def start_cluster(plan: ClusterPlan) -> LocalCluster:
    """Write the configuration, start everything, return when all of it is ready."""
    cluster = prepare_cluster(plan)
    start_nodes(cluster)
    return cluster


def prepare_cluster(plan: ClusterPlan) -> LocalCluster:
    """Directories and configuration files; nothing runs yet."""
    directory = plan.directory.absolute()
    # Overrides may hold secrets, and stores hold messages: for whoever started it alone.
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    controller_port = _controller_port(plan) if plan.has_failover else 0
    nodes = _plan_nodes(plan, directory)
    cluster = LocalCluster(str(directory), nodes, plan.is_sync, controller_port)
    for group in {node.group: None for node in cluster.brokers}:
        replicas = [node for node in cluster.brokers if node.group == group]
        if plan.has_failover:
            for node in replicas:
                node.role, node.broker_id = REPLICA, -1
        else:
            _keep_promotions(replicas)
    for node in cluster.nodes:
        _write_configuration(cluster, node, plan)
    return cluster


def start_nodes(cluster: LocalCluster, must_stop: Callable[[], bool] = lambda: False) -> None:
    """Start every process, one after the other, unless `must_stop` says otherwise.

    Nothing stays behind when one does not come up: those already started are stopped.
    """
    try:
        for node in cluster.nodes:
            if must_stop():
                return
            cluster.start_node(node)
    except BaseException:
        cluster.stop()
        raise


def _plan_nodes(plan: ClusterPlan, directory: Path) -> list[Node]:
    ports = _ports(plan)
    nodes = [Node("namesrv", "namesrv", next(ports), str(directory / "namesrv"))]
    for group_index in range(plan.groups):
        group = "broker-" + _letters(group_index)
        for broker_id in range(plan.brokers):
            name = f"{group}-{broker_id}"
            master = "SYNC_MASTER" if plan.is_sync else "ASYNC_MASTER"
            role = "SLAVE" if broker_id else master
            port = next(ports)
            nodes.append(Node(name, "broker", port, str(directory / name), role, group, broker_id))
    http_ports = free_ports(len(nodes)) if plan.uses_free_ports else None
    for index, node in enumerate(nodes):
        node.http_port = HTTP_PORT + index if http_ports is None else http_ports[index]
    if plan.has_console:
        nodes.append(Node("console", "console", _console_port(plan), str(directory / "console")))
    return nodes


def _console_port(plan: ClusterPlan) -> int:
    """Where nobody listens: a taken port must not keep the cluster from starting."""
    is_usual = not plan.uses_free_ports and _is_free(CONSOLE_PORT)
    return CONSOLE_PORT if is_usual else free_ports(1)[0]


def _controller_port(plan: ClusterPlan) -> int:
    if plan.uses_free_ports:
        return free_ports(1)[0]
    if not _is_free(CONTROLLER_PORT):
        raise ClusterError(
            f"port {CONTROLLER_PORT} is in use; stop what listens there or add --free-ports"
        )
    return CONTROLLER_PORT


def _letters(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else _letters(index // 26 - 1) + _letters(index % 26)


def _ports(plan: ClusterPlan) -> Iterator[int]:
    count = plan.brokers * plan.groups
    if plan.uses_free_ports:
        return iter(free_ports(count + 1))
    ports = [9876, *(10911 + BROKER_PORT_STEP * index for index in range(count))]
    taken = [port for port in ports if not _is_free(port)]
    if taken:
        raise ClusterError(
            f"port {taken[0]} is in use; stop what listens there or add --free-ports"
        )
    return iter(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports whose neighbours (VIP at -2, HA at +1) are free as well.

    Taken below the range from which the system serves outgoing connections: a port of that range
    may be gone again by the time the server binds it.
    """
    rng = random.SystemRandom()
    found: list[int] = []
    for _ in range(10_000):
        if len(found) == count:
            return found
        port = rng.randrange(15_000, 30_000)
        is_far = all(abs(port - other) > 4 for other in found)
        if is_far and all(_is_free(near) for near in (port - 2, port, port + 1)):
            found.append(port)
    raise ClusterError(f"found {len(found)} of {count} free ports between 15000 and 30000")


def _write_configuration(cluster: LocalCluster, node: Node, plan: ClusterPlan) -> None:
    Path(node.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    if node.kind == "console":
        return
    values = {"listenPort": str(node.port), "bindAddress": "127.0.0.1"}
    values["metricsPromExporterPort"] = str(node.http_port)
    if node.kind == "namesrv":
        values |= _namesrv_values(cluster, node)
    else:
        values |= {
            "brokerClusterName": "DefaultCluster",
            "brokerName": node.group,
            "brokerId": str(node.broker_id),
            "brokerRole": node.role,
            "namesrvAddr": cluster.name_server.address,
            "storePathRootDir": str(node.store_path),
            "slaveReadEnable": "true",
            # A laptop is not a message server: a gigabyte of reserved disk a node surprises people.
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            **_failover_values(cluster, plan),
            **plan.overrides,
        }
    lines = [f"{key}={value}\n" for key, value in values.items()]
    node.config_path.touch(mode=0o600)
    node.config_path.chmod(0o600)
    node.config_path.write_text("".join(lines), encoding="utf-8")


def _namesrv_values(cluster: LocalCluster, node: Node) -> dict[str, str]:
    values = {"kvConfigPath": str(Path(node.directory) / "kvConfig.json")}
    if cluster.controller_port:
        values |= {
            "enableControllerInNamesrv": "true",
            "twinlogControllerPort": str(cluster.controller_port),
            "controllerStorePath": str(Path(node.directory) / "controller"),
        }
    return values


def _failover_values(cluster: LocalCluster, plan: ClusterPlan) -> dict[str, str]:
    """What a broker needs to follow the controller. Of three copies two are always kept; a pair
    goes on with one, and says so."""
    if not cluster.controller_port:
        return {}
    return {
        "enableControllerMode": "true",
        "controllerAddr": f"127.0.0.1:{cluster.controller_port}",
        "brokerRole": "SYNC_MASTER",
        "totalReplicas": str(plan.brokers),
        "minInSyncReplicas": "2" if plan.brokers >= 3 else "1",
    }


def _arguments(cluster: LocalCluster, node: Node) -> Sequence[str]:
    if node.kind == "console":
        return (
            "console", "-n", cluster.name_server.address, "--port", str(node.port),
            "--token-file", str(node.token_path), "--cluster-dir", cluster.directory,
            "--audit", str(Path(node.directory) / "audit.log"),
        )  # fmt: skip
    return (node.kind, "-c", str(node.config_path))


def _wait_until_ready(node: Node, process: subprocess.Popen[bytes], start_of_run: int) -> None:
    marker = f"twinlog {node.kind} ready".encode()
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        with node.log_path.open("rb") as log:
            log.seek(start_of_run)
            text = log.read()
        if marker in text:
            return
        code = process.poll()
        if code is not None:
            last = text.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
            raise ClusterError(f"{node.name} ended with code {code}: {last[0]}")
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    raise ClusterError(
        f"{node.name} was not ready within {READY_SECONDS_MAX:.0f} s; see {node.log_path}"
    )
