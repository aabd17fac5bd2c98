"""A queue as clients name it: topic, broker, number (RocketMQ's MessageQueue). Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.runtime.numbers import INT32_MAX, number_of


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """Hashable; written as an object, also where it is the key of a map."""

    broker_name: str
    queue_id: int
    topic: str


def queue_from_json(value: Any) -> MessageQueue:
    return MessageQueue(
        broker_name=str(value.get("brokerName") or ""),
        queue_id=number_of(value.get("queueId") or 0, -INT32_MAX - 1, INT32_MAX),
        topic=str(value.get("topic") or ""),
    )
