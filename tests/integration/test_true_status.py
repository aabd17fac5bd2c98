"""Status that tells the truth: each sentence with its real fault, on real processes.

Health, `ha status`, `cluster health` and `doctor` are asked while the fault is there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import Result, process
from support.ha_load import SEND_OK, ha_status, send_once
from support.processes import ProcessGroup, process_group, wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    http_address,
    start_twinlog_broker,
    start_twinlog_namesrv,
)

FLUSH_SLAVE_TIMEOUT = 12
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}


class Cluster:
    """A name server and a pair."""

    def __init__(self, directory: Path, group: ProcessGroup) -> None:
        self.directory = directory
        self.group = group
        self.namesrv: TwinlogNamesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(self.namesrv)

    def broker(self, name: str, **config: object) -> TwinlogBroker:
        broker = start_twinlog_broker(
            self.directory / name, namesrv=self.namesrv.address, **{**SMALL, **config}
        )
        self.group.add(broker)
        return broker

    def pair(self, **of_master: object) -> tuple[TwinlogBroker, TwinlogBroker]:
        master = self.broker("master", brokerRole="SYNC_MASTER", **of_master)
        slave = self.broker(
            "slave", brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{master.ha_port}"
        )
        self("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
        return master, slave

    def __call__(self, *words: str) -> Result:
        return process(*words, "-n", self.namesrv.address, NO_COLOR="1")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with process_group() as group:
        yield Cluster(tmp_path, group)


def replicas(broker: TwinlogBroker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ha_status(broker.address)["haConnectionInfo"]
    return found


def own_health(broker: TwinlogBroker) -> dict[str, Any]:
    """What a broker says of itself at its HTTP port."""
    url = f"http://{http_address(broker)}/health/ready"
    found: dict[str, Any] = httpx.get(url, timeout=30).json()
    return found


def test_a_stopped_slave_is_not_in_sync_though_its_connection_is_open(cluster: Cluster) -> None:
    master, slave = cluster.pair()
    assert send_once(master.address, b"first").code == SEND_OK
    os.kill(slave.pid, signal.SIGSTOP)
    try:
        assert send_once(master.address, b"waits").code == FLUSH_SLAVE_TIMEOUT
        (replica,) = replicas(master)
        assert replica["inSync"] is False
        assert replica["diff"] > 0
        assert "has acknowledged nothing for" in replica["twinlog"]["reason"]
        status = cluster("ha", "status", "--timeout", "1s")
        assert status.code == 10, status.out
        assert "has acknowledged nothing for" in status.out
        assert "while" in status.out.splitlines()[0]
        health = cluster("cluster", "health", "--timeout", "1s")
        assert health.code == 10, health.out
        assert "acknowledged nothing" in health.out
    finally:
        os.kill(slave.pid, signal.SIGCONT)
    cluster("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
    assert send_once(master.address, b"goes on").code == SEND_OK


def test_an_idle_pair_stays_in_sync(cluster: Cluster) -> None:
    """Silence is no fault when there is nothing to say: 1.5 s and more without a message."""
    master, _ = cluster.pair()
    send_once(master.address, b"one")
    wait_until(
        lambda: replicas(master)[0]["twinlog"]["ackAgeMs"] > 2_000,
        "the slave has acknowledged nothing for two seconds",
    )
    (replica,) = replicas(master)
    assert (replica["inSync"], replica["twinlog"]["lagMs"]) == (True, 0)
    assert cluster("ha", "status").code == 0


def test_a_stopped_slave_of_an_idle_pair_is_not_in_sync(cluster: Cluster) -> None:
    """Nothing waits for it, and it does not report as it should; its connection is open."""
    master, slave = cluster.pair(haHousekeepingInterval=120_000)
    assert send_once(master.address, b"the last").code == SEND_OK
    os.kill(slave.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not replicas(master)[0]["inSync"], "its silence is noticed")
        (replica,) = replicas(master)
        assert replica["diff"] == 0
        assert "has said nothing for" in replica["twinlog"]["reason"]
        for command in (("ha", "status"), ("cluster", "health"), ("doctor",), ("top", "--once")):
            found = cluster(*command, "--timeout", "1s")
            assert found.code == 10, found.out
            assert "has said nothing for" in found.out
        assert cluster("check", "--timeout", "1s").code == 2
    finally:
        os.kill(slave.pid, signal.SIGCONT)
    cluster("cluster", "health", "--wait", "60s", "--brokers", "2").ok()


def test_a_dead_slave_is_missed_though_another_one_replicates(cluster: Cluster) -> None:
    """It has left the route: only its master knows that there was one."""
    master, slave = cluster.pair()
    second = cluster.broker(
        "second", brokerRole="SLAVE", brokerId=2, haMasterAddress=f"127.0.0.1:{master.ha_port}"
    )
    cluster("cluster", "health", "--wait", "60s", "--brokers", "3").ok()
    second.kill()
    brokers = ("broker", "list", "-o", "json")
    wait_until(lambda: len(cluster(*brokers).json) == 2, "it has left the route")
    for command in (("ha", "status"), ("cluster", "health"), ("doctor",), ("top", "--once")):
        found = cluster(*command)
        assert found.code == 10, found.out
        assert "slave 127.0.0.1/2 left " in found.out
    assert cluster("check").code == 2
    (row,) = [r for r in cluster("ha", "status", "-o", "json").json["replicas"]
              if r["state"].startswith("gone since")]  # fmt: skip
    assert row["address"] == "127.0.0.1/2"
    own = own_health(master)
    assert (own["ready"], own["healthy"]) == (True, False)
    codes = {finding["code"] for finding in own["findings"]}
    assert codes - {"loop_blocked"} == {"slave_missing"}  # A busy machine is told of, too.
    assert ha_status(slave.address)["twinlog"]["missing"] == []
    cluster.group.add(second.restart())
    cluster("cluster", "health", "--wait", "60s", "--brokers", "3").ok()
    assert cluster("ha", "status").code == 0


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_look_at_the_port_is_no_slave_that_left(cluster: Cluster, words: bytes) -> None:
    master = cluster.broker("master")
    assert "nothing is replicated" in cluster("ha", "status").ok().out
    with socket.create_connection(("127.0.0.1", master.ha_port)) as probe:
        if words:
            probe.sendall(words)
        wait_until(lambda: replicas(master), "the broker sees the connection")
        assert cluster("ha", "status").code == 0, "somebody looks at the port"
    wait_until(lambda: not replicas(master), "the connection is closed")
    departed = ha_status(master.address)["twinlog"]["departed"]
    assert not any(entry["wasSlave"] for entry in departed)
    assert bool(departed) == bool(words)
    cluster("doctor").ok()  # It looks at the port, too.
    for command in (("ha", "status"), ("cluster", "health"), ("doctor",)):
        found = cluster(*command)
        assert found.code == 0, found.out
        assert "left" not in found.out


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False)


def test_a_full_disk_is_told_while_it_refuses_and_only_then(cluster: Cluster, mount: Path) -> None:
    store = {"storePathRootDir": mount / "store", "storePathCommitLog": mount / "store/commitlog"}
    master = cluster.broker(
        "master", **store, cleanResourceInterval=200, cleanFileForciblyEnable=False
    )
    assert send_once(master.address, b"fits").code == SEND_OK
    assert cluster("cluster", "health").code == 0
    filler = mount / "fill"
    filler.write_bytes(bytes(25 << 20))  # Above 75 %, below 90 %.
    doctor = cluster("doctor")
    assert doctor.code == 0, doctor.out
    assert "messages are refused above 90 %" in doctor.out
    assert "refuses messages" not in doctor.out
    filler.write_bytes(bytes(30 << 20))
    wait_until(lambda: send_once(master.address, b"no").code != SEND_OK, "sends are refused")
    for command in (("cluster", "health"), ("doctor",)):
        found = cluster(*command)
        assert found.code == 10, found.out
        assert "refuses messages: disk full" in found.out
    filler.unlink()
    wait_until(lambda: send_once(master.address, b"again").code == SEND_OK, "sends are taken")
    found = cluster("doctor")
    assert found.code == 0, found.out
    assert "refuse" not in found.out
    assert cluster("cluster", "health").code == 0


def test_a_slave_without_room_is_told_by_all_or_by_none(cluster: Cluster, mount: Path) -> None:
    store = {"storePathRootDir": mount / "store", "storePathCommitLog": mount / "store/commitlog"}
    master = cluster.broker("master")
    slave = cluster.broker(
        "slave", **store, brokerRole="SLAVE", brokerId=1, cleanResourceInterval=200,
        haMasterAddress=f"127.0.0.1:{master.ha_port}",
    )  # fmt: skip
    cluster("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
    assert cluster("ha", "status").code == 0
    used = sum(f.stat().st_blocks * 512 for f in mount.rglob("*") if f.is_file())
    (mount / "fill").write_bytes(bytes(int(0.93 * (32 << 20)) - used))
    wait_until(lambda: not own_health(slave)["healthy"], "the slave says so itself")
    for command in (("ha", "status"), ("cluster", "health"), ("doctor",), ("top", "--once")):
        found = cluster(*command)
        assert found.code == 10, (command, found.out)
        assert "could take no messages as the master: disk full" in found.out
    assert cluster("check").code == 2
    assert own_health(master)["healthy"], "it knows nothing of its slave's disk"


def test_doctor_believes_the_broker_not_a_number(cluster: Cluster, mount: Path) -> None:
    """92 % full with a limit of 98 %: nothing is refused."""
    store = {"storePathRootDir": mount / "store", "storePathCommitLog": mount / "store/commitlog"}
    master = cluster.broker(
        "master", **store, cleanResourceInterval=200, diskSpaceWarningLevelRatio=98,
        cleanFileForciblyEnable=False,
    )  # fmt: skip
    used = sum(f.stat().st_blocks * 512 for f in mount.rglob("*") if f.is_file())
    (mount / "fill").write_bytes(bytes(int(0.92 * (32 << 20)) - used))
    assert send_once(master.address, b"taken").code == SEND_OK
    found = cluster("doctor")
    assert found.code == 0, found.out
    assert "refuses messages" not in found.out
    assert "messages are refused above 98 %" in found.out
    assert send_once(master.address, b"taken, too").code == SEND_OK
