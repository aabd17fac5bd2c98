"""A message that becomes visible exactly when a database has committed.

The broker stores the message hidden, the database commits the order together with the id of the
transaction, then the broker is told. Should this program die in between, the broker asks any
producer of the group, and the database knows the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
from contextlib import closing

from twinlog.client import (
    ClientError,
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("ORDERS_TOPIC", "example-paid")
DATABASE = os.environ.get("ORDERS_DATABASE", "orders.sqlite")


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    database.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT UNIQUE, message TEXT UNIQUE)")
    return database


async def check(message: ReceivedMessage) -> TransactionState:
    """The broker has not heard how it ended: the database has."""
    with closing(connect()) as database:
        query = "SELECT 1 FROM orders WHERE message = ?"
        found = database.execute(query, (message.transaction_id,)).fetchone()
    print(f"checked {message.transaction_id}: {'there' if found else 'not there'}", flush=True)
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


async def pay(producer: TransactionProducer, name: str) -> None:
    message = Message(TOPIC, name.encode(), keys=[name])
    async with producer.transaction(message) as transaction:  # An exception rolls back.
        with closing(connect()) as database, database:
            database.execute("INSERT INTO orders VALUES (?, ?)", (name, transaction.id))


async def main(names: list[str]) -> int:
    async with TransactionProducer(
        "example-payments", check=check, name_server=NAME_SERVER
    ) as producer:
        for name in names:
            try:
                await pay(producer, name)
            except sqlite3.IntegrityError:
                print(f"rolled back {name}: it was paid before", flush=True)
            except ClientError as error:
                # The database has heard nothing: should the message be stored, hidden, the broker
                # will ask and be told to drop it.
                print(f"not paid {name}: {error}", file=sys.stderr)
                return 1
            else:
                print(f"paid {name}", flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("orders", nargs="+")
    sys.exit(asyncio.run(main(parser.parse_args().orders)))
