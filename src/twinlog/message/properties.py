"""The property string of a message: `name 0x01 value 0x02 name 0x01 value ...`, UTF-8.

Corresponds to RocketMQ's MessageDecoder.messageProperties2String / string2messageProperties and to
MessageConst. The 4.9 writer leaves no separator at the end, older ones do; both are read. A piece
counts only when name and value are not empty; the last of two equal names wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from twinlog.message.hashing import jhash
from twinlog.runtime.numbers import INT32_MAX, number_of

KEY_SEPARATOR = " "
_PIECE_END = b"\x02"

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_MSG_OK = "WAIT"
PROPERTY_DELAY_TIME_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
ORIGIN_PLACE = "ORIGIN_PLACE"  # Of a copy: broker,queue,offset of the message that was copied.
ORIGIN_TOPIC = "ORIGIN_TOPIC"  # Of a copy in another topic: that of the message that was copied.

# One call for the three that the dispatcher needs. Empty values do not match; the last wins.
_DISPATCHED = re.compile(rb"(?:\A|\x02)(TAGS|KEYS|UNIQ_KEY)\x01([^\x02]+)").findall
_DELAY_BYTES = b"\x02DELAY\x01"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The bytes that the 4.9 writer stores: the order of the mapping, no separator at the end."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """The names and values in `data`. Bytes that are not UTF-8 become replacement characters."""
    result: dict[str, str] = {}
    for piece in data.decode("utf-8", "replace").split("\x02"):
        name, separator, value = piece.partition("\x01")
        if separator and name and value:
            result[name] = value
    return result


def property_value(data: bytes, name: bytes) -> bytes | None:
    """The value of one property without decoding the rest: the hot paths need one or two."""
    return _find(b"\x02" + data, b"\x02" + name + b"\x01")


def _find(padded: bytes, marker: bytes) -> bytes | None:
    """The value behind the last `marker` in `padded`, which begins with a separator."""
    end = len(padded)
    while (start := padded.rfind(marker, 0, end)) >= 0:
        value_start = start + len(marker)
        value_end = padded.find(_PIECE_END, value_start)
        value = padded[value_start:] if value_end < 0 else padded[value_start:value_end]
        if value:
            return value
        end = value_start - 1  # An empty value does not count: look for an earlier one.
    return None


@lru_cache(maxsize=1024)  # A tag may have 32 KiB.
def tags_code_of(tags: bytes) -> int:
    """The consume queue's tags code of a TAGS value: its hash, sign-extended to 64 bits."""
    return jhash(tags.decode("utf-8", "replace"))


def tags_and_keys(data: bytes) -> tuple[int, tuple[str, ...]]:
    """Tags code and index keys (unique id first) of a property string.

    What RocketMQ's dispatcher takes from the log. The schedule topic's code, a time, is the
    store's business: it depends on the delay levels.
    """
    tags = unique = keys = None
    for name, value in _DISPATCHED(data):
        if name == b"TAGS":
            tags = value
        elif name == b"KEYS":
            keys = value
        else:
            unique = value
    index_keys: tuple[str, ...] = ()
    if unique is not None:
        index_keys = (unique.decode("utf-8", "replace"),)
    if keys is not None:
        text = keys.decode("utf-8", "replace")
        index_keys += tuple(filter(None, text.split(" "))) if " " in text else (text,)
    return (tags_code_of(tags) if tags is not None else 0), index_keys


def index_keys_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The index keys of decoded properties, in the order in which the index holds them."""
    unique = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    keys = tuple(key for key in properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR) if key)
    return (unique, *keys) if unique else keys


def delay_level(data: bytes) -> int | None:
    """The DELAY property as a number; None when absent. Raises ValueError when not a number."""
    value = _find(b"\x02" + data, _DELAY_BYTES)
    return None if value is None else number_of(value, -INT32_MAX - 1, INT32_MAX)
