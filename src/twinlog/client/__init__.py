"""The Python client, asyncio first. `twinlog.client.blocking` has the same names, blocking."""

import logging

from twinlog.client import blocking
from twinlog.client.consumer_core import ConsumeFrom
from twinlog.client.errors import ClientError
from twinlog.client.hooks import ClientHooks
from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from twinlog.client.producer import Producer
from twinlog.client.pull_consumer import PullConsumer
from twinlog.client.push_consumer import PushConsumer, RetryLater
from twinlog.client.queues import MessageQueue
from twinlog.client.transaction import (
    TransactionProducer,
    TransactionReceipt,
    TransactionState,
)

__all__ = [
    "ClientError",
    "ClientHooks",
    "ConsumeFrom",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "SendReceipt",
    "SendStatus",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "blocking",
]

# Silent unless the application configures logging: a library does not write to its standard error.
for _name in ("twinlog.client", "twinlog.remoting", "twinlog.tasks"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
