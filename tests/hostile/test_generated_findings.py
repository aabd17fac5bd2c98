"""What the generated requests of `test_generated.py` found, each as one small case."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hostile_attack import is_sign
from support.hostile_cases import Case
from support.processes import Process, wait_until
from support.raw_peer import RawPeer
from support.twinlog_servers import (
    TwinlogBroker,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.broker.pair.metadata_log import MetadataError, decode_change
from twinlog.ha.twin.wire import Hello, decode_json
from twinlog.ha.wire import RemoteProtocolError
from twinlog.runtime.log_config import PlainFormatter

FAST: dict[str, object] = {
    "flushConsumerOffsetInterval": 200,
    "mappedFileSizeCommitLog": 1 << 20,
    "maxHashSlotNum": 1000,
}


def ask(process: Any, case: Case) -> int:
    with RawPeer(process.port) as peer:
        peer.send(case.frame(1))
        return peer.read_answer().code


def check_log(process: Process) -> None:
    assert process.is_alive, process.tail()
    assert [line for line in process.output().splitlines() if is_sign(line)] == []


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinlogBroker]:
    process = start_twinlog_broker(tmp_path_factory.mktemp("found"), **FAST)
    yield process
    assert process.stop() == 0


def heartbeat(**subscription: Any) -> bytes:
    known = {"topic": "t", "subString": "a > 5", "expressionType": "SQL92", "subVersion": 1}
    consumer = {"groupName": "g", "subscriptionDataSet": [{**known, **subscription}]}
    return json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()


def lock(queue_id: Any) -> bytes:
    queue = {"topic": "t", "brokerName": "b", "queueId": queue_id}
    return json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}).encode()


REFUSED = {
    "lock, superscript": Case("", 41, {}, lock("²")),
    "unlock, exponent": Case("", 42, {}, lock("1e3")),
    "lock, a list": Case("", 41, {}, lock([1])),
    "heartbeat, expression is a list": Case("", 34, {}, heartbeat(subString=[["a"]])),
    "heartbeat, expression is an object": Case("", 34, {}, heartbeat(subString={"a": 1})),
    "heartbeat, type is a list": Case("", 34, {}, heartbeat(expressionType=["SQL92"])),
    "heartbeat, version": Case("", 34, {}, heartbeat(subVersion="1_0")),
    "a limit above 63 bits": Case("", 25, {}, b"maxTransferBytesOnMessageInDisk=%d" % 2**63),
    "a limit above 31 bits": Case("", 25, {}, b"maxTransferCountOnMessageInDisk=%d" % 2**31),
    "a time above 63 bits": Case("", 25, {}, b"transactionTimeOut=%d" % 2**63),
    "offset": Case("", 15, {"consumerGroup": "g", "topic": "t", "queueId": "0",
                            "commitOffset": "-2"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_broker_refuses(attacked: TwinlogBroker, name: str) -> None:
    assert ask(attacked, REFUSED[name]) not in (0, -1)
    check_log(attacked)


COMMITS = {
    "commit": Case("", 15, {"consumerGroup": "poison", "topic": "t", "queueId": "0",
                            "commitOffset": str(-(2**63))}),
    "pull": Case("", 11, {"consumerGroup": "poison", "topic": "t", "queueId": "0", "sysFlag": "5",
                          "queueOffset": "0", "maxMsgNums": "1", "commitOffset": str(-(2**63)),
                          "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMITS)
def test_an_offset_below_all_offsets_does_not_spoil_the_table(tmp_path: Path, name: str) -> None:
    broker = start_twinlog_broker(tmp_path, **FAST)
    try:
        topic = {"topic": "t", "defaultTopic": "TBW102", "readQueueNums": "1", "perm": "6",
                 "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG"}  # fmt: skip
        assert ask(broker, Case("", 17, topic)) == 0
        ask(broker, COMMITS[name])
        good = {"consumerGroup": "good", "topic": "t", "queueId": "0", "commitOffset": "7"}
        assert ask(broker, Case("", 15, good)) == 0
        saved = broker.store / "config" / "consumerOffset.json"
        wait_until(lambda: saved.exists() and b"t@good" in saved.read_bytes(), "a save")
        broker.kill()
        broker = broker.restart()
        assert ask(broker, Case("", 14, good)) == 0
        assert "left out" not in broker.output()
    finally:
        broker.kill()


def test_a_table_that_was_spoilt_before_is_read_without_the_spoilt_entry(tmp_path: Path) -> None:
    broker = start_twinlog_broker(tmp_path, **FAST)
    try:
        assert broker.stop() == 0
        saved = broker.store / "config" / "consumerOffset.json"
        table = {"t@poison": {"0": -(2**63)}, "t@worse": 7, "t@good": {"0": 7}}
        saved.write_text(json.dumps({"offsetTable": table}))
        broker = broker.restart()
        good = {"consumerGroup": "good", "topic": "t", "queueId": "0"}
        assert ask(broker, Case("", 14, good)) == 0
        assert broker.output().count("offsets left out") == 2
    finally:
        broker.kill()


def test_a_name_does_not_write_lines_into_a_log(tmp_path: Path) -> None:
    namesrv = start_twinlog_namesrv(tmp_path)
    try:
        name = "a\nb\r\n2026-01-01 00:00:00.000 ERROR twinlog.broker forged\x00\x1b[2J"
        ext = {"brokerName": name, "brokerAddr": "127.0.0.1:9", "clusterName": "c",
               "haServerAddr": "x", "brokerId": "0"}  # fmt: skip
        ask(namesrv, Case("", 103, ext, b"{}"))
        ask(namesrv, Case("", 104, ext))
        check_log(namesrv)
        assert not any(" forged" in line[:60] for line in namesrv.output().splitlines())
    finally:
        namesrv.kill()


def test_a_traceback_of_ours_keeps_its_lines() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.getLogger("t").makeRecord("t", 40, "f", 1, "m\n%s", ("x" * 9000,), None)
        record.exc_info = sys.exc_info()
    lines = PlainFormatter("%(message)s").format(record).split("\n")
    assert lines[0] == "m\\u000a" + "x" * 8190
    assert lines[1].startswith("Traceback")


def test_a_controller_refuses(tmp_path: Path) -> None:
    controller = start_twinlog_controller(tmp_path)
    try:
        group = {"clusterName": "c", "brokerName": "b", "appliedBrokerId": "1",
                 "registerCheckCode": "127.0.0.1:9;x"}  # fmt: skip
        assert ask(controller, Case("", 1013, group)) == 0
        beat = {"clusterName": "c", "brokerName": "b", "brokerAddr": "x", "brokerId": "1",
                "twinlogIncarnation": "a"}  # fmt: skip
        deep = b'{"x":' + b"[" * 20000 + b"]" * 20000 + b"}"
        assert ask(controller, Case("", 904, beat, deep)) == 1
        policy = {**group, "brokerId": "1", "brokerAddress": "x", "twinlogPolicy": deep.decode()}
        assert ask(controller, Case("", 1003, policy)) == 1
        assert ask(controller, Case("", 1009, {}, b"a=\\ud800")) == 1
        check_log(controller)
    finally:
        controller.kill()


def test_deep_json_of_a_replica_is_refused_as_any_other() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(RemoteProtocolError):
        decode_json(memoryview(deep), Hello)
    with pytest.raises(MetadataError):
        decode_change(b'{"kind":"acl","text":"","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_messages_are_counted_for_few_at_a_time(attacked: TwinlogBroker) -> None:
    """Every count reads the log; a stranger could keep a broker busy with nothing else."""
    with RawPeer(attacked.port) as peer:
        case = Case("", 10003, {"countFrom": "0"})
        peer.send(b"".join(case.frame(number) for number in range(50)))
        codes = [peer.read_answer().code for _ in range(50)]
    assert codes.count(0) == 4
    assert codes.count(2) == 46
    assert ask(attacked, case) == 0
