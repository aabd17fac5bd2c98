"""Brokers that are killed, frozen and restarted under producers and consumers."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.client_support import eventually, eventually_async, read_all
from support.twinlog_servers import start_twinlog_namesrv
from twinlog.admin import Admin, topics
from twinlog.client import Message, Producer, PushConsumer, ReceivedMessage
from twinlog.client.errors import ClientError


async def make_topic(name_server: str, topic: str, queues: int = 4) -> None:
    async with Admin(name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=queues)).all_or_raise()


async def test_what_was_acknowledged_survives_the_kill_of_its_broker(bare_cluster: Any) -> None:
    broker = bare_cluster.broker(flushDiskType="SYNC_FLUSH")
    acknowledged: list[int] = []
    failed = 0
    async with Producer(
        "pg", name_server=bare_cluster.name_server, send_timeout_ms=20_000, retry_count=20
    ) as producer:

        async def send(number: int) -> None:
            nonlocal failed
            try:
                receipt = await producer.send(Message("T", b"%d" % number))
            except ClientError:
                failed += 1
            else:
                if receipt.is_acknowledged:
                    acknowledged.append(number)

        await send(0)
        sends = []
        for number in range(1, 400):
            sends.append(asyncio.get_running_loop().create_task(send(number)))
            if number == 150:
                await eventually(lambda: len(acknowledged) >= 50, "traffic before the kill")
                broker.kill()
            if number == 250:
                broker = bare_cluster.restart(broker)
            await asyncio.sleep(0.001)
        await asyncio.gather(*sends)
    assert failed == 0, "sends ride through a restart that is shorter than their time limit"
    stored = Counter(int(m.body) for m in await read_all(bare_cluster.name_server, "T", 400))
    assert set(acknowledged) <= set(stored)
    repeats = sum(count - 1 for count in stored.values())
    print(f"acknowledged {len(acknowledged)}, stored twice {repeats}")


@pytest.mark.parametrize("linger_ms", [None, 2])
async def test_a_producer_goes_to_another_broker_when_one_dies(
    bare_cluster: Any, linger_ms: float | None
) -> None:
    first = bare_cluster.broker("broker-a")
    bare_cluster.broker("broker-b")
    await make_topic(bare_cluster.name_server, "T", queues=2)
    async with Producer(
        "pg", name_server=bare_cluster.name_server, linger_ms=linger_ms
    ) as producer:
        before = await producer.send_many(Message("T", b"x") for _ in range(40))
        if linger_ms is None:
            assert {r.queue.broker_name for r in before} == {"broker-a", "broker-b"}
        first.kill()
        receipts = await producer.send_many(Message("T", b"%d" % n) for n in range(100))
        assert {r.queue.broker_name for r in receipts[50:]} == {"broker-b"}


async def test_a_name_server_that_restarts_is_found_again(bare_cluster: Any) -> None:
    bare_cluster.broker()
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)

    await make_topic(bare_cluster.name_server, "T")
    async with (
        Producer("pg", name_server=bare_cluster.name_server) as producer,
        PushConsumer("g", name_server=bare_cluster.name_server) as consumer,
    ):
        await consumer.subscribe("T", "*", handler)
        await producer.send(Message("T", b"with"))
        bare_cluster.namesrv.kill()
        # Known routes go on without it.
        await producer.send(Message("T", b"without"))
        await eventually(lambda: b"without" in seen, "traffic without a name server")
        with pytest.raises(ClientError, match="no name server answers"):
            await producer.send(Message("U", b"x"))
        bare_cluster.restart_namesrv()

        async def new_topic() -> bool:
            try:
                await producer.send(Message("U", b"x"))
            except ClientError:
                return False
            return True

        await eventually_async(new_topic, "the broker registers again")


async def test_a_frozen_broker_ends_in_a_time_out_not_in_a_hang(bare_cluster: Any) -> None:
    broker = bare_cluster.broker()
    async with Producer(
        "pg", name_server=bare_cluster.name_server, send_timeout_ms=800, retry_count=0
    ) as producer:
        await producer.send(Message("T", b"1"))
        broker.suspend()
        try:
            with pytest.raises(ClientError, match="no answer") as caught:
                await producer.send(Message("T", b"2"))
            assert caught.value.retriable
        finally:
            broker.resume()
        await eventually_async(
            lambda: _succeeds(producer.send(Message("T", b"3"), timeout_ms=5000)), "life again"
        )


async def _succeeds(call: Any) -> bool:
    try:
        await call
    except ClientError:
        return False
    return True


async def test_names_are_resolved_again_for_each_connection(
    bare_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server moves to another address under the same name, as behind a DNS entry."""
    port = bare_cluster.namesrv.port
    moved = start_twinlog_namesrv(tmp_path / "moved", listenPort=port, bindAddress="127.0.0.2")
    try:
        broker = bare_cluster.broker(namesrvAddr=f"{bare_cluster.name_server};127.0.0.2:{port}")
        moved.wait_for_text(f"address={broker.address}")
        place = "127.0.0.1"
        resolve = socket.getaddrinfo

        def resolver(host: Any, *arguments: Any, **options: Any) -> Any:
            return resolve(place if host == "names.test" else host, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        async with Producer("pg", name_server=f"names.test:{port}") as producer:
            await producer.send(Message("before", b"x"))
            bare_cluster.namesrv.kill()
            with pytest.raises(ClientError, match="no name server answers"):
                await producer.send(Message("between", b"x"), timeout_ms=1000)
            place = "127.0.0.2"
            receipt = await producer.send(Message("after", b"x"))
            assert receipt.is_acknowledged
    finally:
        moved.kill()


async def test_a_broker_that_an_old_route_named_is_found_again(bare_cluster: Any) -> None:
    """Nobody sends: only heartbeats tell, and a late answer about the route brings it back."""
    broker = bare_cluster.broker()
    # With it the topic stays known while the master is away.
    slave = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"127.0.0.1:{broker.ha_port}"}
    bare_cluster.broker(**slave)
    await make_topic(bare_cluster.name_server, "T")
    async with Producer("pg", name_server=bare_cluster.name_server, heartbeat_ms=100) as producer:
        await producer.send(Message("T", b"x"))
        presence, routes = producer._instance._presence, producer._instance._routes
        old = dict(routes.brokers)
        broker.kill()
        await eventually(lambda: not routes.is_known(broker.address), "the route without it")
        await eventually(lambda: not presence._probing, "the end of the probe")
        routes.brokers.update(old)
        await eventually(lambda: not presence.is_reachable(broker.address), "a failed heartbeat")
        bare_cluster.restart(broker)
        await eventually(lambda: presence.is_reachable(broker.address), "its return")
        await eventually(lambda: presence.is_announced(broker.address), "a heartbeat there")
