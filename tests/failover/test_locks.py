"""Queues that are consumed in order: one owner, whoever leads the group and whatever restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from support.local_brokers import until
from support.local_group import GROUP, LocalGroup, local_group
from twinlog.broker.server import Broker
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode


def lock_body(client: str) -> bytes:
    queue = {"topic": "t", "brokerName": GROUP, "queueId": 0}
    return msgspec.json.encode({"consumerGroup": "g", "clientId": client, "mqSet": [queue]})


async def locks(group: LocalGroup, broker: Broker, client: str) -> bool:
    answer = await group.brokers.call(broker, RequestCode.LOCK_BATCH_MQ, body=lock_body(client))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return len(fastjson.loads(answer.body)["lockOKMQSet"]) == 1


async def test_a_queue_has_one_owner_over_a_switch(tmp_path: Path) -> None:
    """RocketMQ forgets locks at a switch: two clients consume one queue in order."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await locks(group, first, "one")
        await group.brokers.end(first)
        await until(lambda: second.role.is_master)
        assert not await locks(group, second, "other")
        assert await locks(group, second, "one")


async def test_a_queue_has_one_owner_over_restarts(tmp_path: Path) -> None:
    """Both processes begin again: the record of the lock lies before the place in the log from
    where they read on."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await locks(group, first, "one")
        await until(lambda: second.locks.snapshot())
        for broker in (second, first):
            await group.brokers.end(broker)
        for name in ("first", "second"):
            await group.start(name)
        await until(lambda: any(broker.role.is_master for broker in group.brokers.started))
        assert not await locks(group, group.master, "other")
        assert await locks(group, group.master, "one")


async def test_a_slave_that_began_again_knows_who_has_a_queue(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await locks(group, first, "one")
        await until(lambda: second.locks.snapshot())
        await group.brokers.end(second)
        await group.in_sync(1)
        second = await group.start("second")
        await group.in_sync(2)
        await group.brokers.end(first)
        await until(lambda: second.role.is_master)
        assert not await locks(group, second, "other")


async def test_a_slave_gives_no_queue_to_anybody(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(twinlog_relay_ms=0)
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            answer = await group.brokers.call(second, code, body=lock_body("one"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark
        assert await locks(group, first, "other")


async def test_without_a_lease_a_renewal_needs_the_other_replicas(tmp_path: Path) -> None:
    """A master that was cut off would renew what the next one gives away."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await locks(group, first, "one")
        await group.controller.stop()
        await until(lambda: not first.is_surely_master())
        assert await locks(group, first, "one"), "the slave confirms it"
        second.ha.stand_down("cut by a test")
        await until(lambda: not first.ha.acks.replicas)
        answer = await group.brokers.call(first, RequestCode.LOCK_BATCH_MQ, body=lock_body("one"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not confirmed by the group: replica 2 is not connected" in (answer.remark or "")


async def test_what_the_next_master_confirms_does_not_grant_what_the_last_one_was_asked(
    tmp_path: Path,
) -> None:
    """The place of the lock's record in the log has another record by then."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair(slave_timeout=60_000)
        manager, replication = first.replicas, first.ha.group
        assert manager is not None
        assert replication is not None
        await group.controller.stop()
        second.ha.stand_down("cut by a test")
        await until(lambda: not first.ha.acks.replicas)
        call = group.brokers.call(first, RequestCode.LOCK_BATCH_MQ, body=lock_body("one"))
        asked = asyncio.create_task(call)
        await until(lambda: first.locks.snapshot() != [])
        manager.met(replication.epoch + 1)
        replication.told_confirmed(first.store.commit_log.max_offset + 1_000)
        answer = await asked
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not confirmed by the group" in (answer.remark or "")
