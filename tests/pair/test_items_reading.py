"""Checklist 94 to 100: reading from a slave, and which broker a consumer is sent to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import SUBSCRIPTION, Brokers, pull, until
from twinlog.broker.server import Broker
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request

COMMIT, SUSPEND = 1, 2
MEMORY = 100_000  # 40 % of it are ten messages.
BODY = b"x" * 4_000


async def pair_with_messages(
    brokers: Brokers, count: int, *, body: bytes = b"x", **slave_config: Any
) -> tuple[Broker, Broker]:
    master = await brokers.master()
    slave = await brokers.slave(master, **slave_config)
    for _ in range(count):
        assert (await brokers.send(master, body, topic="t")).code == 0
    slave.topics.replace(dict(master.topics.table), master.topics.data_version.to_json())
    await until(lambda: slave.store.max_offset_in_queue("t", 0) == count)
    return master, slave


def suggestion(answer: Request) -> int:
    return int(answer.ext()["suggestWhichBrokerId"])


@pytest.mark.parametrize(("is_enabled", "expected"), [(True, 1), (False, 0)])
async def test_item_094_far_behind_means_the_slave_when_it_may_be_read(
    brokers: Brokers, is_enabled: bool, expected: int
) -> None:
    master = await brokers.start(
        "master", memory_size=MEMORY, broker_role="ASYNC_MASTER", slave_read_enable=is_enabled
    )
    for _ in range(20):
        await brokers.send(master, BODY, topic="t")
    assert suggestion(await pull(brokers, master, 0)) == expected
    assert suggestion(await pull(brokers, master, 19)) == 0


async def test_item_094_the_border_is_40_percent_of_the_memory(brokers: Brokers) -> None:
    master = await brokers.start(
        "master", memory_size=MEMORY, broker_role="ASYNC_MASTER", slave_read_enable=True
    )
    starts = []
    for _ in range(20):
        answer = await brokers.send(master, BODY, topic="t")
        starts.append(int(answer.ext()["msgId"][-16:], 16))
    end = master.store.commit_log.max_offset
    for number in range(20):
        # The entry that was looked at last is the one behind the message that was asked for.
        looked_at = starts[min(number + 1, 19)]
        expected = int(end - looked_at > MEMORY * 0.4)
        assert suggestion(await pull(brokers, master, number)) == expected, number


async def test_item_095_the_group_says_where_and_it_comes_back(brokers: Brokers) -> None:
    master = await brokers.start(
        "master", memory_size=MEMORY, broker_role="ASYNC_MASTER", slave_read_enable=True
    )
    master.groups.update(
        SubscriptionGroupConfig("g", broker_id=3, which_broker_when_consume_slowly=7)
    )
    for _ in range(20):
        await brokers.send(master, BODY, topic="t")
    assert suggestion(await pull(brokers, master, 0)) == 7
    assert suggestion(await pull(brokers, master, 19)) == 3


async def test_item_096_without_slave_read_enable_a_slave_still_serves_and_suggests_0(
    brokers: Brokers,
) -> None:
    _, slave = await pair_with_messages(brokers, 3, slave_read_enable=False)
    slave.groups.update(SubscriptionGroupConfig("g", broker_id=3))
    answer = await pull(brokers, slave, 0)
    assert answer.code == ResponseCode.SUCCESS
    assert suggestion(answer) == 0


@pytest.mark.parametrize(("offset", "is_known"), [(10, True), (5, False)])
async def test_item_098_a_slave_that_lags_moves_nobody_back(
    brokers: Brokers, offset: int, is_known: bool
) -> None:
    _, slave = await pair_with_messages(brokers, 3)
    slave.groups.update(SubscriptionGroupConfig("g", broker_id=3))
    answer = await pull(brokers, slave, offset, queueId=0 if is_known else 1)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert int(answer.ext()["nextBeginOffset"]) == offset
    assert suggestion(answer) == 3, "only the group's own broker can correct it"


async def test_item_098_offset_check_in_slave_corrects_as_a_master_does(
    brokers: Brokers,
) -> None:
    _, slave = await pair_with_messages(brokers, 3, offset_check_in_slave=True)
    answer = await pull(brokers, slave, 10)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert int(answer.ext()["nextBeginOffset"]) == 3


async def test_item_099_no_commit_through_a_slaves_pull(brokers: Brokers) -> None:
    master, slave = await pair_with_messages(brokers, 3)
    for broker in (master, slave):
        await pull(brokers, broker, 2, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=2)
    assert master.offsets.query("g", "t", 0) == 2
    assert slave.offsets.query("g", "t", 0) == -1


async def test_item_100_a_slave_takes_commits_and_keeps_them(brokers: Brokers) -> None:
    _, slave = await pair_with_messages(brokers, 3)
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 2}
    assert (await brokers.call(slave, RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
    answer = await brokers.call(slave, RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert answer.ext()["offset"] == "2"
    await brokers.end(slave)
    file = Path(slave.config.store_path_root_dir) / "config" / "consumerOffset.json"
    assert fastjson.loads(file.read_bytes())["offsetTable"]["t@g"]["0"] == 2


async def test_a_pull_that_waits_on_a_slave_is_woken_by_new_data(brokers: Brokers) -> None:
    master, slave = await pair_with_messages(brokers, 3)
    waiting = asyncio.ensure_future(
        pull(brokers, slave, 3, sysFlag=SUBSCRIPTION | SUSPEND, suspendTimeoutMillis=60_000)
    )
    await until(lambda: len(slave.hold) == 1)
    await brokers.send(master, b"new", topic="t")
    answer = await asyncio.wait_for(waiting, 20)
    assert answer.code == ResponseCode.SUCCESS


async def test_a_slave_refuses_what_is_sent_back(brokers: Brokers) -> None:
    _, slave = await pair_with_messages(brokers, 1)
    header = {"offset": 0, "group": "g", "delayLevel": 0, "originMsgId": "x", "originTopic": "t",
              "unitMode": "false", "maxReconsumeTimes": 16}  # fmt: skip
    end = slave.store.commit_log.max_offset
    answer = await brokers.call(slave, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert slave.store.commit_log.max_offset == end
