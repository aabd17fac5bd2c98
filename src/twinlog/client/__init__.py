"""The Python client, asyncio first. `twinlog.client.blocking` has the same names, blocking.

Names are imported when they are first used: a command that only asks the name server does not pay
for producers and consumers.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinlog.client import blocking
    from twinlog.client.consumer.consumer_core import ConsumeFrom
    from twinlog.client.consumer.pull_consumer import PullConsumer
    from twinlog.client.consumer.push_consumer import PushConsumer, RetryLater
    from twinlog.client.errors import ClientError, SendOutcome
    from twinlog.client.hooks import ClientHooks
    from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
    from twinlog.client.producer.producer import Producer
    from twinlog.client.producer.transaction import (
        TransactionProducer,
        TransactionReceipt,
        TransactionState,
    )
    from twinlog.client.queues import MessageQueue

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
    "SendOutcome",
    "SendReceipt",
    "SendStatus",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "blocking",
]

_MODULES = {
    "ClientError": "errors",
    "ClientHooks": "hooks",
    "ConsumeFrom": "consumer.consumer_core",
    "Message": "message",
    "MessageQueue": "queues",
    "Producer": "producer.producer",
    "PullConsumer": "consumer.pull_consumer",
    "PushConsumer": "consumer.push_consumer",
    "ReceivedMessage": "message",
    "RetryLater": "consumer.push_consumer",
    "SendOutcome": "errors",
    "SendReceipt": "message",
    "SendStatus": "message",
    "TransactionProducer": "producer.transaction",
    "TransactionReceipt": "producer.transaction",
    "TransactionState": "producer.transaction",
}


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return importlib.import_module("twinlog.client.blocking")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"twinlog.client.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# Silent unless the application configures logging: a library does not write to its standard error.
for _name in ("twinlog.client", "twinlog.remoting", "twinlog.tasks"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
