"""Quotas of an address: refused clearly, told to the audit log, and others go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import process_group, wait_until
from support.raw_peer import RawPeer, request
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker
from twinlog.remoting.codes import RequestCode as Code
from twinlog.remoting.codes import ResponseCode

BUSY = ResponseCode.SYSTEM_BUSY
Start = Callable[..., TwinlogBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with process_group() as group:

        def make(**config: Any) -> TwinlogBroker:
            broker = start_twinlog_broker(
                tmp_path / "broker", mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, **config
            )
            group.add(broker)
            return broker

        yield make


def audit(broker: TwinlogBroker) -> list[dict[str, Any]]:
    file = broker.store / "twinlog" / "audit.log"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_audited(broker: TwinlogBroker, words: str) -> None:
    wait_until(lambda: any(words in line["outcome"] for line in audit(broker)), words)


def pull_ext(group: str) -> dict[str, Any]:
    return {
        "consumerGroup": group, "topic": "TBW102", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
        "subscription": "*",
    }  # fmt: skip


def test_connections_of_one_address(start: Start) -> None:
    broker = start(twinlogConnectionsPerAddress=5)
    peers = [RawPeer(broker.port) for _ in range(5)]
    assert all(peer.ask().code == 3 for peer in peers)
    extra = RawPeer(broker.port)
    assert extra.wait_closed() == b""
    extra.close()
    wait_audited(broker, "as many connections as it may have")
    peers.pop().close()

    def is_served() -> bool:
        with RawPeer(broker.port) as peer:
            peer.send(request())
            try:
                return peer.read_answer().code == 3
            except ConnectionError:
                return False

    wait_until(is_served, "a place that became free is given away again")
    for peer in peers:
        peer.close()


def test_requests_of_one_address(start: Start) -> None:
    broker = start(twinlogRequestsPerAddress=200)
    with RawPeer(broker.port) as peer:

        def flood() -> bool:
            peer.send(b"".join(request(Code.TWINLOG_INFO, opaque=number) for number in range(1000)))
            return BUSY in {peer.read_answer().code for _ in range(1000)}

        wait_until(flood, "the flood is refused")
        wait_audited(broker, "more than 200 requests per second")
        wait_until(lambda: peer.ask(Code.TWINLOG_INFO).code == 0, "who slows down is served")


def test_topics_and_groups_made_by_one_address(start: Start) -> None:
    broker = start(twinlogCreationsPerAddress=2)
    with RawPeer(broker.port) as peer:
        names = [f"made-up-{n}" for n in range(60)]  # At once: a second allows two more.
        peer.send(
            b"".join(
                request(Code.PULL_MESSAGE, pull_ext(name), opaque=n) for n, name in enumerate(names)
            )
        )
        answers = {answer.opaque: answer for answer in (peer.read_answer() for _ in names)}
        assert answers[0].code != BUSY
        assert answers[59].code == BUSY, "twenty seconds' worth at once, and no more"
        assert "twinlogCreationsPerAddress" in (answers[59].remark or "")
        # What exists is served anyway.
        assert peer.ask(Code.PULL_MESSAGE, pull_ext("made-up-0")).code != BUSY
    wait_audited(broker, "topics and groups per second")
    groups = (broker.store / "config" / "subscriptionGroup.json").read_text()
    assert groups.count("made-up-") < 2 * 60


def test_nothing_is_refused_by_default(start: Start) -> None:
    """Hundreds of groups at once by one client, as tests and tools make them."""
    broker = start()
    with RawPeer(broker.port) as peer:
        count = 200
        peer.send(
            b"".join(
                request(Code.PULL_MESSAGE, pull_ext(f"group-{n}"), opaque=n) for n in range(count)
            )
        )
        assert BUSY not in {peer.read_answer().code for _ in range(count)}
    assert not any("refused" in line["outcome"] for line in audit(broker))
