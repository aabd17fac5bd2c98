"""A real Prometheus scrapes a pair: each alert is made to fire by its fault, and to resolve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.command_line import process
from support.ha_load import send_once
from support.processes import ProcessGroup, free_port, process_group
from support.prometheus import Prometheus, get, promtool
from support.twinlog_servers import (
    TwinlogBroker,
    http_address,
    start_twinlog_broker,
    start_twinlog_namesrv,
)

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

SMALL = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 100,
    "maxIndexNum": 400, "cleanResourceInterval": 200, "cleanFileForciblyEnable": "false",
}  # fmt: skip


class World:
    """A name server, a synchronous pair on small disks, and Prometheus."""

    def __init__(self, directory: Path, group: ProcessGroup, mount: Path) -> None:
        self.directory = directory
        self.group = group
        self.namesrv = start_twinlog_namesrv(
            directory / "namesrv", metricsPromExporterPort=free_port()
        )
        group.add(self.namesrv)
        self.mount = mount
        self.master = self._broker(
            "master", brokerRole="SYNC_MASTER", storePathRootDir=mount / "store",
            storePathCommitLog=mount / "store" / "commitlog",
        )  # fmt: skip
        self.slave = self.start_slave("slave")
        self.wait_healthy()
        servers = (self.namesrv, self.master, self.slave)
        self.prometheus = Prometheus(directory / "prom", [http_address(s) for s in servers])
        group.add(self.prometheus)
        self.prometheus.wait_scraped(3)

    def _broker(self, name: str, **config: object) -> TwinlogBroker:
        broker = start_twinlog_broker(
            self.directory / name, namesrv=self.namesrv.address,
            **{**SMALL, "metricsPromExporterPort": free_port(), **config},
        )  # fmt: skip
        self.group.add(broker)
        return broker

    def start_slave(self, name: str, **config: object) -> TwinlogBroker:
        dials = f"127.0.0.1:{self.master.ha_port}"
        return self._broker(name, brokerRole="SLAVE", brokerId=1, haMasterAddress=dials, **config)

    def again(self, broker: TwinlogBroker) -> TwinlogBroker:
        fresh = broker.restart()
        self.group.add(fresh)
        return fresh

    def wait_healthy(self) -> None:
        words = ("cluster", "health", "--wait", "60s", "--brokers", "2")
        process(*words, "-n", self.namesrv.address).ok()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("prometheus")
    mount = directory / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with process_group() as group:
            yield World(directory, group, mount)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def test_promtool_finds_nothing_to_complain_about(world: World) -> None:
    for server in (world.namesrv, world.master, world.slave):
        text = get(http_address(server), "/metrics")
        promtool("check", "metrics", stdin=text)


def test_a_minute_of_scrapes_and_the_names_of_the_exporter(world: World) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert send_once(world.master.address, b"x" * 200).code == 0
        time.sleep(0.2)  # The pace of the load.
    prometheus = world.prometheus
    (up,) = {row["value"][1] for row in prometheus.query('min_over_time(up{job="twinlog"}[50s])')}
    assert up == "1", "no scrape failed"
    rate = prometheus.query("rate(rocketmq_messages_in_total[30s])")
    assert float(rate[0]["value"][1]) > 0
    for name in ("rocketmq_broker_tps", "rocketmq_producer_tps", "rocketmq_broker_commitlog_diff",
                 "rocketmq_brokeruntime_put_latency_99"):  # fmt: skip
        (row,) = prometheus.query(name)
        assert row["metric"]["broker"] == "broker-a"
    rules = yaml.safe_load((world.directory / "prom" / "twinlog.rules.yml").read_text())
    assert len(rules["groups"][0]["rules"]) == 13, "ten of a pair, three of a group"
    assert prometheus.firing() == set()
    groups = json.loads(get(prometheus.address, "/api/v1/rules"))["data"]["groups"]
    problems = [rule["lastError"] for g in groups for rule in g["rules"] if rule.get("lastError")]
    assert problems == []


def test_a_stopped_slave(world: World) -> None:
    """TwinlogSlaveNotInSync, and TwinlogUnsafeSends by what is sent meanwhile."""
    os.kill(world.slave.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            assert send_once(world.master.address, b"x").code == 12
        world.prometheus.wait_firing("TwinlogSlaveNotInSync")
        world.prometheus.wait_firing("TwinlogUnsafeSends")
    finally:
        os.kill(world.slave.pid, signal.SIGCONT)
    world.wait_healthy()
    world.prometheus.wait_quiet()


def test_a_dead_slave(world: World) -> None:
    """TwinlogServerDown and TwinlogNoSlave."""
    world.slave.kill()
    world.prometheus.wait_firing("TwinlogServerDown")
    world.prometheus.wait_firing("TwinlogNoSlave")
    world.slave = world.again(world.slave)
    world.wait_healthy()
    world.prometheus.wait_quiet()


def test_a_dead_master(world: World) -> None:
    """TwinlogNoMaster, and TwinlogSlaveNotLinked from the slave's side."""
    world.master.kill()
    world.prometheus.wait_firing("TwinlogNoMaster")
    world.prometheus.wait_firing("TwinlogSlaveNotLinked")
    world.master = world.again(world.master)
    world.wait_healthy()
    world.prometheus.wait_quiet()


def test_a_disk_that_fills(world: World) -> None:
    """TwinlogDiskNearlyFull, then TwinlogSendsRefused."""
    filler = world.mount / "fill"
    used = sum(f.stat().st_blocks * 512 for f in world.mount.rglob("*") if f.is_file())
    filler.write_bytes(bytes(int(0.88 * (64 << 20)) - used))
    world.prometheus.wait_firing("TwinlogDiskNearlyFull")
    assert "TwinlogSendsRefused" not in world.prometheus.firing()
    filler.write_bytes(bytes(int(0.96 * (64 << 20)) - used))
    world.prometheus.wait_firing("TwinlogSendsRefused")
    filler.unlink()
    world.wait_healthy()
    world.prometheus.wait_quiet()


def test_two_masters(world: World) -> None:
    other = world._broker("other", brokerRole="SYNC_MASTER")
    try:
        world.prometheus.wait_firing("TwinlogTwoMasters")
    finally:
        other.stop()
    world.wait_healthy()
    world.prometheus.wait_quiet()


def test_a_slave_with_the_log_of_another_master(world: World) -> None:
    """TwinlogSlaveStopped: nothing of its log is the master's, and it changes nothing by itself."""
    config = dict(world.slave.config)
    assert world.slave.stop() == 0
    alone = start_twinlog_broker(world.directory / "alone", **SMALL)  # type: ignore[arg-type]
    for number in range(50):
        assert send_once(alone.address, b"other %d" % number).code == 0
    assert alone.stop() == 0
    stranger = start_twinlog_broker(
        world.directory / "stranger", **{**config, "storePathRootDir": alone.store,
        "storePathCommitLog": alone.store / "commitlog"},
    )  # type: ignore[arg-type] # fmt: skip
    world.group.add(stranger)
    world.prometheus.wait_firing("TwinlogSlaveStopped")
    assert stranger.stop() == 0
    world.slave = world.again(world.slave)
    world.wait_healthy()
    world.prometheus.wait_quiet()
