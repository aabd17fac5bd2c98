"""What a look for new offsets costs in requests: by broker and topic, never by queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import process_group, wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.client import Message, MessageQueue, blocking
from twinlog.remoting.codes import RequestCode
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_transport

TOPICS, WIDTH = [f"t{number}" for number in range(5)], 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A SYNC_MASTER, whose ends must be confirmed, with its slave; 1,000 queues."""
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "n")
        group.add(namesrv)
        common = {"namesrv": namesrv.address, "mappedFileSizeConsumeQueue": 2000}
        master = start_twinlog_broker(tmp_path / "m", brokerRole="SYNC_MASTER", **common)
        group.add(master)
        slave = start_twinlog_broker(
            tmp_path / "s", brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"127.0.0.1:{master.ha_port}", **common,
        )  # fmt: skip
        group.add(slave)
        namesrv.wait_for_text(f"address={master.address}")
        namesrv.wait_for_text(f"address={slave.address}")

        async def make() -> None:
            async with Admin(namesrv.address) as admin:
                for topic in TOPICS:
                    await create_topic(admin, topic, read_queues=WIDTH)

        asyncio.run(make())
        yield namesrv.address


@pytest.mark.timeout(240)
def test_a_look_over_a_thousand_queues_asks_by_topic(cluster: str) -> None:
    with blocking.Producer("producers", name_server=cluster, send_timeout_ms=30_000) as producer:
        for topic in TOPICS:
            for queue in range(0, WIDTH, 10):
                place = MessageQueue(topic, "broker-a", queue)
                producer.send(Message(topic, b"x"), queue=place, timeout_ms=30_000)
    options = SourceOptions.parse(
        {"nameServer": cluster, "subscribePattern": "t.*", "startingOffsets": "earliest"}
    )
    transport: Any = open_transport(options)
    planner = StreamPlanner(options, transport)
    sent: Counter[int] = Counter()
    remoting = transport.client.transport
    invoke = remoting.invoke

    async def counted(address: str, command: Any, *rest: Any, **more: Any) -> Any:
        sent[command.code] += 1
        return await invoke(address, command, *rest, **more)

    remoting.invoke = counted
    try:
        end = planner.latest(planner.initial(), limited=True)
        assert len(planner.seen) == len(TOPICS) * WIDTH

        def is_read() -> bool:
            nonlocal end
            end = planner.latest(end, limited=True)
            return (
                sum(n for q in end["offsets"].values() for b in q.values() for n in b.values())
                == 100
            )

        wait_until(is_read, "all messages are behind the offsets")
        assert planner.latest(end, limited=True) == end  # what is confirmed is known now
        transport.survey._present_at = transport.loop.time()
        sent.clear()
        assert planner.latest(end, limited=True) == end
        assert sent.pop(RequestCode.GET_TOPIC_STATS_INFO) == len(TOPICS)
        assert sent.total() <= 3, sent  # the mark, what is confirmed

        # A queue that moves costs its own mark only, not one of each queue.
        with blocking.Producer("producers", name_server=cluster) as producer:
            place = MessageQueue("t0", "broker-a", 7)
            producer.send(Message("t0", b"x"), queue=place, timeout_ms=30_000)
        before = end
        sent.clear()

        def has_moved() -> bool:
            nonlocal end
            end = planner.latest(before, limited=True)
            return end != before

        wait_until(has_moved, "the new message is seen")
        assert sent[RequestCode.PULL_MESSAGE] <= 20, sent
    finally:
        transport.close()
