"""Bad input: Apache's code, a remark that says what was wrong, and the connection goes on."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.captured import Peer, open_without_ports
from twinlog.broker.server import Broker, build_broker
from twinlog.remoting import fastjson
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.simdisk import SimDisk


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    config = BrokerConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 20,
        max_message_size=1000,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    broker = build_broker(config, rng=random.Random(1), disk=SimDisk())
    await open_without_ports(broker)
    yield broker
    await broker.stop()


@dataclasses.dataclass
class Client:
    peer: Peer
    opaque: int = 0

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Request:
        self.opaque += 1
        command = RemotingCommand.request(code, ext, body)
        command.opaque = self.opaque
        return await self.peer.ask(encode_command(command))

    async def send(self, body: bytes = b"b", **ext: Any) -> Request:
        header = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, {**header, **ext}, body)

    async def pull(self, **ext: Any) -> Request:
        header = {
            "consumerGroup": "cg", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
            "subscription": "*",
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, {**header, **ext})


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    client = Client(Peer(broker.server))
    yield client
    assert not client.peer.connection.is_closed, "the connection goes on"
    assert (await client.send(b="Still")).code == ResponseCode.SUCCESS


BAD_SENDS = {
    "unknown template": ({"c": "nope"}, b"b", 17, "topic[T] not exist, apply first please!"),
    "template that may not be inherited": ({"c": "BenchmarkTest"}, b"b", 17, "topic[T]"),
    "too large a message": ({}, bytes(1001), 13, "msg body length limit 1000B"),
    "properties above 32767 bytes": ({"i": "k\x01" + "v" * 32767}, b"b", 13, "32KB"),
    "path in the topic": ({"b": "../../etc/passwd"}, b"b", 1, "illegal characters"),
    "blank topic": ({"b": " "}, b"b", 1, "blank"),
    "topic of 128 characters": ({"b": "x" * 128}, b"b", 1, "longer than topic max length"),
    "queue id above the topic's": ({"e": 4}, b"b", 1, "request queueId[4] is illegal"),
    "queue id of 2 billion": ({"e": 2**31 - 1}, b"b", 1, "is illegal"),
    "topic of the broker's own": ({"b": "SCHEDULE_TOPIC_XXXX"}, b"b", 16, "is forbidden"),
    "half topic": ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"b", 16, "is forbidden"),
    "delay that is no number": ({"i": "DELAY\x01soon"}, b"b", 1, "DELAY"),
    "number that is none": ({"e": "zero"}, b"b", 1, "field e"),
    "batch that is none": ({"m": "true"}, b"\0\0\0\x05x", 13, "batch"),
    "empty batch": ({"m": "true"}, b"", 13, "batch"),
    "batch to a retry topic": ({"m": "true", "b": "%RETRY%g"}, b"x", 13, "retry group"),
}


@pytest.mark.parametrize("what", BAD_SENDS)
async def test_bad_send(what: str, client: Client) -> None:
    ext, body, code, words = BAD_SENDS[what]
    answer = await client.send(body, **ext)
    assert answer.code == code
    assert words in (answer.remark or "")
    assert answer.ext() == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize("field", list("abcdefgh"))
async def test_send_without_a_required_field(field: str, client: Client) -> None:
    answer = await client.send(**{field: None})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"field {field} " in (answer.remark or "")


async def test_metadata_of_a_pair_is_not_for_clients_to_send(client: Client) -> None:
    """A slave would have taken it for its master's."""
    topic = "rmq_sys_twinlog_metadata"
    body = b'{"kind":"topics","version":{"counter":9,"timestamp":9},"deleted":["T"]}'
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        header = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        answer = await client.ask(code, {**header, "m": str(code == 320).lower()}, body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "is forbidden" in (answer.remark or "")


@pytest.mark.parametrize("until", [99_999_999_999_999, 2**62])
async def test_send_before_the_broker_takes_any(until: int, broker: Broker, client: Client) -> None:
    broker.config.start_accept_send_request_time_stamp = until
    answer = await client.send()
    broker.config.start_accept_send_request_time_stamp = 0
    assert answer.code == ResponseCode.SYSTEM_ERROR
    text = answer.remark or ""
    assert re.fullmatch(r"broker unable to service, until \d{4}-\d\d-\d\d [0-9:]{8},\d{3}", text)


async def test_unknown_topic_with_creation_off(broker: Broker, client: Client) -> None:
    broker.config.auto_create_topic_enable = False
    answer = await client.send()
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "T" not in broker.topics.table
    broker.config.auto_create_topic_enable = True
    broker.topics.table["TBW102"].perm = 7


BAD_PULLS = {
    "unknown topic": ({"topic": "nope"}, 17, "topic[nope] not exist"),
    "queue above the topic's": ({"queueId": 4}, 1, "queueId[4] is illegal"),
    "negative queue": ({"queueId": -1}, 1, "queueId[-1] is illegal"),
    "beyond the end": ({"queueOffset": 100}, 21, "OFFSET_OVERFLOW_BADLY"),
    "nothing subscribed": ({"subscription": "||"}, 23, "parse the consumer's subscription failed"),
    "SQL92 where it is off": (
        {"subscription": "a > 1", "expressionType": "SQL92"}, 1, "does not support",
    ),
    "no heartbeat before": ({"sysFlag": 0}, 24, "the consumer's group info not exist"),
    "offset that is no number": ({"queueOffset": "x"}, 1, "queueOffset"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_PULLS)
async def test_bad_pull(what: str, client: Client) -> None:
    ext, code, words = BAD_PULLS[what]
    assert (await client.send()).code == ResponseCode.SUCCESS
    answer = await client.pull(**ext)
    assert answer.code == code
    assert words in (answer.remark or "")


async def test_expression_that_does_not_parse(broker: Broker, client: Client) -> None:
    broker.config.enable_property_filter = True
    await client.send()
    answer = await client.pull(subscription="a > ", expressionType="SQL92")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "cannot parse 'a > '" in (answer.remark or "")
    data = {"topic": "T", "subString": "a > ", "expressionType": "SQL92", "subVersion": 1}
    body = {"clientId": "c", "group": "cg", "subscriptionData": data}
    answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, fastjson.dumps(body))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    group = {"groupName": "cg", "subscriptionDataSet": [data]}
    body = {"clientID": "c", "consumerDataSet": [group]}
    assert (await client.ask(RequestCode.HEART_BEAT, None, fastjson.dumps(body))).code == 0
    answer = await client.pull(sysFlag=0, subVersion=1)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "Your expression may be wrong" in (answer.remark or "")


async def test_expression_of_an_unknown_type(broker: Broker, client: Client) -> None:
    broker.config.enable_property_filter = True
    await client.send()
    answer = await client.pull(subscription="a > 1", expressionType="XPATH")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    data = {"topic": "T", "subString": "a > 1", "expressionType": "XPATH", "subVersion": 1}
    body = {"clientId": "c", "group": "cg", "subscriptionData": data}
    answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, fastjson.dumps(body))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "XPATH" in (answer.remark or "")


async def test_delay_level_that_does_not_exist_is_the_longest(
    broker: Broker, client: Client
) -> None:
    """As in Apache: no error, the last level; one below the first is no delay."""
    assert (await client.send(i="DELAY\x0199")).code == ResponseCode.SUCCESS
    assert broker.store.max_offset_in_queue("SCHEDULE_TOPIC_XXXX", 17) == 1
    assert (await client.send(i="DELAY\x01-1")).code == ResponseCode.SUCCESS
    assert broker.store.max_offset_in_queue("T", 0) == 1


async def test_group_that_may_not_be_created(broker: Broker, client: Client) -> None:
    broker.config.auto_create_subscription_group = False
    await client.send()
    answer = await client.pull()
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "[cg] does not exist" in (answer.remark or "")


@pytest.mark.parametrize("level", [-1, 1], ids=["dead letter", "retry"])
async def test_group_whose_name_leads_out_of_the_store(
    level: int, broker: Broker, client: Client
) -> None:
    """Retry and dead-letter topics are directories: a group may not choose where."""
    await client.send()
    group = "x/../../../../elsewhere"
    assert (await client.pull(consumerGroup=group)).code == 26
    header = {"offset": 0, "group": group, "delayLevel": level}
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    body = {"clientID": "c", "consumerDataSet": [{"groupName": group}]}
    await client.ask(RequestCode.HEART_BEAT, None, fastjson.dumps(body))
    assert not [topic for topic in broker.topics.table if "/" in topic]
    assert all(topic == "T" for topic, _ in broker.store.queues)


async def test_permissions_are_checked_on_pull_and_send_back(
    broker: Broker, client: Client
) -> None:
    await client.send()
    broker.topics.table["T"].perm = 2
    assert (await client.pull()).code == ResponseCode.NO_PERMISSION
    broker.config.broker_permission = 2
    assert "pulling message is forbidden" in ((await client.pull()).remark or "")
    broker.config.broker_permission = 4
    back = await client.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "cg", "delayLevel": 0}
    )
    assert back.code == ResponseCode.NO_PERMISSION
    broker.config.broker_permission = 6


BAD_REQUESTS = {
    "heartbeat without JSON": (RequestCode.HEART_BEAT, None, b"{", 1, "not JSON"),
    "heartbeat of nobody": (RequestCode.HEART_BEAT, None, b"{}", 1, "clientID"),
    "lock of nobody": (RequestCode.LOCK_BATCH_MQ, None, b"{}", 1, "consumerGroup"),
    "group without name": (200, None, b"{}", 1, "subscription group"),
    "group with a path": (200, None, b'{"groupName":"../x"}', 1, "illegal characters"),
    "a million retry queues": (
        200, None, b'{"groupName":"g","retryQueueNums":1000000}', 1, "retryQueueNums",
    ),
    "system topic changed": (
        17,
        {"topic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
         "topicFilterType": "SINGLE_TAG"},
        b"", 1, "conflict with system topic",
    ),
    "unknown filter type": (
        17,
        {"topic": "N", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "X"},
        b"", 1, "TopicFilterType",
    ),
    "a million queues": (
        17,
        {"topic": "N", "readQueueNums": 1, "writeQueueNums": 10**6, "perm": 6,
         "topicFilterType": "SINGLE_TAG"},
        b"", 1, "queues",
    ),
    "system topic deleted": (215, {"topic": "TBW102"}, b"", 1, "conflict with system topic"),
    "path deleted": (215, {"topic": "../x"}, b"", 1, "illegal characters"),
    "statistics of nothing": (315, {"statsName": "X", "statsKey": "y"}, b"", 1, "not exist"),
    "id that is none": (309, {"consumerGroup": "g", "clientId": "c", "msgId": "x"}, b"", 1, "id"),
    "send back of nothing": (
        36, {"offset": 10**9, "group": "cg", "delayLevel": 0}, b"", 1, "look message by offset",
    ),
    "queue that the topic has not": (
        321, {"topic": "TBW102", "queueId": 77, "index": 0, "count": 1}, b"", 1, "is not exist!",
    ),
    "reply to nobody": (
        324,
        {"producerGroup": "g", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102",
         "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
         "properties": "REPLY_TO_CLIENT\x01gone"},
        b"r", 1, "push reply message fail, channel of <gone> not found.",
    ),
    "path in the configuration": (25, None, b"storePathRootDir=/tmp/x", 16, "storePathRootDir"),
    "address in the configuration": (25, None, b"namesrvAddr=evil:1", 16, "namesrvAddr"),
    "unknown key": (25, None, b"nope=1", 16, "nope"),
    "value of the wrong kind": (25, None, b"fileReservedTime=soon", 1, "fileReservedTime"),
    "becoming a slave by a key": (25, None, b"brokerRole=SLAVE", 16, "brokerRole"),
    "unknown code": (31999, None, b"", 3, " request type 31999 not supported"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_REQUESTS)
async def test_bad_request(what: str, client: Client) -> None:
    code, ext, body, expected, words = BAD_REQUESTS[what]
    answer = await client.ask(code, ext, body)
    assert answer.code == expected, answer.remark
    assert words in (answer.remark or "")


async def test_entries_of_a_queue_that_the_topic_does_not_have(client: Client) -> None:
    assert (await client.send()).code == ResponseCode.SUCCESS
    for topic, queue_id in (("T", 4), ("T", -1), ("nope", 0)):
        ext = {"topic": topic, "queueId": queue_id, "index": 0, "count": 1}
        answer = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"{queue_id}@{topic} is not exist!"


async def test_refused_configuration_changes_nothing(broker: Broker, client: Client) -> None:
    answer = await client.ask(25, None, b"fileReservedTime=1\nnamesrvAddr=evil:1\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert broker.config.file_reserved_time == 72


async def test_full_line_of_waiting_replies_is_refused_with_the_retryable_code(
    broker: Broker, client: Client
) -> None:
    assert (await client.send()).code == ResponseCode.SUCCESS
    broker.replies.is_overloaded = True
    answer = await client.send()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "[REJECTREQUEST]" in (answer.remark or "")
    broker.replies.is_overloaded = False


async def test_a_heartbeat_of_many_groups_writes_the_tables_once(
    broker: Broker, client: Client
) -> None:
    """Each write is of the whole table and syncs: with one per group others waited for minutes."""
    tables = (broker.groups, broker.topics)
    before = [table.saver.save_count for table in tables]
    body = {"clientID": "c", "consumerDataSet": [{"groupName": f"g{n}"} for n in range(500)]}
    assert (await client.ask(RequestCode.HEART_BEAT, None, fastjson.dumps(body))).code == 0
    assert [
        table.saver.save_count - count for table, count in zip(tables, before, strict=True)
    ] == [
        1,
        1,
    ]
    assert "g499" in broker.groups.table
    assert "%RETRY%g499" in broker.topics.table
    assert b"g499" in broker.disk.read_bytes("/store/config/subscriptionGroup.json")
    assert b"%RETRY%g499" in broker.disk.read_bytes("/store/config/topics.json")


async def test_heartbeat_answers_in_full_also_to_strange_members(client: Client) -> None:
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": ""},
            {"groupName": "g", "consumeType": 7, "messageModel": None, "subscriptionDataSet": None},
        ],
        "producerDataSet": [{"groupName": None}],
    }
    assert (await client.ask(34, None, fastjson.dumps(body))).code == 0
