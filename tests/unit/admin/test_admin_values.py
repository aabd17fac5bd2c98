"""Bodies of brokers become values; replication problems become a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twinlog.admin.brokers import BrokerSummary, first_number, read_properties
from twinlog.admin.client import ClusterInfo, Gathered, gather
from twinlog.admin.groups import (
    GroupProgress,
    queue_progress,
)
from twinlog.admin.ha import MetadataState, group_status, parse_metadata
from twinlog.admin.topics import is_user_topic, queue_stats
from twinlog.client.errors import BrokerUnreachableError, UsageError
from twinlog.client.queues import MessageQueue
from twinlog.remoting.bodies.ha import HARuntimeInfo
from twinlog.remoting.bodies.offsets import ConsumeStats
from twinlog.remoting.bodies.route import BrokerData
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig, group_from_json
from twinlog.remoting.command import Request
from twinlog.remoting.fastjson import loads_as

QUEUE = MessageQueue("T", "broker-a", 0)
KEY = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'


def test_topic_statistics_as_java_writes_them() -> None:
    body = b'{"offsetTable":{%b:{"lastUpdateTimestamp":17,"maxOffset":10,"minOffset":2}}}' % KEY
    (stats,) = queue_stats(Request(0, 0, 0, body=body))
    assert (stats.queue, stats.count, stats.last_update_ms) == (QUEUE, 8, 17)


def test_consumption_statistics_as_java_writes_them() -> None:
    entry = b'{"brokerOffset":10,"consumerOffset":7,"lastTimestamp":17}'
    body = b'{"consumeTps":1.5,"offsetTable":{%b:%b}}' % (KEY, entry)
    stats = loads_as(body, ConsumeStats)
    queues = queue_progress(stats)
    progress = GroupProgress("g", tuple(queues), stats.consume_tps)
    assert (progress.lag, progress.tps, queues[0].last_ms) == (3, 1.5, 17)


def test_group_settings_come_back() -> None:
    config = SubscriptionGroupConfig("g", consume_enable=False, retry_max_times=3)
    assert group_from_json(config.to_json()) == config
    assert group_from_json({"groupName": "g"}) == SubscriptionGroupConfig("g")


def test_settings_are_lines() -> None:
    assert read_properties(b"#comment\na=1\nb = x=y \n\nnothing\n") == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize(
    ("text", "number"), [("1.5 2 3", 1.5), ("", 0.0), (" ", 0.0), ("n/a", 0.0)]
)
def test_the_first_of_several_rates(text: str, number: float) -> None:
    assert first_number(text) == number


def test_a_broker_that_does_not_answer_has_zeros_and_an_error() -> None:
    row = BrokerSummary("C", "b", 0, "h:1", {}, "gone")
    assert (row.version, row.put_tps, row.get_tps, row.max_offset, row.disk_ratio) == (
        "", 0.0, 0.0, 0, 0.0,
    )  # fmt: skip


def test_topics_of_users_and_of_rocketmq() -> None:
    names = ["orders", "TBW102", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "C_REPLY_TOPIC"]
    assert [name for name in names if is_user_topic(name)] == ["orders"]


def test_clusters_by_name() -> None:
    info = ClusterInfo(
        {"a": BrokerData("C", "a", {0: "h:1", 1: "h:2"}), "b": BrokerData("D", "b", {1: "h:3"})},
        {"C": ("a",), "D": ("b",)},
    )
    assert info.masters() == ["h:1"]
    assert info.addresses("D") == ["h:3"]
    with pytest.raises(UsageError, match="'X' is unknown; there is: C, D"):
        info.names("X")


async def test_partial_answers_are_answers() -> None:
    async def ask(address: str) -> int:
        if address == "down:1":
            raise BrokerUnreachableError("refused")
        return len(address)

    found = await gather(["up:1", "down:1", "up:1"], ask)
    assert (found.values, list(found.failures), found.is_complete) == (
        {"up:1": 4}, ["down:1"], False,
    )  # fmt: skip
    with pytest.raises(BrokerUnreachableError):
        found.all_or_raise()
    assert Gathered({"a": 1}).all_or_raise() == {"a": 1}


def replica(**changes: Any) -> dict[str, Any]:
    return {"addr": "h:2", "slaveAckOffset": 90, "diff": 10, "inSync": True, **changes}


def sentence(*replicas: dict[str, Any], slaves: int = 1, **own: Any) -> str:
    data = {"masterCommitLogMaxOffset": 100, "haConnectionInfo": replicas, "twinlog": own}
    info = loads_as(json.dumps(data), HARuntimeInfo)
    return group_status(info, "broker-a", "h:1", slaves).sentence


def test_replication_in_one_sentence() -> None:
    assert sentence(replica()) == "broker-a is healthy: 1 slave in sync with h:1"
    assert sentence(replica(), replica()).startswith("broker-a is healthy: 2 slaves")
    assert sentence(replica(inSync=False)) == (
        "broker-a is not healthy: slave h:2 is 10 bytes behind"
    )
    why = {"reason": "has diverged", "state": "REFUSED"}
    assert "slave h:2 has diverged" in sentence(replica(inSync=False, twinlog=why))
    assert sentence(slaves=0) == "broker-a has no slave: nothing is replicated"
    assert "no slave is connected" in sentence(slaves=0, role="SYNC_MASTER")
    assert "the last one left: timed out" in sentence(departed=[{"reason": "timed out"}])


def test_metadata_of_a_slave() -> None:
    table = {
        "metadataBehindRecords": "3", "metadataSyncAgeMs": "1500", "metadataMaster": "h:1",
        "metadataProblem topics": "the master's topic table is empty; ours is kept",
    }  # fmt: skip
    why = "does not take the master's topics: the master's topic table is empty; ours is kept"
    assert parse_metadata(table, "h:2") == MetadataState("h:2", 3, 1500, (why,))
    assert parse_metadata({}, "h:2") == MetadataState("h:2", 0, None)
