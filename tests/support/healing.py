"""A master and a slave in the test's own process that heal each other, and what they serve."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from support.local_brokers import Brokers, pull, until
from twinlog.broker.server import Broker
from twinlog.message.record import decode_record

CONFIG: dict[str, Any] = {
    "twinlog_ha_dialect": "auto",
    "twinlog_scrub_cpu_percent": 100,
    "twinlog_scrub_rate_max": 1 << 30,
    "mapped_file_size_consume_queue": 2000,
    "flush_interval_commit_log": 20,
}
MESSAGES = 400


async def running_pair(
    brokers: Brokers, *, slave_config_path: str | None = None, **more: Any
) -> tuple[Broker, Broker]:
    server = await brokers.name_server()
    CONFIG["namesrv_addr"] = f"127.0.0.1:{server.config.listen_port}"
    master = await brokers.master(**CONFIG, **more)
    slave = await brokers.slave(master, config_path=slave_config_path, **CONFIG)
    await until(lambda: master.scrubber.healer.replicas() and slave.scrubber.healer.replicas())
    return master, slave


async def fill(brokers: Brokers, master: Broker, slave: Broker, rng: random.Random) -> list[bytes]:
    bodies = [
        b"%06d " % number + rng.randbytes(rng.choice((10, 900, 3000))) for number in range(MESSAGES)
    ]
    for start in range(0, MESSAGES, 50):
        sent = [
            brokers.send(master, body, topic="t", queue_id=number % 4, KEYS=f"k{number}", TAGS="a")
            for number, body in enumerate(bodies[start : start + 50])
        ]
        assert {answer.code for answer in await asyncio.gather(*sent)} == {0}
    end = master.store.commit_log.max_offset
    for broker in (master, slave):
        await until(lambda b=broker: min(b.store.flushed.value, b.store.dispatched.value) >= end)
        broker.store.queue_table.write_all()
    return bodies


async def scrubbed(*brokers: Broker) -> None:
    """A whole pass of each, from the first byte to the last."""
    passes = [broker.scrubber.state.passes for broker in brokers]
    for broker in brokers:
        broker.scrubber.hurry()
    for broker, before in zip(brokers, passes, strict=True):
        await until(lambda b=broker, n=before: b.scrubber.state.passes > n, 120)


async def bodies_served(brokers: Brokers, broker: Broker) -> set[bytes]:
    """All that a consumer gets from every queue, going on behind what is answered with an error."""
    found = set()
    for topic, queue_id in broker.store.queues:
        if topic != "t":
            continue
        offset = 0
        while offset < broker.store.max_offset_in_queue(topic, queue_id):
            answer = await pull(
                brokers, broker, offset, topic=topic, queueId=queue_id, maxMsgNums=32
            )
            at, body = 0, bytes(answer.body)
            while at < len(body):
                record = decode_record(body, at, check_crc=False)
                found.add(record.body)
                at += record.total_size
            offset = max(offset + 1, int(answer.ext().get("nextBeginOffset", 0)))
    return found
