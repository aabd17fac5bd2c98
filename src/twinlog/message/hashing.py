"""RocketMQ's string hash: Java's `String.hashCode`, h = 31*h + c over UTF-16 code units.

It is on disk in two places: the tags code of a consume-queue entry and the key hash of an index
entry. A unique id costs 2 us to hash in a loop, so the hash of a key is put together from cached
hashes of its parts: hash(a + b) = hash(a) * 31**len(b) + hash(b).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_CACHE_SIZE = 65536
# A unique id ends in 8 hex digits of time and 4 of a counter; what is before stays per client.
_COUNTER_LENGTH = 4
_TAIL_LENGTH = 12
_UNIQUE_ID_LENGTHS = (32, 56)


def _unsigned(text: str) -> int:
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = value * 31 + unit
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(data), 2):
            value = value * 31 + (data[index] << 8 | data[index + 1])
    return value & _MASK


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


@lru_cache(maxsize=_CACHE_SIZE)
def jhash(text: str) -> int:
    """The signed 32-bit hash of `text`. For strings that come again, such as tags."""
    return _signed(_unsigned(text))


@lru_cache(maxsize=_CACHE_SIZE)
def _topic_prefix(topic: str) -> int:
    return _unsigned(topic + "#")


def index_key_hash(topic: str, key: str) -> int:
    """The hash that the index stores for `key` of `topic`: |jhash(topic#key)|, never negative."""
    if len(key) in _UNIQUE_ID_LENGTHS and key.isascii():
        value = _part(key[:-_TAIL_LENGTH]) * _P8 + _part(key[-_TAIL_LENGTH:-_COUNTER_LENGTH])
        value = value * _P4 + _part(key[-_COUNTER_LENGTH:])
    else:
        value = _unsigned(key)
    value = (_topic_prefix(topic) * _power(utf16_length(key)) + value) & _MASK
    if value & _SIGN:
        # The lowest number has no positive twin in 32 bits; RocketMQ stores 0 for it.
        return 0 if value == _SIGN else (1 << 32) - value
    return value


_BATCH_MIN = 32  # Below this the arrays cost more than they save.


@lru_cache(maxsize=1)
def _load_numpy() -> Any:
    """numpy or None. Loaded at the first large batch: a client or a command would only wait."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def warm_up() -> None:
    """Load what large batches need now: a store does so before it serves, not in mid-traffic."""
    _load_numpy()


def index_key_hashes(topics: Sequence[str], keys: Sequence[str]) -> list[int]:
    """`index_key_hash` of many pairs at once: with numpy a fifth of the cost."""
    if len(keys) < _BATCH_MIN or _load_numpy() is None:
        return list(map(index_key_hash, topics, keys))
    by_length: dict[int, list[int]] = {}
    for number, length in enumerate(map(len, keys)):
        numbers = by_length.get(length)
        if numbers is None:
            by_length[length] = [number]
        else:
            numbers.append(number)
    result = [0] * len(keys)
    for length, numbers in by_length.items():
        some = keys if len(by_length) == 1 else [keys[number] for number in numbers]
        data = "".join(some).encode("utf-8", "surrogatepass")
        if len(data) != length * len(some) or not length:
            values = [index_key_hash(topics[number], keys[number]) for number in numbers]
        else:
            prefixes = list(map(_topic_prefix, [topics[number] for number in numbers]))
            values = _hash_array(data, length, prefixes)
        for number, value in zip(numbers, values, strict=True):
            result[number] = value
    return result


def _hash_array(data: bytes, length: int, prefixes: list[int]) -> list[int]:
    """ASCII keys of one length, one behind the other, each with the hash of what is before it."""
    numpy = _load_numpy()
    units = numpy.frombuffer(data, dtype=numpy.uint8).reshape(len(prefixes), length)
    values = units.astype(numpy.uint32) @ _power_array(length)
    values += numpy.array(prefixes, dtype=numpy.uint32) * numpy.uint32(_power(length))
    signed = values.astype(numpy.uint32).view(numpy.int32).astype(numpy.int64)
    signed[signed == -(1 << 31)] = 0
    hashes: list[int] = numpy.abs(signed).tolist()
    return hashes


def topic_prefix_hash(topic: str) -> int:
    """The hash of what stands before every key of a topic."""
    return _topic_prefix(topic)


def hash_spans(raw: Any, starts: Any, lengths: Any) -> Any:
    """Hashes, unsigned, of the ASCII texts at `starts` in an array of bytes. Needs numpy."""
    numpy = _load_numpy()
    result = numpy.zeros(len(starts), dtype=numpy.uint32)
    for length, members in by_size(lengths):
        units = rows_at(raw, starts[members], length)
        result[members] = units.astype(numpy.uint32) @ _power_array(length)
    return result


def by_size(sizes: Any) -> list[tuple[int, Any]]:
    """Each size that there is, with the places that have it. Needs numpy."""
    numpy = _load_numpy()
    distinct = numpy.flatnonzero(numpy.bincount(sizes)).tolist()
    if len(distinct) == 1:
        return [(distinct[0], slice(None))]
    return [(size, numpy.flatnonzero(sizes == size)) for size in distinct]


def rows_at(raw: Any, starts: Any, size: int) -> Any:
    """`size` bytes from each start on, as the rows of a matrix. Needs numpy.

    Taken as things of that size, which numpy copies each at once; byte by byte it takes ten times
    as long.
    """
    numpy = _load_numpy()
    count = len(raw) - size + 1
    things = numpy.ndarray(shape=(count,), dtype=f"V{size}", buffer=raw, strides=(1,))
    return things[starts].view(numpy.uint8).reshape(-1, size)


def powers_of(sizes: Any) -> Any:
    """31 to the power of each size, in 32 bits. Needs numpy."""
    numpy = _load_numpy()
    result = numpy.empty(len(sizes), dtype=numpy.uint32)
    for size, members in by_size(sizes):
        result[members] = _power(size)
    return result


@lru_cache(maxsize=256)
def _power_array(length: int) -> Any:
    numpy = _load_numpy()
    return numpy.array([_power(length - 1 - at) for at in range(length)], dtype=numpy.uint32)
