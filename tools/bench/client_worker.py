"""Our client under measurement, in a process of its own.

client_worker.py NAMESRV send TOPIC MODE SIZE SECONDS WINDOW | consume TOPIC GROUP COUNT
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import uvloop

from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer

LINGER_MS = 2.0


def report(messages: int, seconds: float, cpu: float) -> None:
    print(json.dumps({"messages": messages, "seconds": seconds, "cpu": cpu}), flush=True)


async def send(namesrv: str, topic: str, mode: str, size: str, seconds: str, window: str) -> None:
    body = bytes(int(size))
    settings = {"linger_ms": LINGER_MS} if mode == "batched" else {"in_flight_max": int(window)}
    async with Producer("bench", name_server=namesrv, **settings) as producer:
        await producer.send(Message(topic, body))
        started, cpu = time.perf_counter(), time.process_time()
        end = started + float(seconds)

        def messages() -> Iterator[Message]:
            while time.perf_counter() < end:
                yield Message(topic, body)

        if mode == "awaited":
            receipts = [await producer.send(message) for message in messages()]
        else:
            receipts = await producer.send_many(messages())
        taken = time.perf_counter() - started
        count = sum(receipt.is_acknowledged for receipt in receipts)
        report(count, taken, time.process_time() - cpu)


async def consume(namesrv: str, topic: str, group: str, count: str) -> None:
    wanted, taken = int(count), 0
    started = cpu = 0.0
    done = asyncio.Event()

    async def handler(message: object) -> None:
        nonlocal taken, started, cpu
        if taken == 0:
            started, cpu = time.perf_counter(), time.process_time()
        taken += 1
        if taken == wanted:
            report(wanted, time.perf_counter() - started, time.process_time() - cpu)
            done.set()

    async with PushConsumer(
        group, name_server=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await done.wait()


async def main() -> None:
    namesrv, command, *arguments = sys.argv[1:]
    await {"send": send, "consume": consume}[command](namesrv, *arguments)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
