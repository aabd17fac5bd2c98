"""Single requests and messages that once ended a broker, or spoilt a table for everybody.

Each case is sent to real processes, which then save, are restarted and (for what is in the log)
promoted. A process ends for none of them, and a normal client is served throughout.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process, wait_until
from support.raw_peer import RawPeer, frame
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.remoting.command import Request

LONE = "\ud800"
# What int() takes or Python calls a digit, and no digit of a peer is; and numbers without end.
POISON_NUMBERS = ("²", "٣", "1_0", "9" * 5000, "-1", "9" * 19, "1e3", " 1")
FAST: dict[str, object] = {
    "flushConsumerOffsetInterval": 200,
    "flushDelayOffsetInterval": 200,
    "transactionCheckInterval": 300,
    "transactionTimeOut": 100,
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "enablePropertyFilter": "true",
}


def raw(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """A request as the standard library writes it: lone surrogates as escapes, anything goes."""
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 407}
    return frame(json.dumps({**header, "extFields": ext}).encode(), body)


def binary(code: int, ext: dict[str, str]) -> bytes:
    entries = b""
    for key, value in ext.items():
        name, text = key.encode(), value.encode("utf-8", "surrogatepass")
        entries += struct.pack(f">h{len(name)}si{len(text)}s", len(name), name, len(text), text)
    fixed = struct.pack(">hbhiii", code, 0, 407, 1, 0, 0)
    return frame(fixed + struct.pack(">i", len(entries)) + entries, kind=1)


def outcome(port: int, data: bytes) -> int | None:
    """The code of the answer; None: refused by closing the connection."""
    with RawPeer(port) as peer:
        peer.send(data)
        try:
            return peer.read_answer().code
        except ConnectionError:
            return None


def answer_of(peer: RawPeer) -> Request:
    """The next answer; what the broker asks or tells meanwhile is passed over."""
    while True:
        command = peer.read_answer()
        if command.is_response:
            return command


def send_header(topic: str, properties: str = "", *, sys_flag: int = 0) -> dict[str, str]:
    return {
        "producerGroup": "pg", "topic": topic, "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": str(sys_flag), "flag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "properties": properties, "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip


def pull_header(topic: str, group: str, offset: int, **more: str) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", **more,
    }  # fmt: skip


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def send(port: int, topic: str, text: str = "", body: bytes = b"x", **more: int) -> int | None:
    return outcome(port, raw(10, send_header(topic, text, **more), body))


def check_served(port: int, topic: str) -> None:
    """A normal client: sends, creates a group, commits, reads all tables."""
    assert send(port, topic) == 0
    group = f"normal-{os.urandom(4).hex()}"
    assert outcome(port, raw(11, pull_header(topic, group, 0))) in (0, 19, 20)
    commit = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
    assert outcome(port, raw(15, commit)) == 0
    for code in (21, 43, 45, 201):
        assert outcome(port, raw(code, {})) == 0, code


def check_clean(process: Process) -> None:
    assert process.is_alive, process.output()[-3000:]
    assert "Traceback" not in process.output(), process.output()[-4000:]


# C1: numbers in half messages


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[TwinlogBroker]]:
    master = start_twinlog_broker(tmp_path / "m", **FAST)
    slave = start_twinlog_broker(
        tmp_path / "s", brokerId=1, brokerRole="SLAVE",
        haMasterAddress=f"127.0.0.1:{master.ha_port}", **FAST,
    )  # fmt: skip
    running = [master, slave]
    yield running
    for process in running:
        process.kill()


def checked(broker: TwinlogBroker) -> int:
    """How many half messages the check has stored once more."""
    with RawPeer(broker.port) as peer:
        ext = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": "0"}
        peer.send(raw(30, ext))
        return int(peer.read_answer().ext().get("offset", "0"))


def test_numbers_in_half_messages_end_neither_master_nor_promoted_slave(
    pair: list[TwinlogBroker],
) -> None:
    master, slave = pair
    count = 0
    for name in ("TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "REAL_QID"):
        for value in POISON_NUMBERS:
            half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"{count:04d}"}
            text = properties(**half, **{name: value})
            assert send(master.port, "t", text, sys_flag=4) in (0, 13)
            count += 1
    assert send(master.port, "t", properties(TRAN_MSG="true", PGROUP="pg"), sys_flag=4) == 0
    stored = checked(master)
    wait_until(lambda: not master.is_alive or checked(master) >= stored + 3, "a check round")
    check_clean(master)
    check_served(master.port, "t")
    master.kill()
    master = pair[0] = master.restart()
    stored = checked(master)
    wait_until(lambda: not master.is_alive or checked(master) >= stored + 1, "a check round")
    check_clean(master)
    with RawPeer(slave.port) as peer:
        peer.send(raw(30, {"topic": "t", "queueId": "0"}))
        peer.read_answer()
    wait_until(lambda: checked(slave) >= stored, "the slave follows")
    master.kill()
    assert slave.stop() == 0
    slave = pair[1] = slave.restart(brokerId=0, brokerRole="ASYNC_MASTER", haMasterAddress="")
    stored = checked(slave)
    wait_until(lambda: not slave.is_alive or checked(slave) >= stored + 1, "a check round")
    check_clean(slave)
    check_served(slave.port, "t")


@pytest.mark.parametrize("value", POISON_NUMBERS)
def test_a_delay_level_that_is_no_number_is_answered(broker_: TwinlogBroker, value: str) -> None:
    assert send(broker_.port, "delayed", properties(DELAY=value)) in (0, 1, 13)
    check_clean(broker_)


# H2: numbers in filters


@pytest.fixture(scope="module")
def broker_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinlogBroker]:
    process = start_twinlog_broker(tmp_path_factory.mktemp("poison"), **FAST)
    yield process
    check_clean(process)
    assert process.stop() == 0


def heartbeat(group: str, topic: str, expression: str, kind: str = "SQL92") -> bytes:
    subscription = {
        "topic": topic, "subString": expression, "tagsSet": [], "codeSet": [], "subVersion": 1,
        "expressionType": kind,
    }  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [subscription],
    }  # fmt: skip
    data: dict[str, Any] = {
        "clientID": f"{group}@1", "producerDataSet": [{"groupName": group}],
        "consumerDataSet": [consumer],
    }  # fmt: skip
    return json.dumps(data).encode()


@pytest.mark.parametrize("value", POISON_NUMBERS)
def test_a_held_pull_with_a_filter_survives_any_property(
    broker_: TwinlogBroker, value: str
) -> None:
    port, topic = broker_.port, f"filter-{POISON_NUMBERS.index(value)}"
    assert send(port, topic, properties(a="7")) == 0
    with RawPeer(port) as consumer:
        consumer.send(raw(34, {}, heartbeat(topic, topic, "a > 5")))
        assert answer_of(consumer).code == 0
        consumer.send(
            raw(
                11,
                pull_header(
                    topic,
                    topic,
                    1,
                    sysFlag="2",
                    subscription="a > 5",
                    expressionType="SQL92",
                    suspendTimeoutMillis="30000",
                ),
            )
        )
        assert send(port, topic, properties(a=value)) == 0
        assert send(port, topic, properties(a="8"), b"wanted") == 0
        answer = answer_of(consumer)
        assert answer.code == 0
        assert b"wanted" in answer.body
    check_clean(broker_)


@pytest.mark.parametrize("digits", [18, 19, 40, 5000, 8000])
def test_an_expression_with_a_long_number_is_answered(broker_: TwinlogBroker, digits: int) -> None:
    expression = "a > " + "9" * digits
    ext = pull_header("delayed", "gx", 0, subscription=expression, expressionType="SQL92")
    assert send(broker_.port, "delayed") == 0
    assert outcome(broker_.port, raw(11, ext)) in (0, 19, 20, 23)
    assert outcome(broker_.port, raw(34, {}, heartbeat("gh", "delayed", expression))) is not None
    check_clean(broker_)


# C2: text that is no text

X = LONE
BROKER_TEXTS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "commit, group": (15, {"consumerGroup": X, "topic": "t", "queueId": "0", "commitOffset": "1"},
                      b""),
    "commit, topic": (15, {"consumerGroup": "g", "topic": X, "queueId": "0", "commitOffset": "1"},
                      b""),
    "pull, new group": (11, pull_header("t", "g" + X, 0), b""),
    "heartbeat, group": (34, {}, heartbeat("h" + X, "t", "*", "TAG")),
    "heartbeat, topic": (34, {}, heartbeat("hg", "t" + X, "*", "TAG")),
    "heartbeat, expression": (34, {}, heartbeat("hg", "t", X, "TAG")),
    "send, property": (10, send_header("t", "a\x01" + X), b"x"),
    "send, delayed": (10, send_header("t", "DELAY\x011\x02a\x01" + X), b"x"),
    "send, half": (10, send_header("t", "TRAN_MSG\x01true\x02PGROUP\x01" + X, sys_flag=4), b"x"),
    "send, keys": (10, send_header("t", "KEYS\x01" + X), b"x"),
    "send back": (36, {"offset": "0", "group": "g" + X, "delayLevel": "1"}, b""),
    "clone offsets": (314, {"srcGroup": "g", "destGroup": "d" + X, "topic": "t",
                            "offline": "true"}, b""),
    "lock": (41, {}, json.dumps({"consumerGroup": "g" + X, "clientId": "c" + X, "mqSet": [
        {"topic": "t", "brokerName": "b", "queueId": 0}]}).encode()),
    "topic": (17, {"topic": "T" + X, "defaultTopic": "TBW102", "readQueueNums": "1",
                   "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
                   "topicSysFlag": "0", "order": "false"}, b""),
    "group": (200, {}, json.dumps({"groupName": "G" + X}).encode()),
    "configuration": (25, {}, b"brokerName=\\ud800"),
    "orders": (25, {}, b"messageDelayLevel=\\ud800"),
}  # fmt: skip
NAMESRV_TEXTS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "kv, key": (100, {"namespace": "n", "key": "k" + X, "value": "v"}, b""),
    "kv, value": (100, {"namespace": "n", "key": "k", "value": "v" + X}, b""),
    "register": (103, {"brokerName": "b" + X, "brokerAddr": "127.0.0.1:9", "clusterName": "c",
                       "haServerAddr": "x", "brokerId": "0", "compressed": "false",
                       "bodyCrc32": "0"}, b""),
    "register, topics": (103, {"brokerName": "b", "brokerAddr": "127.0.0.1:9", "clusterName": "c",
                               "haServerAddr": "x", "brokerId": "0", "compressed": "false",
                               "bodyCrc32": "0"},
                         json.dumps({"topicConfigSerializeWrapper": {"dataVersion": {
                             "counter": 1, "timestamp": 1}, "topicConfigTable": {
                             "T" + X: {"topicName": "T" + X}}}}).encode()),
    "configuration": (318, {}, b"orderMessageEnable=\\ud800"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKER_TEXTS)
def test_a_lone_surrogate_is_refused_by_the_broker(broker_: TwinlogBroker, name: str) -> None:
    code, ext, body = BROKER_TEXTS[name]
    assert send(broker_.port, "t") == 0
    assert outcome(broker_.port, raw(code, ext, body)) != 0
    if not body or body == b"x":
        assert outcome(broker_.port, binary(code, ext)) is None
    saved = broker_.store / "config" / "consumerOffset.json"
    check_served(broker_.port, "t")
    marker = f"after-{os.urandom(4).hex()}"
    commit = {"consumerGroup": marker, "topic": "t", "queueId": "0", "commitOffset": "1"}
    assert outcome(broker_.port, raw(15, commit)) == 0
    wait_until(
        lambda: not broker_.is_alive or (saved.exists() and marker in saved.read_text()), "a save"
    )
    assert outcome(broker_.port, raw(26, {})) == 0, "the configuration is shown"
    check_clean(broker_)


@pytest.fixture(scope="module")
def namesrv_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinlogNamesrv]:
    process = start_twinlog_namesrv(tmp_path_factory.mktemp("poison-ns"))
    yield process
    check_clean(process)
    assert process.stop() == 0


@pytest.mark.parametrize("name", NAMESRV_TEXTS)
def test_a_lone_surrogate_is_refused_by_the_name_server(
    namesrv_: TwinlogNamesrv, name: str
) -> None:
    code, ext, body = NAMESRV_TEXTS[name]
    with RawPeer(namesrv_.port) as peer:
        peer.send(raw(code, ext, body))
        with contextlib.suppress(ConnectionError):
            assert peer.read_answer().code != 0
        put = {"namespace": "n", "key": "good", "value": "v"}
        assert outcome(namesrv_.port, raw(100, put)) == 0
        for shown in (106, 206, 219, 319):
            assert outcome(namesrv_.port, raw(shown, {"namespace": "n", "cluster": "c"})) == 0
    check_clean(namesrv_)


# Tables that somebody wrote by hand

TABLES = {
    "topics.json": b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"T\\ud800":'
    b'{"topicName":"T\\ud800","readQueueNums":1,"writeQueueNums":1,"perm":6}}}',
    "subscriptionGroup.json": b'{"subscriptionGroupTable":{"g\\udc00":{"groupName":"g\\udc00"}}}',
    "consumerOffset.json": b'{"offsetTable":{"t@g\\ud800":{0:1}}}',
    "consumerFilter.json": b'{"filterDataByTopic":{"t\\ud800":{"groupFilterData":{}}}}',
    "delayOffset.json": b'{"offsetTable":{1:0},"x":"\xed\xa0\x80"}',
}


def test_tables_with_half_a_surrogate_pair_are_loaded_and_saved_again(tmp_path: Path) -> None:
    broker = start_twinlog_broker(tmp_path / "b", **FAST)
    assert send(broker.port, "t") == 0
    assert broker.stop() == 0
    config = broker.store / "config"
    for name, text in TABLES.items():
        (config / name).write_bytes(text)
    broker = broker.restart()
    try:
        check_served(broker.port, "t")
        wait_until(lambda: b"normal-" in (config / "consumerOffset.json").read_bytes(), "a save")
        check_clean(broker)
        assert broker.stop() == 0
        broker = broker.restart()
        check_served(broker.port, "t")
        check_clean(broker)
    finally:
        broker.kill()


def test_kv_with_half_a_surrogate_pair_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_bytes(b'{"configTable":{"n":{"k":"\\ud800"}}}')
    namesrv = start_twinlog_namesrv(tmp_path)
    try:
        assert outcome(namesrv.port, raw(101, {"namespace": "n", "key": "k"})) == 0
        put = {"namespace": "n", "key": "good", "value": "v"}
        assert outcome(namesrv.port, raw(100, put)) == 0
        check_clean(namesrv)
    finally:
        namesrv.kill()
