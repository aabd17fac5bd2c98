"""Verbs that came to our `mqadmin` later, against Apache's own text.

Those of 4.9.7 about access rules: both tools on the same guarded broker, ours and Apache's. Those
of 5.3.3: Apache's tool on Apache's broker, ours on ours, where users and ACLs are kept in different
forms; what both brokers understand is asked of the same one. Secrets, which only Apache shows, are
masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.cluster import Cluster, start_cluster
from support.apache import (
    APACHE_5,
    start_apache_broker,
    start_apache_namesrv,
    write_home,
)
from support.apache import mqadmin as apache_mqadmin
from support.command_line import mqadmin
from support.java_driver import Driver
from support.processes import process_group, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RULES = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
"""
ADMINISTRATOR: dict[str, Any] = {"ak": "administrator", "sk": "12345678"}
KEYS = ("--access-key", ADMINISTRATOR["ak"], "--secret-key", ADMINISTRATOR["sk"])
# A permission that is not in the file is DENY, and ours says so; Apache's tool leaves it blank.
# Apache's class prints itself as Object does; a version counts changes, which differ by tool.
MASKS_4 = (
    (r"PlainAccessConfig@[0-9a-f]+", "PlainAccessConfig@N"),
    (r"(plain_acl\.yml) +\d+ +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d *", r"\1 VERSION TIME"),
    (r"(?m)^(  secretKey +: ).*$", r"\1SECRET"),
)


@dataclass
class Guarded:
    """A broker with access rules, and both tools signing for its administrator."""

    cluster: Cluster
    driver: Driver
    make: str

    @property
    def place(self) -> tuple[str, ...]:
        return "-n", self.cluster.address, "-b", self.cluster.broker.address

    def apache(self, verb: str, *words: str) -> str:
        return self.driver.mqadmin(verb, *self.place, *words, **ADMINISTRATOR)

    def ours(self, verb: str, *words: str) -> str:
        return mqadmin(verb, *self.place, *words, *KEYS).ok().out

    def same(self, verb: str, *words: str) -> str:
        theirs, ours = (tool(verb, *words) for tool in (self.apache, self.ours))
        return self.compared(ours, theirs)

    def compared(self, ours: str, theirs: str) -> str:
        texts = [ours, theirs]
        for pattern, name in MASKS_4:
            texts = [re.sub(pattern, name, text) for text in texts]
        assert texts[0].rstrip("\n") == texts[1].rstrip("\n")  # Apache forgets some line ends.
        return ours


@pytest.fixture(scope="module", params=["twinlog", "apache"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    make = request.param
    directory = tmp_path_factory.mktemp("guarded")
    home = directory / "broker"
    write_home(home)
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    config = {} if make == "apache" else {"rocketmqHome": home}
    with process_group() as group:
        cluster = start_cluster(
            group, directory, namesrv_of=make, broker_of=make, aclEnable=True, **config
        )
        driver = Driver(directory / "mqadmin")
        yield Guarded(cluster, driver, make)
        driver.close()


def test_access_rules_of_4_9(guarded: Guarded) -> None:
    account = ("-a", "temporary", "-s", "12344321", "-m", "false", "-i", "PUB|SUB", "-u", "DENY")
    made = guarded.same("updateAclConfig", *account, "-t", "orders=PUB,bills=DENY", "-g", "g=SUB")
    assert "create or update plain access config to" in made
    assert "temporary" not in guarded.same("clusterAclConfigVersion")
    assert "success" in guarded.same("updateGlobalWhiteAddr", "-g", "10.10.10.*")
    if guarded.make == "apache":  # We tell no secret, and so refuse Apache's way to ask.
        assert "  defaultTopicPerm  : PUB|SUB\n" in guarded.same("getAclConfig")
    theirs = guarded.apache("deleteAclConfig", "-a", "temporary")
    guarded.ours("updateAclConfig", *account)
    gone = guarded.compared(guarded.ours("deleteAclConfig", "-a", "temporary"), theirs)
    assert gone.endswith("account's accesskey is:temporary\n")


# 5.3.3

PROVIDERS: dict[str, Any] = {
    f"{what}MetadataProvider": f"org.apache.rocketmq.auth.{what}.provider."
    f"Local{what.title()}MetadataProvider"
    for what in ("authentication", "authorization")
}
LOGBACK = re.compile(r"(?:^\d\d:\d\d:\d\d,\d{3} \|-.*\n)+\n", re.M)
# After the work on a cluster some verbs of 5.3.3 print their usage as well.
USAGE = re.compile(r"^usage: mqadmin .*\Z", re.M | re.S)


@dataclass
class Newer:
    """Apache's tool and servers, and ours."""

    theirs: Cluster
    ours: Cluster
    home: Path

    def apache(self, verb: str, *words: object, on: Cluster) -> str:
        arguments = [verb, "-n", on.address, *map(str, words)]
        text = apache_mqadmin(*arguments, home=self.home, project=APACHE_5)
        return masked(USAGE.sub("", LOGBACK.sub("", text)), on)

    def twinlog(self, verb: str, *words: object, on: Cluster) -> str:
        return masked(mqadmin(verb, "-n", on.address, *words, *KEYS).ok().out, on)

    def each_on_its_own(self, verb: str, *words: object) -> str:
        theirs = self.apache(verb, *words, *place(words, self.theirs), on=self.theirs)
        ours = self.twinlog(verb, *words, *place(words, self.ours), on=self.ours)
        assert ours == theirs
        return ours

    def both_on_theirs(self, verb: str, *words: object) -> str:
        words = (*words, *place(words, self.theirs))
        theirs, ours = (tool(verb, *words, on=self.theirs) for tool in (self.apache, self.twinlog))
        assert ours == theirs
        return ours


def place(words: tuple[object, ...], cluster: Cluster) -> tuple[str, ...]:
    return () if "-c" in words else ("-b", cluster.broker.address)


def masked(text: str, cluster: Cluster) -> str:
    """Our accounts have default permissions besides, which are listed first."""
    text = text.replace(cluster.broker.address, "BROKER")
    text = re.sub(r"(?m)^User:\S+ +Default +.*\n", "", text)
    return re.sub(r"password-\d +|\*{6} +", "SECRET ", text)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newer]:
    directory = tmp_path_factory.mktemp("newer")
    home = directory / "twinlog" / "broker"
    write_home(home)
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    with process_group() as group:
        namesrv = group.add(start_apache_namesrv(directory / "namesrv", project=APACHE_5))
        broker = group.add(
            start_apache_broker(
                directory / "broker", namesrv=namesrv.address, project=APACHE_5, **PROVIDERS
            )
        )
        theirs = Cluster(group, namesrv, broker)
        ours = start_cluster(
            group, directory / "twinlog", namesrv_of="twinlog", broker_of="twinlog",
            aclEnable=True, rocketmqHome=home,
        )  # fmt: skip
        found = Newer(theirs, ours, directory / "mqadmin")
        for cluster in (theirs, ours):
            wait_until(
                lambda cluster=cluster: "broker-a" in found.twinlog("clusterList", on=cluster),  # type: ignore[misc]
                "the broker is registered", interval_s=0.5,
            )  # fmt: skip
        yield found


def test_users_of_5_3(newer: Newer) -> None:
    same = newer.each_on_its_own
    newer.apache("createUser", *place((), newer.theirs), "-u", "administrator", "-p", "password-0",
                 "-t", "Super", on=newer.theirs)  # fmt: skip
    assert same("createUser", "-u", "alice-1", "-p", "password-1", "-t", "Normal")
    assert same("createUser", "-c", "DefaultCluster", "-u", "bobby-2", "-p", "password-2")
    assert same("updateUser", "-u", "bobby-2", "-t", "Super") == "update user to BROKER success.\n"
    assert re.search(r"^bobby-2 +SECRET Super +enable", same("getUser", "-u", "bobby-2"), re.M)
    assert len(same("listUser").splitlines()) == 4
    listed = same("listUser", "-c", "DefaultCluster")
    assert listed.endswith("get user from BROKER success.\n")
    assert "#UserName" in same("listUser", "-f", "ali")
    assert same("deleteUser", "-c", "DefaultCluster", "-u", "bobby-2")


def test_acls_of_5_3(newer: Newer) -> None:
    same = newer.each_on_its_own
    same("createUser", "-u", "carol-3", "-p", "password-3")
    subject, orders = ("-s", "User:carol-3"), ("-r", "Topic:orders")
    assert same("createAcl", *subject, *orders, "-a", "Pub,Sub", "-d", "Allow")
    assert "[Pub, Sub]" in same("getAcl", *subject)
    assert same("updateAcl", "-c", "DefaultCluster", *subject, *orders, "-a", "Sub", "-d", "Allow")
    assert " [Sub] " in same("listAcl", *subject, *orders)
    assert " [Sub] " in same("listAcl", "-c", "DefaultCluster", *subject, *orders)
    assert same("deleteAcl", *subject, *orders) == "delete acl to BROKER success.\n"


def test_lists_of_topics_and_groups(newer: Newer, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    for verb, key in (("updateTopicList", "topicName"), ("updateSubGroupList", "groupName")):
        file.write_text(json.dumps([{key: f"listed_{n}"} for n in (1, 2)]))
        for where in ((), ("-c", "DefaultCluster")):
            text = newer.each_on_its_own(verb, "-f", file, *where)
            assert "success, please check the result later." in text
            assert newer.both_on_theirs(verb, "-f", file, *where) == text


def test_replication_of_5_3(newer: Newer) -> None:
    assert "#MasterCommitLogMaxOffset" in newer.both_on_theirs("haStatus")
    assert "#InSyncSlaveNum\t0\n" in newer.both_on_theirs("haStatus", "-c", "DefaultCluster")
    done = newer.both_on_theirs("resetMasterFlushOffset", "-o", 10)
    assert done == "reset master flush offset to 10 success\n"
    # Our slaves count what they flush themselves: they say that they do not know the request.
    broker = newer.ours.broker.address
    words = ("-n", newer.ours.address, "-b", broker, "-o", 10)
    refused = mqadmin("resetMasterFlushOffset", *words, *KEYS)
    assert (refused.code, refused.out) == (1, "")
    assert "not supported" in refused.err
