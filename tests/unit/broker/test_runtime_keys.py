"""Every key that updateBrokerConfig takes has an effect that can be seen, without a restart.

`OBSERVATIONS` has one function for each key of the declaration: it starts a broker, sees how it
acts, changes the key with request 25, and sees it act otherwise. A key without one fails a test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.ha_load import send_command
from support.local_brokers import pull, until
from support.runtime_stage import Client, FullDisk, Recorder, Stage
from twinlog.broker.processors.admin_config import refusal
from twinlog.broker.server import Broker
from twinlog.ha.wire import HAConnectionState
from twinlog.message.names import retry_topic
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.config_key import declarations, live_keys

HOUR_MS = 3_600_000
LIVE_KEYS = live_keys(BrokerConfig)
Observation = Callable[[Stage], Awaitable[None]]
OBSERVATIONS: dict[str, Observation] = {}


def observes(key: str) -> Callable[[Observation], Observation]:
    def register(function: Observation) -> Observation:
        assert key not in OBSERVATIONS
        OBSERVATIONS[key] = function
        return function

    return register


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.stop()


def test_every_key_that_is_taken_is_observed() -> None:
    assert set(OBSERVATIONS) == LIVE_KEYS


@pytest.mark.parametrize("key", sorted(LIVE_KEYS))
async def test_a_changed_key_has_its_effect(stage: Stage, key: str) -> None:
    await OBSERVATIONS[key](stage)


async def test_every_other_key_is_refused_with_its_reason(stage: Stage) -> None:
    broker = await stage.start(config_black_list="configBlackList;slaveTimeout")
    keys = {declared.key for declared in declarations(BrokerConfig).values()}
    for key in sorted({*(keys - LIVE_KEYS), "slaveTimeout", "haHousekepingInterval"}):
        before = broker.config.to_properties()
        body = f"fileReservedTime=7\n{key}=1\n".encode()
        answer = await stage.brokers.call(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code == ResponseCode.NO_PERMISSION, key
        assert answer.remark.endswith(refusal(key))
        assert broker.config.to_properties() == before, "all of a request or nothing"
    assert "did you mean haHousekeepingInterval?" in refusal("haHousekepingInterval")
    assert "has no effect here" in refusal("sendMessageThreadPoolNums")
    assert "restart" in refusal("listenPort")
    assert "is refused" in refusal("enableDLegerCommitLog")
    assert "restart" in refusal("enableControllerMode")


# Reading


@observes("accessMessageInMemoryMaxRatio")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.start("one", memory_size=10_000_000)
    for _ in range(40):
        await stage.send(broker)
    assert await stage.pull_count(broker) == 32
    await stage.change(broker, accessMessageInMemoryMaxRatio=0)
    assert await stage.pull_count(broker) == 8


@observes("twinlogCheckReads")
async def _(stage: Stage) -> None:
    broker = await stage.start(mapped_file_size_commit_log=65536, twinlog_damage_wait_millis=0)
    await stage.send(broker, b"body")
    await stage.send(broker, b"next")
    stage.damage(broker, b"body")
    answer = await pull(stage.brokers, broker, 0)
    assert (answer.code, "is damaged: body CRC" in answer.remark) == (20, True)
    await stage.change(broker, twinlogCheckReads=False)
    assert await stage.pull_count(broker) == 2


async def _transfer(stage: Stage, key: str, value: int, expected: int, memory: int) -> None:
    broker = await stage.brokers.start("one", memory_size=memory)
    for _ in range(40):
        await stage.send(broker, bytes(900))
    before = await stage.pull_count(broker)
    await stage.change(broker, **{key: value})
    after = await stage.pull_count(broker)
    assert after < before
    assert abs(after - expected) <= 1


@observes("maxTransferCountOnMessageInMemory")
async def _(stage: Stage) -> None:
    await _transfer(stage, "maxTransferCountOnMessageInMemory", 5, 5, 10_000_000)


@observes("maxTransferBytesOnMessageInMemory")
async def _(stage: Stage) -> None:
    await _transfer(stage, "maxTransferBytesOnMessageInMemory", 3000, 3, 10_000_000)


@observes("maxTransferCountOnMessageInDisk")
async def _(stage: Stage) -> None:
    await _transfer(stage, "maxTransferCountOnMessageInDisk", 3, 3, 0)


@observes("maxTransferBytesOnMessageInDisk")
async def _(stage: Stage) -> None:
    await _transfer(stage, "maxTransferBytesOnMessageInDisk", 2500, 2, 0)


@observes("slaveReadEnable")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.start("one", memory_size=0)
    for _ in range(40):
        await stage.send(broker)
    assert (await pull(stage.brokers, broker, 0)).ext()["suggestWhichBrokerId"] == "0"
    await stage.change(broker, slaveReadEnable=True)
    assert (await pull(stage.brokers, broker, 0)).ext()["suggestWhichBrokerId"] == "1"


@observes("brokerPermission")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    await stage.send(broker)
    assert await stage.pull_count(broker) == 1
    await stage.change(broker, brokerPermission=2)
    assert (await pull(stage.brokers, broker, 0)).code == ResponseCode.NO_PERMISSION


async def _held(stage: Stage, broker: Broker) -> asyncio.Task[Request]:
    await stage.send(broker)
    waiting = asyncio.ensure_future(
        pull(stage.brokers, broker, 1, sysFlag=6, suspendTimeoutMillis=HOUR_MS)
    )
    await until(lambda: len(broker.hold) == 1)
    return waiting


@observes("longPollingEnable")
async def _(stage: Stage) -> None:
    broker = await stage.start(short_polling_time_mills=1)
    held = await _held(stage, broker)
    await stage.change(broker, longPollingEnable=False)
    answer = await pull(stage.brokers, broker, 1, sysFlag=6, suspendTimeoutMillis=HOUR_MS)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert not held.done()
    held.cancel()


@observes("shortPollingTimeMills")
async def _(stage: Stage) -> None:
    broker = await stage.start(long_polling_enable=False, short_polling_time_mills=HOUR_MS)
    held = await _held(stage, broker)
    await stage.change(broker, shortPollingTimeMills=1)
    answer = await pull(stage.brokers, broker, 1, sysFlag=6, suspendTimeoutMillis=HOUR_MS)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert not held.done()
    held.cancel()


@observes("enablePropertyFilter")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    await stage.send(broker)
    sql = {"expressionType": "SQL92", "subscription": "a > 1"}
    assert (await pull(stage.brokers, broker, 0, **sql)).code == ResponseCode.SYSTEM_ERROR
    await stage.change(broker, enablePropertyFilter=True)
    answer = await pull(stage.brokers, broker, 0, **sql)
    assert answer.code != ResponseCode.SYSTEM_ERROR, answer.remark


@observes("filterSupportRetry")
async def _(stage: Stage) -> None:
    broker = await stage.start(enable_property_filter=True)
    client = await stage.client()
    subscription = {
        "topic": "t", "subString": "a = '1'", "expressionType": "SQL92", "subVersion": 1,
        "tagsSet": [], "codeSet": [], "classFilterMode": False,
    }  # fmt: skip
    await stage.send(broker)
    await client.call(broker, RequestCode.HEART_BEAT, _heartbeat(subscription))
    topic = retry_topic("g")
    command = send_command(b"again", topic=topic, RETRY_TOPIC="t", a="2")
    await stage.brokers.client.invoke(broker.address, command, 30_000)
    await until(lambda: broker.store.max_offset_in_queue(topic, 0) == 1)
    assert (await pull(stage.brokers, broker, 0, topic=topic)).code == 0
    await stage.change(broker, filterSupportRetry=True)
    answer = await pull(stage.brokers, broker, 0, topic=topic)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY


def _heartbeat(*subscriptions: dict[str, Any], client: str = "c") -> bytes:
    group = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": list(subscriptions),
    }  # fmt: skip
    return json.dumps(
        {"clientID": client, "producerDataSet": [], "consumerDataSet": [group]}
    ).encode()


@observes("offsetCheckInSlave")
async def _(stage: Stage) -> None:
    master = await stage.brokers.master()
    slave = await stage.brokers.slave(master)
    await stage.send(master)
    await until(lambda: slave.store.max_offset_in_queue("t", 0) == 1)
    slave.topics.create_in_send_back("t", queue_count=4)
    assert (await pull(stage.brokers, slave, 5)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    await stage.change(slave, offsetCheckInSlave=True)
    assert (await pull(stage.brokers, slave, 5)).code == ResponseCode.PULL_OFFSET_MOVED


async def _query(stage: Stage, broker: Broker, **more: str) -> int:
    header = {
        "topic": "t", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62, **more
    }  # fmt: skip
    answer = await stage.brokers.call(broker, RequestCode.QUERY_MESSAGE, header)
    return answer.body.count(b"KEYS\x01k")


@observes("defaultQueryMaxNum")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    for _ in range(10):
        await stage.send(broker, KEYS="k")
    await _until_count(stage, broker, 10, _UNIQUE_KEY_QUERY="true")
    await stage.change(broker, defaultQueryMaxNum=3)
    assert await _query(stage, broker, _UNIQUE_KEY_QUERY="true") == 3


@observes("maxMsgsNumBatch")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    for _ in range(10):
        await stage.send(broker, KEYS="k")
    await _until_count(stage, broker, 10)
    await stage.change(broker, maxMsgsNumBatch=4)
    assert await _query(stage, broker) == 4


async def _until_count(stage: Stage, broker: Broker, count: int, **more: str) -> None:
    deadline = time.monotonic() + 30
    while await _query(stage, broker, **more) != count:
        assert time.monotonic() < deadline


# Sending


@observes("autoCreateTopicEnable")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    for is_on, code in ((False, ResponseCode.TOPIC_NOT_EXIST), (True, ResponseCode.SUCCESS)):
        await stage.change(broker, autoCreateTopicEnable=is_on)
        answer = await stage.brokers.send(broker, topic=f"new-{is_on}")
        assert answer.code == code, "off, and on again"


@observes("defaultTopicQueueNums")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    for count in (2, 3):
        await stage.change(broker, defaultTopicQueueNums=count)
        assert (await stage.brokers.send(broker, topic=f"with-{count}")).code == 0
        topic = broker.topics.select(f"with-{count}")
        assert topic is not None
        assert topic.write_queue_nums == count


@observes("autoCreateSubscriptionGroup")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    await stage.send(broker)
    await stage.change(broker, autoCreateSubscriptionGroup=False)
    answer = await pull(stage.brokers, broker, 0, consumerGroup="unknown")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@observes("maxMessageSize")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    assert await stage.send(broker, bytes(500)) == 0
    await stage.change(broker, maxMessageSize=100)
    assert await stage.send(broker, bytes(500)) == ResponseCode.MESSAGE_ILLEGAL


@observes("rejectTransactionMessage")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    assert await stage.send(broker, TRAN_MSG="true", PGROUP="p") == 0
    await stage.change(broker, rejectTransactionMessage=True)
    answer = await stage.send(broker, TRAN_MSG="true", PGROUP="p")
    assert answer == ResponseCode.NO_PERMISSION


@observes("startAcceptSendRequestTimeStamp")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    assert await stage.send(broker) == 0
    await stage.change(broker, startAcceptSendRequestTimeStamp=2**60)
    assert await stage.send(broker) == ResponseCode.SYSTEM_ERROR


@observes("storeReplyMessageEnable")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    await stage.send(broker)
    for is_on in (True, False):
        await stage.change(broker, storeReplyMessageEnable=is_on)
        before = broker.store.commit_log.max_offset
        command = send_command(b"reply", topic="t", REPLY_TO_CLIENT="nobody", CORRELATION_ID="1")
        command.code = RequestCode.SEND_REPLY_MESSAGE_V2
        await stage.brokers.client.invoke(broker.address, command, 30_000)
        assert (broker.store.commit_log.max_offset > before) is is_on


@observes("syncFlushTimeout")
async def _(stage: Stage) -> None:
    broker = await stage.start(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=HOUR_MS)
    assert await stage.send(broker) == 0
    await stage.change(broker, syncFlushTimeout=1)
    async with broker.store.flush_service._in_flight:  # The disk is busy.
        assert await stage.send(broker) == ResponseCode.FLUSH_DISK_TIMEOUT


# Replication


@observes("brokerRole")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    assert await stage.send(broker) == 0
    await stage.change(broker, brokerRole="SYNC_MASTER")
    assert await stage.send(broker) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert broker.ha.settings.is_sync
    await stage.change(broker, brokerRole="ASYNC_MASTER")
    assert await stage.send(broker) == 0


@observes("slaveTimeout")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.master(slave_timeout=HOUR_MS)
    await stage.slave(broker)
    await stage.change(broker, slaveTimeout=1)
    answer = await stage.brokers.send(broker)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "limit 1 ms" in (answer.remark or "")


@observes("haSlaveFallbehindMax")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.master(slave_timeout=1)
    await stage.slave(broker)
    assert await stage.send(broker) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await stage.change(broker, haSlaveFallbehindMax=1)
    assert await stage.send(broker) == ResponseCode.SLAVE_NOT_AVAILABLE


@observes("haMaxTimeSlaveNotCatchup")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.master(slave_timeout=1)
    await stage.slave(broker)
    assert await stage.send(broker) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert broker.ha.status().in_sync_count == 1
    await stage.change(broker, haMaxTimeSlaveNotCatchup=1)
    await until(lambda: broker.ha.status().in_sync_count == 0)


@observes("haHousekeepingInterval")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.master(ha_housekeeping_interval=HOUR_MS)
    await stage.slave(broker)
    await stage.change(broker, haHousekeepingInterval=1)
    await until(lambda: not broker.ha.connections)
    twin = await stage.brokers.start(
        "twin", broker_role="SYNC_MASTER", twinlog_ha_dialect="twin",
        ha_housekeeping_interval=HOUR_MS,
    )  # fmt: skip
    slave = await _twin_slave(stage, twin)
    await stage.change(twin, haHousekeepingInterval=1)
    await until(lambda: twin.ha.status().departed)
    # On a slave: it gives up a master that is silent.
    await stage.change(twin, haHousekeepingInterval=HOUR_MS)
    await until(lambda: slave.ha.is_linked)
    await stage.change(slave, haHousekeepingInterval=1)
    client = slave.ha.client
    assert client is not None
    await until(lambda: "nothing from the master" in client.status().last_disconnect_reason)


async def _twin_slave(stage: Stage, master: Broker) -> Broker:
    slave = await stage.brokers.start(
        "twin-slave", broker_role="SLAVE", broker_id=1, twinlog_ha_dialect="twin",
        ha_master_address=f"127.0.0.1:{master.ha.listen_port}", ha_housekeeping_interval=HOUR_MS,
        ha_send_heartbeat_interval=HOUR_MS, broker_name=master.config.broker_name,
    )  # fmt: skip
    await until(lambda: slave.ha.is_linked)
    return slave


@observes("haSendHeartbeatInterval")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.master(ha_send_heartbeat_interval=HOUR_MS)
    slave = await stage.slave(broker)
    await stage.change(broker, haSendHeartbeatInterval=1)
    async with asyncio.timeout(30):
        assert await slave.frame() == (broker.store.commit_log.max_offset, b"")
    twin = await stage.brokers.start(
        "twin", broker_role="SYNC_MASTER", twinlog_ha_dialect="twin",
        ha_send_heartbeat_interval=HOUR_MS,
    )  # fmt: skip
    copy = await _twin_slave(stage, twin)
    link = copy.ha.client.link if copy.ha.client is not None else None
    assert link is not None
    before = link.flow.total
    await stage.change(twin, haSendHeartbeatInterval=1)
    await until(lambda: link.flow.total > before)


@observes("haTransferBatchSize")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    slave = await stage.slave(broker)
    await stage.change(broker, haTransferBatchSize=7)
    await stage.send(broker)
    async with asyncio.timeout(30):
        assert len((await slave.frame())[1]) == 7


@observes("haFlowControlEnable")
async def _(stage: Stage) -> None:
    broker = await stage.start(max_ha_transfer_byte_in_second=100)
    await stage.slave(broker)
    (connection,) = broker.ha.connections
    assert connection.state is HAConnectionState.TRANSFER
    assert connection.flow.budget(0) is None
    await stage.change(broker, haFlowControlEnable=True)
    await _is_slowed(stage, broker)


@observes("maxHATransferByteInSecond")
async def _(stage: Stage) -> None:
    broker = await stage.start(ha_flow_control_enable=True)
    await stage.slave(broker)
    await stage.change(broker, maxHATransferByteInSecond=100)
    await _is_slowed(stage, broker)


async def _is_slowed(stage: Stage, broker: Broker) -> None:
    """A second's worth and no more: the rest of a long message waits."""
    await stage.send(broker, bytes(100_000))
    (connection,) = broker.ha.connections
    await until(lambda: connection.flow.total > 0)
    assert connection.core.next_offset < broker.store.commit_log.max_offset


# Retention


async def _expired_log(stage: Stage, **config: Any) -> tuple[Broker, FullDisk]:
    disk = FullDisk()
    values = {
        "mapped_file_size_commit_log": 64 * 1024, "delete_when": "", "file_reserved_time": 0,
        "delete_commit_log_files_interval": 0, "clean_resource_interval": HOUR_MS, **config,
    }  # fmt: skip
    broker = await stage.brokers.start("one", disk, **values)
    for _ in range(12):
        await stage.send(broker, bytes(20_000))
    log = broker.store.commit_log
    await until(lambda: log.flushed.value == log.max_offset)
    return broker, disk


async def _cleans(broker: Broker) -> bool:
    return await broker.store.cleaner.clean() > 0


async def _cleans_after(stage: Stage, broker: Broker, **change: Any) -> None:
    assert not await _cleans(broker)
    await stage.change(broker, **change)
    assert await _cleans(broker)


def _other_hour() -> str:
    return f"{(time.localtime().tm_hour + 12) % 24:02d}"


@observes("twinlogRetentionBytes")
async def _(stage: Stage) -> None:
    broker, _ = await _expired_log(stage, delete_when=_other_hour(), file_reserved_time=1000)
    await stage.change(broker, twinlogRetentionBytes=1 << 40)  # Larger than an int of Java's.
    await _cleans_after(stage, broker, twinlogRetentionBytes=64 * 1024)


@observes("deleteWhen")
async def _(stage: Stage) -> None:
    broker, _ = await _expired_log(stage, delete_when=_other_hour())
    await _cleans_after(stage, broker, deleteWhen=";".join(f"{hour:02d}" for hour in range(24)))


@observes("fileReservedTime")
async def _(stage: Stage) -> None:
    every_hour = ";".join(f"{hour:02d}" for hour in range(24))
    broker, _ = await _expired_log(stage, delete_when=every_hour, file_reserved_time=72)
    await _cleans_after(stage, broker, fileReservedTime=0)


@observes("diskMaxUsedSpaceRatio")
async def _(stage: Stage) -> None:
    broker, _ = await _expired_log(stage, delete_when=_other_hour())
    await _cleans_after(stage, broker, diskMaxUsedSpaceRatio=40)


@observes("diskSpaceCleanForciblyRatio")
async def _(stage: Stage) -> None:
    broker, _ = await _expired_log(stage, delete_when=_other_hour(), file_reserved_time=72)
    await _cleans_after(stage, broker, diskSpaceCleanForciblyRatio=40)


@observes("cleanFileForciblyEnable")
async def _(stage: Stage) -> None:
    broker, disk = await _expired_log(
        stage, delete_when=_other_hour(), file_reserved_time=72, clean_file_forcibly_enable=False
    )
    disk.percent = 89
    await _cleans_after(stage, broker, cleanFileForciblyEnable=True)


@observes("diskSpaceWarningLevelRatio")
async def _(stage: Stage) -> None:
    broker = await stage.brokers.start("one", FullDisk())
    assert await stage.send(broker) == 0
    await stage.change(broker, diskSpaceWarningLevelRatio=40)
    broker.store.cleaner.check_disk()
    assert await stage.send(broker) != 0


# Tables and timers


@observes("flushConsumerOffsetInterval")
async def _(stage: Stage) -> None:
    broker = await stage.start(flush_consumer_offset_interval=HOUR_MS)
    await stage.send(broker)
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 1}
    await stage.brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    file = stage.directory / "one" / "config" / "consumerOffset.json"
    await stage.change(broker, flushConsumerOffsetInterval=10)
    await until(lambda: file.exists() and b"t@g" in file.read_bytes())


@observes("flushDelayOffsetInterval")
async def _(stage: Stage) -> None:
    broker = await stage.start(flush_delay_offset_interval=HOUR_MS)
    await stage.send(broker, DELAY="1")
    await until(lambda: broker.schedule.offsets.get(1, 0) > 0)
    file = stage.directory / "one" / "config" / "delayOffset.json"
    await stage.change(broker, flushDelayOffsetInterval=10)
    await until(lambda: file.exists() and fastjson.loads(file.read_bytes())["offsetTable"])


@observes("notifyConsumerIdsChangedEnable")
async def _(stage: Stage) -> None:
    broker = await stage.start()
    first = await stage.client()
    await first.call(broker, RequestCode.HEART_BEAT, _heartbeat(client="c1"))
    await until(lambda: first.asked)  # It joined itself.
    first.asked.clear()
    await stage.change(broker, notifyConsumerIdsChangedEnable=False)
    second = await stage.client()
    await second.call(broker, RequestCode.HEART_BEAT, _heartbeat(client="c2"))
    await first.call(broker, RequestCode.HEART_BEAT, _heartbeat(client="c1"))
    quiet = list(first.asked)
    await stage.change(broker, notifyConsumerIdsChangedEnable=True)
    third = await stage.client()
    await third.call(broker, RequestCode.HEART_BEAT, _heartbeat(client="c3"))
    await until(lambda: first.asked)
    assert quiet == []
    assert set(first.asked) == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}


async def _half(stage: Stage, **config: Any) -> tuple[Broker, Client]:
    """A transaction that is not decided, and its producer, which is asked about it."""
    broker = await stage.start(**config)
    client = await stage.client()
    body = {"clientID": "p1", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
    await client.call(broker, RequestCode.HEART_BEAT, json.dumps(body).encode())
    assert await stage.send(broker, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u") == 0
    await until(lambda: broker.transactions.pending_count == 1)
    return broker, client


@observes("transactionCheckInterval")
async def _(stage: Stage) -> None:
    broker, client = await _half(stage, transaction_time_out=1, transaction_check_interval=HOUR_MS)
    await stage.change(broker, transactionCheckInterval=10)
    await until(lambda: client.asked)


@observes("transactionTimeOut")
async def _(stage: Stage) -> None:
    broker, client = await _half(
        stage, transaction_time_out=HOUR_MS, transaction_check_interval=HOUR_MS
    )
    await broker.transactions.check()
    assert client.asked == []
    await stage.change(broker, transactionTimeOut=1)
    await broker.transactions.check()
    await until(lambda: client.asked)


@observes("transactionCheckMax")
async def _(stage: Stage) -> None:
    broker, _ = await _half(
        stage, transaction_time_out=1, transaction_check_interval=10, transaction_check_max=10**6
    )
    topic = "TRANS_CHECK_MAX_TIME_TOPIC"
    await stage.change(broker, transactionCheckMax=1)
    await until(lambda: broker.topics.select(topic) is not None)


# Registration


@observes("compressedRegister")
async def _(stage: Stage) -> None:
    recorder = await stage.recorder()
    broker = await stage.start(namesrv_addr=recorder.address)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER))
    await stage.change(broker, compressedRegister=True)
    await until(lambda: _is_compressed(recorder))


def _is_compressed(recorder: Recorder) -> bool:
    return any(
        ext.get("compressed") == "true"
        for code, ext in recorder.requests
        if code == RequestCode.REGISTER_BROKER
    )


@observes("registerBrokerTimeoutMills")
async def _(stage: Stage) -> None:
    recorder = await stage.recorder(answers=False)
    broker = await stage.start(namesrv_addr=recorder.address)
    await stage.change(broker, registerBrokerTimeoutMills=1)
    count = recorder.count(RequestCode.REGISTER_BROKER)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER) > count + 1)
    recorder.answers = True


@observes("forceRegister")
async def _(stage: Stage) -> None:
    recorder = await stage.recorder()
    broker = await stage.start(namesrv_addr=recorder.address)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER))
    await stage.change(broker, forceRegister=False)
    registration = broker.registration
    await registration._prepare_periodic(registration._views[recorder.address])
    assert recorder.count(RequestCode.QUERY_DATA_VERSION) == 1


@observes("registerNameServerPeriod")
async def _(stage: Stage) -> None:
    recorder = await stage.recorder()
    broker = await stage.start(namesrv_addr=recorder.address, register_name_server_period=60_000)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER))
    await stage.change(broker, registerNameServerPeriod=10_000)
    count = recorder.count(RequestCode.REGISTER_BROKER)
    # One at once, for the change, and one after the new period.
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER) >= count + 2)
