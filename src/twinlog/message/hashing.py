"""RocketMQ's string hash: Java's `String.hashCode`, h = 31*h + c over UTF-16 code units.

It is on disk in two places: the tags code of a consume-queue entry and the key hash of an index
entry. A unique id costs 2 us to hash in a loop, so the hash of a key is put together from cached
hashes of its parts: hash(a + b) = hash(a) * 31**len(b) + hash(b).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_CACHE_SIZE = 65536
# Tags and topics of peers may be long: so many of them, and not more, are kept.
_LONG_CACHE_SIZE = 1024
# A unique id ends in 8 hex digits of time and 4 of a counter; what is before stays per client.
_COUNTER_LENGTH = 4
_TAIL_LENGTH = 12
_UNIQUE_ID_LENGTHS = (32, 56)


def _unsigned(text: str) -> int:
    """Cut to 32 bits at each step: a number that grows with the text takes its square."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = value * 31 + unit & _MASK
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(data), 2):
            value = value * 31 + (data[index] << 8 | data[index + 1]) & _MASK
    return value


_part = lru_cache(maxsize=_CACHE_SIZE)(_unsigned)


@lru_cache(maxsize=256)
def _power(length: int) -> int:
    return pow(31, length, _MASK + 1)


_P4 = pow(31, _COUNTER_LENGTH, _MASK + 1)
_P8 = pow(31, _TAIL_LENGTH - _COUNTER_LENGTH, _MASK + 1)


def utf16_length(text: str) -> int:
    """Number of UTF-16 code units: what RocketMQ counts as the length of a string."""
    if text.isascii():
        return len(text)
    return len(text) + sum(1 for character in text if character > "\uffff")


def _signed(value: int) -> int:
    return value - (1 << 32) if value & _SIGN else value


@lru_cache(maxsize=_LONG_CACHE_SIZE)
def jhash(text: str) -> int:
    """The signed 32-bit hash of `text`. For strings that come again, such as tags."""
    return _signed(_unsigned(text))


@lru_cache(maxsize=_CACHE_SIZE)
def _topic_prefix(topic: str) -> int:
    return _unsigned(topic + "#")


def index_key_hash(topic: str, key: str) -> int:
    """The hash that the index stores for `key` of `topic`: |jhash(topic#key)|, never negative."""
    return index_key_hashes(topic, (key,))[0]


def index_key_hashes(topic: str, keys: Iterable[str]) -> list[int]:
    """`index_key_hash` of each key of a record: a call for each would cost as much as its hash."""
    hashes: list[int] = []
    prefix = _topic_prefix(topic)
    for key in keys:
        length = len(key)
        if not key.isascii():
            value, length = _unsigned(key), utf16_length(key)
        elif length in _UNIQUE_ID_LENGTHS:
            value = _part(key[:-_TAIL_LENGTH]) * _P8 + _part(key[-_TAIL_LENGTH:-_COUNTER_LENGTH])
            value = value * _P4 + _part(key[-_COUNTER_LENGTH:])
        else:  # As `_unsigned`, without its call.
            value = 0
            for unit in key.encode("ascii"):
                value = value * 31 + unit & _MASK
        value = (prefix * _power(length) + value) & _MASK
        if value & _SIGN:
            # The lowest number has no positive counterpart in 32 bits; RocketMQ stores 0 for it.
            value = 0 if value == _SIGN else (1 << 32) - value
        hashes.append(value)
    return hashes


def topic_prefix_hash(topic: str) -> int:
    """The hash of what stands before every key of a topic."""
    return _topic_prefix(topic)
