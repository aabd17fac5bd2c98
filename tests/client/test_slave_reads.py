"""A master dies: its consumers go on from the slave, and back when it returns."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from support.client_support import eventually, eventually_async
from twinlog.admin import Admin, brokers, topics
from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from twinlog.client.errors import ClientError

Unique = Callable[[str], str]


async def make_topic(name_server: str, topic: str, queues: int = 4) -> None:
    async with Admin(name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=queues)).all_or_raise()


async def slave_has_all(admin: Admin, master: str, slave: str) -> bool:
    try:
        ends = [
            int((await brokers.broker_runtime(admin, address))["commitLogMaxOffset"])
            for address in (master, slave)
        ]
        behind = (await brokers.broker_runtime(admin, slave)).get("dispatchBehindBytes", "0")
        known = await topics.all_topic_configs(admin, slave)
    except ClientError:
        return False
    return ends[0] == ends[1] > 0 and int(behind) == 0 and "T" in known


@pytest.mark.parametrize("has_name_server", [True, False])
async def test_item_097_and_101_consumers_go_on_from_the_slave_and_come_back(
    bare_cluster: Any, unique: Unique, has_name_server: bool
) -> None:
    """A part of the messages is consumed, the master dies, the rest comes from the slave.

    Without a name server nobody says that the master is gone: its refused connection must do.
    """
    master = bare_cluster.broker("broker-a", brokerRole="ASYNC_MASTER")
    slave = bare_cluster.broker(
        "broker-a", brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{master.ha_port}"
    )
    await make_topic(bare_cluster.name_server, "T")
    counts: Counter[bytes] = Counter()
    gate = asyncio.Semaphore(50)
    arrived_ms: list[float] = []

    async def handler(message: ReceivedMessage) -> None:
        await gate.acquire()
        counts[message.body] += 1
        arrived_ms.append(time.monotonic())

    async with (
        Producer("pg", name_server=bare_cluster.name_server) as producer,
        Admin(bare_cluster.name_server) as admin,
        PushConsumer(
            unique("g"), name_server=bare_cluster.name_server, queue_count_max=20,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ) as consumer,
    ):  # fmt: skip
        await producer.send_many(Message("T", b"%d" % n) for n in range(500))
        await eventually_async(
            lambda: slave_has_all(admin, master.address, slave.address), "a slave that has all"
        )
        await consumer.subscribe("T", "*", handler)
        await eventually(lambda: len(counts) >= 50, "the first messages")
        if not has_name_server:
            bare_cluster.namesrv.kill()
        master.kill()
        killed = time.monotonic()
        for _ in range(1000):
            gate.release()
        await eventually(lambda: len(counts) >= 500, "the rest, from the slave")
        print(f"all from the slave {time.monotonic() - killed:.3f} s after the kill")
        if not has_name_server:
            return
        master = bare_cluster.restart(master)
        receipts: list[Any] = []

        async def send_again() -> bool:
            try:
                receipts.append(await producer.send(Message("T", b"after")))
            except ClientError:
                return False
            return True

        await eventually_async(send_again, "sends to the master that came back")
        await eventually(lambda: counts[b"after"] >= 1, "and their consumption")
    assert len(counts) == 501
    assert [body for body, count in counts.items() if count > 1 and body != b"after"] == []
