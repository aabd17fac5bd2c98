"""The failover lab: the console's hand on the processes of `twinlog up`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil

from twinlog.cli import local_cluster
from twinlog.cli.local_cluster import ClusterError, LocalCluster, Node
from twinlog.console.operations import LabNode, Refused

_LAB_KINDS = ("broker", "namesrv", "controller")


class ClusterLab:
    """Kills, stops, resumes and starts the servers of one local cluster; the console not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _cluster(self) -> LocalCluster:
        cluster = local_cluster.load_cluster(self._directory)
        if cluster is None:
            raise Refused("the local cluster is gone", 404)
        return cluster

    def _node(self, name: str) -> Node:
        try:
            node = self._cluster().node(name)
        except ClusterError as error:
            raise Refused(str(error), 404) from error
        if node.kind not in _LAB_KINDS:
            raise Refused(f"{name} is not a server of the lab", 404)
        return node

    def nodes(self) -> list[LabNode]:
        return [_shown(node) for node in self._cluster().nodes if node.kind in _LAB_KINDS]

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def stop(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._node(name).process()
        if process is None:
            raise Refused(f"{name} does not run")
        process.send_signal(number)

    async def start(self, name: str) -> None:
        cluster = self._cluster()
        node = cluster.node(self._node(name).name)
        if node.process() is not None:
            raise Refused(f"{name} runs already")
        try:
            await asyncio.to_thread(cluster.start_node, node)
        except ClusterError as error:
            raise Refused(str(error), 502) from error


def _shown(node: Node) -> LabNode:
    process = node.process()
    state = "down"
    if process is not None:
        try:
            state = "stopped" if process.status() == psutil.STATUS_STOPPED else "up"
        except psutil.NoSuchProcess:
            state = "down"
    return LabNode(node.name, node.kind, node.address, state, node.role, node.pid)
