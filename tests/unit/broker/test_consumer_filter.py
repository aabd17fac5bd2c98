"""Filters of consumers: their file as Apache writes it, and what is filtered in retry topics."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.captured import Peer, open_without_ports, write_file
from support.stores import ManualClock
from twinlog.broker.filter import consumer_filter
from twinlog.broker.filter.bloom import BloomParameters, murmur3_low64
from twinlog.broker.filter.consumer_filter import CompileBudget, ConsumerFilterManager
from twinlog.broker.server import Broker, build_broker
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message.properties import encode_properties
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.simdisk import SimDisk

GOLDEN = Path(__file__).parents[2] / "vectors" / "config" / "consumerFilter.json"
PATH = "/store/config/consumerFilter.json"
BORN = 1794776898513
DEAD = 1794776965125
EXPRESSION = "price > 2 AND price IS NOT NULL"


class Table:
    """A manager on its own disk and clock."""

    def __init__(self, **config: Any) -> None:
        self.disk = SimDisk()
        self.disk.make_directories("/store/config")
        self.clock = ManualClock(BORN)
        self.config = BrokerConfig(**config)
        self.manager = self.again()

    def again(self) -> ConsumerFilterManager:
        file = ConfigFile(self.disk, PATH)
        return ConsumerFilterManager(self.config, file, self.clock)

    def registered(self, group: str, wanted: list[SubscriptionData]) -> None:
        """A heartbeat, to its end."""
        registered(self.manager, group, wanted)

    def file(self) -> bytes:
        return self.disk.read_bytes(PATH)


def registered(manager: ConsumerFilterManager, group: str, wanted: list[SubscriptionData]) -> None:
    deque(manager.register(group, wanted, CompileBudget()), maxlen=0)


def sql(expression: str = EXPRESSION, version: int = BORN + 1) -> SubscriptionData:
    return SubscriptionData("TopicSql", expression, expression_type="SQL92", sub_version=version)


def test_positions_are_those_of_apache() -> None:
    assert BloomParameters.of(20, 32) == BloomParameters(3, 112)
    assert BloomParameters.of(20, 32).positions("GID_sql#TopicSql") == (44, 4, 90)
    # Of the hash's reference implementation: nothing, less than and more than one block.
    assert murmur3_low64(b"") == 0
    assert murmur3_low64(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3_low64(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C


async def test_the_file_is_apaches_byte_for_byte() -> None:
    table = Table()
    table.registered("GID_sql", [sql()])
    table.clock.wall_ms = DEAD
    table.manager.group_gone("GID_sql")
    await table.manager.save()
    assert table.file() == GOLDEN.read_bytes()


async def test_apaches_file_is_taken_over() -> None:
    table = Table()
    write_file(table.disk, PATH, GOLDEN.read_bytes())
    table.clock.wall_ms = DEAD + 1000
    table.manager.load()
    known = table.manager.find("TopicSql", "GID_sql")
    assert known is not None
    assert (known.expression, known.client_version, known.dead_ms) == (EXPRESSION, BORN + 1, DEAD)
    assert known.compiled.matches({"price": "3"})
    await table.manager.save()
    assert table.file() == GOLDEN.read_bytes()


async def test_who_was_connected_is_gone_for_half_a_minute_and_comes_back() -> None:
    table = Table()
    table.registered("GID_sql", [sql()])
    await table.manager.save()
    again = table.again()
    table.clock.wall_ms = BORN + 100_000
    again.load()
    known = again.find("TopicSql", "GID_sql")
    assert known is not None
    assert known.dead_ms == BORN + 70_000
    registered(again, "GID_sql", [sql(version=BORN + 9)])
    assert (known.dead_ms, known.client_version, known.born_ms) == (0, BORN + 9, BORN)


async def test_an_entry_goes_when_it_was_dead_for_too_long_or_its_topic_is_not_wanted() -> None:
    table = Table(filter_data_clean_time_span=1000)
    table.registered("GID_sql", [sql()])
    table.registered("GID_sql", [SubscriptionData("Other")])
    table.clock.advance(999)
    await table.manager.save()
    assert table.manager.find("TopicSql", "GID_sql") is not None
    table.clock.advance(1)
    await table.manager.save()
    assert table.manager.find("TopicSql", "GID_sql") is None
    assert fastjson.loads(table.file()) == {"filterDataByTopic": {}}


def test_an_older_member_does_not_bring_the_old_expression_back() -> None:
    table = Table()
    table.registered("g", [sql("price > 5", version=10)])
    table.registered("g", [sql("price > 4", version=9)])
    known = table.manager.find("TopicSql", "g")
    assert known is not None
    assert known.expression == "price > 5"


@pytest.mark.parametrize(
    ("content", "config"),
    [
        pytest.param(GOLDEN.read_bytes(), {"expect_consumer_num_use_filter": 64}, id="bloom"),
        pytest.param(b'{"filterDataByTopic":{"T":7}}', {}, id="no table"),
        pytest.param(
            b'{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"expression":"(","bloomFilterData"'
            b':{"bitNum":112,"bitPos":[1,2,3]}}}}}}',
            {},
            id="expression that does not parse",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_leaves_no_filter(
    content: bytes, config: dict[str, Any]
) -> None:
    table = Table(**config)
    write_file(table.disk, PATH, content)
    table.manager.load()
    await table.manager.save()
    assert table.manager.find("T", "g") is None
    assert table.manager.find("TopicSql", "GID_sql") is None


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
async def broker(disk: SimDisk) -> AsyncIterator[Broker]:
    config = BrokerConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=400,
        enable_property_filter=True,
    )
    broker = build_broker(config, rng=random.Random(1), disk=disk)
    await open_without_ports(broker)
    yield broker
    await broker.stop()


async def ask(peer: Peer, code: int, ext: dict[str, Any] | None, body: bytes = b"") -> Request:
    return await peer.ask(encode_command(RemotingCommand.request(code, ext, body)))


async def heartbeat(peer: Peer, expression: str) -> None:
    subscriptions = [
        {"topic": "T", "subString": expression, "expressionType": "SQL92", "subVersion": 1},
        {"topic": "%RETRY%g", "subString": "*", "expressionType": "TAG", "subVersion": 1},
    ]
    group = {"groupName": "g", "subscriptionDataSet": subscriptions}
    body = fastjson.dumps({"clientID": "c", "consumerDataSet": [group]})
    assert (await ask(peer, RequestCode.HEART_BEAT, None, body)).code == 0


async def retried(peer: Peer, **properties: str) -> None:
    text = encode_properties(properties).decode()
    ext = {"a": "p", "b": "%RETRY%g", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
    answer = await ask(peer, RequestCode.SEND_MESSAGE_V2, {**ext, "i": text}, b"body")
    assert answer.code == 0, answer.remark


async def pulled(peer: Peer) -> list[bytes]:
    """Prices of what the retry topic delivers."""
    ext = {
        "consumerGroup": "g", "topic": "%RETRY%g", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subVersion": 1,
    }  # fmt: skip
    answer = await ask(peer, RequestCode.PULL_MESSAGE, ext)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
    return [part[:1] for part in bytes(answer.body).split(b"price\x01")[1:]]


async def test_retry_topics_are_filtered_when_asked_for(broker: Broker) -> None:
    peer = Peer(broker.server)
    await heartbeat(peer, "price > 5")
    await retried(peer, RETRY_TOPIC="T", price="9")
    await retried(peer, RETRY_TOPIC="T", price="1")
    await retried(peer, RETRY_TOPIC="ByTags", price="2")
    assert await pulled(peer) == [b"9", b"1", b"2"]
    broker.config.filter_support_retry = True
    assert await pulled(peer) == [b"9", b"2"], "the topic's own expression, where there is one"
    await heartbeat(peer, "price > 0")
    peer.close()


async def test_filters_survive_a_restart(broker: Broker, disk: SimDisk) -> None:
    peer = Peer(broker.server)
    await heartbeat(peer, "price > 5")
    peer.close()
    await broker.stop()
    again = build_broker(broker.config, rng=random.Random(1), disk=disk)
    await open_without_ports(again)
    known = again.filters.find("T", "g")
    assert known is not None
    assert known.dead_ms
    assert known.compiled.matches({"price": "6"})
    await again.stop()


def test_one_heartbeat_compiles_only_so_much() -> None:
    """Expressions of a quarter of a megabyte fit into a heartbeat: seconds of the loop."""
    table = Table()
    texts = {f"T{number}": f"a = {number} OR " * 60 + "a = 1" for number in range(100)}
    wanted = [
        SubscriptionData(topic, text, expression_type="SQL92", sub_version=1)
        for topic, text in texts.items()
    ]
    known = 0
    for _ in range(100):
        table.registered("g", wanted)
        before, known = known, sum(table.manager.find(t, "g") is not None for t in texts)
        assert known - before <= 15
        if known == len(texts):
            break
    assert known == len(texts), "the next heartbeats bring the rest"


async def test_there_are_so_many_filters_and_who_is_gone_longest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One group may name other topics with each heartbeat, and each is kept for a day."""
    monkeypatch.setattr(consumer_filter, "FILTERS_MAX", 3)
    table = Table()

    def topics() -> set[str]:
        return {f"T{n}" for n in range(9) if table.manager.find(f"T{n}", "g") is not None}

    def wants(*numbers: int) -> None:
        wanted = [
            SubscriptionData(f"T{n}", "a = 1", expression_type="SQL92", sub_version=1)
            for n in numbers
        ]
        table.registered("g", wanted)
        table.clock.advance(1)

    wants(0, 1, 2, 3)
    assert topics() == {"T0", "T1", "T2"}
    wants(1, 2)
    wants(2)
    wants(2, 4)
    assert topics() == {"T1", "T2", "T4"}
    wants(2, 4, 1)
    wants(2, 4, 1, 5)
    assert topics() == {"T1", "T2", "T4"}, "who is here stays"
    await table.manager.save()
    again = table.again()
    again.load()
    assert again.find("T4", "g") is not None


async def test_the_file_of_many_is_the_one_of_the_general_writer() -> None:
    table = Table()
    assert table.manager.find("T", "g") is None
    for group in ("g1", "g2"):
        wanted = [
            SubscriptionData(topic, "a = 1", expression_type="SQL92", sub_version=1)
            for topic in ("T1", 'T\u00e9"2')
        ]
        table.registered(group, wanted)
    await table.manager.save()
    assert table.file() == fastjson.dumps_pretty(_as_sets(fastjson.loads(table.file())))


def _as_sets(value: Any) -> Any:
    """Bits are written on one line, as the items of a set are."""
    if isinstance(value, dict):
        return {key: _as_sets(each) for key, each in value.items()}
    return tuple(value) if isinstance(value, list) else value
