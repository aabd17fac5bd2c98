"""mqadmin of RocketMQ 5.3.3 on our controller, and ours on Apache's: the same lines.

The group on our controller is a pair of real twinlog brokers, so epochs are real, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.apache import APACHE_5, ApacheController
from support.apache import mqadmin as apache_mqadmin
from support.command_line import LocalTwins
from support.command_line import mqadmin as our_mqadmin
from support.fake_replicas import FakeGroup
from support.processes import free_port, process_group, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


# What its logging says of itself, and the empty line behind it.
LOGBACK = re.compile(r"(?:^\d\d:\d\d:\d\d,\d{3} \|-.*\n)+\n", re.M)


class Tools:
    """Both tools with one name server."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self._home = home
        self._namesrv = namesrv

    def apache(self, verb: str, *words: object) -> str:
        arguments = [verb, "-n", self._namesrv, *map(str, words)]
        return LOGBACK.sub("", apache_mqadmin(*arguments, home=self._home, project=APACHE_5))

    def ours(self, verb: str, *words: object) -> str:
        return our_mqadmin(verb, "-n", self._namesrv, *words).ok().out

    def same(self, verb: str, *words: object) -> str:
        """What both print, after it was found to be the same."""
        theirs, ours = self.apache(verb, *words), self.ours(verb, *words)
        assert ours == theirs
        return ours


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTwins]:
    twins = LocalTwins(tmp_path_factory.mktemp("pair") / "twins")
    twins.up("--failover", "--no-console").ok()
    yield twins
    twins.down()


@pytest.fixture(scope="module")
def controller(pair: LocalTwins) -> str:
    found = json.loads((pair.directory / "cluster.json").read_bytes())
    return f"127.0.0.1:{found['controller_port']}"


@pytest.fixture(scope="module")
def tools(pair: LocalTwins, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(tmp_path_factory.mktemp("home"), pair.namesrv)


def test_the_controllers_metadata(tools: Tools, controller: str) -> None:
    shown = tools.same("getControllerMetaData", "-a", controller)
    assert f"#ControllerLeaderAddress\t{controller}\n" in shown


def test_the_sync_state_set(tools: Tools, controller: str) -> None:
    by_name = tools.same("getSyncStateSet", "-a", controller, "-b", "broker-a")
    assert "#SyncStateSetNums\t2\n" in by_name
    assert by_name == tools.same("getSyncStateSet", "-a", controller, "-c", "DefaultCluster")


def test_the_epochs_of_the_brokers(tools: Tools) -> None:
    shown = tools.same("getBrokerEpoch", "-c", "DefaultCluster")
    assert shown.count("#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=") == 2
    assert shown == tools.same("getBrokerEpoch", "-b", "broker-a")


def test_the_configuration(tools: Tools, controller: str) -> None:
    def lines(text: str) -> list[str]:
        """Apache prints them in the order of a hash table."""
        return sorted(text.splitlines())

    words = ("getControllerConfig", "-a", controller)
    assert lines(tools.ours(*words)) == lines(tools.apache(*words))
    for value in ("false", "true"):
        changed = tools.same("updateControllerConfig", "-a", controller, "-k",
                             "notifyBrokerRoleChanged", "-v", value)  # fmt: skip
        assert f"notifyBrokerRoleChanged : {value}" in changed


def test_elections_and_removals(tools: Tools, controller: str) -> None:
    with FakeGroup(controller, name="fakes") as group:
        group.start_pair()
        words = ["-a", controller, "-bn", "fakes", "-c", "DefaultCluster"]
        theirs = tools.apache("electMaster", *words, "-b", 2)
        group.until_master(2)
        ours = tools.ours("electMaster", *words, "-b", 1)
        for text, address, epoch in ((theirs, 20002, 2), (ours, 20001, 3)):
            assert text == (
                "\n#ClusterName\tDefaultCluster\n#BrokerName\tfakes\n"
                f"#BrokerMasterAddr\t127.0.0.1:{address}\n#MasterEpoch\t{epoch}\n"
                f"#SyncStateSetEpoch\t{epoch + 1}\n"
            )
        group.until_master(1)
        with pytest.raises(AssertionError, match="living member of the sync-state set"):
            tools.apache("cleanBrokerMetadata", *words, "-b", "2")
        group.kill(2)
        group.until_in_sync(1)
        cleaned = tools.apache("cleanBrokerMetadata", *words, "-b", "2")
        assert cleaned == "clear broker fakes metadata from controller success! \n"


def test_ours_on_apaches_controller(tools: Tools, tmp_path: Path) -> None:
    with process_group() as processes:
        server = ApacheController(tmp_path, free_port())
        processes.add(server)
        address = server.address

        def leads() -> bool:
            found = our_mqadmin("getControllerMetaData", "-n", "127.0.0.1:1", "-a", address)
            return f"#ControllerLeaderAddress\t{address}" in found.out

        wait_until(leads, "it leads", deadline_s=120)
        tools.same("getControllerMetaData", "-a", address)
        ours = tools.ours("getControllerConfig", "-a", address).splitlines()
        assert sorted(ours) == sorted(
            tools.apache("getControllerConfig", "-a", address).splitlines()
        )
