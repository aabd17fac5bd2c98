"""Consumers that ask and do not read: the broker waits, and keeps no answers in memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import count

import pytest

from support.hostile_target import Target
from support.processes import wait_until
from support.raw_peer import RawPeer, request

PULLS = 10_000
SUSPEND, SUBSCRIPTION = 2, 4
_topics = count()


def send_header(topic: str) -> dict[str, object]:
    return {
        "a": "pg", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0,
        "g": int(time.time() * 1000), "h": 0, "i": "", "j": 0, "k": "false", "m": "false",
    }  # fmt: skip


def pull_header(topic: str, offset: int, *, suspend_ms: int = 0) -> dict[str, object]:
    return {
        "consumerGroup": "slow", "topic": topic, "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": SUBSCRIPTION | (SUSPEND if suspend_ms else 0),
        "commitOffset": 0, "suspendTimeoutMillis": suspend_ms, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip


@pytest.fixture
def slow(broker: Target) -> Iterator[Target]:
    yield broker
    broker.check_others_are_served()
    broker.check_log()


@pytest.fixture
def topic(broker: Target) -> str:
    return f"slow-{next(_topics)}"


def publish(target: Target, topic: str, bodies: list[bytes]) -> None:
    with RawPeer(target.port) as producer:
        for body in bodies:
            producer.send(request(310, send_header(topic), body))
            assert producer.read_answer().code == 0


def wait_for_offset(target: Target, topic: str, offset: int) -> None:
    with RawPeer(target.port) as peer:
        header = {"topic": topic, "queueId": 0}
        wait_until(
            lambda: int(peer.ask(30, header).ext()["offset"]) >= offset, "messages dispatched"
        )


def test_ten_thousand_answers_nobody_reads_wait_in_the_peers_requests(
    slow: Target, topic: str
) -> None:
    publish(slow, topic, [bytes(1024)] * 16)
    wait_for_offset(slow, topic, 16)
    slow.base_mb = slow.memory_mb()
    pull = pull_header(topic, 0)
    with RawPeer(slow.port) as first:  # The group is made and saved before it is measured.
        first.socket.sendall(request(11, pull, opaque=1))
        assert first.read_answer().code == 0
    with RawPeer(slow.port) as reader:
        data = b"".join(request(11, pull, opaque=opaque) for opaque in range(PULLS))
        reader.socket.setblocking(False)
        position = 0
        for _ in range(200):
            try:
                position += reader.socket.send(data[position : position + 65536])
            except BlockingIOError:
                slow.check_growth()
                slow.check_others_are_served()
                break
        slow.check_growth()
        slow.check_others_are_served()
        # Once it reads it gets every answer, in order: nothing was dropped.
        reader.socket.setblocking(True)
        reader.socket.settimeout(60)
        answered = 0
        while answered < PULLS:
            if position < len(data):
                position += reader.socket.send(data[position : position + 20_000])
            for _ in range(60):
                if answered < PULLS and (answered + 1) * len(data) // PULLS <= position:
                    answer = reader.read_answer()
                    assert (answer.code, answer.opaque) == (0, answered)
                    answered += 1
    slow.check_growth()
    slow.check_memory_comes_back()


def test_ten_thousand_held_pulls_woken_at_once(slow: Target, topic: str) -> None:
    publish(slow, topic, [b"first"])
    wait_for_offset(slow, topic, 1)
    slow.base_mb = slow.memory_mb()
    with RawPeer(slow.port) as reader:
        pull = pull_header(topic, 1, suspend_ms=600_000)
        reader.send(b"".join(request(11, pull, opaque=opaque) for opaque in range(PULLS)))
        assert reader.ask().code == 3, "all pulls were taken and are held"
        slow.check_growth()
        publish(slow, topic, [bytes(100_000)])  # 1 GB of answers.
        wait_for_offset(slow, topic, 2)
        slow.check_others_are_served()
        slow.check_growth()
        # More than lies in socket buffers: the peer is slow, not broken, and is still served.
        assert [reader.read_answer().code for _ in range(1000)] == [0] * 1000
        slow.check_growth()
    assert slow.lines_about(reader.name) == []
    slow.check_others_are_served()
    slow.check_memory_comes_back()


@pytest.mark.parametrize("length", [200_000, 8_000, 1_000])
def test_expressions_of_held_pulls_do_not_fill_the_memory(
    slow: Target, topic: str, length: int
) -> None:
    """Each its own tags: objects of twenty times their text, once kept by the thousand."""
    publish(slow, topic, [b"x"])
    wait_for_offset(slow, topic, 1)
    slow.base_mb = slow.memory_mb()
    count = min(2_000, 24_000_000 // length)
    with RawPeer(slow.port) as consumer:
        consumer.socket.settimeout(0.5)  # Once enough is held nothing more is read.
        with contextlib.suppress(TimeoutError):
            for number in range(count):
                tags = "||".join(f"{number:x}.{each:x}" for each in range(length // 9))
                header = {**pull_header(topic, 1, suspend_ms=20_000), "subscription": tags}
                consumer.send(request(11, header))
        slow.check_others_are_served()
        slow.check_growth()
