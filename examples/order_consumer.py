"""A consumer with retries and dead letters that ends cleanly on SIGTERM.

What fails for a while is delivered again later; what can never succeed goes to the dead letters at
once, where `twinlog dlq show example-billing` finds it. Handlers may see a message twice: the key
of the order tells.
"""

from __future__ import annotations

import json
import os
import sys

from twinlog.client import (
    ClientError,
    ConsumeFrom,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    run,
)

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "example-orders")
GROUP = os.environ.get("ORDERS_GROUP", "example-billing")
AFTER_ONE_SECOND = 1  # RocketMQ's delay levels: 1s 5s 10s 30s 1m ...
TO_DEAD_LETTERS = -1

consumer = PushConsumer(
    GROUP, name_server=NAME_SERVER, consume_from=ConsumeFrom.FIRST_OFFSET, max_attempts=5
)
billed: set[str] = set()  # Your database, with a unique key.


@consumer.on(TOPIC)
async def bill(message: ReceivedMessage) -> None:
    try:
        order = json.loads(message.body)
        key, amount = str(order["order"]), float(order["amount"])
    except (ValueError, KeyError, TypeError) as error:
        print(f"never {message.message_id}: {error!r}", flush=True)
        raise RetryLater(TO_DEAD_LETTERS) from error
    if key in billed:
        print(f"again {key}", flush=True)
        return
    if order.get("bank") == "closed" and message.reconsume_times == 0:
        print(f"later {key}", flush=True)
        raise RetryLater(AFTER_ONE_SECOND)
    billed.add(key)
    print(f"billed {key} {amount:.2f} after {message.reconsume_times} retries", flush=True)


if __name__ == "__main__":
    try:
        run(consumer)  # Returns after SIGTERM: running handlers have ended, offsets are committed.
    except ClientError as error:
        sys.exit(f"order_consumer: {error}")
    print("ended cleanly", flush=True)
