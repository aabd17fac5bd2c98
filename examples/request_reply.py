"""A question and its answer over topics: one process serves, another asks.

python examples/request_reply.py serve &
python examples/request_reply.py ask EUR USD
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from twinlog.client import (
    ClientError,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RequestReplyTimeoutError,
)
from twinlog.client.running import run_until_stopped

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("RATES_TOPIC", "example-rates")
RATES = {"EUR": 1.0, "USD": 1.09, "GBP": 0.85}


async def serve() -> None:
    """Until SIGTERM."""
    async with Producer("example-rates-server", name_server=NAME_SERVER) as producer:
        consumer = PushConsumer("example-rates", name_server=NAME_SERVER)

        @consumer.on(TOPIC)
        async def answer(message: ReceivedMessage) -> None:
            rate = RATES.get(message.body.decode())
            await producer.reply(message, b"unknown" if rate is None else str(rate).encode())

        print("serving", flush=True)
        await run_until_stopped(consumer)
    print("ended cleanly", flush=True)


async def ask(currencies: list[str], timeout_ms: int) -> int:
    async with Producer("example-rates-client", name_server=NAME_SERVER) as producer:
        for currency in currencies:
            try:
                question = Message(TOPIC, currency.encode())
                reply = await producer.request(question, timeout_ms=timeout_ms)
            except RequestReplyTimeoutError:
                print(f"{currency}: nobody answered in time", file=sys.stderr)
                return 1
            print(f"{currency} {reply.body.decode()}", flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("serve", "ask"))
    parser.add_argument("currencies", nargs="*")
    parser.add_argument("--timeout-ms", type=int, default=10_000)
    given = parser.parse_args()
    try:
        if given.what == "serve":
            asyncio.run(serve())
        else:
            sys.exit(asyncio.run(ask(given.currencies, given.timeout_ms)))
    except ClientError as error:
        sys.exit(f"request_reply: {error}")
