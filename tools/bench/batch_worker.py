"""Our client with automatic batches, in a process of its own: batch_worker.py NAMESRV TOPIC SIZE S.

The latency is that of single sends that are made next to the stream, every few milliseconds: each
takes its place in the batches as any other message does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import uvloop

from twinlog.client import Message, Producer

LINGER_MS = 2.0
PROBE_S = 0.005


async def main(namesrv: str, topic: str, size: int, seconds: float) -> None:
    body = bytes(97 + i % 26 for i in range(size))
    latencies: list[float] = []
    async with Producer("bench", name_server=namesrv, linger_ms=LINGER_MS) as producer:
        await producer.send(Message(topic, body))
        started, cpu = time.perf_counter(), time.process_time()
        end = started + seconds

        def messages() -> Iterator[Message]:
            while time.perf_counter() < end:
                yield Message(topic, body)

        async def probe() -> int:
            while (begin := time.perf_counter()) < end:
                await producer.send(Message(topic, body))
                latencies.append(time.perf_counter() - begin)
                await asyncio.sleep(PROBE_S)
            return len(latencies)

        receipts, probes = await asyncio.gather(producer.send_many(messages()), probe())
        taken = time.perf_counter() - started
    latencies.sort()
    count = sum(receipt.is_acknowledged for receipt in receipts) + probes
    print(json.dumps({
        "messages": count, "seconds": taken, "cpu": time.process_time() - cpu,
        "p99": latencies[int(0.99 * (len(latencies) - 1))] * 1e3,
    }))  # fmt: skip


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
