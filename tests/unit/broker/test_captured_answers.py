"""Our broker, in the state Apache's was in, answers the captured requests as Apache's did.

Every captured frame to or from a broker is a row of CASES, of PUSHED, or of LEFT_OUT with its
reason. A row says how the state is reached; everything else is compared.
"""

from __future__ import annotations

import asyncio

import pytest

from support.captured import (
    LOG_END,
    Peer,
    body_of,
    frame,
    log_end_at,
    records,
    request_frame,
    response,
    slave_config,
    world,
)
from support.captured_states import (
    PUSH_VEC,
    SQL,
    TAGS,
    TRANSACTION_CODES,
    Case,
    all_offsets_of_answer,
    assert_same_record,
    both,
    captured_names,
    counted,
    delays_of_answer,
    masked,
    member,
    offsets_of_answer,
    online,
    plain,
    producer,
    relaying,
    same_request,
    slave,
    stalled_slave,
    tables_of_answer,
)
from twinlog.remoting import fastjson
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.config import BrokerRole

# Rows. Ends without a number follow from the answer (`_end_of`).

SYNC = {"broker_role": BrokerRole.SYNC_MASTER}
NO_TABLES = Case(tables=False, end=0)
RUNTIME = frozenset(
    {
        "msgPutTotalTodayNow", "putMessageDistributeTime", "msgGetTotalTodayNow", "bootTimestamp",
        "runtime", "putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps",
        "putMessageFailedTimes", "putLatency999", "putLatency99", "getMessageEntireTimeMax",
        "putMessageTimesTotal", "putMessageEntireTimeMax", "putMessageAverageSize",
        "putMessageSizeTotal", "commitLogDiskRatio", "consumeQueueDiskRatio",
        "commitLogDirCapacity", "commitLogMaxOffset", "earliestMessageTimeStamp",
        "brokerVersion", "brokerVersionDesc", "remainHowManyDataToFlush",
    }
)  # fmt: skip

CASES: dict[str, Case] = {
    # Sends
    "310_SEND_MESSAGE_V2.client-master.1": NO_TABLES,
    "310_SEND_MESSAGE_V2.client-master.2": masked(
        "remark", config={"broker_role": BrokerRole.SYNC_MASTER}
    ),
    "310_SEND_MESSAGE_V2.client-master.4": Case(),
    "310_SEND_MESSAGE_V2.client-master.5": Case(),
    "310_SEND_MESSAGE_V2.client-master.6": Case(),
    "310_SEND_MESSAGE_V2.client-master.7": Case(),
    "310_SEND_MESSAGE_V2.client-master.8": masked(
        "remark",
        config={"broker_role": BrokerRole.SYNC_MASTER, "slave_timeout": 50},
        setup=stalled_slave,
    ),
    "310_SEND_MESSAGE_V2.mqadmin-master.1": Case(),
    "310_SEND_MESSAGE_V2.binary-master.binary.1": Case(),
    "320_SEND_BATCH_MESSAGE.client-master.1": Case(),
    "320_SEND_BATCH_MESSAGE.binary-master.binary.1": Case(),
    "010_SEND_MESSAGE.client-master.1": Case(),
    "010_SEND_MESSAGE.client-master.2": Case(),
    "010_SEND_MESSAGE.client-master.3": Case(),
    "010_SEND_MESSAGE.client-master.4": Case(),
    "010_SEND_MESSAGE.client-master.5": Case(),
    "010_SEND_MESSAGE.client-master.6": Case(config={"max_message_size": 1000}),
    "010_SEND_MESSAGE.client-slave.1": slave(masked=frozenset({"remark"})),
    "036_CONSUMER_SEND_MSG_BACK.client-master.1": Case(),
    "036_CONSUMER_SEND_MSG_BACK.client-master.2": Case(),
    # Topics, groups, configuration
    "017_UPDATE_AND_CREATE_TOPIC.client-master.1": Case(),
    "017_UPDATE_AND_CREATE_TOPIC.mqadmin-master.1": Case(),
    "017_UPDATE_AND_CREATE_TOPIC.client-slave.1": slave(),
    "025_UPDATE_BROKER_CONFIG.client-master.1": Case(),
    "025_UPDATE_BROKER_CONFIG.mqadmin-master.1": Case(),
    "026_GET_BROKER_CONFIG.mqadmin-master.1": masked("version", "body"),
    "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.client-master.1": Case(),
    "200_UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.mqadmin-master.1": Case(),
    "207_DELETE_SUBSCRIPTIONGROUP.mqadmin-master.1": Case(),
    "215_DELETE_TOPIC_IN_BROKER.mqadmin-master.1": Case(),
    **{
        name: Case(setup=tables_of_answer(name))
        for name in (
            "021_GET_ALL_TOPIC_CONFIG.slave-master.1",
            "021_GET_ALL_TOPIC_CONFIG.client-master.1",
            "021_GET_ALL_TOPIC_CONFIG.mqadmin-master.1",
            "043_GET_ALL_CONSUMER_OFFSET.slave-master.1",
            "045_GET_ALL_DELAY_OFFSET.slave-master.1",
            "201_GET_ALL_SUBSCRIPTIONGROUP_CONFIG.slave-master.1",
            "201_GET_ALL_SUBSCRIPTIONGROUP_CONFIG.client-master.1",
            "201_GET_ALL_SUBSCRIPTIONGROUP_CONFIG.mqadmin-master.1",
        )
    },
    "305_GET_SYSTEM_TOPIC_LIST_FROM_BROKER.client-master.1": Case(),
    "305_GET_SYSTEM_TOPIC_LIST_FROM_BROKER.mqadmin-master.1": Case(),
    "306_CLEAN_EXPIRED_CONSUMEQUEUE.mqadmin-master.1": Case(),
    "316_CLEAN_UNUSED_TOPIC.mqadmin-master.1": Case(),
    "329_DELETE_EXPIRED_COMMITLOG.mqadmin-master.1": Case(),
    # Clients
    **{
        name: Case()
        for name in (
            "034_HEART_BEAT.client-master.1",
            "034_HEART_BEAT.client-master.2",
            "034_HEART_BEAT.mqadmin-master.1",
            "034_HEART_BEAT.binary-master.binary.1",
            "034_HEART_BEAT.binary-master.binary.2",
            *(f"035_UNREGISTER_CLIENT.client-master.{n}" for n in range(1, 5)),
            *(f"035_UNREGISTER_CLIENT.mqadmin-master.{n}" for n in range(1, 4)),
            *(f"035_UNREGISTER_CLIENT.binary-master.binary.{n}" for n in range(1, 5)),
        )
    },
    **{
        name: slave()
        for name in (
            "034_HEART_BEAT.client-slave.1",
            "034_HEART_BEAT.client-slave.2",
            "034_HEART_BEAT.binary-slave.binary.1",
            "034_HEART_BEAT.binary-slave.binary.2",
            *(f"035_UNREGISTER_CLIENT.client-slave.{n}" for n in range(1, 5)),
            *(f"035_UNREGISTER_CLIENT.mqadmin-slave.{n}" for n in range(1, 4)),
            *(f"035_UNREGISTER_CLIENT.binary-slave.binary.{n}" for n in range(1, 5)),
        )
    },
    "046_CHECK_CLIENT_CONFIG.client-master.1": Case(),
    "046_CHECK_CLIENT_CONFIG.client-master.2": masked("remark"),
    "038_GET_CONSUMER_LIST_BY_GROUP.client-master.1": Case(
        setup=member("GID_push", "127.0.0.1@push1", {})
    ),
    "038_GET_CONSUMER_LIST_BY_GROUP.client-master.2": Case(
        setup=member("GID_pull", "127.0.0.1@pull1@STREAM", {})
    ),
    "038_GET_CONSUMER_LIST_BY_GROUP.client-master.3": Case(),
    "038_GET_CONSUMER_LIST_BY_GROUP.binary-master.binary.1": Case(
        setup=member("GID_pushB", "127.0.0.1@bin1", {})
    ),
    "038_GET_CONSUMER_LIST_BY_GROUP.binary-master.binary.2": Case(
        setup=member("GID_pullB", "127.0.0.1@binpull@STREAM", {})
    ),
    "041_LOCK_BATCH_MQ.client-master.1": Case(),
    "042_UNLOCK_BATCH_MQ.client-master.2": Case(),
    "203_GET_CONSUMER_CONNECTION_LIST.mqadmin-master.1": masked(
        "clientAddr",
        "subVersion",
        setup=member("GID_order", "127.0.0.1@order1", {"%RETRY%GID_order": "*", "TopicOrder": "*"}),
    ),
    "203_GET_CONSUMER_CONNECTION_LIST.mqadmin-master.2": Case(),
    "204_GET_PRODUCER_CONNECTION_LIST.mqadmin-master.1": Case(
        setup=producer("PID_vec", "127.0.0.1@main")
    ),
    "307_GET_CONSUMER_RUNNING_INFO.mqadmin-master.1": Case(
        setup=relaying(
            "307_GET_CONSUMER_RUNNING_INFO.master-client.1", "GID_push", "127.0.0.1@push1"
        )
    ),
    "309_CONSUME_MESSAGE_DIRECTLY.client-master.1": Case(
        setup=relaying(
            "309_CONSUME_MESSAGE_DIRECTLY.master-client.1", "GID_push", "127.0.0.1@push1"
        )
    ),
    "223_INVOKE_BROKER_TO_GET_CONSUMER_STATUS.client-master.1": Case(
        setup=relaying(
            "221_GET_CONSUMER_STATUS_FROM_CLIENT.master-client.1", "GID_push", "127.0.0.1@push1"
        )
    ),
    "222_INVOKE_BROKER_TO_RESET_OFFSET.client-master.1": Case(
        setup=both(
            online("GID_order", "TopicOrder"),
            offsets_of_answer("222_INVOKE_BROKER_TO_RESET_OFFSET.client-master.1", "GID_order"),
        )
    ),
    "222_INVOKE_BROKER_TO_RESET_OFFSET.mqadmin-master.1": Case(
        setup=both(
            online("GID_order", "TopicOrder"),
            offsets_of_answer("222_INVOKE_BROKER_TO_RESET_OFFSET.mqadmin-master.1", "GID_order"),
        )
    ),
    "222_INVOKE_BROKER_TO_RESET_OFFSET.mqadmin-master.2": Case(),
    "314_CLONE_GROUP_OFFSET.client-master.1": Case(),
    # Offsets
    **{
        name: Case()
        for name in (
            "015_UPDATE_CONSUMER_OFFSET.client-master.2",
            "015_UPDATE_CONSUMER_OFFSET.client-master.3",
            "015_UPDATE_CONSUMER_OFFSET.mqadmin-master.1",
            "029_SEARCH_OFFSET_BY_TIMESTAMP.client-master.1",
            "029_SEARCH_OFFSET_BY_TIMESTAMP.binary-master.binary.1",
            "030_GET_MAX_OFFSET.client-master.1",
            "030_GET_MAX_OFFSET.mqadmin-master.1",
            "030_GET_MAX_OFFSET.mqadmin-master.2",
            "030_GET_MAX_OFFSET.binary-master.binary.1",
            "031_GET_MIN_OFFSET.client-master.1",
            "031_GET_MIN_OFFSET.mqadmin-master.1",
            "031_GET_MIN_OFFSET.binary-master.binary.1",
            "032_GET_EARLIEST_MSG_STORETIME.client-master.1",
            "014_QUERY_CONSUMER_OFFSET.client-master.3",
        )
    },
    **{
        name: Case(setup=lambda broker, peer: broker.offsets.table.clear())
        for name in (
            "014_QUERY_CONSUMER_OFFSET.client-master.1",
            "014_QUERY_CONSUMER_OFFSET.client-master.2",
            "014_QUERY_CONSUMER_OFFSET.binary-master.binary.1",
            "014_QUERY_CONSUMER_OFFSET.binary-master.binary.2",
        )
    },
    "014_QUERY_CONSUMER_OFFSET.client-slave.2": slave(),
    # Statistics
    "202_GET_TOPIC_STATS_INFO.mqadmin-master.1": Case(),
    "202_GET_TOPIC_STATS_INFO.binary-master.binary.1": Case(),
    "208_GET_CONSUME_STATS.mqadmin-master.1": masked(
        "consumeTps",
        setup=offsets_of_answer("208_GET_CONSUME_STATS.mqadmin-master.1", "GID_order"),
    ),
    "208_GET_CONSUME_STATS.mqadmin-master.2": masked(
        "consumeTps",
        setup=offsets_of_answer("208_GET_CONSUME_STATS.mqadmin-master.2", "GID_pull"),
    ),
    "208_GET_CONSUME_STATS.binary-master.binary.1": masked(
        "consumeTps",
        setup=offsets_of_answer("208_GET_CONSUME_STATS.binary-master.binary.1", "GID_push"),
    ),
    "317_GET_BROKER_CONSUME_STATS.mqadmin-master.1": masked(
        "consumeTps",
        end=log_end_at("TopicVec", 2, 17),
        setup=all_offsets_of_answer("317_GET_BROKER_CONSUME_STATS.mqadmin-master.1"),
    ),
    "300_QUERY_TOPIC_CONSUME_BY_WHO.mqadmin-master.1": Case(),
    "303_QUERY_CONSUME_TIME_SPAN.client-master.1": Case(
        setup=lambda broker, peer: broker.offsets.commit("GID_order", "TopicOrder", 1, 9)
    ),
    "308_QUERY_CORRECTION_OFFSET.client-master.1": Case(
        setup=lambda broker, peer: broker.offsets.replace(
            {"offsetTable": {"TopicOrder@GID_order": {0: 0, 1: 9}}}
        )
    ),
    "315_VIEW_BROKER_STATS_DATA.mqadmin-master.1": Case(
        setup=counted("TOPIC_PUT_NUMS", "TopicVec")
    ),
    "321_QUERY_CONSUME_QUEUE.mqadmin-master.1": Case(end=log_end_at("TopicVec", 0, 18)),
    "321_QUERY_CONSUME_QUEUE.mqadmin-master.2": masked(
        "subVersion", end=log_end_at("TopicVec", 0, 18), setup=PUSH_VEC
    ),
    **{
        name: Case(masked=RUNTIME, setup=delays_of_answer(name))
        for name in (
            "028_GET_BROKER_RUNTIME_INFO.client-master.1",
            "028_GET_BROKER_RUNTIME_INFO.mqadmin-master.1",
            "028_GET_BROKER_RUNTIME_INFO.binary-master.binary.1",
        )
    },
    **{
        name: slave(masked=RUNTIME | {"commitLogMinOffset"}, setup=delays_of_answer(name))
        for name in (
            "028_GET_BROKER_RUNTIME_INFO.client-slave.1",
            "028_GET_BROKER_RUNTIME_INFO.mqadmin-slave.1",
        )
    },
    # Messages by key and id
    **{
        name: Case()
        for name in (
            "012_QUERY_MESSAGE.client-master.1",
            "012_QUERY_MESSAGE.client-master.2",
            "012_QUERY_MESSAGE.client-master.3",
            "012_QUERY_MESSAGE.client-master.4",
            "012_QUERY_MESSAGE.mqadmin-master.1",
            "012_QUERY_MESSAGE.mqadmin-master.2",
            "012_QUERY_MESSAGE.binary-master.binary.1",
            "012_QUERY_MESSAGE.binary-master.binary.2",
            "033_VIEW_MESSAGE_BY_ID.client-master.1",
            "033_VIEW_MESSAGE_BY_ID.client-master.2",
            "033_VIEW_MESSAGE_BY_ID.mqadmin-master.1",
            "033_VIEW_MESSAGE_BY_ID.binary-master.binary.1",
            "9999_UNKNOWN.client-master.1",
            "9999_UNKNOWN.binary-master.binary.1",
        )
    },
    # Pulls
    "011_PULL_MESSAGE.client-master.1": Case(on_vip_port=True),
    "011_PULL_MESSAGE.client-master.2": Case(setup=online("GID_push", "TopicDelay")),
    "011_PULL_MESSAGE.client-master.3": Case(setup=online("GID_push", "TopicTrans"), is_held=True),
    "011_PULL_MESSAGE.client-master.4": Case(setup=online("GID_push", "TopicTrans")),
    "011_PULL_MESSAGE.client-master.5": Case(setup=online("GID_push", "TopicVec", TAGS, 1)),
    "011_PULL_MESSAGE.client-master.6": Case(setup=PUSH_VEC, is_held=True),
    "011_PULL_MESSAGE.client-master.7": Case(setup=PUSH_VEC),
    "011_PULL_MESSAGE.client-master.8": Case(setup=online("GID_push", "TopicVec", TAGS, 1)),
    "011_PULL_MESSAGE.client-master.9": Case(setup=online("GID_push", "TopicDelay"), is_held=True),
    "011_PULL_MESSAGE.client-master.10": Case(
        setup=online("GID_sql", "TopicSql", SQL, kind="SQL92")
    ),
    "011_PULL_MESSAGE.client-master.11": Case(
        setup=online("GID_sql", "TopicSql", SQL, kind="SQL92"), is_held=True
    ),
    "011_PULL_MESSAGE.client-master.16": Case(is_held=True),
    "011_PULL_MESSAGE.client-master.17": Case(
        setup=online("badsql", "TopicSql", "price >", 1, kind="SQL92")
    ),
    "011_PULL_MESSAGE.client-master.18": Case(
        setup=online("badsql", "TopicSql", "price >", kind="SQL92")
    ),
    "011_PULL_MESSAGE.client-master.23": Case(
        config={"slave_read_enable": True, "access_message_in_memory_max_ratio": 0}
    ),
    "011_PULL_MESSAGE.client-master.25": Case(
        setup=online("GID_sql", "TopicSql", SQL, kind="SQL92"), is_held=True
    ),
    "011_PULL_MESSAGE.binary-master.binary.1": Case(setup=online("GID_pushB", "TopicOrder")),
    "011_PULL_MESSAGE.binary-master.binary.4": Case(is_held=True),
    **{
        name: Case()
        for name in (
            "011_PULL_MESSAGE.client-master.12",
            "011_PULL_MESSAGE.client-master.13",
            "011_PULL_MESSAGE.client-master.14",
            "011_PULL_MESSAGE.client-master.15",
            "011_PULL_MESSAGE.client-master.19",
            "011_PULL_MESSAGE.client-master.20",
            "011_PULL_MESSAGE.client-master.21",
            "011_PULL_MESSAGE.client-master.22",
            "011_PULL_MESSAGE.client-master.24",
            "011_PULL_MESSAGE.mqadmin-master.1",
            "011_PULL_MESSAGE.binary-master.binary.2",
            "011_PULL_MESSAGE.binary-master.binary.3",
        )
    },
    "011_PULL_MESSAGE.client-slave.1": slave(),
    "011_PULL_MESSAGE.client-slave.4": slave(),
}

# Answers whose stored record is compared with Apache's, too.
WRITES = tuple(name for name in CASES if name.startswith(("010_", "310_", "320_", "036_")))

LEFT_OUT = {
    "028_GET_BROKER_RUNTIME_INFO.client-slave.2": "a Java exception of the first second",
    "052_GET_BROKER_CLUSTER_ACL_INFO.mqadmin-master.1": "Apache never answers; we do, with 1",
    # A slave whose log begins in the middle: the vectors hold no log of the slave.
    "011_PULL_MESSAGE.client-slave.2": "needs the slave's own log",
    "011_PULL_MESSAGE.client-slave.3": "needs the slave's own log",
    "014_QUERY_CONSUMER_OFFSET.client-slave.1": "needs the slave's own log",
    "031_GET_MIN_OFFSET.client-slave.1": "needs the slave's own log",
    "328_GET_ALL_PRODUCER_INFO.mqadmin-master.1": "a list of clients with their times; see below",
}


def _end_of(name: str) -> int:
    """Where Apache's log ended when it gave this answer, as the answer itself shows."""
    answer = response(name)
    ext = answer.ext()
    asked = decode_command(request_frame(name)).ext()
    if "msgId" in ext and "queueOffset" in ext:
        return int(ext["msgId"].split(",")[0][-16:], 16)
    if "maxOffset" in ext and "queueOffset" in asked:
        return log_end_at(asked["topic"], int(asked["queueId"]), int(ext["maxOffset"]))
    if name.startswith(("202_", "208_")):
        ends = []
        for key, entry in body_of(answer)["offsetTable"].items():
            queue = fastjson.loads(key)
            count = entry.get("brokerOffset", entry.get("maxOffset"))
            ends.append(log_end_at(queue["topic"], queue["queueId"], count))
        return min(ends)
    if name.startswith("012_") and ext.get("indexLastUpdatePhyoffset", "0") != "0":
        last = int(ext["indexLastUpdatePhyoffset"])
        row = next(row for row in records() if row["physicalOffset"] == last)
        return last + int(row["totalSize"])
    return LOG_END


def _assert_same(ours: Request, apache: Request, hidden: frozenset[str]) -> None:
    assert ours.code == apache.code, ours.remark
    assert ours.opaque == apache.opaque
    assert ours.flag == apache.flag
    assert ours.version == apache.version
    assert ours.serialize_type == apache.serialize_type
    if "remark" not in hidden:
        assert _without_addresses(ours.remark) == _without_addresses(apache.remark)
    expected = {k: v for k, v in apache.ext().items() if k not in hidden}
    assert {k: v for k, v in ours.ext().items() if k not in hidden} == expected
    assert set(ours.ext()) == set(apache.ext())
    if apache.serialize_type == 0:
        assert bool(bytes(ours.raw_ext)) == bool(bytes(apache.raw_ext)), "extFields or none"
    if "body" not in hidden:
        assert plain(body_of(ours), hidden) == plain(body_of(apache), hidden)


def _without_addresses(remark: str | None) -> str | None:
    return None if remark is None else remark.replace("127.0.0.1:44524", "PEER")


@pytest.mark.parametrize("name", CASES)
async def test_answer_is_that_of_apache(name: str) -> None:
    case = CASES[name]
    end = _end_of(name) if case.end is None else case.end
    async with world(end=end, tables=case.tables, **case.config) as broker:
        peer = Peer(broker.vip_server if case.on_vip_port else broker.server)
        if case.setup is not None:
            case.setup(broker, peer)
        asking = asyncio.ensure_future(peer.ask(request_frame(name)))
        if case.is_held:
            while not len(broker.hold):
                assert not asking.done(), asking.result().remark
                await asyncio.sleep(0)
            broker.hold.release_all()
        answer = await asking
        _assert_same(answer, response(name), case.masked)
        if name in WRITES and answer.code in (0, 10, 11, 12):
            assert_same_record(broker, end)


# Frames that Apache's broker sent on its own.

NOTIFIED = {
    "040_NOTIFY_CONSUMER_IDS_CHANGED.master-client.1": ("GID_push", {}),
    "040_NOTIFY_CONSUMER_IDS_CHANGED.slave-client.1": ("GID_push", slave_config()),
    "040_NOTIFY_CONSUMER_IDS_CHANGED.master-binary.1": ("GID_pushB", {}),
    "040_NOTIFY_CONSUMER_IDS_CHANGED.slave-binary.1": ("GID_pushB", slave_config()),
}
# Compared where the request that makes the broker ask is: by `relaying`.
RELAYED = (
    "221_GET_CONSUMER_STATUS_FROM_CLIENT.master-client.1",
    "307_GET_CONSUMER_RUNNING_INFO.master-client.1",
    "309_CONSUME_MESSAGE_DIRECTLY.master-client.1",
)
RESET = "220_RESET_CONSUMER_CLIENT_OFFSET.master-client.1"
PUSHED = dict.fromkeys((*NOTIFIED, *RELAYED, RESET))


@pytest.mark.parametrize("name", NOTIFIED)
async def test_members_are_told_of_a_new_one_as_apache_tells_them(name: str) -> None:
    group, config = NOTIFIED[name]
    heartbeat = {
        "clientID": "127.0.0.1@x",
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": []}],
    }
    async with world(**config) as broker:
        peer = Peer(broker.server)
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, fastjson.dumps(heartbeat))
        assert (await peer.ask(encode_command(command))).code == 0
        (told,) = peer.pushed()
        same_request(told, decode_command(frame(name, "request")))


async def test_members_are_reset_as_apache_resets_them() -> None:
    name = "222_INVOKE_BROKER_TO_RESET_OFFSET.client-master.1"
    async with world() as broker:
        client, admin = Peer(broker.server), Peer(broker.server)
        online("GID_order", "TopicOrder")(broker, client)
        offsets_of_answer(name, "GID_order")(broker, client)
        assert (await admin.ask(request_frame(name))).code == 0
        (told,) = client.pushed()
        same_request(told, decode_command(frame(RESET, "request")))


# Requests that have no answer: what they do.

ONEWAY_SENDS = (
    "310_SEND_MESSAGE_V2.client-master.3",
    "310_SEND_MESSAGE_V2.binary-master.binary.2",
)
ONEWAY_COMMITS = (
    "015_UPDATE_CONSUMER_OFFSET.client-master.1",
    "015_UPDATE_CONSUMER_OFFSET.client-master.4",
    "015_UPDATE_CONSUMER_OFFSET.binary-master.binary.1",
)
ONEWAY_UNLOCK = "042_UNLOCK_BATCH_MQ.client-master.1"
WITHOUT_ANSWER = dict.fromkeys((*ONEWAY_SENDS, *ONEWAY_COMMITS, ONEWAY_UNLOCK))


@pytest.mark.parametrize("name", ONEWAY_SENDS)
async def test_oneway_send_stores_what_apache_stored(name: str) -> None:
    text = decode_command(request_frame(name)).ext()["i"]
    unique = text.split("UNIQ_KEY\x01")[1].split("\x02")[0]
    row = next(r for r in records() if r["properties"].get("UNIQ_KEY") == unique)
    async with world(end=row["physicalOffset"]) as broker:
        peer = Peer(broker.server)
        peer.tell(request_frame(name))
        broker.store.write_pending()
        assert_same_record(broker, row["physicalOffset"])
        broker.turn.run()
        assert not peer.transport.written


@pytest.mark.parametrize("name", ONEWAY_COMMITS)
async def test_oneway_commit_is_kept_and_not_answered(name: str) -> None:
    asked = decode_command(request_frame(name)).ext()
    async with world() as broker:
        broker.offsets.table.clear()
        peer = Peer(broker.server)
        peer.tell(request_frame(name))
        stored = broker.offsets.query(asked["consumerGroup"], asked["topic"], int(asked["queueId"]))
        assert stored == int(asked["commitOffset"])
        broker.turn.run()
        assert not peer.transport.written


async def test_oneway_unlock_frees_the_queue() -> None:
    async with world() as broker:
        peer = Peer(broker.server)
        lock = decode_command(request_frame(ONEWAY_UNLOCK))
        lock.code, lock.flag = RequestCode.LOCK_BATCH_MQ, 0
        assert len(body_of(await peer.ask(encode_command(lock)))["lockOKMQSet"]) == 1
        peer.tell(request_frame(ONEWAY_UNLOCK))
        lock.body = lock.body.replace(b"order1", b"order2")
        assert len(body_of(await peer.ask(encode_command(lock)))["lockOKMQSet"]) == 1


# Compared in test_captured_transactions.py.
ELSEWHERE = {name: None for name in captured_names() if name.startswith(TRANSACTION_CODES)}


async def test_producers_are_listed_as_apache_lists_them() -> None:
    name = "328_GET_ALL_PRODUCER_INFO.mqadmin-master.1"
    expected = body_of(response(name))["data"]["PID_tx"][0]
    async with world() as broker:
        peer = Peer(broker.server)
        producer("PID_tx", "127.0.0.1@tx", 44530)(broker, peer)
        (ours,) = body_of(await peer.ask(request_frame(name)))["data"]["PID_tx"]
        assert ours.pop("lastUpdateTimestamp") > 0
        expected.pop("lastUpdateTimestamp")
        assert ours == expected


def test_every_captured_frame_has_its_row() -> None:
    rows = {**CASES, **LEFT_OUT, **PUSHED, **WITHOUT_ANSWER, **ELSEWHERE}
    assert set(captured_names()) == set(rows)
    assert len(LEFT_OUT) <= 10, "at most 10 pairs may be left out"
    assert all(LEFT_OUT.values()), "each with its reason"
