"""What speaks against a migration, which replica takes over, and how tables are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twinlog.admin.migration import FENCE_KEY, FENCED, Member, Move, choose, judge, replica_config
from twinlog.admin.migration_check import Checked, Tables, committed_offsets, compare_tables
from twinlog.admin.rules import rules_file
from twinlog.remoting.bodies.offsets import ConsumerOffsets
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig

CONFIG = {"mappedFileSizeCommitLog": "1024", "messageDelayLevel": "1s 5s", "brokerName": "a"}
APACHE = Member(
    address="h:10911", broker_id=0, is_twinlog=False, log_min=1024, log_end=5000, config=CONFIG
)
TWIN = Member(
    address="h:10921", broker_id=1, is_twinlog=True, log_min=1024, log_end=5000, config=CONFIG
)


def move(source: Member = APACHE, target: Member | None = TWIN) -> Move:
    return Move(group="a", source=source, target=target, free_id=2)


@pytest.mark.parametrize(
    ("source", "target", "obstacle"),
    [
        (APACHE, TWIN, ""),
        (APACHE, None, ""),
        (replace(APACHE, config={**CONFIG, "enableDLegerCommitLog": "true"}), TWIN, "DLeger"),
        (replace(APACHE, config={**CONFIG, "enableControllerMode": "true"}), TWIN, "controller"),
        (APACHE, replace(TWIN, log_end=5001), "1 bytes more"),
        (APACHE, replace(TWIN, config={**CONFIG, "messageDelayLevel": "1s"}), "messageDelayLevel"),
        (APACHE, replace(TWIN, config={"mappedFileSizeCommitLog": "99"}), "mappedFileSize"),
        (replace(APACHE, config={**CONFIG, "aclEnable": "true"}), TWIN, "aclEnable"),
    ],
)
def test_what_speaks_against_it(source: Member, target: Member | None, obstacle: str) -> None:
    found, _ = judge(source, target)
    assert bool(found) == bool(obstacle)
    assert all(obstacle in text for text in found)


def test_an_interrupted_cutover_is_said() -> None:
    fenced = replace(APACHE, config={**CONFIG, FENCE_KEY: FENCED})
    obstacles, notes = judge(fenced, TWIN)
    assert (obstacles, "a cutover was interrupted" in notes[0]) == ((), True)
    assert judge(APACHE, TWIN) == ((), ())


def test_the_replica_of_the_other_make_with_the_most_takes_over() -> None:
    longer = replace(TWIN, broker_id=2, address="h:10931", log_end=6000)
    sibling = replace(APACHE, broker_id=3, address="h:10941", log_end=9000)
    assert choose([APACHE, TWIN, longer, sibling], APACHE, None) is longer
    assert choose([APACHE, TWIN, longer, sibling], APACHE, "1") is TWIN
    assert choose([APACHE, TWIN, longer, sibling], APACHE, "h:10941") is sibling
    assert choose([APACHE, sibling], APACHE, None) is None


def test_what_stays_behind() -> None:
    assert move().left_behind == 0
    assert move(target=replace(TWIN, log_min=4096)).left_behind == 3072
    # 5000 lies in the file that begins at 4096; an empty slave of Apache's gets that one only.
    assert move(target=None).left_behind == 3072
    assert move(source=replace(APACHE, is_twinlog=True), target=None).left_behind == 0


def test_the_file_of_the_replica() -> None:
    values = replica_config(move(target=None), "n:9876", "/s", 10921)
    assert (values["brokerRole"], values["brokerId"], values["brokerName"]) == ("SLAVE", "2", "a")
    assert (values["messageDelayLevel"], values["namesrvAddr"]) == ("1s 5s", "n:9876")
    assert "haListenPort" not in values


def test_tables_are_compared_and_offsets_may_be_behind() -> None:
    topic, group = TopicConfig("t", 4, 4, 6), SubscriptionGroupConfig("g")
    offsets = committed_offsets(ConsumerOffsets({"t@g": {0: 7, 1: 3}, "no group": {0: 1}}))
    assert offsets == {("t", "g", 0): 7, ("t", "g", 1): 3}
    source = Tables({"t": topic}, {"g": group}, offsets)
    same = Checked()
    compare_tables(source, source, same)
    assert (same.is_equal, same.topics, same.groups, same.offsets) == (True, 1, 1, 2)
    other = Tables({"t": TopicConfig("t", 4, 4, 4), "u": topic}, {}, {("t", "g", 0): 6})
    found = Checked()
    compare_tables(source, other, found)
    assert found.offsets_behind == 2
    assert [text.split(":")[0] for text in found.findings] == [
        "topic t differs", "topic u is only at the replica", "group g is missing at the replica",
    ]  # fmt: skip


def test_rules_of_apache_become_its_file() -> None:
    answer = {
        "globalWhiteAddrs": ["10.0.0.*"],
        "plainAccessConfigs": [
            {"accessKey": "k", "secretKey": "s", "admin": True, "topicPerms": [],
             "whiteRemoteAddress": None, "defaultTopicPerm": "PUB"},
        ],
    }  # fmt: skip
    assert rules_file(answer) == {
        "globalWhiteRemoteAddresses": ["10.0.0.*"],
        "accounts": [
            {"accessKey": "k", "secretKey": "s", "admin": True, "defaultTopicPerm": "PUB"}
        ],
    }
