"""Delay levels: what `messageDelayLevel` says, and how a delayed message is parked. Pure.

A delayed message lives in queue level-1 of SCHEDULE_TOPIC_XXXX, with its destination in
REAL_TOPIC and REAL_QID, until the schedule service puts it where it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from twinlog.message.model import PutMessage
from twinlog.message.names import SCHEDULE_TOPIC
from twinlog.message.properties import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    encode_properties,
    index_keys_of,
)

# Level (from 1) -> delay in ms.
DelayLevels = Mapping[int, int]


def delayed(
    message: PutMessage, properties: dict[str, str], level: int, levels: DelayLevels
) -> PutMessage:
    """`message` on its way to the schedule topic. Too high a level is lowered to the highest."""
    level = min(level, max(levels, default=0))
    assert level > 0, "only a positive level delays"
    properties[PROPERTY_DELAY_TIME_LEVEL] = str(level)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1
    message.properties = encode_properties(properties)
    message.keys = index_keys_of(properties)
    return message


def park_delayed(message: PutMessage, level: int) -> None:
    """The same for a message whose properties name this level and no destination yet."""
    message.properties += destination(message.topic, message.queue_id)
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1


@lru_cache(maxsize=4096)
def destination(topic: str, queue_id: int) -> bytes:
    """What goes behind the properties of a parked message: where it belongs."""
    properties = {PROPERTY_REAL_TOPIC: topic, PROPERTY_REAL_QUEUE_ID: str(queue_id)}
    return b"\x02" + encode_properties(properties)
