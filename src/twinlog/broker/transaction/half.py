"""Half messages: how a transactional message is parked and brought back. Pure.

Answers to the message rewriting of RocketMQ's TransactionalMessageBridge.
"""

from __future__ import annotations

from twinlog.broker.names import HALF_TOPIC
from twinlog.message import sysflag
from twinlog.message.model import PutMessage
from twinlog.message.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    encode_properties,
    index_keys_of,
)


def half_message(message: PutMessage, properties: dict[str, str]) -> PutMessage:
    """`message` on its way to the half topic; the destination goes into its properties."""
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.sys_flag = sysflag.with_transaction_type(message.sys_flag, sysflag.TRANSACTION_NOT_TYPE)
    message.properties = encode_properties(properties)
    message.keys = index_keys_of(properties)
    return message
