"""Offsets that come back from the slave before a returning master answers pulls."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from twinlog.broker.errors import BrokerError
from twinlog.broker.pair import offset_return
from twinlog.broker.pair.late_commits import LateCommits
from twinlog.broker.pair.metadata_log import OffsetJournal
from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.role import Role
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.remoting.codes import RequestCode as Code
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.simdisk import SimDisk

NAMESRV, SLAVE = "ns:9876", "slave:10911"
INFO = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}


def cluster(*slaves: str) -> dict[str, Any]:
    addresses = {"0": "master:10911"} | {str(n + 1): name for n, name in enumerate(slaves)}
    data = {"cluster": "DefaultCluster", "brokerName": "broker-a", "brokerAddrs": addresses}
    return {"brokerAddrTable": {"broker-a": data}}


class Peers:
    """Name servers and slaves: (address, code) -> JSON value, raw bytes, code or error."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.announced: dict[str, str] = {}
        self.answers: dict[tuple[str, int], Any] = {
            (NAMESRV, Code.GET_BROKER_CLUSTER_INFO): cluster(SLAVE),
            (SLAVE, Code.TWINLOG_INFO): INFO,
            (SLAVE, Code.GET_ALL_CONSUMER_OFFSET): {"offsetTable": {"t@g": {"0": 50, "1": 3}}},
        }

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
        self.asked.append((address, command.code))
        if command.code == Code.TWINLOG_INFO:
            self.announced = dict(command.ext_fields or {})
        answer = self.answers.get((address, command.code), RemotingError("refused"))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            raise RemotingError("too late")
        if isinstance(answer, int):
            return RemotingCommand(code=answer, body=b"")
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return RemotingCommand(code=0, body=body)


class World:
    def __init__(self) -> None:
        self.peers = Peers()
        self.ends = {("t", 0): 100, ("t", 1): 100}
        disk = SimDisk()
        disk.make_directories("/c")
        self.offsets = ConsumerOffsetManager(ConfigFile(disk, "/c/offsets.json"))
        config = BrokerConfig(broker_name="broker-a")
        self.service = OffsetReturn(
            config,
            client=self.peers,  # type: ignore[arg-type]
            offsets=self.offsets,
            queue_end=lambda topic, queue_id: self.ends.get((topic, queue_id), 0),
            role=Role(config),
        )

    async def fetch(self, *name_servers: str) -> int:
        return await self.service.fetch(list(name_servers or (NAMESRV,)), {"brokerId": "0"})

    def offset(self, queue_id: int = 0) -> int:
        return self.offsets.query("g", "t", queue_id)


@pytest.fixture
def world() -> World:
    return World()


async def test_what_is_further_is_taken_and_nothing_moves_back(world: World) -> None:
    world.offsets.commit("g", "t", 0, 20)
    world.offsets.commit("g", "t", 1, 30)
    assert await world.fetch() == 1
    assert (world.offset(0), world.offset(1)) == (50, 30)
    assert world.peers.announced == {"brokerId": "0"}


async def test_what_came_back_goes_on_to_other_slaves_through_the_log(world: World) -> None:
    world.offsets.journal = OffsetJournal()
    await world.fetch()
    change = world.offsets.journal.drain()
    assert change is not None
    assert change.forward["t@g"][0] == 50


async def test_not_beyond_the_masters_own_log(world: World) -> None:
    """The master lost its tail: what it gets next has the offsets of what is gone."""
    world.ends = {("t", 0): 40}
    await world.fetch()
    assert (world.offset(0), world.offset(1)) == (40, -1)


async def test_of_an_apache_slave_nothing_is_taken(world: World) -> None:
    world.peers.answers[(SLAVE, Code.TWINLOG_INFO)] = 3
    assert await world.fetch() == 0
    assert (SLAVE, Code.GET_ALL_CONSUMER_OFFSET) not in world.peers.asked
    assert world.offset() == -1


async def test_of_another_clusters_broker_nothing_is_taken(world: World) -> None:
    world.peers.answers[(SLAVE, Code.TWINLOG_INFO)] = {**INFO, "clusterName": "elsewhere"}
    assert await world.fetch() == 0
    assert world.offset() == -1


@pytest.mark.parametrize(
    "damage",
    [b"{", b"", b"[1]", {"offsetTable": [1]}, {"offsetTable": {"t@g": 5}},
     {"offsetTable": {"t@g": {"x": 5}}}, {"offsetTable": {"t@g": {"0": 1 << 70}}},
     RemotingError("closed"), 1],
)  # fmt: skip
@pytest.mark.parametrize("code", [Code.GET_ALL_CONSUMER_OFFSET, Code.GET_BROKER_CLUSTER_INFO])
async def test_a_damaged_answer_changes_nothing(world: World, damage: Any, code: int) -> None:
    address = SLAVE if code == Code.GET_ALL_CONSUMER_OFFSET else NAMESRV
    world.peers.answers[(address, code)] = damage
    world.offsets.commit("g", "t", 0, 20)
    await world.fetch()
    assert world.offset() == 20


@pytest.mark.parametrize("table", [[1], {"broker-a": 5}, {"broker-a": {"brokerAddrs": {"x": 1}}}])
async def test_a_name_server_that_talks_nonsense_is_passed_over(world: World, table: Any) -> None:
    world.peers.answers[("bad:1", Code.GET_BROKER_CLUSTER_INFO)] = {"brokerAddrTable": table}
    assert await world.fetch("bad:1", NAMESRV) == 1
    assert world.offset() == 50


async def test_every_slave_is_asked_and_the_furthest_counts(world: World) -> None:
    world.peers.answers[(NAMESRV, Code.GET_BROKER_CLUSTER_INFO)] = cluster(SLAVE, "second:1")
    world.peers.answers[("second:1", Code.TWINLOG_INFO)] = INFO
    world.peers.answers[("second:1", Code.GET_ALL_CONSUMER_OFFSET)] = {
        "offsetTable": {"t@g": {"0": 70, "1": 1}}
    }
    assert await world.fetch() == 2
    assert (world.offset(0), world.offset(1)) == (70, 3)


async def test_the_wait_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_return, "WAIT_SECONDS_MAX", 0.05)
    world.peers.answers[(SLAVE, Code.TWINLOG_INFO)] = 60.0
    assert await world.fetch() == 0


class _Connection:
    is_closed = False


class _Request:
    def __init__(self, code: int) -> None:
        self.code = code


async def test_pulls_and_offset_queries_wait_at_the_gate_sends_and_commits_do_not(
    world: World,
) -> None:
    connection: Any = _Connection()
    gone: Any = _Connection()
    gone.is_closed = True
    requests: list[Any] = [_Request(c) for c in (Code.PULL_MESSAGE, Code.QUERY_CONSUMER_OFFSET)]
    assert not world.service.hold(connection, requests[0]), "open until it is closed"
    world.service.close_gate()
    for request in requests:
        assert world.service.hold(connection, request)
    assert world.service.hold(gone, requests[0])
    for code in (Code.SEND_MESSAGE_V2, Code.UPDATE_CONSUMER_OFFSET, Code.HEART_BEAT):
        other: Any = _Request(code)
        assert not world.service.hold(connection, other)
    assert world.service.open_gate() == [(connection, request) for request in requests]
    assert not world.service.hold(connection, requests[0])


# Late commits


class _Answers(_Connection):
    def __init__(self) -> None:
        self.replies: list[Any] = []

    def reply(self, request: Any, *arguments: Any, **more: Any) -> None:
        self.replies.append(request)

    def in_steps(self, request: Any, steps: Iterator[None]) -> None:
        deque(steps, maxlen=0)


def late(body: bytes, **ext: str) -> Any:
    return RemotingCommand.request(Code.TWINLOG_OFFSETS, {**INFO, **ext}, body)


def test_a_masters_slave_passes_on_late_commits_which_never_move_back(world: World) -> None:
    world.offsets.commit("g", "t", 0, 20)
    connection: Any = _Answers()
    world.service.take(connection, late(b'{"offsetTable":{"t@g":{"0":10,"1":30}}}'))
    assert (world.offset(0), world.offset(1)) == (20, 30)
    assert len(connection.replies) == 1


@pytest.mark.parametrize(
    ("body", "ext"),
    [(b"{", {}), (b"[]", {}), (b'{"offsetTable":{"t@g":5}}', {}),
     (b'{"offsetTable":{"t@g":{"0":50}}}', {"clusterName": "elsewhere"}),
     (b'{"offsetTable":{"t@g":{"0":50}}}', {"brokerName": "another"})],
)  # fmt: skip
def test_late_commits_of_strangers_or_damaged_ones_are_refused(
    world: World, body: bytes, ext: dict[str, str]
) -> None:
    connection: Any = _Answers()
    with pytest.raises(BrokerError):
        world.service.take(connection, late(body, **ext))
    assert world.offset() == -1


def test_late_commits_wait_for_a_master_that_takes_them() -> None:
    commits = LateCommits()
    assert not commits
    commits.add("g", "t", 0, 5)
    commits.add("g", "t", 1, 6)
    taken = commits.take()
    assert taken == {"t@g": {0: 5, 1: 6}}
    assert not commits
    commits.add("g", "t", 0, 9)
    commits.put_back(taken)
    assert commits.take() == {"t@g": {0: 9, 1: 6}}


def test_late_commits_follow_a_log_that_was_cut() -> None:
    """The old master as a slave: what was consumed of its own tail is not the new one's."""
    late = LateCommits()
    late.add("g", "t", 0, 50)
    late.add("g", "t", 1, 3)
    late.queues_cut({("t", 0): 20, ("t", 1): 9})
    assert late.take() == {"t@g": {0: 20, 1: 3}}
