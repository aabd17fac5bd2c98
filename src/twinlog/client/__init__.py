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
    from twinlog.client.consumer.listener import RebalanceListener
    from twinlog.client.consumer.positions import ConsumerHealth
    from twinlog.client.consumer.pull_consumer import PullConsumer
    from twinlog.client.consumer.push_consumer import PushConsumer, RetryLater
    from twinlog.client.errors import (
        AccessDeniedError,
        BrokerBusyError,
        BrokerError,
        BrokerSystemError,
        BrokerTopicNotFoundError,
        BrokerUnreachableError,
        BufferFullError,
        ClientClosedError,
        ClientError,
        ClientForkedError,
        ConnectionLostError,
        ConsumerNotOnlineError,
        GroupNotFoundError,
        IdempotenceLostError,
        IdempotenceNotSupportedError,
        InvalidAddressError,
        InvalidHandlerError,
        InvalidMessageError,
        InvalidSubscriptionError,
        MessageIllegalError,
        NameServerUnreachableError,
        NoBrokerError,
        NoPermissionError,
        NotANameServerError,
        NoWritableQueueError,
        OutOfSequenceError,
        ProducerExpiredError,
        ProducerFencedError,
        PullNotFoundError,
        PullOffsetMovedError,
        QueryNotFoundError,
        RepeatDiffersError,
        RequestCodeNotSupportedError,
        RequestReplyTimeoutError,
        RequestTimeoutError,
        RouteError,
        SendOutcome,
        ServiceNotAvailableError,
        SubscriptionNotExistError,
        SubscriptionParseError,
        TopicNotFoundError,
        TransactionError,
        TransportError,
        UnreadableAnswerError,
        UnreadableBodyError,
        UsageError,
    )
    from twinlog.client.hooks import ClientHooks
    from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
    from twinlog.client.producer.health import ProducerHealth
    from twinlog.client.producer.producer import Producer
    from twinlog.client.producer.transaction import (
        TransactionProducer,
        TransactionReceipt,
        TransactionState,
    )
    from twinlog.client.queues import MessageQueue
    from twinlog.client.running import run, run_until_stopped
    from twinlog.client.serializers import JSON, JsonSerializer, Serializer
    from twinlog.client.tls import TlsSettings

__all__ = [
    "JSON",
    "AccessDeniedError",
    "BrokerBusyError",
    "BrokerError",
    "BrokerSystemError",
    "BrokerTopicNotFoundError",
    "BrokerUnreachableError",
    "BufferFullError",
    "ClientClosedError",
    "ClientError",
    "ClientForkedError",
    "ClientHooks",
    "ConnectionLostError",
    "ConsumeFrom",
    "ConsumerHealth",
    "ConsumerNotOnlineError",
    "GroupNotFoundError",
    "IdempotenceLostError",
    "IdempotenceNotSupportedError",
    "InvalidAddressError",
    "InvalidHandlerError",
    "InvalidMessageError",
    "InvalidSubscriptionError",
    "JsonSerializer",
    "Message",
    "MessageIllegalError",
    "MessageQueue",
    "NameServerUnreachableError",
    "NoBrokerError",
    "NoPermissionError",
    "NoWritableQueueError",
    "NotANameServerError",
    "OutOfSequenceError",
    "Producer",
    "ProducerExpiredError",
    "ProducerFencedError",
    "ProducerHealth",
    "PullConsumer",
    "PullNotFoundError",
    "PullOffsetMovedError",
    "PushConsumer",
    "QueryNotFoundError",
    "RebalanceListener",
    "ReceivedMessage",
    "RepeatDiffersError",
    "RequestCodeNotSupportedError",
    "RequestReplyTimeoutError",
    "RequestTimeoutError",
    "RetryLater",
    "RouteError",
    "SendOutcome",
    "SendReceipt",
    "SendStatus",
    "Serializer",
    "ServiceNotAvailableError",
    "SubscriptionNotExistError",
    "SubscriptionParseError",
    "TlsSettings",
    "TopicNotFoundError",
    "TransactionError",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "TransportError",
    "UnreadableAnswerError",
    "UnreadableBodyError",
    "UsageError",
    "blocking",
    "run",
    "run_until_stopped",
]

_MODULES = {
    "AccessDeniedError": "errors",
    "BrokerBusyError": "errors",
    "BrokerError": "errors",
    "BrokerSystemError": "errors",
    "BrokerTopicNotFoundError": "errors",
    "BrokerUnreachableError": "errors",
    "BufferFullError": "errors",
    "ClientClosedError": "errors",
    "ClientError": "errors",
    "ClientForkedError": "errors",
    "ClientHooks": "hooks",
    "ConnectionLostError": "errors",
    "ConsumeFrom": "consumer.consumer_core",
    "ConsumerHealth": "consumer.positions",
    "ConsumerNotOnlineError": "errors",
    "GroupNotFoundError": "errors",
    "IdempotenceLostError": "errors",
    "IdempotenceNotSupportedError": "errors",
    "InvalidAddressError": "errors",
    "InvalidHandlerError": "errors",
    "InvalidMessageError": "errors",
    "InvalidSubscriptionError": "errors",
    "JSON": "serializers",
    "JsonSerializer": "serializers",
    "Message": "message",
    "MessageIllegalError": "errors",
    "MessageQueue": "queues",
    "NameServerUnreachableError": "errors",
    "NoBrokerError": "errors",
    "NoPermissionError": "errors",
    "NoWritableQueueError": "errors",
    "NotANameServerError": "errors",
    "OutOfSequenceError": "errors",
    "Producer": "producer.producer",
    "ProducerExpiredError": "errors",
    "ProducerFencedError": "errors",
    "ProducerHealth": "producer.health",
    "PullConsumer": "consumer.pull_consumer",
    "PullNotFoundError": "errors",
    "PullOffsetMovedError": "errors",
    "PushConsumer": "consumer.push_consumer",
    "QueryNotFoundError": "errors",
    "RebalanceListener": "consumer.listener",
    "ReceivedMessage": "message",
    "RepeatDiffersError": "errors",
    "RequestCodeNotSupportedError": "errors",
    "RequestReplyTimeoutError": "errors",
    "RequestTimeoutError": "errors",
    "RetryLater": "consumer.push_consumer",
    "RouteError": "errors",
    "SendOutcome": "errors",
    "SendReceipt": "message",
    "SendStatus": "message",
    "Serializer": "serializers",
    "ServiceNotAvailableError": "errors",
    "SubscriptionNotExistError": "errors",
    "SubscriptionParseError": "errors",
    "TlsSettings": "tls",
    "TopicNotFoundError": "errors",
    "TransactionError": "errors",
    "TransactionProducer": "producer.transaction",
    "TransactionReceipt": "producer.transaction",
    "TransactionState": "producer.transaction",
    "TransportError": "errors",
    "UnreadableAnswerError": "errors",
    "UnreadableBodyError": "errors",
    "UsageError": "errors",
    "run": "running",
    "run_until_stopped": "running",
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
