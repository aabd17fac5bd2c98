"""Our name server, in the state Apache's was in, answers the captured requests as Apache's did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting import codec, fastjson
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.registration import decode_registration
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.runtime.config import NamesrvConfig

FRAMES = Path(__file__).parents[2] / "vectors" / "frames"
UNORDERED = {"topicList"}  # Java's hash order.


class Peer:
    """Sends captured bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def dial(cls, namesrv: Namesrv) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", namesrv.port))

    async def send(self, frame: bytes) -> Request:
        self._writer.write(frame)
        async with asyncio.timeout(30):
            opening = await self._reader.readexactly(4)
            rest = await self._reader.readexactly(int.from_bytes(opening, "big"))
        return codec.decode_command(opening + rest)

    def tell(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def replay(self, name: str) -> None:
        """Send a captured request; the answer must be the captured one."""
        answer = await self.send((FRAMES / f"{name}.request.bin").read_bytes())
        expected = codec.decode_command((FRAMES / f"{name}.response.bin").read_bytes())
        assert answer.code == expected.code
        assert answer.opaque == expected.opaque
        assert answer.flag == expected.flag
        assert answer.version == expected.version
        assert answer.serialize_type == expected.serialize_type
        assert answer.remark == expected.remark
        assert answer.ext() == expected.ext()
        assert bool(bytes(answer.raw_ext)) == bool(bytes(expected.raw_ext)), "extFields or none"
        if UNORDERED.isdisjoint(_members(expected.body)):
            assert answer.body == expected.body
        else:
            assert _sorted(answer.body) == _sorted(expected.body)

    def close(self) -> None:
        self._writer.close()


def _members(body: bytes) -> set[str]:
    return set(fastjson.loads(body)) if body.startswith(b"{") else set()


def _sorted(body: bytes) -> Any:
    value = fastjson.loads(body)
    return {key: sorted(item) if key in UNORDERED else item for key, item in value.items()}


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[Namesrv]:
    config = NamesrvConfig(
        listen_port=0,
        kv_config_path=str(tmp_path / "kv" / "kvConfig.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
    )
    namesrv = build_namesrv(config)
    await namesrv.start()
    yield namesrv
    await namesrv.stop()


@pytest.fixture
async def peer(namesrv: Namesrv) -> AsyncIterator[Peer]:
    peer = await Peer.dial(namesrv)
    yield peer
    peer.close()


async def test_registration_and_routes(peer: Peer) -> None:
    await peer.replay("103_REGISTER_BROKER.master-namesrv.1")
    await peer.replay("105_GET_ROUTEINFO_BY_TOPIC.client-namesrv.1")
    await peer.replay("105_GET_ROUTEINFO_BY_TOPIC.client-namesrv.2")
    await peer.replay("103_REGISTER_BROKER.slave-namesrv.1")
    for name in (
        "105_GET_ROUTEINFO_BY_TOPIC.client-namesrv.3",
        "105_GET_ROUTEINFO_BY_TOPIC.mqadmin-namesrv.1",
        "105_GET_ROUTEINFO_BY_TOPIC.mqadmin-namesrv.2",
        "105_GET_ROUTEINFO_BY_TOPIC.mqadmin-namesrv.3",
        "105_GET_ROUTEINFO_BY_TOPIC.binary-namesrv.binary.2",
        "105_GET_ROUTEINFO_BY_TOPIC.binary-namesrv.binary.3",
        "106_GET_BROKER_CLUSTER_INFO.mqadmin-namesrv.1",
        "106_GET_BROKER_CLUSTER_INFO.binary-namesrv.binary.1",
        "304_GET_SYSTEM_TOPIC_LIST_FROM_NS.client-namesrv.1",
        "311_GET_UNIT_TOPIC_LIST.client-namesrv.1",
        "312_GET_HAS_UNIT_SUB_TOPIC_LIST.client-namesrv.1",
        "313_GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST.client-namesrv.1",
        "104_UNREGISTER_BROKER.slave-namesrv.1",
        "104_UNREGISTER_BROKER.master-namesrv.1",
    ):
        await peer.replay(name)


async def test_oneway_registration_is_taken_and_not_answered(namesrv: Namesrv, peer: Peer) -> None:
    """The next answer on the connection is that of the next question."""
    await peer.replay("103_REGISTER_BROKER.master-namesrv.1")
    await peer.replay("103_REGISTER_BROKER.slave-namesrv.1")
    known = set(namesrv.routes.all_topics().topic_list)
    for name in ("103_REGISTER_BROKER.master-namesrv.2", "103_REGISTER_BROKER.slave-namesrv.2"):
        request = (FRAMES / f"{name}.request.bin").read_bytes()
        peer.tell(request)
        await peer.replay("304_GET_SYSTEM_TOPIC_LIST_FROM_NS.client-namesrv.1")
        address = codec.decode_command(request).ext()["brokerAddr"]
        assert namesrv.routes.data_version(address) == _data_version(request)
    assert "TopicVec" in set(namesrv.routes.all_topics().topic_list) - known


def _data_version(request: bytes) -> DataVersion:
    command = codec.decode_command(request)
    body = decode_registration(command.body, compressed=command.ext()["compressed"] == "true")
    return body.topic_config_serialize_wrapper.data_version


async def test_topic_lists_and_write_permission(namesrv: Namesrv, peer: Peer) -> None:
    """The state: exactly the topics that Apache's answer lists."""
    await peer.replay("103_REGISTER_BROKER.master-namesrv.1")
    for name, count in (
        ("224_GET_TOPICS_BY_CLUSTER.client-namesrv.1", 28),
        ("206_GET_ALL_TOPIC_LIST_FROM_NAMESERVER.mqadmin-namesrv.1", 30),
    ):
        listed = fastjson.loads(
            codec.decode_command((FRAMES / f"{name}.response.bin").read_bytes()).body
        )["topicList"]
        assert len(listed) == count
        namesrv.routes._take_topics("vec-broker", [TopicConfig(topic, 8, 8) for topic in listed])
        await peer.replay(name)
    namesrv.routes._take_topics(
        "vec-broker", [TopicConfig("AdminTopic"), TopicConfig("AdminOrder")]
    )
    await peer.replay("205_WIPE_WRITE_PERM_OF_BROKER.mqadmin-namesrv.1")
    await peer.replay("327_ADD_WRITE_PERM_OF_BROKER.mqadmin-namesrv.1")
    # Wiped and added again, the default topic lost its inherit bit: so it did at Apache's.
    await peer.replay("103_REGISTER_BROKER.slave-namesrv.1")
    await peer.replay("105_GET_ROUTEINFO_BY_TOPIC.binary-namesrv.binary.1")
    await peer.replay("216_DELETE_TOPIC_IN_NAMESRV.mqadmin-namesrv.1")
    assert namesrv.routes.route("TopicGone") is None


async def test_kv_configuration_and_order_topics(peer: Peer) -> None:
    for name in (
        "100_PUT_KV_CONFIG.client-namesrv.1",
        "219_GET_KVLIST_BY_NAMESPACE.client-namesrv.1",
        "102_DELETE_KV_CONFIG.client-namesrv.1",
        "101_GET_KV_CONFIG.client-namesrv.1",
        "101_GET_KV_CONFIG.mqadmin-namesrv.1",
        "100_PUT_KV_CONFIG.mqadmin-namesrv.1",
        "103_REGISTER_BROKER.master-namesrv.3",
        "103_REGISTER_BROKER.slave-namesrv.3",
        "101_GET_KV_CONFIG.mqadmin-namesrv.2",
        "102_DELETE_KV_CONFIG.mqadmin-namesrv.1",
    ):
        await peer.replay(name)


async def test_data_version_that_is_known_is_unchanged(namesrv: Namesrv, peer: Peer) -> None:
    await peer.replay("103_REGISTER_BROKER.master-namesrv.1")
    live = namesrv.routes._live["127.0.0.1:40911"]
    live.data_version = DataVersion(21, 1794776909302)
    await peer.replay("322_QUERY_DATA_VERSION.master-namesrv.1")
    live.data_version = DataVersion(20, 1794776909302)
    request = (FRAMES / "322_QUERY_DATA_VERSION.master-namesrv.1.request.bin").read_bytes()
    answer = await peer.send(request)
    assert answer.ext() == {"changed": "true"}
    assert fastjson.loads(answer.body)["counter"] == 20


async def test_configuration_is_shown_and_changed(namesrv: Namesrv, peer: Peer) -> None:
    name = "319_GET_NAMESRV_CONFIG.mqadmin-namesrv.1"
    answer = await peer.send((FRAMES / f"{name}.request.bin").read_bytes())
    captured = codec.decode_command((FRAMES / f"{name}.response.bin").read_bytes())
    ours = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    theirs = dict(line.split("=", 1) for line in captured.body.decode().splitlines())
    own_values = {"listenPort", "kvConfigPath", "configStorePath", "rocketmqHome"}
    for key in theirs.keys() - own_values:
        assert ours[key] == theirs[key]
    await peer.replay("318_UPDATE_NAMESRV_CONFIG.mqadmin-namesrv.1")
    assert namesrv.config.order_message_enable
    stored = Path(namesrv.config.config_store_path).read_text()
    assert "orderMessageEnable=true" in stored


async def test_unknown_code_is_refused_with_3(peer: Peer) -> None:
    """Apache stays silent; DECISIONS 5 rules otherwise."""
    answer = await peer.send((FRAMES / "9999_UNKNOWN.client-namesrv.1.request.bin").read_bytes())
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"


def test_every_captured_frame_of_a_name_server_is_used_here() -> None:
    rows = (json.loads(line) for line in (FRAMES / "frames.jsonl").read_text().splitlines())
    captured = {row["name"] for row in rows if "namesrv" in (row["from"], row["to"])}
    source = Path(__file__).read_text()
    assert {name for name in captured if f'"{name}' not in source} == set()
