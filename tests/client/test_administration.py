"""The administrator's functions against our broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.client_support import eventually, eventually_async
from twinlog.admin import Admin, brokers, groups, ha_groups, messages, topics
from twinlog.client import Message, Producer, PushConsumer, ReceivedMessage
from twinlog.client.errors import ClientError, QueryNotFoundError, UsageError
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig

Unique = Callable[[str], str]


async def test_topics(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Admin(cluster.name_server) as admin:
        created = await topics.create_topic(admin, topic, read_queues=3, write_queues=2, perm=6)
        assert created.is_complete
        assert topic in await topics.list_topics(admin)
        assert topic in await topics.list_topics(admin, cluster="DefaultCluster")
        assert topics.is_user_topic(topic, await topics.system_topics(admin))
        (config,) = (await topics.topic_config(admin, topic)).all_or_raise().values()
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 6)
        async with Producer("pg", name_server=cluster.name_server) as producer:
            await producer.send_many(Message(topic, b"x") for _ in range(10))
        stats = (await topics.topic_stats(admin, topic)).all_or_raise()
        assert sum(s.count for entries in stats.values() for s in entries) == 10
        assert len((await topics.topic_route(admin, topic)).read_queues(topic)) == 3
        assert (await topics.delete_topic(admin, topic)).is_complete
        assert topic not in await topics.list_topics(admin)


async def test_groups_from_creation_to_deletion(cluster: Any, unique: Unique) -> None:
    topic, group, seen = unique("T"), unique("g"), []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with Admin(cluster.name_server) as admin:
        await topics.create_topic(admin, topic, read_queues=4)
        config = SubscriptionGroupConfig(group, retry_max_times=3)
        (await groups.create_group(admin, config)).all_or_raise()
        (known,) = (await groups.list_groups(admin)).all_or_raise().values()
        assert known[group] == config
        async with (
            Producer("pg", name_server=cluster.name_server) as producer,
            PushConsumer(group, name_server=cluster.name_server, commit_ms=100) as consumer,
        ):
            await consumer.subscribe(topic, "*", handler)
            await producer.send_many(Message(topic, b"%d" % n) for n in range(20))
            await eventually(lambda: len(seen) >= 20, "all")

            async def is_committed() -> bool:
                return (await groups.group_progress(admin, group, topic=topic)).lag == 0

            await eventually_async(is_committed, "commits")
            members = await groups.group_members(admin, group)
            assert [m.client_id for m in members.members] == [consumer.client_id]
            assert topic in {s.topic for s in members.subscriptions}
            info = await groups.running_info(admin, group, consumer.client_id)
            assert len(info.mq_table) == 5
            (own,) = await groups.producer_members(admin, "pg", topic)
            assert own.client_id == producer.client_id
            assert group in await topics.topic_groups(admin, topic)
            plan = await groups.plan_reset(admin, group, topic, timestamp_ms=0)
            assert [entry.after for entry in plan] == [0] * 4
            await groups.reset_offsets(admin, group, topic, timestamp_ms=0)
            await eventually(lambda: len(seen) >= 40, "everything again")
        moved = await groups.reset_offsets(admin, group, topic, timestamp_ms=0)
        assert len(moved) == 4
        unmoved = await groups.reset_offsets(admin, group, topic, timestamp_ms=None, force=False)
        assert unmoved == []
        with pytest.raises(ClientError, match="not online"):
            await groups.group_members(admin, group)
        with pytest.raises(UsageError, match="negative"):
            await groups.set_offset(admin, group, plan[0].queue, -1)
        assert (await groups.delete_group(admin, group)).is_complete
        (known,) = (await groups.list_groups(admin)).all_or_raise().values()
        assert group not in known


async def test_messages_are_found(cluster: Any, unique: Unique) -> None:
    topic, group, handled = unique("T"), unique("g"), []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.body)
        if len(handled) > 5:
            raise ValueError("enough")

    async with (
        Admin(cluster.name_server) as admin,
        Producer("pg", name_server=cluster.name_server) as producer,
        PushConsumer(group, name_server=cluster.name_server, commit_ms=100) as consumer,
    ):
        await topics.create_topic(admin, topic, read_queues=1)
        receipts = await producer.send_many(
            Message(topic, b"%d" % n, keys=[f"k-{n}", topic]) for n in range(5)
        )
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(handled) >= 5, "all")
        found = await messages.query_by_key(admin, topic, topic)
        assert [m.body for m in found] == [b"0", b"1", b"2", b"3", b"4"]
        (third,) = await messages.query_by_key(admin, topic, "k-3")
        assert third.body == b"3"
        assert await messages.query_by_key(admin, topic, "nothing") == []
        one = await messages.query_by_unique_id(admin, topic, receipts[1].message_id)
        assert one.body == b"1"
        with pytest.raises(QueryNotFoundError):
            await messages.query_by_unique_id(admin, topic, "F" * 32)
        two = await messages.query_by_offset_id(admin, receipts[2].offset_message_id)
        assert (two.body, two.queue.broker_name) == (b"2", "broker-a")
        with pytest.raises(UsageError, match="is not an offset message id"):
            await messages.query_by_offset_id(admin, "nonsense")
        queue = receipts[0].queue
        assert (await messages.query_by_offset(admin, queue, 4)).body == b"4"
        with pytest.raises(QueryNotFoundError, match="offset 99"):
            await messages.query_by_offset(admin, queue, 99)
        assert await messages.offset_for_time(admin, queue, 0) == 0

        async def is_consumed() -> bool:
            return messages.Track(group, "CONSUMED") in await messages.track(admin, third)

        await eventually_async(is_consumed, "the track of a consumed message")
        outcome = await messages.consume_directly(admin, group, consumer.client_id, third)
        assert outcome.consume_result == "CR_THROW_EXCEPTION"
        assert "enough" in str(outcome.remark)


async def test_brokers(cluster: Any, unique: Unique) -> None:
    async with Admin(cluster.name_server) as admin:
        (row,) = await brokers.list_brokers(admin)
        assert (row.name, row.broker_id, row.error) == ("broker-a", 0, None)
        assert row.version
        config = await brokers.broker_config(admin, row.address)
        assert config["brokerName"] == "broker-a"
        await brokers.update_broker_config(admin, row.address, {"fileReservedTime": "47"})
        assert (await brokers.broker_config(admin, row.address))["fileReservedTime"] == "47"
        (settings,) = (await brokers.name_server_config(admin)).all_or_raise().values()
        assert "listenPort" in settings
        counts = (await brokers.wipe_write_permission(admin, "broker-a")).all_or_raise()
        assert all(count > 0 for count in counts.values())
        counts = (await brokers.add_write_permission(admin, "broker-a")).all_or_raise()
        assert all(count > 0 for count in counts.values())
        (status,) = await ha_groups.ha_status(admin)
        assert status.broker_name == "broker-a"


async def test_a_broker_that_is_down_is_part_of_the_answer(bare_cluster: Any) -> None:
    bare_cluster.broker("broker-a")
    other = bare_cluster.broker("broker-b")
    async with Admin(bare_cluster.name_server) as admin:
        assert len(await brokers.list_brokers(admin)) == 2
        other.suspend()
        try:
            quick = Admin(bare_cluster.name_server, request_timeout_ms=500)
            async with quick:
                rows = {row.name: row for row in await brokers.list_brokers(quick)}
        finally:
            other.resume()
        assert rows["broker-a"].error is None
        assert "no answer" in (rows["broker-b"].error or "")
