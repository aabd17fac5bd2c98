"""Columns to members of batch requests, with no Python object per row: the inverse of `records`.

`prepare` takes a batch only if the client would take each of its rows as it is; it answers None for
a batch with a row that is wrong, or that needs more than bytes side by side (a delay, a sharding
key, a body to compress). Such a batch is sent row by row, by the code that says what is wrong.

How it works: head, body, length and properties of all rows are Arrow arrays, and one call joins
them element by element. The data buffer of the result is the body of a batch request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twinlog.client.errors import InvalidMessageError
from twinlog.client.message import RESERVED_PROPERTIES, check_topic
from twinlog.message.ids import ID_COUNTERS, UniqueIdGenerator
from twinlog.message.layout import MEMBER_HEAD_SIZE, MEMBER_SIZE_MIN, PROPERTIES_LENGTH_SIZE
from twinlog.message.names import RETRY_PREFIX
from twinlog.message.once import ONCE_NAME
from twinlog.message.properties import ORIGIN_PLACE, ORIGIN_TOPIC
from twinlog.runtime.limits import PROPERTIES_SIZE_MAX

ORIGIN_BORN_TIME: Final = "ORIGIN_BORN_TIME"  # ms; the broker's own field is the time of this send
ORIGIN_UNIQ_KEY: Final = "ORIGIN_UNIQ_KEY"
ORIGINS = (
    ("born_ts", ORIGIN_BORN_TIME),
    ("msg_id", ORIGIN_UNIQ_KEY),
    ("origin", ORIGIN_PLACE),
    ("origin_topic", ORIGIN_TOPIC),
)
BODY_SIZE_MAX: Final = 4096  # From here on the client compresses.
_MARK_SIZE_MAX: Final = 400
_NOTHING: Final = pa.scalar(b"", pa.binary())
# What str.split() would not leave as it is: more than single spaces between words.
_ODD_SPACE: Final = (
    r"^ | $|  |[\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}"
    r"\x{205f}\x{3000}]"
)


class _Unfit(Exception):
    """A row of the batch is not for this path."""


@dataclass(frozen=True)
class Prepared:
    """Rows of one topic that are ready to be framed. `rows` are their places in the batch."""

    topic: str
    rows: np.ndarray[Any, Any]
    bodies: pa.Array
    properties: pa.Array
    flags: np.ndarray[Any, Any]
    queue_ids: np.ndarray[Any, Any] | None

    def take(self, chosen: np.ndarray[Any, Any]) -> Prepared:
        """Some of the rows."""
        index = pa.array(chosen)
        return Prepared(
            self.topic,
            self.rows[chosen],
            self.bodies.take(index),
            self.properties.take(index),
            self.flags[chosen],
            None if self.queue_ids is None else self.queue_ids[chosen],
        )


@dataclass(frozen=True)
class Chunk:
    """The body of one batch request: `count` members, rows `first` to `last` of the batch."""

    topic: str
    data: bytes
    count: int
    first: int
    last: int


def prepare(
    batch: pa.RecordBatch, topic: str | None, ids: UniqueIdGenerator
) -> list[Prepared] | None:
    """The rows by topic; None when the batch must be sent row by row."""
    count = batch.num_rows
    if not 0 < count <= ID_COUNTERS:
        return None
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        _check_rare(columns)
        bodies = _bodies(columns["body"])
        flags = _numbers(columns.get("flag"), count, "int32")
        pieces = [_unique_keys(ids, count), pa.scalar(b"\x02WAIT\x01true", pa.binary())]
        pieces += _properties(columns)
        properties = pc.binary_join_element_wise(*pieces, _NOTHING)
        if pc.max(pc.binary_length(properties)).as_py() > PROPERTIES_SIZE_MAX - _MARK_SIZE_MAX:
            raise _Unfit
        everything = Prepared(
            "", np.arange(count), bodies, properties, flags, _queue_ids(columns, count)
        )
        return _by_topic(everything, topic, columns.get("topic"))
    except (_Unfit, InvalidMessageError):
        return None


def _check_rare(columns: dict[str, pa.Array]) -> None:
    delay = columns.get("delay_level")
    if delay is not None and pc.any(pc.not_equal(delay, 0)).as_py():
        raise _Unfit
    sharding = columns.get("sharding_key")
    if sharding is not None and sharding.null_count < len(sharding):
        raise _Unfit


def _bodies(column: pa.Array) -> pa.Array:
    if column.type not in (pa.binary(), pa.string()) or column.null_count:
        raise _Unfit
    sizes = pc.min_max(pc.binary_length(column)).as_py()
    if sizes["min"] == 0 or sizes["max"] >= BODY_SIZE_MAX:
        raise _Unfit
    return column.cast(pa.binary())


def _numbers(column: pa.Array | None, count: int, kind: str) -> np.ndarray[Any, Any]:
    """A column of numbers, nulls are 0; those of 64 bits must fit 32."""
    if column is None:
        return np.zeros(count, dtype=kind)
    values: np.ndarray[Any, Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    if len(values) and (values.min() < -(1 << 31) or values.max() >= 1 << 31):
        raise _Unfit
    return values.astype(kind)


def _queue_ids(columns: dict[str, pa.Array], count: int) -> np.ndarray[Any, Any] | None:
    """The queues that the rows name: all of them or none."""
    column = columns.get("queue_id")
    if column is None or column.null_count == len(column):
        return None
    if column.null_count:
        raise _Unfit
    return _numbers(column, count, "int64")


def _by_topic(rows: Prepared, topic: str | None, column: pa.Array | None) -> list[Prepared]:
    """One for each topic, in the order in which they come."""
    if topic is not None:
        return [_of_topic(rows, topic)]
    if column is None or column.null_count:
        raise _Unfit
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [_of_topic(rows, names[0])]
    codes = encoded.indices.to_numpy()
    return [
        _of_topic(rows.take(np.flatnonzero(codes == code)), name) for code, name in enumerate(names)
    ]


def _of_topic(rows: Prepared, topic: str) -> Prepared:
    check_topic(topic)
    if topic.startswith(RETRY_PREFIX):
        raise _Unfit
    return Prepared(topic, rows.rows, rows.bodies, rows.properties, rows.flags, rows.queue_ids)


# Properties


@lru_cache(maxsize=1)
def _hex_counters() -> np.ndarray[Any, Any]:
    text = b"".join(b"%04X" % number for number in range(ID_COUNTERS))
    return np.frombuffer(text, dtype=np.uint8).reshape(ID_COUNTERS, 4)


def _unique_keys(ids: UniqueIdGenerator, count: int) -> pa.Array:
    """The property UNIQ_KEY of each row."""
    prefix, first = ids.take(count)
    head = f"UNIQ_KEY\x01{prefix}".encode()
    table = np.empty((count, len(head) + 4), dtype=np.uint8)
    table[:, :-4] = np.frombuffer(head, dtype=np.uint8)
    table[:, -4:] = _hex_counters()[np.arange(first, first + count) % ID_COUNTERS]
    return _fixed(table.reshape(-1), len(head) + 4)


def _fixed(data: np.ndarray[Any, Any], size: int) -> pa.Array:
    """Values of one size, one behind the other, as a binary array."""
    count = data.nbytes // size
    offsets = np.arange(0, data.nbytes + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _properties(columns: dict[str, pa.Array]) -> list[pa.Array]:
    """Every other property: each piece begins with its separator, or is empty."""
    pieces = [_piece("TAGS", columns.get("tags"), is_empty_none=True)]
    pieces.append(_piece("KEYS", _keys(columns.get("keys")), is_empty_none=True))
    born = columns.get("born_ts")
    if born is not None:
        # Whole ms, as `message_of` rounds.
        half = pc.add(born.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 500)
        milliseconds = np.floor_divide(half.fill_null(0).to_numpy(zero_copy_only=False), 1000)
        text = pa.array(milliseconds).cast(pa.string())
        pieces.append(_piece(ORIGIN_BORN_TIME, pc.if_else(born.is_valid(), text, None)))
    pieces.append(_piece(ORIGIN_UNIQ_KEY, columns.get("msg_id")))
    pieces.append(_piece(ORIGIN_PLACE, columns.get("origin")))
    pieces.append(_piece(ORIGIN_TOPIC, columns.get("origin_topic")))
    if columns.get("properties") is not None:
        pieces.append(_own_properties(columns["properties"], columns))
    return [piece for piece in pieces if piece is not None]


def _piece(name: str, column: pa.Array | None, *, is_empty_none: bool = False) -> pa.Array | None:
    """`0x02 NAME 0x01 value` of each row that has a value."""
    if column is None or column.null_count == len(column):
        return None
    _check_plain(column)
    if pc.min(pc.binary_length(column)).as_py() == 0:
        if not is_empty_none:
            raise _Unfit
        column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
    head = pa.scalar(f"\x02{name}\x01".encode(), pa.binary())
    joined = pc.binary_join_element_wise(head, column.cast(pa.binary()), _NOTHING)
    return joined.fill_null(b"") if joined.null_count else joined


def _data(column: pa.Array) -> bytes:
    """All values of a text or binary array, one behind the other."""
    _, offsets, data = column.buffers()
    if data is None:
        return b""
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset :]
    return bytes(memoryview(data)[int(ends[0]) : int(ends[len(column)])])


def _check_plain(column: pa.Array) -> None:
    if column.type not in (pa.string(), pa.binary()):
        raise _Unfit
    data = _data(column)
    if b"\x01" in data or b"\x02" in data:
        raise _Unfit


def _keys(column: pa.Array | None) -> pa.Array | None:
    """Keys as one text with single spaces between them."""
    if column is None or column.null_count == len(column):
        return None
    if pa.types.is_list(column.type):
        if column.values.null_count or pc.min(pc.binary_length(column.values)).as_py() == 0:
            raise _Unfit
        return pc.binary_join(column, " ")
    if column.type != pa.string():
        raise _Unfit
    data = _data(column)
    has_odd = b" " in data or not data.isascii() or any(byte < 32 for byte in set(data))
    if has_odd and pc.any(pc.match_substring_regex(column, _ODD_SPACE)).as_py():
        raise _Unfit
    return column


def _own_properties(column: pa.Array, columns: dict[str, pa.Array]) -> pa.Array:
    """The map of each row, without the names that are RocketMQ's own."""
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names = column.keys.slice(first, last - first)
    values = column.items.slice(first, last - first)
    if column.null_count:
        lengths = np.diff(offsets)[~column.is_valid().to_numpy(zero_copy_only=False)]
        if lengths.any():
            raise _Unfit
    if not len(names):
        return pa.scalar(b"", pa.binary())
    dropped = set(RESERVED_PROPERTIES)
    for own, name in ORIGINS:
        if own in columns:
            if columns[own].null_count and pc.any(pc.equal(names, name)).as_py():
                raise _Unfit  # Of some rows this is replaced, of others it is kept.
            dropped.add(name)
    kept = pc.invert(pc.is_in(names, value_set=pa.array(sorted(dropped), names.type)))
    _check_pairs(names.filter(kept), values.filter(kept))
    head = pa.scalar("\x02", pa.string())
    pairs = pc.binary_join_element_wise(head, names, pa.scalar("\x01"), values, pa.scalar(""))
    ends = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False)))).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(ends[offsets - first]), pairs.filter(kept))
    return pc.binary_join(rows, "").cast(pa.binary())


def _check_pairs(names: pa.Array, values: pa.Array) -> None:
    for part in (names, values):
        _check_plain(part)
        if part.null_count or (len(part) and pc.min(pc.binary_length(part)).as_py() == 0):
            raise _Unfit


# Frames


def members(rows: Prepared, *, mark: tuple[str, int, int, int] | None = None) -> pa.Array:
    """The member of each row; with `mark` = (producer, epoch, first number, queue) numbered."""
    count = len(rows.flags)
    properties = rows.properties
    if mark is not None:
        producer, epoch, first, queue_id = mark
        properties = pc.binary_join_element_wise(
            properties,
            pa.scalar(f"\x02{ONCE_NAME}{producer},{epoch},".encode(), pa.binary()),
            pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary()),
            pa.scalar(f",{queue_id},{rows.topic}".encode(), pa.binary()),
            _NOTHING,
        )
    body_sizes = pc.binary_length(rows.bodies).to_numpy()
    sizes = pc.binary_length(properties).to_numpy()
    heads = np.zeros((count, 5), dtype=">i4")
    heads[:, 0] = MEMBER_SIZE_MIN + body_sizes + sizes
    heads[:, 3] = rows.flags
    heads[:, 4] = body_sizes
    return pc.binary_join_element_wise(
        _fixed(heads.reshape(-1), MEMBER_HEAD_SIZE), rows.bodies,
        _fixed(sizes.astype(">i2"), PROPERTIES_LENGTH_SIZE), properties, _NOTHING,
    )  # fmt: skip


def chunks(rows: Prepared, joined: pa.Array, *, size_max: int, count_max: int) -> Iterator[Chunk]:
    """The bodies of requests that hold these members, in their order."""
    _, buffer, data = joined.buffers()
    ends = np.frombuffer(buffer, dtype=np.int32)[joined.offset : joined.offset + len(joined) + 1]
    view = memoryview(data)
    start, total = 0, len(joined)
    while start < total:
        stop = int(np.searchsorted(ends, ends[start] + size_max, side="right")) - 1
        stop = min(max(stop, start + 1), start + count_max, total)
        yield Chunk(
            rows.topic,
            bytes(view[int(ends[start]) : int(ends[stop])]),
            stop - start,
            int(rows.rows[start]),
            int(rows.rows[stop - 1]),
        )
        start = stop
