"""`twinlog up --failover`: a pair whose controller elects the master, killed and healed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import LocalTwins, process
from support.processes import wait_until
from twinlog.cli.exit_codes import UNHEALTHY, USAGE
from twinlog.cli.local_cluster import ClusterPlan, prepare_cluster


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalTwins]:
    twins = LocalTwins(tmp_path / "twins")
    twins.up("--failover", "--no-console").ok()
    yield twins
    twins.down()


def master(pair: LocalTwins) -> str:
    """Name of the process that leads."""
    rows = pair.twinlog("ha", "status", "-o", "json").json["controlled"]
    [address] = [row["address"] for row in rows if row["role"] == "MASTER"]
    return next(node["name"] for node in pair.nodes if address.endswith(f":{node['port']}"))


def send(pair: LocalTwins, body: str) -> bool:
    return pair.twinlog("topic", "produce", "orders", body).code == 0


def test_the_master_is_killed_and_the_group_heals_itself(pair: LocalTwins) -> None:
    first = pair.twinlog("ha", "status")
    assert (first.code, "broker-a is healthy: 2 copies" in first.out) == (0, True), first
    pair.twinlog("topic", "create", "orders").ok()
    assert send(pair, "before")
    old = master(pair)
    os.kill(pair.pid(old), signal.SIGKILL)
    wait_until(lambda: send(pair, "after"), "writes go on")
    assert master(pair) != old
    degraded = pair.twinlog("ha", "status")
    assert degraded.code == UNHEALTHY
    assert "is DEGRADED: 1 copy since" in degraded.out
    own = pair.own_health("namesrv")  # The controller is inside.
    assert (own["ready"], own["healthy"]) == (True, False)
    assert [finding["code"] for finding in own["findings"]] == ["controller"]
    assert own["findings"][0]["text"].startswith("DEGRADED: replica ")
    pair.start(old)
    wait_until(lambda: pair.twinlog("ha", "status").code == 0, "it has rejoined by itself")
    assert pair.own_health("namesrv")["healthy"]
    assert master(pair) != old
    bodies = pair.twinlog("topic", "consume", "orders", "--body", "-e").ok().out
    assert "before" in bodies
    assert "after" in bodies
    events = [row["event"] for row in pair.twinlog("ha", "events", "-o", "json").json]
    assert events.count("elected") == 2
    of_all = {row["event"] for row in pair.twinlog("events", "--ha", "-o", "json").json}
    assert {"elected", "admitted", "broker-started"} <= of_all
    assert "configuration-changed" not in of_all
    again = pair.up()
    assert "A cluster is running" in again.out


def test_three_replicas_keep_two_copies_always(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path, brokers=3, uses_free_ports=True, has_failover=True)
    cluster = prepare_cluster(plan)
    for node in cluster.brokers:
        text = node.config_path.read_text()
        assert "minInSyncReplicas=2\n" in text
        assert "totalReplicas=3\n" in text
        assert "enableControllerMode=true\n" in text
        assert "brokerId=-1\n" in text
    assert "enableControllerInNamesrv=true\n" in cluster.name_server.config_path.read_text()


def test_one_replica_cannot_fail_over(tmp_path: Path) -> None:
    found = process("up", "--failover", "--brokers", "1", "--dir", tmp_path / "x")
    assert (found.code, "no broker could take over" in found.err) == (USAGE, True)
