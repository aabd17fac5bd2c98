"""Half messages: how a transactional message is parked, checked, ended. Pure.

Corresponds to the message rewriting of RocketMQ's TransactionalMessageBridge and
EndTransactionProcessor. Bytes are Apache's: a store with open transactions may change hands.
"""

from __future__ import annotations

from twinlog.broker.delay.levels import destination
from twinlog.message import sysflag
from twinlog.message.hashing import jhash
from twinlog.message.model import PutMessage, Record
from twinlog.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from twinlog.message.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_WAIT_STORE_MSG_OK,
    encode_properties,
    index_keys_of,
    tags_and_keys,
)
from twinlog.message.record import encode_record
from twinlog.runtime.numbers import INT32_MAX, number_or_none

OP_TAG = "d"  # The one tag of op messages: "this half message is done".
OP_PROPERTIES = encode_properties({PROPERTY_WAIT_STORE_MSG_OK: "true", PROPERTY_TAGS: OP_TAG})
OP_TAGS_CODE = jhash(OP_TAG)


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


def park_half(message: PutMessage) -> None:
    """The same for a message whose properties name no destination yet."""
    message.properties += destination(message.topic, message.queue_id)
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.sys_flag = sysflag.with_transaction_type(message.sys_flag, sysflag.TRANSACTION_NOT_TYPE)


def real_queue(half: Record) -> tuple[str, int] | None:
    """Topic and queue that a half message is meant for; None when it does not say."""
    topic = half.property_map.get(PROPERTY_REAL_TOPIC)
    queue = number_or_none(half.property_map.get(PROPERTY_REAL_QUEUE_ID, ""), high=INT32_MAX)
    return None if not topic or queue is None else (topic, queue)


def committed_message(half: Record, topic: str, queue_id: int) -> PutMessage:
    """What consumers get: the half message where it was meant to go, marked as committed."""
    message = half.to_put()
    message.topic = topic
    message.queue_id = queue_id
    message.sys_flag = sysflag.with_transaction_type(half.sys_flag, sysflag.TRANSACTION_COMMIT_TYPE)
    message.prepared_transaction_offset = half.physical_offset
    message.tags_code, message.keys = tags_and_keys(message.properties)
    return message


def commit_half(half: PutMessage, topic: str, queue_id: int, physical_offset: int) -> None:
    """The same for a half message as it was put, at this place; tags and keys are its own."""
    half.topic = topic
    half.queue_id = queue_id
    half.sys_flag = sysflag.with_transaction_type(half.sys_flag, sysflag.TRANSACTION_COMMIT_TYPE)
    half.prepared_transaction_offset = physical_offset


def op_message(half_offset: int, *, host: bytes, now_ms: int) -> PutMessage:
    """The note that the half message with this queue offset is decided."""
    return PutMessage(
        topic=OP_HALF_TOPIC,
        queue_id=0,
        body=str(half_offset).encode(),
        properties=OP_PROPERTIES,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
        tags_code=OP_TAGS_CODE,
    )


def check_times(half: Record) -> int:
    text = half.property_map.get(PROPERTY_TRANSACTION_CHECK_TIMES, "0")
    return number_or_none(text, high=INT32_MAX) or 0


def with_check_times(half: Record, times: int) -> PutMessage:
    """The half message once more, at the end of its queue, with its counter."""
    message = half.to_put()
    properties = {**half.property_map, PROPERTY_TRANSACTION_CHECK_TIMES: str(times)}
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.properties = encode_properties(properties)
    message.keys = index_keys_of(properties)
    message.tags_code, _ = tags_and_keys(message.properties)
    return message


def given_up_message(half: Record) -> PutMessage:
    """A half message that nobody decided, for the topic where people look for them."""
    message = half.to_put()
    message.topic = CHECK_MAX_TIME_TOPIC
    message.queue_id = 0
    message.tags_code, message.keys = tags_and_keys(message.properties)
    return message


def check_record(
    message: PutMessage,
    target: tuple[str, int],
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    properties: dict[str, str],
) -> bytes:
    """The record inside a CHECK_TRANSACTION_STATE: the half message under its real topic."""
    shown = PutMessage(
        topic=target[0],
        queue_id=target[1],
        body=message.body,
        properties=encode_properties({**properties, PROPERTY_WAIT_STORE_MSG_OK: "false"}),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
    )
    return encode_record(shown, queue_offset, physical_offset, store_timestamp)
