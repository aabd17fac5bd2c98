"""Access control on every request code: a new code cannot be forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from support.captured import Peer, open_without_ports, write_file
from twinlog.broker.server import Broker, build_broker
from twinlog.namesrv.server import build_namesrv
from twinlog.remoting import fastjson
from twinlog.remoting.acl import AclConfigError
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.config import BrokerConfig, NamesrvConfig
from twinlog.testing.simdisk import SimDisk

RULES: dict[str, Any] = {
    "globalWhiteRemoteAddresses": [],
    "accounts": [
        {"accessKey": "admin-key", "secretKey": "admin-secret", "admin": True},
        {
            "accessKey": "right-key",
            "secretKey": "right-secret",
            "topicPerms": ["T=PUB|SUB"],
            "groupPerms": ["g=SUB"],
        },
        {"accessKey": "other-key", "secretKey": "other-secret"},
    ],
}
BODY = fastjson.dumps(
    {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}]}],
        "consumerGroup": "g",
        "clientId": "c",
        "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}],
        "group": "g",
        "subscriptionData": {"topic": "T", "subString": "*"},
        "groupName": "g",
    }
)
# Everything that any of the codes reads, so that no request is refused for want of a field.
EXT = {
    "brokerName": "broker-a", "brokerRole": "SYNC_MASTER", "logEnd": "0",
    "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "4", "bornTimestamp": "1", "flag": "0", "consumerGroup": "g",
    "queueOffset": "0", "maxMsgNums": "1", "commitOffset": "0", "suspendTimeoutMillis": "0",
    "subVersion": "0", "subscription": "*", "group": "g", "offset": "0", "delayLevel": "0",
    "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1", "clientID": "c",
    "timestamp": "0", "groupName": "g", "clientId": "c", "msgId": "0" * 32, "srcGroup": "g",
    "destGroup": "g", "statsName": "X", "statsKey": "y", "compareGroup": "g", "index": "0",
    "count": "1", "accessKey": "new-account", "secretKey": "new-secret",
    "tranStateTableOffset": "0",
    "globalWhiteAddrs": "10.0.0.1", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "commitLogOffset": "0", "commitOrRollback": "12",
}  # fmt: skip
# Codes that show nothing of anybody, or name a record, and there is none: an account is enough.
FOR_EVERY_ACCOUNT = {
    "GET_BROKER_RUNTIME_INFO", "GET_SYSTEM_TOPIC_LIST_FROM_BROKER", "GET_BROKER_HA_STATUS",
    "TWINLOG_BUSIEST", "TWINLOG_EVENTS", "TWINLOG_INFO", "VIEW_MESSAGE_BY_ID", "END_TRANSACTION",
}  # fmt: skip
# Codes that ask for the topic or the group they touch, here and in 4.9.
RESOURCE = {
    "SEND_MESSAGE", "SEND_MESSAGE_V2", "SEND_BATCH_MESSAGE", "SEND_REPLY_MESSAGE",
    "SEND_REPLY_MESSAGE_V2", "CONSUMER_SEND_MSG_BACK", "PULL_MESSAGE", "LITE_PULL_MESSAGE",
    "QUERY_MESSAGE", "HEART_BEAT", "UNREGISTER_CLIENT", "GET_CONSUMER_LIST_BY_GROUP",
    "UPDATE_CONSUMER_OFFSET",
}  # fmt: skip
# The same for codes that 4.9 leaves open to every account.
RESOURCE_UNLESS_APACHE = {
    "QUERY_CONSUMER_OFFSET", "SEARCH_OFFSET_BY_TIMESTAMP", "GET_MAX_OFFSET", "GET_MIN_OFFSET",
    "GET_EARLIEST_MSG_STORETIME", "LOCK_BATCH_MQ", "UNLOCK_BATCH_MQ", "CHECK_CLIENT_CONFIG",
    "GET_TOPIC_STATS_INFO", "GET_CONSUMER_CONNECTION_LIST", "GET_CONSUME_STATS",
    "INVOKE_BROKER_TO_RESET_OFFSET", "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
    "QUERY_TOPIC_CONSUME_BY_WHO", "QUERY_CONSUME_TIME_SPAN", "GET_CONSUMER_RUNNING_INFO",
    "QUERY_CORRECTION_OFFSET", "CONSUME_MESSAGE_DIRECTLY", "CLONE_GROUP_OFFSET",
    "QUERY_CONSUME_QUEUE", "GET_TOPIC_CONFIG", "GET_SUBSCRIPTIONGROUP_CONFIG",
}  # fmt: skip
ADMIN_ALONE = {
    "UPDATE_AND_CREATE_TOPIC", "DELETE_TOPIC_IN_BROKER", "UPDATE_BROKER_CONFIG",
    "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "DELETE_SUBSCRIPTIONGROUP",
    "UPDATE_AND_CREATE_ACL_CONFIG", "DELETE_ACL_CONFIG", "GET_BROKER_CLUSTER_ACL_INFO",
    "GET_BROKER_CLUSTER_ACL_CONFIG",
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG", "TWINLOG_OFFSETS", "TWINLOG_REPLICA", "TWINLOG_PROMOTE",
    "TWINLOG_LOG_DIGESTS", "TWINLOG_LOG_RANGE", "TWINLOG_SCRUB",
}  # fmt: skip
ADMIN_UNLESS_APACHE = {
    "GET_ALL_TOPIC_CONFIG", "GET_BROKER_CONFIG", "GET_ALL_CONSUMER_OFFSET", "GET_ALL_DELAY_OFFSET",
    "GET_ALL_SUBSCRIPTIONGROUP_CONFIG", "GET_PRODUCER_CONNECTION_LIST", "GET_ALL_PRODUCER_INFO",
    "CLEAN_EXPIRED_CONSUMEQUEUE", "CLEAN_UNUSED_TOPIC", "DELETE_EXPIRED_COMMITLOG",
    "VIEW_BROKER_STATS_DATA", "GET_BROKER_CONSUME_STATS", "RESUME_CHECK_HALF_MESSAGE",
}  # fmt: skip
TO_CLIENTS = {
    "CHECK_TRANSACTION_STATE", "NOTIFY_CONSUMER_IDS_CHANGED", "RESET_CONSUMER_CLIENT_OFFSET",
    "GET_CONSUMER_STATUS_FROM_CLIENT", "PUSH_REPLY_MESSAGE_TO_CLIENT", "GET_CLIENT_CONFIG",
}  # fmt: skip
WITHOUT_HANDLER_IN_4_9 = {
    "QUERY_BROKER_OFFSET", "GET_TOPIC_CONFIG_LIST", "GET_TOPIC_NAME_LIST", "TRIGGER_DELETE_FILES",
    "SUSPEND_CONSUMER", "RESUME_CONSUMER", "RESET_CONSUMER_OFFSET_IN_CONSUMER",
    "RESET_CONSUMER_OFFSET_IN_BROKER", "ADJUST_CONSUMER_THREAD_POOL", "WHO_CONSUME_THE_MESSAGE",
    # Filter servers, which have gone.
    "REGISTER_FILTER_SERVER", "REGISTER_MESSAGE_FILTER_CLASS",
}  # fmt: skip
OF_VERSION_5 = {
    "UPDATE_AND_CREATE_TOPIC_LIST", "REGISTER_TOPIC_IN_NAMESRV", "QUERY_TOPICS_BY_CONSUMER",
    "QUERY_SUBSCRIPTION_BY_CONSUMER", "UPDATE_AND_GET_GROUP_FORBIDDEN", "QUERY_ASSIGNMENT",
    "SET_MESSAGE_REQUEST_MODE", "GET_ALL_MESSAGE_REQUEST_MODE", "GET_BROKER_MEMBER_GROUP",
    "ADD_BROKER", "REMOVE_BROKER", "NOTIFY_MIN_BROKER_ID_CHANGE", "EXCHANGE_BROKER_HA_INFO",
    "RESET_MASTER_FLUSH_OFFSET", "CONTROLLER_ALTER_SYNC_STATE_SET", "CONTROLLER_ELECT_MASTER",
    "CONTROLLER_REGISTER_BROKER", "CONTROLLER_GET_REPLICA_INFO", "CONTROLLER_GET_METADATA_INFO",
    "CONTROLLER_GET_SYNC_STATE_DATA", "GET_BROKER_EPOCH_CACHE", "NOTIFY_BROKER_ROLE_CHANGED",
    "UPDATE_CONTROLLER_CONFIG", "GET_CONTROLLER_CONFIG", "CLEAN_BROKER_DATA",
    "CONTROLLER_GET_NEXT_BROKER_ID", "CONTROLLER_APPLY_BROKER_ID", "POP_MESSAGE", "ACK_MESSAGE",
    "PEEK_MESSAGE", "CHANGE_MESSAGE_INVISIBLETIME", "NOTIFICATION", "POLLING_INFO",
    "BATCH_ACK_MESSAGE",
    # Of ours, and answered in a controlled group only.
    "TWINLOG_RELAY",
    # Of a controller.
    "TWINLOG_ADOPT", "TWINLOG_GROUPS", "TWINLOG_SET_LEARNER",
}  # fmt: skip
WITHOUT_TOPIC = {key: value for key, value in EXT.items() if key != "topic"}
DENIED = "AclException"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/rules/conf")
    write_file(disk, "/rules/conf/plain_acl.yml", yaml.safe_dump(RULES).encode())
    return disk


def make(disk: SimDisk, *, as_apache: bool = False) -> Broker:
    config = BrokerConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=400,
        acl_enable=True,
        rocketmq_home="/rules",
        twinlog_acl_as_apache=as_apache,
    )
    return build_broker(config, rng=random.Random(1), disk=disk)


@pytest.fixture
async def broker(disk: SimDisk) -> AsyncIterator[Broker]:
    broker = make(disk)
    await open_without_ports(broker)
    yield broker
    await broker.stop()


async def ask(
    broker: Broker, code: int, signer: AclSigner | None, ext: dict[str, str] | None = None
) -> tuple[int, str]:
    peer = Peer(broker.server)
    command = RemotingCommand.request(code, ext or EXT, BODY)
    if signer is not None:
        signer.sign(command)
    try:
        answer = await peer.ask(encode_command(command))
    finally:
        peer.close()
    return answer.code, answer.remark or ""


ADMIN = AclSigner("admin-key", "admin-secret")
RIGHT = AclSigner("right-key", "right-secret")
OTHER = AclSigner("other-key", "other-secret")


WRONG = AclSigner("right-key", "wrong-secret")
UNKNOWN = AclSigner("unknown-key", "right-secret")
PASSED, UNSERVED = "passed", "not supported"
# By what a request needs: what is answered (a word of it) to no account, a wrong key, an account
# without permission, one with the permission for topic and group, an administrator.
SIGNERS = (None, UNKNOWN, WRONG, OTHER, RIGHT, ADMIN)
STRANGERS = ("No accessKey", "No acl config", "Check signature failed")
ANSWERS = {
    "resource": (*STRANGERS, "No default permission", PASSED, PASSED),
    "admin": (*STRANGERS, "Need admin permission", "Need admin permission", PASSED),
    "account": (*STRANGERS, PASSED, PASSED, PASSED),
    "unserved": (UNSERVED,) * len(SIGNERS),
}


def need(code: RequestCode, *, as_apache: bool = False) -> str:
    if code.name in (RESOURCE if as_apache else RESOURCE | RESOURCE_UNLESS_APACHE):
        return "resource"
    if code.name in (ADMIN_ALONE if as_apache else ADMIN_ALONE | ADMIN_UNLESS_APACHE):
        return "admin"
    every = FOR_EVERY_ACCOUNT | RESOURCE_UNLESS_APACHE | ADMIN_UNLESS_APACHE
    return "account" if code.name in every else "unserved"


@pytest.mark.parametrize("as_apache", [False, True])
@pytest.mark.parametrize("column", range(len(SIGNERS)))
async def test_table_of_every_code_and_account(disk: SimDisk, column: int, as_apache: bool) -> None:
    """Made from the enumeration: a code that is served and in no list above is found here."""
    broker = make(disk, as_apache=as_apache)
    await open_without_ports(broker)
    wrong = {}
    for code in RequestCode:
        answer, remark = await ask(broker, code, SIGNERS[column])
        expected = ANSWERS[need(code, as_apache=as_apache)][column]
        if expected == PASSED:
            is_right = DENIED not in remark and UNSERVED not in remark
        elif expected == UNSERVED:
            is_right = answer == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        else:
            is_right = answer == ResponseCode.SYSTEM_ERROR and DENIED in remark
            is_right = is_right and expected in remark
        if not is_right:
            wrong[code.name] = (answer, remark, expected)
    await broker.stop()
    assert wrong == {}


async def test_what_is_not_served_is_of_other_servers_or_of_none(broker: Broker) -> None:
    """A new code of the enumeration belongs to a server or, with a reason, to this list."""
    unserved = {code for code in RequestCode if need(code) == "unserved"}
    assert unserved == {code for code in RequestCode if code not in broker.requests.table.rows}
    config = NamesrvConfig(listen_port=0, kv_config_path="/kv", config_store_path="/properties")
    unserved -= build_namesrv(config, disk=SimDisk()).processor.codes
    assert {code.name for code in unserved} == TO_CLIENTS | WITHOUT_HANDLER_IN_4_9 | OF_VERSION_5


async def test_other_topics_and_retry_topics_are_told_apart(broker: Broker) -> None:
    code = RequestCode.SEND_MESSAGE_V2
    assert DENIED in (await ask(broker, code, RIGHT, {**WITHOUT_TOPIC, "b": "Secret"}))[1]
    assert DENIED in (await ask(broker, code, RIGHT, {**WITHOUT_TOPIC, "b": "%RETRY%other"}))[1]
    assert DENIED not in (await ask(broker, code, RIGHT, {**WITHOUT_TOPIC, "b": "%RETRY%g"}))[1]


async def test_strangers_do_not_wait_at_the_gate_of_a_starting_master(broker: Broker) -> None:
    """They could fill it, and consumers would be answered by offsets that are too old."""
    broker.pair.offset_return.close_gate()
    async with asyncio.timeout(30):
        for signer in (None, WRONG, OTHER):
            assert DENIED in (await ask(broker, RequestCode.PULL_MESSAGE, signer))[1]


async def test_rules_change_without_a_restart(broker: Broker, disk: SimDisk) -> None:
    assert broker.guard is not None
    write_file(disk, "/rules/conf/plain_acl.yml", b"accounts: {damaged\n" + b" " * 4096)
    assert not broker.guard.files.reload_if_changed(), "a damaged file changes nothing"
    assert DENIED not in (await ask(broker, RequestCode.SEND_MESSAGE_V2, RIGHT))[1]


async def test_without_the_file_the_broker_does_not_start() -> None:
    broker = make(SimDisk())
    with pytest.raises(AclConfigError, match=r"plain_acl\.yml"):
        await broker.start()
    await broker.client.close()


async def test_accounts_are_administered(broker: Broker) -> None:
    assert (await ask(broker, 50, ADMIN))[0] == 0
    assert (await ask(broker, 52, ADMIN))[0] == 0
    new = AclSigner("new-account", "new-secret")
    assert "No acl config" not in (await ask(broker, 34, new))[1]
    assert (await ask(broker, 51, ADMIN, {**EXT, "accessKey": "new-account"}))[0] == 0
    assert "No acl config" in (await ask(broker, 34, new))[1]
    answer, remark = await ask(broker, 50, ADMIN, {**EXT, "accessKey": "short"})
    assert answer == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert "longer than 6" in remark
