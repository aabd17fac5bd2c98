"""The outcome that a send error carries, compared with what the store's log holds afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client.conftest import Cluster
from support.client_support import eventually
from support.cut_proxy import CutProxy
from support.processes import wait_until
from support.raw_log import raw_bodies
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker
from twinlog.client import Message, Producer, ProducerHealth, SendReceipt
from twinlog.client.errors import ClientError, SendOutcome
from twinlog.namesrv.routes import BrokerIdentity
from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import NamesrvConfig

OPEN_SENDS = 96
TOPIC = "outcomes"


def compare(results: dict[bytes, Any], stored: Counter[bytes], *, is_once: bool) -> Counter[str]:
    """Every claim must be true; counts the claims."""
    claims: Counter[str] = Counter()
    for body, result in results.items():
        if isinstance(result, SendReceipt):
            claim = SendOutcome.STORED
        else:
            assert isinstance(result, ClientError), repr(result)
            claim = result.outcome
            assert result.is_safe_to_repeat == (claim is SendOutcome.NOT_STORED)
        claims[claim.name] += 1
        if claim is SendOutcome.NOT_STORED:
            assert stored[body] == 0, f"{body!r} is stored {stored[body]} times: {result!r}"
        elif claim is SendOutcome.STORED:
            assert stored[body] >= 1, f"{body!r} is not stored: {result!r}"
        if is_once:
            assert stored[body] <= 1, f"{body!r} is stored {stored[body]} times"
    return claims


def wait_stored(broker: TwinlogBroker, body: bytes) -> None:
    wait_until(lambda: raw_bodies(broker.store, TOPIC)[body], f"{body!r} is in the log")


async def outcomes_of(producer: Producer, bodies: list[bytes], **options: Any) -> dict[bytes, Any]:
    sends = [producer.send_nowait(Message(TOPIC, body, **options)) for body in bodies]
    return dict(zip(bodies, await asyncio.gather(*sends, return_exceptions=True), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"idempotent": True}, {"linger_ms": 0}, {"retry_count": 0}], ids=str
)
async def test_a_killed_sync_master_leaves_true_outcomes(
    bare_cluster: Cluster, options: dict[str, Any]
) -> None:
    """96 sends are open because the slave is frozen; then the master is killed. Two rounds: at
    once, and when half of them are in the log."""
    master = bare_cluster.broker(brokerRole="SYNC_MASTER")
    slave = bare_cluster.broker(brokerRole="SLAVE", brokerId=1)
    results: dict[bytes, Any] = {}
    for round_number in range(2):
        async with Producer("kill", name_server=bare_cluster.name_server, **options) as producer:
            first = b"first-%d" % round_number
            await producer.send(Message(TOPIC, first), timeout_ms=20_000)
            await asyncio.to_thread(wait_stored, slave, first)
            slave.suspend()
            bodies = [b"%d-%d" % (round_number, number) for number in range(OPEN_SENDS)]
            sending = asyncio.ensure_future(outcomes_of(producer, bodies))
            await asyncio.sleep(0)
            if round_number:
                await asyncio.to_thread(wait_stored, master, bodies[OPEN_SENDS // 2])
            master.kill()
            results |= await sending
        slave.resume()
        if not round_number:
            master = await asyncio.to_thread(bare_cluster.restart, master)
    compare(results, raw_bodies(master.store, TOPIC), is_once="idempotent" in options)


async def test_without_a_master_a_request_and_the_health_say_why(bare_cluster: Cluster) -> None:
    """Not that no consumer replies: the request never left."""
    broker = bare_cluster.broker()
    bare_cluster.broker(brokerRole="SLAVE", brokerId=1)
    async with Producer("ask", name_server=bare_cluster.name_server) as producer:
        assert producer.health().is_ok
        await producer.send(Message(TOPIC, b"first"))
        assert producer.health() == ProducerHealth(True, "", 0, 0, ())
        broker.kill()
        with pytest.raises(ClientError, match="master") as caught:
            await producer.request(Message(TOPIC, b"?"), timeout_ms=4000)
        assert caught.value.outcome is SendOutcome.NOT_STORED
        health = producer.health()
        assert health.reason == f"no master takes messages for topic {TOPIC!r}"
        assert health.topics_without_master == (TOPIC,)
        await asyncio.to_thread(bare_cluster.restart, broker)
        await eventually(lambda: producer.health().is_ok, "the producer is well again")
    assert "closed" in producer.health().reason


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[Namesrv]:
    namesrv = build_namesrv(NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "kv.json")))
    await namesrv.start()
    yield namesrv
    await namesrv.stop()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [{}, {"retry_count": 0}, {"idempotent": True}, {"linger_ms": 0}, {"retry_when_not_ok": True}],
    ids=str,
)
async def test_connections_cut_at_any_byte_leave_true_outcomes(
    tmp_path: Path, namesrv: Namesrv, options: dict[str, Any], seed: int
) -> None:
    numbers = random.Random(seed)
    broker = await asyncio.to_thread(
        start_twinlog_broker, tmp_path / "broker", mappedFileSizeCommitLog=1 << 20
    )
    proxy = CutProxy(broker.port, numbers)
    await proxy.start()
    namesrv.routes.register(
        BrokerIdentity("DefaultCluster", "broker-a", 0, f"127.0.0.1:{proxy.port}"),
        data_version=DataVersion(1, 1),
        topics=[TopicConfig(TOPIC, perm=6, read_queue_nums=4, write_queue_nums=4)],
        connection=proxy,
        now_ms=SystemClock().monotonic_ms(),
    )
    results: dict[bytes, Any] = {}
    try:
        for round_number in range(16):
            scale = numbers.choice((1, 3, 20))
            proxy.cut_after = (scale * numbers.randrange(4000), scale * numbers.randrange(2000))
            async with Producer(
                "cut", name_server=namesrv.address, send_timeout_ms=600, **options
            ) as producer:
                bodies = [
                    b"%d-%d-" % (round_number, number) + b"." * numbers.randrange(200)
                    for number in range(numbers.randrange(1, 40))
                ]
                key = {"sharding_key": "k"} if numbers.random() < 0.3 else {}
                results |= await outcomes_of(producer, bodies, **key)
    finally:
        await proxy.close()
        await asyncio.to_thread(broker.stop)
    claims = compare(results, raw_bodies(broker.store, TOPIC), is_once="idempotent" in options)
    assert proxy.cuts > 4, "nothing was cut"
    assert claims["STORED"], claims
