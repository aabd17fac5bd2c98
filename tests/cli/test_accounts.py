"""`twinlog acl` and the verbs of mqadmin about accounts, against a broker that enforces them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from support.command_line import Result, mqadmin, twinlog
from support.doc_blocks import blocks_run_by
from support.processes import process_group
from support.twinlog_servers import start_guarded_broker

ADMIN = ("--access-key", "rocketmq2", "--secret-key", "12345678")
RULES = {
    "globalWhiteRemoteAddresses": ["10.1.*.*"],
    "accounts": [
        {"accessKey": "rocketmq2", "secretKey": "12345678", "admin": True},
        {"accessKey": "reader-one", "secretKey": "reader-secret", "topicPerms": ["orders=SUB"]},
    ],
}


@dataclass
class Guarded:
    namesrv: str
    broker: str
    file: Path

    def twinlog(self, *words: object, account: tuple[str, ...] = ADMIN) -> Result:
        return twinlog(*words, "-n", self.namesrv, *account)

    def mqadmin(self, verb: str, *words: object) -> Result:
        return mqadmin(verb, "-n", self.namesrv, *words, *ADMIN)

    def accounts(self) -> dict[str, dict[str, object]]:
        entries = yaml.safe_load(self.file.read_text())["accounts"]
        return {entry["accessKey"]: entry for entry in entries}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    with process_group() as group:
        namesrv, broker = start_guarded_broker(group, directory, RULES)
        file = directory / "home" / "conf" / "plain_acl.yml"
        yield Guarded(namesrv.address, broker.address, file)


def test_the_life_of_an_account(guarded: Guarded) -> None:
    listed = guarded.twinlog("acl", "list", "-o", "json").ok()
    assert [row["access_key"] for row in listed.json] == ["reader-one", "rocketmq2"]
    assert "12345678" not in listed.out
    added = guarded.twinlog("acl", "add", "billing-app", "--topic", "orders=PUB|SUB").ok()
    secret = added.out.rsplit("shown only now: ", 1)[1].strip()
    assert guarded.accounts()["billing-app"]["secretKey"] == secret
    again = guarded.twinlog("acl", "add", "billing-app")
    assert (again.code, "twinlog acl update" in again.err) == (1, True)
    guarded.twinlog("acl", "update", "billing-app", "--group", "billing=sub", "--default-topic",
                    "SUB").ok()  # fmt: skip
    entry = guarded.accounts()["billing-app"]
    assert (entry["topicPerms"], entry["groupPerms"]) == (["orders=PUB|SUB"], ["billing=SUB"])
    assert (entry["secretKey"], entry["defaultTopicPerm"]) == (secret, "SUB")
    guarded.twinlog("acl", "update", "billing-app", "--topic", "orders=").ok()
    assert guarded.accounts()["billing-app"]["topicPerms"] == []
    asked = guarded.twinlog("acl", "remove", "billing-app")
    assert (asked.code, "add --yes" in asked.err) == (2, True)
    guarded.twinlog("acl", "remove", "billing-app", "--yes").ok()
    assert "billing-app" not in guarded.accounts()
    gone = guarded.twinlog("acl", "remove", "reader-on", "--yes")
    assert (gone.code, "did you mean 'reader-one'?" in gone.err) == (3, True)


def test_a_refused_account_is_no_broker_that_is_down(guarded: Guarded) -> None:
    found = guarded.twinlog("check", account=())
    assert found.code == 3
    assert found.out.startswith("TWINLOG UNKNOWN - every broker refuses the account: ")
    assert guarded.twinlog("check").out.startswith("TWINLOG ")
    report = guarded.twinlog("doctor", account=()).out
    assert "refuses the account" in report
    assert "which does not answer" not in report


def test_the_commands_of_the_page(guarded: Guarded) -> None:
    (block,) = blocks_run_by("tests/cli/test_accounts.py", "docs/OPERATIONS.md")
    add, test, update, listing, remove = (shlex.split(line)[1:] for line in block.lines)
    added = guarded.twinlog(*add).ok()
    assert "shown only now: " in added.out
    assert guarded.accounts()["billing-app"]["topicPerms"] == ["orders=PUB|SUB"]
    assert [row["allowed"] for row in guarded.twinlog(*test, "-o", "json").ok().json] == [True] * 2
    guarded.twinlog(*update).ok()
    assert guarded.accounts()["billing-app"]["topicPerms"] == ["refunds=PUB"]
    assert "billing-app" in guarded.twinlog(*listing).ok().out
    guarded.twinlog(*remove, "--yes").ok()  # A person is asked.
    assert "billing-app" not in guarded.accounts()


def test_the_rules_are_told_before_they_are_tried(guarded: Guarded) -> None:
    def allowed(*words: str) -> tuple[int, list[bool]]:
        found = guarded.twinlog("acl", "test", *words, "-o", "json")
        return found.code, [row["allowed"] for row in found.json]

    assert allowed("reader-one", "--sub", "orders") == (0, [True])
    assert allowed("reader-one", "--sub", "orders", "--pub", "orders") == (1, [False, True])
    assert allowed("reader-one", "--consume", "billing", "--admin") == (1, [False, False])
    assert allowed("reader-one", "--pub", "orders", "--from", "10.1.2.3") == (0, [True])
    assert allowed("nobody-here", "--sub", "orders") == (1, [False])
    assert allowed("rocketmq2", "--pub", "whatever", "--admin") == (0, [True, True])
    assert guarded.twinlog("acl", "test", "reader-one").code == 2


def test_who_is_no_administrator_sees_nothing(guarded: Guarded) -> None:
    reader = ("--access-key", "reader-one", "--secret-key", "reader-secret")
    for account in (reader, ()):
        found = guarded.twinlog("acl", "list", account=account)
        assert found.code == 1
        assert found.out == ""


def test_apache_verbs_for_accounts(guarded: Guarded) -> None:
    here = ("-b", guarded.broker)
    account = ("-a", "RocketMQ9", "-s", "secret-of-9", "-t", "orders=DENY,refunds=PUB")
    made = guarded.mqadmin("updateAclConfig", *here, *account, "-i", "SUB", "-m", "true").ok()
    assert made.out.startswith(f"create or update plain access config to {guarded.broker} success.")
    entry = guarded.accounts()["RocketMQ9"]
    assert entry["topicPerms"] == ["orders=DENY", "refunds=PUB"]
    assert (entry["admin"], entry["defaultTopicPerm"]) == (True, "SUB")
    guarded.mqadmin("updateAclConfig", *here, *account[:4], "-m", "true", "-u", "SUB").ok()
    kept = guarded.accounts()["RocketMQ9"]
    assert kept == {**entry, "defaultGroupPerm": "SUB"}, "what is not given stays"
    shown = guarded.mqadmin("getAclConfig", *here).ok()
    assert "secret-of-9" not in shown.out
    assert "  accessKey         : RocketMQ9\n  secretKey         : ******\n" in shown.out
    alias = guarded.mqadmin("getAccessConfigSubCommand", *here).ok()
    assert alias.out == shown.out
    version = guarded.mqadmin("clusterAclConfigVersion", "-c", "DefaultCluster", "-o", "json").ok()
    (row,) = version.json["rows"]
    assert row["Broker Addr"] == guarded.broker
    assert int(row["AclConfigVersionNum"]) > 0
    guarded.mqadmin("updateGlobalWhiteAddr", *here, "-g", "10.1.*.*,10.2.*.*").ok()
    written = yaml.safe_load(guarded.file.read_text())["globalWhiteRemoteAddresses"]
    assert written == ["10.1.*.*", "10.2.*.*"]
    gone = guarded.mqadmin("deleteAclConfig", *here, "-a", "RocketMQ9").ok()
    assert gone.out.endswith("account's accesskey is:RocketMQ9\n")
    assert "RocketMQ9" not in guarded.accounts()


def test_users_and_acls_of_5_3_change_the_same_file(guarded: Guarded) -> None:
    here = ("-b", guarded.broker)
    guarded.mqadmin("createUser", *here, "-u", "someone-5", "-p", "password-5").ok()
    guarded.mqadmin("updateUser", *here, "-u", "someone-5", "-t", "Super").ok()
    (user,) = guarded.mqadmin("getUser", *here, "-u", "someone-5", "-o", "json").ok().json["rows"]
    assert user == {"UserName": "someone-5", "Password": "******", "UserType": "Super",
                    "UserStatus": "enable"}  # fmt: skip
    names = guarded.mqadmin("listUser", *here, "-o", "json").ok().json["rows"]
    assert {"someone-5", "rocketmq2"} <= {row["UserName"] for row in names}
    guarded.mqadmin("createAcl", *here, "-s", "User:someone-5", "-r", "Topic:orders,Group:*",
                    "-a", "Pub,Sub", "-d", "Allow").ok()  # fmt: skip
    entry = guarded.accounts()["someone-5"]
    assert (entry["topicPerms"], entry["defaultGroupPerm"]) == (["orders=PUB|SUB"], "PUB|SUB")
    rows = guarded.mqadmin("getAcl", *here, "-s", "User:someone-5", "-o", "json").json["rows"]
    assert {row["Resource"]: row["Actions"] for row in rows} == {
        "Topic:orders": "[Pub, Sub]",
        "Group:*": "[Pub, Sub]",
        "Topic:*": "[All]",
    }
    guarded.mqadmin("deleteAcl", *here, "-s", "User:someone-5", "-r", "Topic:orders").ok()
    assert guarded.accounts()["someone-5"]["topicPerms"] == []
    assert guarded.mqadmin("updateUser", *here, "-u", "someone-5", "-s", "disable").code == 2
    guarded.mqadmin("deleteUser", *here, "-u", "someone-5").ok()
    assert guarded.mqadmin("getUser", *here, "-u", "someone-5").code == 3


def test_topics_and_groups_of_a_file(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps([{"topicName": f"listed-{n}", "readQueueNums": 2} for n in (1, 2)]))
    here = ("-b", guarded.broker)
    guarded.mqadmin("updateTopicList", *here, "-f", file).ok()
    file.write_text(json.dumps([{"groupName": "listed-group", "retryMaxTimes": 3}]))
    guarded.mqadmin("updateSubGroupList", *here, "-f", file).ok()
    rows = guarded.twinlog("group", "show", "listed-group", "-o", "json").json
    assert "3" in json.dumps(rows)
    file.write_text("{}")
    assert guarded.mqadmin("updateTopicList", *here, "-f", file).code == 2
    assert guarded.mqadmin("updateTopicList", *here, "-f", tmp_path / "none").code == 3


def test_trial_sends(guarded: Guarded) -> None:
    sent = guarded.mqadmin("sendMsgStatus", "-b", "broker-a", "-c", 3).ok()
    lines = sent.out.splitlines()
    assert len(lines) == 3
    assert all("SendResult=SendResult [sendStatus=SEND_OK, msgId=" in line for line in lines)
