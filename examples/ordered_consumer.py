"""The steps of each order one after the other, also when one of them has to wait.

The sharding key puts all steps of an order into one queue; an ordered consumer takes a queue's
messages one by one and tries a failed one again in its place, so that nothing overtakes it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    run,
)

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "example-steps")
STEPS = ("created", "paid", "packed", "shipped")

consumer = PushConsumer(
    "example-shipping", name_server=NAME_SERVER, ordered=True, suspend_ms=200,
    consume_from=ConsumeFrom.FIRST_OFFSET,
)  # fmt: skip
waited: set[str] = set()


@consumer.on(TOPIC)
async def handle(message: ReceivedMessage) -> None:
    order, _, step = message.body.decode().partition(" ")
    if step == "packed" and order not in waited:
        waited.add(order)
        print(f"{order} waits", flush=True)
        raise RuntimeError("no box at hand: this message again, before all that follow")
    print(f"{order} {step}", flush=True)


async def produce(orders: list[str]) -> None:
    async with Producer("example-shop", name_server=NAME_SERVER) as producer:
        for step in STEPS:
            for order in orders:
                message = Message(TOPIC, f"{order} {step}".encode(), sharding_key=order)
                await producer.send(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--produce", nargs="*", default=[], metavar="ORDER", help="First send.")
    try:
        asyncio.run(produce(parser.parse_args().produce))
        run(consumer)
    except ClientError as error:
        sys.exit(f"ordered_consumer: {error}")
    print("ended cleanly", flush=True)
