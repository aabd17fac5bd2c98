"""The mark of an idempotent send: who sent it, and as its which message to which queue.

A property of the message, so it is stored with the record and reaches every replica with it. The
mark names topic and queue itself: a copy of the message somewhere else (a retry, a dead letter, a
consumer that forwards all properties) carries it too, and must not count there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ONCE_PROPERTY = "TWINLOG_ONCE"
ONCE_NAME = f"{ONCE_PROPERTY}\x01"
ONCE_BYTES = ONCE_NAME.encode()
PRODUCER_ID_LENGTH_MAX = 120

_PRODUCER_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{PRODUCER_ID_LENGTH_MAX}}}").fullmatch
_MARK = re.compile(
    rf"([A-Za-z0-9_.:-]{{1,{PRODUCER_ID_LENGTH_MAX}}}),([0-9]{{1,18}}),([0-9]{{1,18}}),"
    r"([0-9]{1,9}),([^,]+)"
).fullmatch


class Mark(NamedTuple):
    """Number `number` of epoch `epoch` of this producer on this queue."""

    producer: str
    epoch: int
    number: int
    queue_id: int
    topic: str

    def text(self) -> str:
        """The value of the property."""
        return f"{self.producer},{self.epoch},{self.number},{self.queue_id},{self.topic}"


def is_producer_id(text: str) -> bool:
    """Whether `text` may name an idempotent producer."""
    return _PRODUCER_ID(text) is not None


def read_mark(properties: str) -> Mark | None:
    """The mark in a property string; None when there is none or it is not one of ours."""
    if ONCE_NAME not in properties:
        return None
    padded = f"\x02{properties}"
    start = padded.rfind(f"\x02{ONCE_NAME}")
    if start < 0:
        return None
    value = padded[start + len(ONCE_NAME) + 1 :].partition("\x02")[0]
    found = _MARK(value)
    if found is None:
        return None
    producer, epoch, number, queue_id, topic = found.groups()
    return Mark(producer, int(epoch), int(number), int(queue_id), topic)
