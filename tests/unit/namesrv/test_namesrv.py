"""A running name server: liveness over real connections, KV file, refusals."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from twinlog.namesrv.config_update import FORBIDDEN
from twinlog.namesrv.kv_config import KVConfigError, KVConfigManager
from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
    decode_registration,
    encode_registration,
)
from twinlog.remoting.bodies.route import TopicRouteData
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import CommandError
from twinlog.remoting.headers import namesrv as headers
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import NamesrvConfig
from twinlog.runtime.config_key import declarations, live_keys
from twinlog.runtime.disk import PosixDisk

BODY = RegisterBrokerBody(
    TopicConfigSerializeWrapper(DataVersion(3, 1700000000000), {"T": TopicConfig("T", 4, 4)})
)
# From the specification: counter 3, one topic with four queues.
COMPRESSED = bytes.fromhex(
    "78DA63606050AF564ACE2FCD2B492D52B232D6512AC9CC4D2D2E49CC2D50B232343740805A0606064620160A51300"
    "1423385604F3F771FD7F8104777A02853742C00C3351103"
)


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[Namesrv]:
    namesrv = build_namesrv(_config(tmp_path))
    await namesrv.start()
    yield namesrv
    await namesrv.stop()


def _config(directory: Path) -> NamesrvConfig:
    return NamesrvConfig(
        listen_port=0,
        kv_config_path=str(directory / "kvConfig.json"),
        config_store_path=str(directory / "namesrv.properties"),
    )


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


def registration(
    broker_id: int = 0, *, compressed: bool = False, crc: int | None = None
) -> RemotingCommand:
    body = encode_registration(BODY, compressed=compressed)
    header = headers.RegisterBrokerRequestHeader(
        "b", f"10.0.0.{broker_id}:1", "c", f"10.0.0.{broker_id}:2", broker_id,
        compressed, body_crc32(body) if crc is None else crc,
    )  # fmt: skip
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)


async def ask(
    client: RemotingClient, namesrv: Namesrv, code: int, header: object = None, body: bytes = b""
) -> Request:
    command = RemotingCommand.request(code, header, body)  # type: ignore[arg-type]
    return await client.invoke(namesrv.address, command, 30_000)


async def route_of(client: RemotingClient, namesrv: Namesrv) -> TopicRouteData | None:
    header = headers.GetRouteInfoRequestHeader("T")
    answer = await ask(client, namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == 0
    return fastjson.loads_as(answer.body, TopicRouteData)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event.
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("compressed", [False, True])
async def test_twinlog_broker_learns_that_heartbeats_are_taken(
    client: RemotingClient, namesrv: Namesrv, compressed: bool
) -> None:
    answer = await client.invoke(namesrv.address, registration(compressed=compressed), 30_000)
    assert answer.ext().keys() == {"twinlog", "twinlogDigest"}
    assert answer.ext()["twinlog"] == "1"
    route = await route_of(client, namesrv)
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 4


def test_compressed_registration_of_the_specification_decodes() -> None:
    body = decode_registration(COMPRESSED, compressed=True)
    assert body == BODY
    encoded = encode_registration(BODY, compressed=True)
    assert zlib.decompress(encoded) == zlib.decompress(COMPRESSED)


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        (b"{", False),
        (b"[]", False),
        (COMPRESSED[:-4], True),
        (b"\0" * 20, True),
        (zlib.compress(b"\x7f\xff\xff\xff"), True),
        (zlib.compress(b"\0\0\0\2{}\0\0\0\1\0\0\0\1T\0\0\0\2[]"), True),
    ],
)
def test_unreadable_registration_is_refused(body: bytes, compressed: bool) -> None:
    with pytest.raises(CommandError, match="Failed to decode RegisterBrokerBody"):
        decode_registration(body, compressed=compressed)


async def test_wrong_checksum_is_refused(client: RemotingClient, namesrv: Namesrv) -> None:
    answer = await client.invoke(namesrv.address, registration(crc=12345), 30_000)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert await route_of(client, namesrv) is None
    answer = await client.invoke(namesrv.address, registration(crc=0), 30_000)
    assert answer.code == 0


async def test_the_journal_has_who_came_and_left_since_the_last_look(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    """Red: who saw that a broker was gone, and asked why, heard that it had never been there."""
    await client.invoke(namesrv.address, registration(), 30_000)
    header = headers.UnregisterBrokerRequestHeader("b", "10.0.0.0:1", "c", 0)
    assert (await ask(client, namesrv, RequestCode.UNREGISTER_BROKER, header)).code == 0
    answer = await ask(client, namesrv, RequestCode.TWINLOG_EVENTS)
    events = msgspec.json.decode(answer.body)["events"]
    kinds = [(event["event"], event["group"]) for event in events if event.get("group")]
    assert kinds == [("broker-registered", "b"), ("broker-left", "b")]


async def test_closed_connection_removes_its_broker_at_once(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    brokers = [RemotingClient(clock=SystemClock()) for _ in range(2)]
    for broker_id, broker in enumerate(brokers):
        await broker.invoke(namesrv.address, registration(broker_id), 30_000)
    await brokers[0].close()
    await until(lambda: 0 not in namesrv.routes.cluster_info().broker_addr_table["b"].broker_addrs)
    route = await route_of(client, namesrv)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.1:1"}
    await brokers[1].close()
    await until(lambda: namesrv.routes.route("T") is None)
    assert await route_of(client, namesrv) is None


async def test_broker_that_falls_silent_after_heartbeats_is_out_and_may_return(
    client: RemotingClient, namesrv: Namesrv, caplog: pytest.LogCaptureFixture
) -> None:
    broker = RemotingClient(clock=SystemClock())
    heartbeat = headers.BrokerHeartbeatRequestHeader("c", "10.0.0.0:1", "b")
    answer = await ask(broker, namesrv, RequestCode.BROKER_HEARTBEAT, heartbeat)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    await broker.invoke(namesrv.address, registration(), 30_000)
    answer = await ask(broker, namesrv, RequestCode.BROKER_HEARTBEAT, heartbeat)
    assert answer.code == 0
    assert await route_of(client, namesrv) is not None
    await until(lambda: namesrv.routes.route("T") is None)
    assert "no heartbeat for" in caplog.text
    # The name server closed the connection: a broker that was only frozen sees it and registers.
    await until(lambda: broker.connection(namesrv.address) is None)
    await broker.invoke(namesrv.address, registration(), 30_000)
    assert await route_of(client, namesrv) is not None
    await broker.close()


async def test_registration_without_body_knows_no_topics(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    command = registration()
    command.body = b""
    command.ext()["bodyCrc32"] = "0"
    assert (await client.invoke(namesrv.address, command, 30_000)).code == 0
    assert namesrv.routes.data_version("10.0.0.0:1") == DataVersion(0, 0)


async def test_old_broker_registers_with_a_bare_topic_table(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    command = registration(crc=0)
    command.version = 36
    command.body = fastjson.dumps(BODY.topic_config_serialize_wrapper)
    assert (await client.invoke(namesrv.address, command, 30_000)).code == 0
    assert namesrv.routes.route("T") is not None


@pytest.mark.parametrize(
    ("version", "standard", "quoted"),
    [(399, False, False), (399, True, True), (401, False, True)],
)
async def test_integer_keys_are_quoted_for_who_reads_standard_json(
    client: RemotingClient, namesrv: Namesrv, version: int, standard: bool, quoted: bool
) -> None:
    await client.invoke(namesrv.address, registration(), 30_000)
    header = headers.GetRouteInfoRequestHeader("T", standard)
    command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    command.version = version
    answer = await client.invoke(namesrv.address, command, 30_000)
    assert (b'{"0":"10.0.0.0:1"}' in answer.body) is quoted
    assert (b'{0:"10.0.0.0:1"}' in answer.body) is not quoted


async def test_order_configuration_appears_in_the_route_when_it_is_switched_on(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    await client.invoke(namesrv.address, registration(), 30_000)
    put = headers.PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T", "b:4")
    await ask(client, namesrv, RequestCode.PUT_KV_CONFIG, put)
    route = await route_of(client, namesrv)
    assert route is not None
    assert route.order_topic_conf is None
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    assert (await ask(client, namesrv, code, body=b"orderMessageEnable=true\n")).code == 0
    route = await route_of(client, namesrv)
    assert route is not None
    assert route.order_topic_conf == "b:4"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"kvConfigPath=/elsewhere\n", 16, "Can not update config path"),
        (b"rocketmqHome=/elsewhere\n", 16, "Can not update config path"),
        (b"listenPort=1\norderMessageEnable=true\n", 16, "listenPort"),
        (b"noSuchKey=1\n", 16, "noSuchKey"),
        (b"orderMessageEnable=perhaps\n", 1, "orderMessageEnable"),
    ],
)
async def test_configuration_change_is_refused_whole(
    client: RemotingClient, namesrv: Namesrv, body: bytes, code: int, said: str
) -> None:
    answer = await ask(client, namesrv, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert answer.code == code
    assert said in (answer.remark or "")
    assert not namesrv.config.order_message_enable


# What is seen of each key that may be changed: the test above.
OBSERVED = {"orderMessageEnable"}


async def test_every_key_has_its_effect_at_once_or_is_refused_with_the_reason(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    assert live_keys(NamesrvConfig) == OBSERVED, "say here what can be seen of a new one"
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    assert (await ask(client, namesrv, code, body=b"orderMessageEnable=true\n")).code == 0
    shown = await ask(client, namesrv, RequestCode.GET_NAMESRV_CONFIG)
    assert b"orderMessageEnable=true\n" in bytes(shown.body)
    keys = {declared.key for declared in declarations(NamesrvConfig).values()}
    for key in sorted(keys - live_keys(NamesrvConfig) - FORBIDDEN):
        answer = await ask(client, namesrv, code, body=f"{key}=1\n".encode())
        assert answer.code == 16, key
        assert answer.remark.startswith(f"{key} is read when the name server starts") or (
            answer.remark.startswith((f"{key} has no effect here", f"{key} is refused"))
        )


async def test_missing_field_is_named_and_the_connection_stays(
    client: RemotingClient, namesrv: Namesrv
) -> None:
    answer = await ask(client, namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert answer.code == 1
    assert answer.remark == "the field topic of the request header is missing"
    answer = await ask(client, namesrv, RequestCode.PUT_KV_CONFIG, {"key": "k"})
    assert (answer.code, answer.remark) == (1, "namespace or key is null")
    first = client.connection(namesrv.address)
    assert first is not None
    assert not first.is_closed


async def test_kv_configuration_survives_a_restart(
    client: RemotingClient, tmp_path: Path, namesrv: Namesrv
) -> None:
    put = headers.PutKVConfigRequestHeader("ns", "k\u4e2d", "v")
    assert (await ask(client, namesrv, RequestCode.PUT_KV_CONFIG, put)).code == 0
    text = (tmp_path / "kvConfig.json").read_text()
    assert text == '{"configTable":{"ns":{"k\u4e2d":"v"}}}'
    again = build_namesrv(_config(tmp_path))
    await again.start()
    assert again.kv.get("ns", "k\u4e2d") == "v"
    await again.stop()


async def test_unreadable_kv_file_stops_the_start_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"ns":')
    with pytest.raises(KVConfigError, match="cannot be read"):
        KVConfigManager(PosixDisk(), str(path)).load()
    path.write_text("  ")
    manager = KVConfigManager(PosixDisk(), str(path))
    manager.load()
    manager.put("a", "b", "c")
    assert await manager.saver.save() == ""
    manager.delete("a", "b")
    assert await manager.saver.save() == ""
    manager.delete("no", "such")
    assert manager.namespace("a") == {}
    assert manager.namespace("no") is None
    assert (tmp_path / "kvConfig.json.bak").read_text() == '{"configTable":{"a":{"b":"c"}}}'
