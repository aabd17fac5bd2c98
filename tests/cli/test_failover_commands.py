"""Commands for groups with a controller: `twinlog ha`, `twinlog controller`, 5.3's mqadmin verbs.

The controller is real and runs inside a real name server; the replicas are heartbeats.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Result, mqadmin, twinlog
from support.fake_replicas import FakeGroup
from support.processes import free_port, process_group, wait_until
from support.twinlog_servers import start_twinlog_namesrv
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, UNHEALTHY, UNREACHABLE, USAGE


class World:
    def __init__(self, namesrv: str, controller: str, group: FakeGroup) -> None:
        self.namesrv = namesrv
        self.controller = controller
        self.group = group

    def twinlog(self, *words: object) -> Result:
        return twinlog(*words, "-n", self.namesrv)

    def mqadmin(self, verb: str, *words: object) -> Result:
        return mqadmin(verb, "-n", self.namesrv, *words)

    def healthy(self) -> None:
        wait_until(lambda: self.twinlog("ha", "status").code == 0, "healthy", deadline_s=30)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    directory = tmp_path_factory.mktemp("controller")
    port = free_port()
    with process_group() as processes:
        namesrv = start_twinlog_namesrv(
            directory, enableControllerInNamesrv="true", twinlogControllerPort=port,
            controllerStorePath=directory / "records",
        )  # fmt: skip
        processes.add(namesrv)
        yield namesrv.address, f"127.0.0.1:{port}"


@pytest.fixture
def world(servers: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[World]:
    """A group of its own for each test; what others left is known to be down."""
    name = "g-" + request.node.name[-40:].replace("[", "-").replace("]", "")
    with FakeGroup(servers[1], name=name) as group:
        yield World(servers[0], servers[1], group)


@pytest.fixture
def pair(world: World) -> World:
    world.group.start_pair()
    return world


def rows_of(world: World, result: Result) -> dict[int, dict[str, object]]:
    rows = result.json["controlled"]
    return {row["id"]: row for row in rows if row["broker"] == world.group.name}


def state_of(world: World) -> dict[str, object]:
    groups = world.twinlog("ha", "status", "-o", "json").json["groups"]
    return next(group for group in groups if group["broker"] == world.group.name)


def test_status_tells_copies_epoch_and_why(pair: World) -> None:
    text = pair.twinlog("ha", "status").out
    assert f"{pair.group.name} is healthy: 2 copies, master 1 at 127.0.0.1:20001" in text
    assert "epoch 1, master 1 since" in text
    assert "the first master of a new group; in sync {1,2}" in text
    rows = rows_of(pair, pair.twinlog("ha", "status", "-o", "json"))
    assert rows[1]["role"] == "MASTER"
    assert int(str(rows[1]["lease_ms"])) <= 2000

    def has_lease() -> bool:
        """Also where a heartbeat comes late."""
        rows = rows_of(pair, pair.twinlog("ha", "status", "-o", "json"))
        return int(str(rows[1]["lease_ms"])) > 0

    wait_until(has_lease, "the master has its lease")
    assert rows[2] == {**rows[2], "role": "SLAVE", "in_sync": True, "why": "admitted", "behind": 0}


def test_a_lost_replica_is_degraded_with_exit_code_10_until_it_is_back(pair: World) -> None:
    pair.group.kill(2)
    pair.group.until_in_sync(1)
    found = pair.twinlog("ha", "status")
    assert found.code == UNHEALTHY
    assert f"{pair.group.name} is DEGRADED: 1 copy since " in found.out
    assert "(minInSyncReplicas 1); replica 2 is down" in found.out
    assert "removed: the master proposed it" in found.out or "silent for" in found.out
    assert "DEGRADED: replica 2 is down" in pair.twinlog("cluster", "health").out
    assert "DEGRADED: replica 2 is down" in pair.twinlog("check").out
    pair.group.start(2)
    pair.group.until_in_sync(1, 2)
    assert state_of(pair)["state"] == "healthy"
    assert "DEGRADED" not in pair.twinlog("cluster", "health").out


def test_a_broker_that_hangs_is_named_and_the_rest_is_not_old(world: World) -> None:
    """Its heartbeats come, and its port takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        world.group.addresses[2] = f"127.0.0.1:{hung.getsockname()[1]}"
        for number in (1, 2):
            world.group.start(number)
        world.group.until_in_sync(1, 2)
        found = world.twinlog("ha", "status")
    assert found.code == UNHEALTHY
    assert f"replica 2 at {world.group.addresses[2]} does not answer" in found.out


def test_a_master_that_cannot_write_is_not_healthy(world: World) -> None:
    world.group.start(1, twinlogWritable="false")
    world.group.until_master(1)
    found = world.twinlog("ha", "status")
    assert found.code == UNHEALTHY
    assert f"{world.group.name} is READ ONLY: 1 copy" in found.out
    assert "master 1 cannot write: is its disk full? No other member can" in found.out


def test_an_election_without_a_candidate_names_nobody_as_the_master(pair: World) -> None:
    name = pair.group.name
    pair.group.kill(2)
    pair.group.until_in_sync(1)
    found = pair.twinlog("ha", "switch", name)
    assert (found.code, "nothing to switch to" in found.err) == (FAILED, True), found
    pair.group.kill(1)
    found = pair.twinlog("ha", "elect", name)
    assert (found.code, "nobody is elected" in found.err) == (FAILED, True), found
    assert "WAS MASTER" in pair.twinlog("ha", "status").out


def test_a_switch_hands_over_and_back(pair: World) -> None:
    name = pair.group.name
    done = pair.twinlog("ha", "switch", name).ok()
    assert f"replica 2 at 127.0.0.1:20002 is the master of {name} now" in done.out
    pair.group.until_master(2)
    assert state_of(pair)["epoch"] == 2
    assert pair.twinlog("ha", "switch", name, "--to", "127.0.0.1:20001", "-o", "json").ok().json[
        "master"] == 1  # fmt: skip
    events = [row["event"] for row in pair.twinlog("ha", "events", name, "-o", "json").json]
    assert events[-4:] == ["hand-over", "elected", "hand-over", "elected"]


def test_a_switch_to_the_present_master_is_done_already(pair: World) -> None:
    name = pair.group.name
    done = pair.twinlog("ha", "switch", name, "--to", "1").ok()
    assert f"replica 1 at 127.0.0.1:20001 is the master of {name} already" in done.out
    assert pair.twinlog("ha", "switch", name, "--to", "1", "-o", "json").ok().json["epoch"] == 1
    assert state_of(pair)["epoch"] == 1


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["switch", "nobody"], NOT_FOUND, "knows no group 'nobody'"),
        (["switch", "GROUP", "--to", "7"], NOT_FOUND, "no replica '7'"),
        (["switch", "GROUP", "--to", "²"], NOT_FOUND, "no replica '²'"),
        (["elect", "GROUP", "--unclean", "other"], USAGE, "the name of the group is GROUP"),
        (["elect", "GROUP", "--to", "2"], USAGE, "--to needs --unclean"),
        (["drain", "GROUP", "1"], FAILED, "switch to another one first"),
        (["remove", "GROUP", "2"], USAGE, "add --yes"),
        (["remove", "GROUP", "2", "--yes"], FAILED, "living member of the sync-state set"),
        (["status", "--controller", "nowhere"], USAGE, "is not host:port"),
        (["events", "--since", "some day"], USAGE, "is not a time"),
        (["tail", "list"], USAGE, "add --store DIR"),
        (["tail", "list", "--store", "/nowhere"], NOT_FOUND, "no such directory"),
    ],
)
def test_bad_input_is_one_clear_line(pair: World, words: list[str], code: int, text: str) -> None:
    name = pair.group.name
    given = [name if word == "GROUP" else word for word in words]
    found = pair.twinlog("ha", *given)
    assert found.code == code, found
    assert text.replace("GROUP", name) in found.err
    assert len(found.err.splitlines()) == 1
    assert state_of(pair)["epoch"] == 1


def test_without_a_controller_the_commands_say_so(tmp_path: Path) -> None:
    with process_group() as processes:
        namesrv = start_twinlog_namesrv(tmp_path)
        processes.add(namesrv)
        found = twinlog("ha", "switch", "a", "-n", namesrv.address)
        assert (found.code, found.err) == (
            NOT_FOUND,
            "twinlog: no controller is known here; give its address with --controller HOST:PORT\n",
        )
        assert twinlog("controller", "status", "-n", namesrv.address).code == NOT_FOUND
        nobody = f"127.0.0.1:{free_port()}"
        found = twinlog("controller", "status", "-n", namesrv.address, "--controller", nobody)
        assert found.code == UNREACHABLE
        found = twinlog("ha", "status", "-n", namesrv.address, "--controller", nobody)
        assert found.code == UNHEALTHY
        assert "the controller does not answer" in found.out
        found = twinlog("ha", "events", "-n", namesrv.address, "--controller", namesrv.address)
        assert found.code == FAILED


def test_drain_undrain_remove(pair: World) -> None:
    name = pair.group.name
    pair.twinlog("ha", "drain", name, 2).ok()
    pair.group.until_in_sync(1)
    rows = rows_of(pair, pair.twinlog("ha", "status", "-o", "json"))
    assert rows[2]["role"] == "LEARNER"
    assert state_of(pair)["state"] == "healthy", "a learner is not waited for"
    found = pair.twinlog("ha", "undrain", name, 2).ok()
    assert f"replica 2 of {name} is in the set again" in found.out
    assert state_of(pair)["state"] == "healthy"
    pair.twinlog("ha", "drain", name, 2).ok()
    pair.group.kill(2)
    late = pair.twinlog("ha", "undrain", name, 2, "--wait", 0.5).ok()
    assert "is admitted when it has caught up" in late.out
    pair.twinlog("ha", "drain", name, 2).ok()
    pair.twinlog("ha", "remove", name, 2, "--yes").ok()
    assert list(rows_of(pair, pair.twinlog("ha", "status", "-o", "json"))) == [1]


def test_an_unclean_election_takes_whom_the_operator_names(pair: World) -> None:
    name = pair.group.name
    pair.group.kill(2)
    pair.group.until_in_sync(1)
    pair.group.kill(1)
    pair.group.start(2)
    wait_until(lambda: "waiting for replica 1" in str(state_of(pair)["reason"]), "who is awaited")
    assert state_of(pair)["state"] == "NO MASTER"
    wait_until(
        lambda: pair.twinlog("ha", "elect", name, "--unclean", name, "--to", 2).code == 0,
        "elected when the lease is over",
    )
    pair.group.until_master(2)
    events = pair.twinlog("ha", "events", name, "-o", "json").json
    assert events[-1]["event"] == "unclean-elected"
    assert "unclean" in pair.twinlog("ha", "status").out


def test_a_member_that_was_not_drained_is_not_called_back(pair: World) -> None:
    name = pair.group.name
    assert (
        pair.twinlog("ha", "undrain", name, 2)
        .ok()
        .out.startswith(f"replica 2 of {name} is not drained\n")
    )
    events = pair.twinlog("ha", "events", name, "-o", "json").json
    assert "undrained" not in {event["event"] for event in events}


def test_events_of_a_group_that_is_none(pair: World) -> None:
    """The journals of controllers, which have no group, are no answer."""
    for words in (["ha", "events"], ["events"], ["events", "--ha"]):
        found = pair.twinlog(*words, "nobody")
        assert (found.code, found.out) == (NOT_FOUND, ""), words
        assert "no broker 'nobody'" in found.err
    assert "elected" in pair.twinlog("ha", "events", pair.group.name).ok().out


def test_the_group_of_another_cluster_is_not_changed(pair: World) -> None:
    at, name = pair.controller, pair.group.name
    words = ["-a", at, "-bn", name, "-b", 2]
    found = pair.mqadmin("electMaster", *words, "-c", "Other")
    assert (found.code, found.out) == (FAILED, "")
    assert f"{name} belongs to cluster DefaultCluster, not to Other" in found.err
    pair.group.until_master(1)
    pair.twinlog("ha", "drain", name, 2).ok()
    pair.group.kill(2)
    found = pair.mqadmin("cleanBrokerMetadata", *words, "-c", "Other")
    assert (found.code, "belongs to cluster DefaultCluster" in found.err) == (FAILED, True)
    pair.mqadmin("cleanBrokerMetadata", *words, "-c", "DefaultCluster").ok()


def test_controller_status_names_the_leader_and_its_groups(pair: World) -> None:
    found = pair.twinlog("controller", "status", "-o", "json")
    assert found.json["controllers"] == [
        {"id": "n0", "address": pair.controller, "leads": True, "state": "up"}
    ]
    group = next(g for g in found.json["groups"] if g["broker"] == pair.group.name)
    assert group["master"] in (1, 2)  # Whoever was elected: nothing here depends on it.
    assert group["sync_state_set"] == [1, 2]
    refused = pair.twinlog("controller", "adopt", pair.group.name)
    assert (refused.code, "type --group" in refused.err) == (USAGE, True)
    refused = pair.twinlog("controller", "adopt", pair.group.name, "--group", pair.group.name)
    assert (refused.code, "nothing is to be adopted" in refused.err) == (FAILED, True)


def test_mqadmin_has_the_verbs_and_columns_of_5_3(pair: World) -> None:
    at, name = pair.controller, pair.group.name
    meta = pair.mqadmin("getControllerMetaData", "-a", at).ok().out
    assert meta == (
        f"\n#ControllerGroup\tdefault-group\n#ControllerLeaderId\tn0\n"
        f"#ControllerLeaderAddress\t{at}\n#Peer:\tn0-{at}\n"
    )
    shown = pair.mqadmin("getSyncStateSet", "-a", at, "-b", name).ok().out
    assert shown == (
        f"\n#brokerName\t{name}\n#MasterBrokerId\t1\n#MasterAddr\t127.0.0.1:20001\n"
        "#MasterEpoch\t1\n#SyncStateSetEpoch\t2\n#SyncStateSetNums\t2\n"
        f"\nInSyncReplica:\tReplicaIdentity{{brokerName='{name}', brokerId=1,"
        " brokerAddress='127.0.0.1:20001', alive=true}\n"
        f"\nInSyncReplica:\tReplicaIdentity{{brokerName='{name}', brokerId=2,"
        " brokerAddress='127.0.0.1:20002', alive=true}\n"
    )
    words = ["-a", at, "-b", 2, "-bn", name, "-c", "DefaultCluster"]
    elected = pair.mqadmin("electMaster", *words).ok().out
    assert elected == (
        f"\n#ClusterName\tDefaultCluster\n#BrokerName\t{name}\n"
        "#BrokerMasterAddr\t127.0.0.1:20002\n#MasterEpoch\t2\n#SyncStateSetEpoch\t3\n"
    )
    config = pair.mqadmin("getControllerConfig", "-a", at).ok().out
    assert config.startswith(f"============{at}============\n")
    assert "twinlogLeaseMs                                    =  2000" in config
    changed = pair.mqadmin(
        "updateControllerConfig", "-a", at, "-k", "notifyBrokerRoleChanged", "-v", "false"
    )
    assert changed.ok().out == (
        f"update controller config success![{at}]\nnotifyBrokerRoleChanged : false\n"
    )
    assert "false" in pair.mqadmin("getControllerConfig", "-a", at).out.partition(
        "notifyBrokerRoleChanged")[2].splitlines()[0]  # fmt: skip
    pair.group.kill(1)
    pair.group.until_in_sync(2)
    cleaned = pair.mqadmin(
        "cleanBrokerMetadata", "-a", at, "-b", "1", "-bn", name, "-c", "DefaultCluster"
    )
    assert cleaned.ok().out == f"clear broker {name} metadata from controller success! \n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["getSyncStateSet", "-a", "AT"], USAGE, "-b (brokerName)"),
        (["getSyncStateSet", "-a", "AT", "-b", "nobody"], NOT_FOUND, "nobody"),
        (["electMaster", "-a", "AT", "-b", "x", "-bn", "G", "-c", "C"], USAGE, "not the id"),
        (["electMaster", "-a", "AT", "-b", "9", "-bn", "G", "-c", "C"], FAILED, "registered"),
        (["electMaster", "-a", "AT", "-b", "9"], USAGE, "-bn (brokerName) is missing"),
        (["cleanBrokerMetadata", "-a", "AT", "-bn", "G"], USAGE, "-c (clusterName)"),
        (["cleanBrokerMetadata", "-a", "AT", "-bn", "G", "-c", "C", "-b", "1;²"], USAGE, "ids"),
        (["updateControllerConfig", "-a", "AT", "-k", "no", "-v", "1"], FAILED, "not known"),
        (["updateControllerConfig", "-a", "AT", "-k", "listenPort", "-v", "1"], FAILED, "restart"),
    ],
)
def test_mqadmin_says_what_is_wrong_in_one_line(
    world: World, words: list[str], code: int, text: str
) -> None:
    found = world.mqadmin(*[world.controller if word == "AT" else word for word in words])
    assert found.code == code, found
    assert text in found.err
    assert len(found.err.splitlines()) == 1
