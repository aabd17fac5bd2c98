"""Every request code of broker, name server and controller, by everyone who may not send it.

Made from the servers' own tables: a new code is walked the day it is served. Real processes, real
sockets. Each code is sent without an account, with a wrong signature, by an account without rights,
by one with the rights for another topic and group, and with fields that contradict each other. All
of it is refused, nothing is changed by it; then the account that may does the same and passes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.processes import process_group, wait_until
from support.raw_peer import RawPeer
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogController,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.remoting import codec, fastjson
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode as Code
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.request_table import Row
from twinlog.remoting.signing import AclSigner
from twinlog.testing.request_rows import broker_rows, controller_rows, namesrv_rows

RULES = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: administrator, secretKey: admin-secret, admin: true}
- accessKey: owner-of-mine
  secretKey: owner-secret
  topicPerms: [mine=PUB|SUB]
  groupPerms: [mine=SUB]
- accessKey: owner-of-other
  secretKey: other-secret
  topicPerms: [other=PUB|SUB]
  groupPerms: [other=SUB]
- {accessKey: nobody-at-all, secretKey: nobody-secret}
"""
ADMIN = AclSigner("administrator", "admin-secret")
OWNER = AclSigner("owner-of-mine", "owner-secret")
STRANGERS: dict[str, AclSigner | None] = {
    "no account": None,
    "unknown account": AclSigner("not-in-the-file", "owner-secret"),
    "wrong signature": AclSigner("administrator", "wrong-secret"),
}
UNENTITLED = {
    "account without rights": AclSigner("nobody-at-all", "nobody-secret"),
    "account of another topic and group": AclSigner("owner-of-other", "other-secret"),
}
DENIED = "AclException"
# What every account may ask; each has its reason in the server's table.
FOR_EVERY_ACCOUNT = {
    Code.GET_BROKER_RUNTIME_INFO, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_BROKER_HA_STATUS,
    Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE, Code.GET_ROUTEINFO_BY_TOPIC,
    Code.GET_BROKER_CLUSTER_INFO, Code.GET_TOPICS_BY_CLUSTER,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Code.TWINLOG_INFO,
    Code.CONTROLLER_GET_REPLICA_INFO, Code.CONTROLLER_GET_METADATA_INFO,
    Code.CONTROLLER_GET_SYNC_STATE_DATA, Code.TWINLOG_GROUPS, Code.TWINLOG_EVENTS,
    Code.TWINLOG_BUSIEST,
}  # fmt: skip
# What ends an account, a topic or a group comes last.
DESTRUCTIVE = (
    Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_SUBSCRIPTIONGROUP, Code.DELETE_ACL_CONFIG,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, Code.UNREGISTER_BROKER, Code.DELETE_TOPIC_IN_NAMESRV,
)  # fmt: skip
# Fields by which a request says which topic or group, and another name for each.
ALIASES = {"topic": "b", "b": "topic", "consumerGroup": "group", "group": "consumerGroup",
           "groupName": "group"}  # fmt: skip
HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [
        {"groupName": "mine", "subscriptionDataSet": [{"topic": "mine", "subString": "*"}]}
    ],
    "consumerGroup": "mine",
    "clientId": "c",
    "mqSet": [{"topic": "mine", "brokerName": "broker-a", "queueId": 0}],
    "group": "mine",
    "subscriptionData": {"topic": "mine", "subString": "*", "expressionType": "TAG"},
    "groupName": "mine",
}
BODIES: dict[int, bytes] = {
    Code.UPDATE_BROKER_CONFIG: b"fileReservedTime=71\n",
    Code.UPDATE_NAMESRV_CONFIG: b"orderMessageEnable=true\n",
    Code.TWINLOG_OFFSETS: b'{"offsetTable":{"mine@mine":{"0":77}}}',
    Code.QUERY_DATA_VERSION: b"{}",
    Code.REGISTER_BROKER: b"{}",
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: b'{"syncStateSet":[1],"syncStateSetEpoch":1}',
    Code.CONTROLLER_GET_SYNC_STATE_DATA: b'["broker-walk"]',
    Code.UPDATE_CONTROLLER_CONFIG: b"notifyBrokerRoleChanged=false\n",
    Code.BROKER_HEARTBEAT: b"",
}


class World:
    """What both servers are asked with."""

    namesrv: TwinlogNamesrv
    broker: TwinlogBroker
    controller: TwinlogController
    record = 0  # Where a message of topic `mine` is.
    half = 0

    def ask(
        self,
        port: int,
        code: int,
        ext: Mapping[str, Any],
        body: bytes = b"",
        signer: AclSigner | None = ADMIN,
    ) -> Request:
        command = RemotingCommand.request(code, ext, body)
        if signer is not None:
            signer.sign(command)
        with RawPeer(port) as peer:
            peer.send(codec.encode_command(command))
            return peer.read_answer()

    def values(self) -> dict[str, str]:
        """A value for each field by its name on the wire; the topic and group are `mine`."""
        record_id = f"7F000001{self.broker.port:08X}{self.record:016X}"
        return {
            "topic": "mine", "b": "mine", "consumerGroup": "mine", "group": "mine",
            "groupName": "mine", "srcGroup": "mine", "destGroup": "mine", "compareGroup": "mine",
            "offset": str(self.record), "commitLogOffset": str(self.half), "msgId": record_id,
            "producerGroup": "pg", "a": "pg", "defaultTopic": "TBW102", "c": "TBW102",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "commitOrRollback": "12",
            "accessKey": "brand-new-one", "secretKey": "brand-new-secret", "admin": "true",
            "globalWhiteAddrs": "10.255.255.1", "subscription": "*", "sysFlag": "4",
            "brokerName": "broker-walk", "brokerAddr": "127.0.0.1:9", "haServerAddr": "127.0.0.1:8",
            "clusterName": "walk", "cluster": "walk", "brokerId": "0", "haAddress": "127.0.0.1:8",
            "namespace": "walk", "key": "k", "value": "v", "clientID": "c", "clientId": "c",
            "delayLevel": "1", "maxMsgNums": "1", "readQueueNums": "1", "writeQueueNums": "1",
            "statsName": "TOPIC_PUT_NUMS", "statsKey": "mine", "batch": "false", "m": "false",
            "tranStateTableOffset": "0", "suspendTimeoutMillis": "0",
            "defaultTopicPerm": "PUB|SUB", "endTimestamp": "9999999999999",
            "appliedBrokerId": "3", "registerCheckCode": "127.0.0.1:9;x", "masterBrokerId": "1",
            "brokerAddress": "127.0.0.1:9", "learner": "true", "twinlogGroup": "broker-walk",
            "twinlogUnclean": "broker-walk", "brokerControllerIdsToClean": "1",
            "twinlogIncarnation": "walk", "twinlogPolicy": "{}", "limit": "5",
        }  # fmt: skip

    def ext(self, row: Row[Any]) -> dict[str, str]:
        known, ext = self.values(), {}
        for field in msgspec.structs.fields(row.header):
            name = field.encode_name
            if name in known:
                ext[name] = known[name]
            elif field.required:
                ext[name] = "0"
        if row.code == Code.TWINLOG_INFO:
            ext.pop("haAddress", None)  # To say that is walked on its own.
        return ext

    def body(self, row: Row[Any]) -> bytes:
        return BODIES.get(row.code) or fastjson.dumps(HEARTBEAT)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("walk")
    world = World()
    with process_group() as group:
        world.namesrv = start_twinlog_namesrv(home(directory, "namesrv"), aclEnable=True)
        group.add(world.namesrv)
        path = home(directory, "broker")
        world.broker = start_twinlog_broker(
            path, namesrv=world.namesrv.address, aclEnable=True, rocketmqHome=path,
            twinlogAccessKey="administrator", twinlogSecretKey="admin-secret",
            mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, deleteWhen="00",
            transactionCheckInterval=3_600_000,  # Nothing moves by itself while this walks.
        )  # fmt: skip
        group.add(world.broker)
        path = home(directory, "controller")
        world.controller = start_twinlog_controller(path, aclEnable=True, rocketmqHome=path)
        group.add(world.controller)
        world.namesrv.wait_registered(world.broker.address)
        prepare(world)
        yield world


def home(directory: Path, name: str) -> Path:
    (directory / name / "conf").mkdir(parents=True)
    (directory / name / "conf" / "plain_acl.yml").write_text(RULES)
    return directory / name


def prepare(world: World) -> None:
    port = world.broker.port
    for topic in ("mine", "other"):
        ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
               "perm": 6, "topicFilterType": "SINGLE_TAG"}  # fmt: skip
        assert world.ask(port, Code.UPDATE_AND_CREATE_TOPIC, ext).code == 0
        body = json.dumps({"groupName": topic}).encode()
        assert world.ask(port, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    world.record = send(world, "mine", "")
    world.half = send(world, "mine", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
    offset = {"consumerGroup": "mine", "topic": "mine", "queueId": 0, "commitOffset": 1}
    assert world.ask(port, Code.UPDATE_CONSUMER_OFFSET, offset).code == 0

    known = {"clusterName": "walk", "brokerName": "broker-walk", "appliedBrokerId": 1,
             "registerCheckCode": "127.0.0.1:1;x"}  # fmt: skip
    assert world.ask(world.controller.port, Code.CONTROLLER_APPLY_BROKER_ID, known).code == 0


def send_ext(topic: str, properties: str = "") -> dict[str, str]:
    return {
        "producerGroup": "pg", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "properties": properties,
    }  # fmt: skip


def send(world: World, topic: str, properties: str) -> int:
    """Where the message was stored."""
    answer = world.ask(world.broker.port, Code.SEND_MESSAGE, send_ext(topic, properties), b"secret")
    assert answer.code == 0, answer.remark
    return int(answer.ext()["msgId"][-16:], 16)


def controller_state(world: World) -> dict[str, Any]:
    """What it has written and what it shows; nobody sends heartbeats, so nothing moves."""
    directory = world.controller.directory / "controller"
    return {
        "records": (directory / "groups.json").read_bytes(),
        "events": (directory / "events").read_bytes(),
        "facts": world.ask(world.controller.port, Code.TWINLOG_GROUPS, {}).body,
        "config": world.ask(world.controller.port, Code.GET_CONTROLLER_CONFIG, {}).body,
    }


def broker_state(world: World) -> dict[str, Any]:
    """Everything that a request could change, as an administrator sees it."""
    port = world.broker.port
    state: dict[str, Any] = {
        code.name: world.ask(port, code, {}).body
        for code in (
            Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_BROKER_CONFIG, Code.GET_ALL_PRODUCER_INFO,
        )
    }  # fmt: skip
    offsets = fastjson.loads(world.ask(port, Code.GET_ALL_CONSUMER_OFFSET, {}).body)["offsetTable"]
    # The broker notes the progress of its own transactions in there by itself.
    state["offsets"] = {key: value for key, value in offsets.items() if "RMQ_SYS_" not in key}
    info = fastjson.loads(world.ask(port, Code.GET_BROKER_RUNTIME_INFO, {}).body)["table"]
    state["log"] = (info["commitLogMinOffset"], info["commitLogMaxOffset"])
    state["rules"] = (world.broker.directory / "conf" / "plain_acl.yml").read_bytes()
    for group in ("mine", "other"):
        answer = world.ask(port, Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        state[f"members of {group}"] = (answer.code, answer.body)
    return state


def namesrv_state(world: World) -> dict[str, Any]:
    port = world.namesrv.port
    state: dict[str, Any] = {
        code.name: world.ask(port, code, {"namespace": "walk"}).body
        for code in (
            Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.GET_KVLIST_BY_NAMESPACE, Code.GET_NAMESRV_CONFIG,
        )
    }  # fmt: skip
    return state


def walk_refusals(world: World, port: int, rows: list[Row[Any]]) -> tuple[int, list[Any]]:
    tried, passed = 0, []
    for row in rows:
        ext, body = world.ext(row), world.body(row)
        signers = dict(STRANGERS)
        if row.code not in FOR_EVERY_ACCOUNT:
            signers.update(UNENTITLED)
        for name, signer in signers.items():
            answer = world.ask(port, row.code, ext, body, signer)
            tried += 1
            if answer.code != 1 or DENIED not in (answer.remark or "") or answer.body:
                passed.append((Code(row.code).name, name, answer.code, answer.remark))
        for own, alias in ALIASES.items():
            if own not in ext:
                continue
            for said, hidden in (("mine", "other"), ("other", "mine")):
                wrong = {**ext, own: hidden, alias: said}
                answer = world.ask(port, row.code, wrong, body, OWNER)
                tried += 1
                if answer.code != 1 or DENIED not in (answer.remark or ""):
                    case = f"{own}={hidden} {alias}={said}"
                    passed.append((Code(row.code).name, case, answer.code, answer.remark))
    return tried, passed


def walk_entitled(world: World, port: int, rows: list[Row[Any]]) -> list[Any]:
    """The owner, or an administrator where that is asked for, is not refused."""
    refused = []
    late = [row for row in rows if row.code in DESTRUCTIVE]
    for row in [row for row in rows if row.code not in DESTRUCTIVE] + late:
        ext, body = world.ext(row), world.body(row)
        remark = world.ask(port, row.code, ext, body, OWNER).remark or ""
        if "Need admin permission" in remark:
            remark = world.ask(port, row.code, ext, body, ADMIN).remark or ""
        if DENIED in remark or "not supported" in remark or "Error" in remark.partition(":")[0]:
            refused.append((Code(row.code).name, remark))
    return refused


async def test_every_code_of_the_broker(world: World) -> None:
    rows = await broker_rows(acl_enable=True, rocketmq_home="/rules")
    assert len(rows) > 60
    for port in (world.broker.port, world.broker.port - 2):
        before = broker_state(world)
        served = [
            row for row in rows if port == world.broker.port or row.handler.__name__ != "pull"
        ]
        tried, passed = walk_refusals(world, port, served)
        assert passed == []
        assert tried > 300
        assert broker_state(world) == before
    assert walk_entitled(world, world.broker.port, rows) == []
    assert "Traceback" not in world.broker.output()


async def test_every_code_of_the_name_server(world: World) -> None:
    rows = namesrv_rows()
    assert len(rows) > 20
    before = namesrv_state(world)
    tried, passed = walk_refusals(world, world.namesrv.port, rows)
    assert passed == []
    assert tried > 80
    assert namesrv_state(world) == before
    assert walk_entitled(world, world.namesrv.port, rows) == []
    assert "Traceback" not in world.namesrv.output()


async def test_every_code_of_the_controller(world: World) -> None:
    rows = controller_rows()
    assert len(rows) > 14
    before = controller_state(world)
    tried, passed = walk_refusals(world, world.controller.port, rows)
    assert passed == []
    assert tried > 60
    assert controller_state(world) == before
    assert walk_entitled(world, world.controller.port, rows) == []
    assert controller_state(world) != before, "who may, does"
    assert "Traceback" not in world.controller.output()


def test_who_says_to_be_the_master_that_is_back_must_be_an_admin(world: World) -> None:
    ext = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0",
           "haAddress": "127.0.0.1:9"}  # fmt: skip
    answer = world.ask(world.broker.port, Code.TWINLOG_INFO, ext, signer=OWNER)
    assert "Need admin permission" in (answer.remark or "")


def test_a_message_cannot_be_read_by_sending_it_back(world: World) -> None:
    """The way round: to one's own retry topic, and pulled from there."""
    port, other = world.broker.port, UNENTITLED["account of another topic and group"]
    ext = {"offset": world.record, "group": "other", "delayLevel": 1, "originTopic": "other"}
    answer = world.ask(port, Code.CONSUMER_SEND_MSG_BACK, ext, signer=other)
    assert "topic:mine" in (answer.remark or "")
    # Nor by an offset within or next to a record.
    for offset in (world.record, world.record + 1, world.record - 1):
        answer = world.ask(port, Code.VIEW_MESSAGE_BY_ID, {"offset": offset}, signer=other)
        assert answer.body == b""


def test_the_audit_log_has_every_refusal_and_every_change(world: World) -> None:
    file = world.broker.store / "twinlog" / "audit.log"
    wait_until(file.exists, "the audit log is there")
    assert file.stat().st_mode & 0o777 == 0o600
    ext = {"topic": "audited", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
           "perm": 6, "topicFilterType": "SINGLE_TAG"}  # fmt: skip
    world.ask(world.broker.port, Code.UPDATE_AND_CREATE_TOPIC, ext)
    nobody = UNENTITLED["account without rights"]
    for _ in range(500):
        world.ask(world.broker.port, Code.UPDATE_AND_CREATE_TOPIC, ext, signer=nobody)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()]

    wait_until(lambda: any("audited" in line["resource"] for line in lines()), "the change is told")
    change = next(line for line in lines() if "audited" in line["resource"])
    assert change["account"] == "administrator"
    assert change["code"] == Code.UPDATE_AND_CREATE_TOPIC
    assert change["outcome"] == "done"
    assert change["address"].startswith("127.0.0.1:")
    refusals = [
        line for line in lines()
        if line["code"] == Code.UPDATE_AND_CREATE_TOPIC and line.get("claimed") == nobody.access_key
    ]  # fmt: skip
    assert 1 <= len(refusals) <= 5, "a flood is gathered"
    assert "Need admin permission" in refusals[0]["outcome"]
    text = file.read_text()
    assert "admin-secret" not in text
    assert "brand-new-secret" not in text


def test_a_consumer_is_not_handed_the_signature_of_who_asks_about_it(world: World) -> None:
    heartbeat = {**HEARTBEAT, "clientID": "asked"}
    command = RemotingCommand.request(Code.HEART_BEAT, {}, fastjson.dumps(heartbeat))
    OWNER.sign(command)
    with RawPeer(world.broker.port) as consumer, RawPeer(world.broker.port) as asker:
        consumer.send(codec.encode_command(command))
        assert read_code(consumer, is_response=True).code == 0
        question = RemotingCommand.request(
            Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "mine", "clientId": "asked"}
        )
        ADMIN.sign(question)
        asker.send(codec.encode_command(question))
        relayed = read_code(consumer, is_response=False, code=Code.GET_CONSUMER_RUNNING_INFO)
    assert relayed.ext()["consumerGroup"] == "mine"
    assert not {"AccessKey", "Signature"} & set(relayed.ext())


def read_code(peer: RawPeer, *, is_response: bool, code: int | None = None) -> Request:
    """The next command of a kind; a consumer is also told when its group changes."""
    while True:
        command = peer.read_answer()
        if command.is_response == is_response and code in (None, command.code):
            return command


@pytest.mark.parametrize("topics", [1, 3000])
def test_requests_behind_a_registration_that_is_read_elsewhere_find_it(
    world: World, topics: int
) -> None:
    """Read in a thread, answered in order; and gone with its connection."""
    table = {f"walked-{n}": TopicConfig(f"walked-{n}") for n in range(topics)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topic_config_table=table))
    with RawPeer(world.namesrv.port) as peer:
        for is_compressed in (True, False):
            data = encode_registration(body, compressed=is_compressed)
            ext = {"brokerName": "walked", "brokerAddr": "127.0.0.1:7", "clusterName": "walked",
                   "brokerId": "0", "haServerAddr": "127.0.0.1:6", "bodyCrc32": "0",
                   "compressed": str(is_compressed).lower()}  # fmt: skip
            register = RemotingCommand.request(Code.REGISTER_BROKER, ext, data)
            ask = RemotingCommand.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "walked-0"})
            register.opaque, ask.opaque = 1, 2
            for command in (register, ask):
                ADMIN.sign(command)
            peer.send(codec.encode_command(register) + codec.encode_command(ask))
            answers = [peer.read_answer(), peer.read_answer()]
            assert [(each.opaque, each.code) for each in answers] == [(1, 0), (2, 0)]
            assert b"127.0.0.1:7" in answers[1].body

    def is_gone() -> bool:
        return b"walked" not in world.ask(world.namesrv.port, Code.GET_BROKER_CLUSTER_INFO, {}).body

    wait_until(is_gone, "the broker is gone with its connection")


BOMBS = {
    "numbers": b"{'a':[" + b"1," * 7_900_000 + b"1]}",
    "standard": b'{"a":[' + b"1," * 7_900_000 + b"1]}",
    "groups": b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * 800_000 + b"{}]}",
}


@pytest.mark.parametrize("code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.CHECK_CLIENT_CONFIG])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_body_of_megabytes_is_refused_unread(world: World, code: Code, bomb: str) -> None:
    """Unsigned, with access control on: 25 to 54 s of the loop, once."""
    with RawPeer(world.broker.port) as peer:
        peer.send(codec.encode_command(RemotingCommand.request(code, {}, BOMBS[bomb])))
        answer = peer.read_answer()
        assert answer.code == 1
        assert "bytes, at most" in (answer.remark or "")
        # The connection goes on behind the body that was passed over.
        assert peer.ask().code == 3
    assert memory_peak(world.broker) < 400 << 20


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_registration_of_megabytes_is_not_read_before_its_signature(
    world: World, is_compressed: bool
) -> None:
    body = zlib.compress(bytes(200_000_000), 9) if is_compressed else BOMBS["numbers"]
    ext = {"brokerName": "x", "brokerAddr": "1.1.1.1:1", "clusterName": "c", "brokerId": "0",
           "haServerAddr": "1.1.1.1:2", "compressed": str(is_compressed).lower(),
           "bodyCrc32": "0"}  # fmt: skip
    port = world.namesrv.port
    answer = world.ask(port, Code.REGISTER_BROKER, ext, body, None)
    assert DENIED in (answer.remark or "")
    answer = world.ask(port, Code.REGISTER_BROKER, ext, body, ADMIN)
    assert answer.code == 1
    assert "Failed to decode RegisterBrokerBody" in (answer.remark or "")
    assert memory_peak(world.namesrv) < 600 << 20


def memory_peak(server: Any) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
