"""Several controllers on a real etcd: who leads, what is written, and what happens to both.

Replicas are heartbeats. Checked after every test: no epoch had two masters.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import twinlog
from support.etcd import Etcd, put
from support.fake_replicas import FakeGroup, FakeReplica
from support.processes import ProcessGroup, free_port, process_group, wait_until
from support.twinlog_servers import (
    TwinlogController,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)

pytestmark = pytest.mark.services


class World:
    """An etcd, controllers n0, n1, ... and a group of replicas."""

    def __init__(self, directory: Path, processes: ProcessGroup) -> None:
        self.directory = directory
        self.processes = processes
        self.etcd = self._added(Etcd(directory / "etcd"))
        self.ports = [free_port(), free_port()]
        peers = (f"n{i}-127.0.0.1:{port}" for i, port in enumerate(self.ports))
        self.peers = ";".join(peers)
        self.controllers = [self.start_controller(i) for i in range(2)]

    def _added(self, process: Etcd) -> Etcd:
        self.processes.add(process)
        return process

    def start_controller(self, i: int) -> TwinlogController:
        controller = start_twinlog_controller(
            self.directory / f"n{i}", listenPort=self.ports[i], controllerDLegerSelfId=f"n{i}",
            controllerDLegerPeers=self.peers, twinlogControllerEtcd=self.etcd.url,
        )  # fmt: skip
        self.processes.add(controller)
        return controller

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def leaders(self) -> list[int]:
        """Controllers that say of themselves that they lead."""
        words = ["controller", "status", "--controller", ";".join(self.addresses), "-o", "json"]
        found = twinlog(*words, "-n", "127.0.0.1:1", "--timeout", "1s")
        if not found.out:
            return []
        rows = found.json["controllers"]
        return [self.addresses.index(row["address"]) for row in rows if row["leads"]]

    def leader(self) -> int:
        leaders = wait_until(self.leaders, "somebody leads", deadline_s=30)
        assert len(leaders) == 1
        return leaders[0]

    def restart_etcd(self) -> None:
        self.etcd = self._added(self.etcd.restart())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with process_group() as processes:
        yield World(tmp_path, processes)


class Watch:
    """Collects what replicas were told: who was the master of each epoch."""

    def __init__(self, group: FakeGroup) -> None:
        self.masters: dict[int, set[tuple[int, str]]] = {}
        self._group = group

    def note(self) -> None:
        for replica in list(self._group.replicas.values()):
            record = replica.record
            if record.get("masterEpoch"):
                master = (record["masterBrokerId"], record["masterIncarnation"])
                self.masters.setdefault(record["masterEpoch"], set()).add(master)


@pytest.fixture
def group(world: World) -> Iterator[FakeGroup]:
    with FakeGroup(*world.addresses) as group:
        group.start_pair()
        watch = Watch(group)
        group.on_answer = watch.note
        yield group
        assert all(len(masters) == 1 for masters in watch.masters.values()), watch.masters


def epoch(group: FakeGroup) -> int:
    return max(replica.epoch for replica in group.replicas.values())


def grows(replica: FakeReplica) -> None:
    """Leases are granted (again)."""
    before = replica.leases
    wait_until(lambda: replica.leases > before + 1, "leases are granted", deadline_s=30)


def test_one_leads_and_the_other_names_it(world: World, group: FakeGroup) -> None:
    leader = world.leader()
    other = 1 - leader
    found = twinlog(
        "ha", "status", "--controller", world.addresses[other], "-n", "127.0.0.1:1", "-o", "json"
    )
    assert found.code in (0, 4)
    meta = twinlog("controller", "status", "--controller", world.addresses[other], "-n",
                   "127.0.0.1:1", "-o", "json").json  # fmt: skip
    rows = {row["id"]: row["leads"] for row in meta["controllers"]}
    assert rows == {f"n{leader}": True, f"n{other}": False}


def test_a_killed_leader_is_followed_and_nothing_is_forgotten(
    world: World, group: FakeGroup
) -> None:
    leader = world.leader()
    version = group.replicas[1].record["version"]
    world.controllers[leader].kill()
    wait_until(lambda: world.leaders() == [1 - leader], "the other leads", deadline_s=30)
    grows(group.replicas[1])
    assert epoch(group) == 1, "a change of controllers is no election"
    assert group.replicas[1].record["version"] >= version
    group.kill(1)
    group.until_master(2)
    world.start_controller(leader)
    group.start(1)
    group.until_in_sync(1, 2)


def test_a_stopped_leader_hands_over_at_once(world: World, group: FakeGroup) -> None:
    leader = world.leader()
    started = time.monotonic()
    assert world.controllers[leader].stop() == 0
    wait_until(lambda: world.leaders() == [1 - leader], "the other leads", deadline_s=30)
    assert time.monotonic() - started < 4, "its lease was given back, not waited for"


def test_a_leader_that_was_paused_decides_nothing_any_more(world: World, group: FakeGroup) -> None:
    leader = world.leader()
    paused = world.controllers[leader]
    paused.suspend()
    wait_until(lambda: world.leaders() == [1 - leader], "the other leads", deadline_s=30)
    group.kill(1)
    group.until_master(2)
    group.start(1)
    group.until_in_sync(1, 2)
    seen = epoch(group)
    paused.resume()
    paused.wait_for_text("leads-no-more")
    wait_until(lambda: world.leaders() == [1 - leader], "still the other", deadline_s=30)
    grows(group.replicas[2])
    assert epoch(group) == seen


def test_without_etcd_nothing_is_decided_and_the_line_says_why(
    world: World, group: FakeGroup
) -> None:
    leader = world.leader()
    world.etcd.kill()
    world.controllers[leader].wait_for_text("etcd does not answer, so this")
    world.controllers[leader].wait_for_text("leads-no-more")
    assert world.leaders() == []
    found = twinlog("ha", "switch", "broker-a", "--controller", ";".join(world.addresses), "-n",
                    "127.0.0.1:1")  # fmt: skip
    assert found.code == 1
    assert "none of the controllers" in found.err
    group.kill(1)
    replica = group.replicas[2]
    leases = replica.leases
    time.sleep(3)  # Longer than any silence that a controller would act upon.
    assert (replica.leases, replica.record["masterBrokerId"]) == (leases, 1)
    world.restart_etcd()
    group.until_master(2)


def test_controllers_that_start_before_their_etcd_wait_for_it(tmp_path: Path) -> None:
    with process_group() as processes:
        etcd = Etcd(tmp_path / "etcd")
        etcd.kill()
        controller = start_twinlog_controller(tmp_path / "n0", twinlogControllerEtcd=etcd.url)
        processes.add(controller)
        controller.wait_for_text("etcd cannot be reached")
        processes.add(etcd.restart())
        controller.wait_for_text("leads groups=[]")


def test_an_old_backup_of_etcd_freezes_the_group(world: World, group: FakeGroup) -> None:
    """R12: a record that is older than what a replica knows elects nobody."""
    world.etcd.stop()
    backup = world.directory / "backup"
    shutil.copytree(world.etcd.directory / "data", backup)
    world.restart_etcd()
    grows(group.replicas[1])
    group.kill(1)
    group.until_master(2)
    group.start(1)
    group.until_in_sync(1, 2)
    world.etcd.stop()
    shutil.rmtree(world.etcd.directory / "data")
    shutil.copytree(backup, world.etcd.directory / "data")
    world.restart_etcd()
    # A controller that led all the time knows better; one that begins has the record alone.
    world.controllers[world.leader()].kill()
    wait_until(lambda: any("frozen" in c.output() for c in world.controllers), "frozen",
               deadline_s=40)  # fmt: skip
    assert {r.record["masterBrokerId"] for r in group.replicas.values()} == {2}
    status = twinlog("controller", "status", "--controller", ";".join(world.addresses), "-n",
                     "127.0.0.1:1")  # fmt: skip
    assert "broker-a is FROZEN: replica" in status.out
    assert "adopt the group again" in status.out


def test_a_controller_with_records_of_its_own_is_not_followed(
    world: World, group: FakeGroup, tmp_path: Path
) -> None:
    """Two controllers with different records: who follows one is refused by the other."""
    alone = start_twinlog_controller(tmp_path / "alone")
    world.processes.add(alone)
    with FakeGroup(alone.address) as second:
        second.start(3)
        second.until_master(3)
        stranger = second.replicas[3]
        second.controllers[:] = world.addresses
        wait_until(
            lambda: any("follows another controller" in c.output() for c in world.controllers),
            "it is refused",
        )
        assert stranger.record["masterBrokerId"] == 3
    assert {r.record["masterBrokerId"] for r in group.replicas.values()} == {1}


def test_a_record_that_somebody_else_wrote_stops_its_group_alone(
    world: World, group: FakeGroup
) -> None:
    leader = world.leader()
    put(world.etcd, "/twinlog/default-group/groups/other", json.dumps({"cluster": 1}))
    world.controllers[leader].kill()
    wait_until(lambda: world.leaders() == [1 - leader], "the other leads", deadline_s=30)
    world.controllers[1 - leader].wait_for_text("record left out: the record /twinlog/")
    grows(group.replicas[1])


@pytest.mark.timeout(240)
def test_real_brokers_fail_over_after_their_controller_did(world: World, tmp_path: Path) -> None:
    namesrv = start_twinlog_namesrv(tmp_path / "ns")
    world.processes.add(namesrv)
    brokers = []
    for number in range(2):
        broker = start_twinlog_broker(
            tmp_path / f"b{number}", namesrv=namesrv.address, brokerId=-1,
            brokerRole="SYNC_MASTER", enableControllerMode="true", totalReplicas=2,
            controllerAddr=";".join(world.addresses), mappedFileSizeCommitLog=1 << 24,
        )  # fmt: skip
        world.processes.add(broker)
        brokers.append(broker)
    words = ["-n", namesrv.address]

    def state() -> dict[str, object]:
        found = twinlog("ha", "status", *words, "-o", "json")
        groups = found.json.get("groups") if found.out else None
        return groups[0] if groups else {}

    def sends(body: str) -> bool:
        return twinlog("topic", "produce", "orders", body, *words).code == 0

    wait_until(lambda: state().get("copies") == 2, "both are in sync")
    twinlog("topic", "create", "orders", *words).ok()
    assert sends("before")
    leader = world.leader()
    world.controllers[leader].kill()
    assert sends("without a controller"), "a SYNC_MASTER needs none"
    wait_until(lambda: world.leaders() == [1 - leader], "the other leads", deadline_s=30)
    wait_until(lambda: state().get("state") == "healthy", "brokers follow it")
    epoch_before = int(str(state()["epoch"]))
    assert epoch_before == 1, "a change of controllers is no election"
    brokers[0].kill()
    wait_until(lambda: sends("after"), "writes go on")
    assert state()["epoch"] == 2
    world.processes.add(brokers[0].restart())
    wait_until(lambda: state().get("state") == "healthy", "it has rejoined")
    bodies = twinlog("topic", "consume", "orders", "--body", "-e", *words).ok().out
    assert all(body in bodies for body in ("before", "without a controller", "after"))
