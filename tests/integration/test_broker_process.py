"""The broker as a process: ready line, exit codes, and what survives a restart and SIGKILL."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import free_broker_port, wait_until
from support.twinlog_servers import (
    TWINLOG,
    TwinlogBroker,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Wire:
    """One blocking connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._opaque = 0

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Request:
        self._opaque += 1
        command = RemotingCommand.request(code, ext, body)
        command.opaque = self._opaque
        self._socket.sendall(encode_command(command))
        while True:
            opening = self._exactly(4)
            answer = decode_command(opening + self._exactly(int.from_bytes(opening, "big")))
            if answer.is_response and answer.opaque == self._opaque:
                return answer

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def send(self, topic: str, body: bytes, **ext: Any) -> Request:
        header = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, {**header, **ext}, body)
        assert answer.code == 0, answer.remark
        return answer

    def pull(self, topic: str, offset: int = 0, queue_id: int = 0) -> list[bytes]:
        ext = {
            "consumerGroup": "cg", "topic": topic, "queueId": queue_id, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subVersion": 0, "subscription": "*",
        }  # fmt: skip
        answer = self.ask(RequestCode.PULL_MESSAGE, ext)
        bodies, at = [], 0
        while at < len(answer.body):
            record = decode_record(answer.body, at)
            bodies.append(record.body)
            at += record.total_size
        return bodies

    def commit(self, group: str, topic: str, offset: int) -> None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
        assert self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0

    def committed(self, group: str, topic: str) -> str | None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": 0}
        return self.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext().get("offset")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire(broker: TwinlogBroker) -> Iterator[Wire]:
    connection = Wire(broker.port)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TwinlogBroker]]:
    started: list[TwinlogBroker] = []

    def start(**config: object) -> TwinlogBroker:
        broker = start_twinlog_broker(tmp_path / "broker", **{**SMALL, **config})
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.kill()


def test_runtime_info_counts_what_was_just_sent(start: Callable[..., TwinlogBroker]) -> None:
    with wire(start()) as client:
        for number in range(1, 4):
            client.send("T", b"one")
            answer = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = fastjson.loads(answer.body)["table"]
            assert table["putMessageTimesTotal"] == table["msgPutTotalTodayNow"] == str(number)


def test_clean_stop_keeps_everything_and_exits_with_0(
    start: Callable[..., TwinlogBroker], request: pytest.FixtureRequest
) -> None:
    broker = start()
    with wire(broker) as client:
        client.send("T", b"one")
        client.commit("cg", "T", 1)
    assert broker.stop() == 0
    assert not (broker.store / "abort").exists()
    again = restarted(request, broker)
    with wire(again) as client:
        assert client.pull("T") == [b"one"]
        assert client.committed("cg", "T") == "1"
    assert again.stop() == 0


def test_what_was_answered_survives_sigkill(
    start: Callable[..., TwinlogBroker], request: pytest.FixtureRequest
) -> None:
    broker = start(flushConsumerOffsetInterval=100)
    group = {"groupName": "g1", "retryMaxTimes": 3}
    topic = {
        "topic": "Made", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "order": False,
    }  # fmt: skip
    with wire(broker) as client:
        client.send("Auto", b"kept", i="KEYS\x01k")
        assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert client.ask(code, None, fastjson.dumps(group)).code == 0
        client.commit("cg", "Auto", 1)
        file = broker.store / "config" / "consumerOffset.json"
        wait_until(lambda: file.exists() and b"Auto@cg" in file.read_bytes(), "offsets on disk")
    broker.kill()
    again = restarted(request, broker)
    with wire(again) as client:
        topics = fastjson.loads(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body)
        assert topics["topicConfigTable"]["Auto"]["writeQueueNums"] == 4
        assert topics["topicConfigTable"]["Made"]["writeQueueNums"] == 3
        groups = fastjson.loads(client.ask(code=201).body)["subscriptionGroupTable"]
        assert groups["g1"]["retryMaxTimes"] == 3
        assert client.committed("cg", "Auto") == "1"
        assert client.pull("Auto") == [b"kept"]


def test_delayed_message_comes_once_though_the_broker_is_killed(
    start: Callable[..., TwinlogBroker], request: pytest.FixtureRequest
) -> None:
    broker = start(messageDelayLevel="1s 2s", flushDelayOffsetInterval=3_600_000)
    with wire(broker) as client:
        unique = "7F000001000000000000000000000001"
        client.send("D", b"later", i=f"DELAY\x011\x02UNIQ_KEY\x01{unique}")
        client.send("D", b"plain")
        assert client.pull("D") == [b"plain"]
        wait_until(lambda: client.pull("D") == [b"plain", b"later"], "the delayed message")
    broker.kill()
    again = restarted(request, broker)
    with wire(again) as client:
        client.send("D", b"still later", i="DELAY\x011")
        wait_until(lambda: len(client.pull("D")) >= 3, "the second delayed message")
        assert client.pull("D") == [b"plain", b"later", b"still later"]


def test_send_back_goes_to_the_retry_topic_and_then_to_dead_letters(
    start: Callable[..., TwinlogBroker],
) -> None:
    broker = start(messageDelayLevel="1s 1s 1s 1s 1s")
    with wire(broker) as client:
        message_id = client.send("T", b"bad").ext()["msgId"]
        ext = {
            "offset": int(message_id[-16:], 16), "group": "cg", "delayLevel": 0,
            "maxReconsumeTimes": 1, "originTopic": "T",
        }  # fmt: skip
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
        retry = "%RETRY%cg"
        wait_until(lambda: client.pull(retry) == [b"bad"], "the retry")
        table = fastjson.loads(
            client.ask(
                RequestCode.QUERY_CONSUME_QUEUE,
                {"topic": retry, "queueId": 0, "index": 0, "count": 1},
            ).body
        )
        ext["offset"] = table["queueData"][0]["physicOffset"]
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
        wait_until(lambda: client.pull("%DLQ%cg") == [b"bad"], "the dead letter")


def test_held_pull_is_woken_by_a_message(start: Callable[..., TwinlogBroker]) -> None:
    broker = start()
    with wire(broker) as consumer, wire(broker) as client:
        client.send("T", b"first")
        ext = {
            "consumerGroup": "cg", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32,
            "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 25_000, "subVersion": 0,
            "subscription": "*",
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, ext)
        command.opaque = 77
        consumer._socket.sendall(encode_command(command))
        began = time.monotonic()
        consumer._socket.settimeout(20)
        client.send("T", b"second")
        opening = consumer._exactly(4)
        answer = decode_command(opening + consumer._exactly(int.from_bytes(opening, "big")))
        assert (answer.code, answer.opaque, answer.remark) == (0, 77, "FOUND")
        assert decode_record(answer.body).body == b"second"
        assert time.monotonic() - began < 20, "woken, not timed out"
        table = fastjson.loads(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}).body)["table"]
        assert table["msgGetTotalTodayNow"] == "1", "a message is counted once"


def test_broker_registers_its_topics_and_says_goodbye(
    tmp_path: Path, start: Callable[..., TwinlogBroker]
) -> None:
    namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
    try:
        broker = start(namesrv=namesrv.address)
        names = Wire(namesrv.port)

        def route(topic: str) -> int:
            return names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code

        wait_until(lambda: route("TBW102") == 0, "the broker in the route")
        with wire(broker) as client:
            client.send("New", b"x")
        wait_until(lambda: route("New") == 0, "the new topic in the route")
        assert broker.stop() == 0
        assert route("New") != 0
        names.close()
    finally:
        namesrv.kill()


def test_sync_flush_answers_when_it_is_on_disk(start: Callable[..., TwinlogBroker]) -> None:
    broker = start(flushDiskType="SYNC_FLUSH")
    with wire(broker) as client:
        for number in range(20):
            assert client.send("T", b"x").ext()["queueOffset"] == str(number)


def test_sync_master_without_a_slave_stores_and_says_why_it_is_alone(
    start: Callable[..., TwinlogBroker],
) -> None:
    broker = start(brokerRole="SYNC_MASTER")
    header = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    with wire(broker) as client:
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, header, b"alone")
        assert answer.code == 11
        assert "slave" in (answer.remark or "")
        assert answer.ext()["queueOffset"] == "0"
        relaxed = client.ask(RequestCode.SEND_MESSAGE_V2, {**header, "i": "WAIT\x01false"}, b"y")
        assert relaxed.code == 0
        assert client.pull("T") == [b"alone", b"y"]


def test_vip_port_answers_all_but_pulls(start: Callable[..., TwinlogBroker]) -> None:
    broker = start()
    vip = Wire(broker.port - 2)
    vip.send("T", b"x")
    assert vip.ask(RequestCode.PULL_MESSAGE, {"topic": "T"}).code == 3
    vip.close()


def restarted(request: pytest.FixtureRequest, broker: TwinlogBroker) -> TwinlogBroker:
    again = broker.restart()
    request.addfinalizer(again.kill)
    return again


def run(*arguments: str, server: str = "broker") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TWINLOG), server, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "entry",
    ["listenPort=ten", "brokerIP1=no machine", "namesrvAddr=there", "enableControllerMode=true"],
)
def test_bad_configuration_exits_with_2_and_one_line(entry: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathRootDir={tmp_path}/store\n{entry}\n")
    result = run("-c", str(file))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert str(file) in line
    assert entry in line
    assert not (tmp_path / "store").exists()


def test_advertised_by_name_messages_carry_the_address_of_it(
    tmp_path: Path, start: Callable[..., TwinlogBroker]
) -> None:
    """In containers `brokerIP1` is the name of the service, as with Apache's brokers."""
    namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
    try:
        broker = start(brokerIP1="localhost", namesrvAddr=namesrv.address)
        with wire(broker) as client:
            sent = client.send("T", b"one")
            assert sent.ext()["msgId"].startswith("7F000001")
        looker = Wire(namesrv.port)
        wait_until(
            lambda: looker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == 0,
            "the topic at the name server",
        )
        route = looker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        looker.close()
        assert f"localhost:{broker.port}".encode() in route.body
    finally:
        namesrv.kill()


def test_taken_port_exits_with_1_and_leaves_the_store_clean(tmp_path: Path) -> None:
    port = free_broker_port()
    with socket.create_server(("127.0.0.1", port)):
        file = tmp_path / "broker.conf"
        file.write_text(f"listenPort={port}\nstorePathRootDir={tmp_path}/store\n")
        result = run("-c", str(file))
    assert result.returncode == 1
    assert "cannot start" in result.stderr
    assert not (tmp_path / "store" / "abort").exists()


def test_configuration_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=mine\n")
    everything = run("-c", str(file), "-p", "-n", "127.0.0.1:1").stdout
    assert "brokerName=mine\n" in everything
    assert "namesrvAddr=127.0.0.1:1\n" in everything
    important = run("-c", str(file), "-m").stdout
    assert "brokerName=mine\n" in important
    assert len(important) < len(everything)


def test_second_broker_on_the_same_store_is_refused(
    tmp_path: Path, start: Callable[..., TwinlogBroker]
) -> None:
    broker = start()
    file = tmp_path / "second.conf"
    file.write_text(f"listenPort={free_broker_port()}\nstorePathRootDir={broker.store}\n")
    result = run("-c", str(file))
    assert result.returncode == 1
    assert "in use by another broker" in result.stderr
