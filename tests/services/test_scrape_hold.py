"""The longest time for which a scrape of 10,000 topics and 5,000 groups keeps the loop for itself.

Measured inside the process, as CPU time of each callback of the loop: what other processes of the
machine take does not count, everything that the broker does for a scrape does. It counts for the
speed of the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import Brokers
from support.machine_speed import slowness
from twinlog.broker.stats.metrics import observed_broker
from twinlog.observe.observer import Observer
from twinlog.remoting.codes import RequestCode

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
TOPICS, GROUPS, AT_ONCE = 10_000, 5_000, 500
HOLD_MS_MAX = 20


@contextmanager
def callbacks_measured(times_ms: list[float]) -> Iterator[None]:
    """CPU time of every callback that the event loop runs meanwhile."""
    run = asyncio.Handle._run

    def measured(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        times_ms.append(1000 * (time.thread_time() - began))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield


async def fill(brokers: Brokers, broker: Any) -> None:
    for first in range(0, TOPICS, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        sent = [brokers.send(broker, b"x", topic=f"t-{n}") for n in numbers]
        assert {answer.code for answer in await asyncio.gather(*sent)} == {0}
    for first in range(0, GROUPS, AT_ONCE):
        commits = [
            brokers.call(
                broker,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": f"g-{n}", "topic": f"t-{n}", "queueId": 0, "commitOffset": 0},
            )
            for n in range(first, first + AT_ONCE)
        ]
        assert {answer.code for answer in await asyncio.gather(*commits)} == {0}


async def scrape(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    return text


async def test_no_callback_of_a_scrape_holds_the_loop(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    broker = await brokers.start(
        "b", broker_role="ASYNC_MASTER", twinlog_metrics_series_max=100_000,
        twinlog_creations_per_address=0, default_topic_queue_nums=1, metrics_prom_exporter_port=0,
        mapped_file_size_commit_log=16 << 20,
    )  # fmt: skip
    observer = Observer(
        broker.config, observed_broker(broker), clock=broker.clock, failures=broker.failures
    )
    await observer.start()
    observer.serving()
    try:
        await fill(brokers, broker)
        worst = []
        for _ in range(3):
            times_ms: list[float] = []
            with callbacks_measured(times_ms):
                text = await scrape(observer.port.port)
            assert text.count(b"\nrocketmq_messages_in_total{") == TOPICS
            worst.append(max(times_ms) / slowness())
        print(f"\nlongest hold of the loop by a scrape, ms of CPU: {sorted(worst)}")
        # The best of three: what the processor's caches and clock do is not the scrape's doing.
        assert min(worst) < HOLD_MS_MAX
    finally:
        observer.stopping()
        await observer.stop()
        await brokers.stop()
