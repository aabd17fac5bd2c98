"""Many records at once, for recovery and rebuild: columns instead of a Python step for each.

A chunk of the log is walked by its sizes; everything else is read with array operations: headers,
queue entries, tags and keys. Only plain records are taken (V1, IPv4, no transaction, no delay,
ASCII properties with each name once): from the first other one on, `scan` and
`Dispatcher.dispatch`, which know everything and give reasons, do the work. What both do must be the
same, byte for byte.

Needs numpy; without it nothing is taken.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Any, Final

from twinlog.message.crc import crc32
from twinlog.message.hashing import by_size, hash_spans, powers_of, rows_at, topic_prefix_hash
from twinlog.message.layout import (
    BODY_CRC_AT,
    BODY_SIZE_AT,
    CRC_MASK,
    HEAD_SIZE,
    MAGIC_AT,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    SIZE_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from twinlog.message.sysflag import HOSTS_V6_MASK, UNQUEUED_FLAG
from twinlog.runtime.limits import TOPIC_LENGTH_MAX

np: Any = None
with contextlib.suppress(ImportError):
    import numpy as np

BULK_MIN: Final = 192  # Measured: below this the loop is cheaper.
_I32: Final = struct.Struct(">i")
_PAIR_END: Final = 2
_NAME_END: Final = 1
_SPACE: Final = 0x20
_PADDING: Final = b"\x02" * 16  # So that a name may be read at the start of the last piece.
# The fields of a record with IPv4 hosts up to its body.
_HEAD_FIELDS: Final = {
    "size": (">i4", SIZE_AT), "magic": (">u4", MAGIC_AT), "crc": (">i4", BODY_CRC_AT),
    "queue_id": (">i4", QUEUE_ID_AT), "queue_offset": (">i8", QUEUE_OFFSET_AT),
    "offset": (">i8", PHYSICAL_OFFSET_AT), "sys_flag": (">i4", SYS_FLAG_AT),
    "timestamp": (">i8", STORE_TIMESTAMP_AT), "body_size": (">i4", BODY_SIZE_AT),
}  # fmt: skip
_WORD: Final = {name: int.from_bytes(name, "big") for name in (b"TAGS", b"KEYS", b"UNIQ_KEY")}


@dataclass(frozen=True, slots=True)
class Columns:
    """Plain records, one behind the other. Arrays have one element for each."""

    end: int  # Physical offset behind the last one.
    offsets: Any
    sizes: Any
    queue_ids: Any
    queue_offsets: Any
    timestamps: Any
    topics: list[str]
    topic_numbers: Any  # Into `topics`.
    tags_codes: Any
    # Of the keys, by record and in it the unique id first: the record's number, the key's hash.
    key_records: Any
    key_hashes: Any


def read_columns(
    data: bytes, physical_offset: int, *, check_crc: bool, observed: bytes = b""
) -> Columns | None:
    """The plain records that `data`, which is `physical_offset` of the log, begins with.

    None when there are too few, or when one has properties that need a closer look: zeros (a
    sector may be missing), names that occur twice, `observed`.
    """
    if np is None or len(data) < BULK_MIN * RECORD_SIZE_MIN:
        return None
    starts = np.array(_walk(data), dtype=np.int64)
    if len(starts) < BULK_MIN:
        return None
    raw = np.frombuffer(data, dtype=np.uint8)
    heads = _heads(raw, starts, physical_offset)
    count = _first_false(heads["plain"])
    if check_crc and count:
        count = _first_false(_crc_matches(data, heads, count))
    if count < BULK_MIN:
        return None
    heads = {name: column[:count] for name, column in heads.items()}
    found = _properties(data, heads, observed)
    topics = _topics(raw, heads)
    if found is None or topics is None:
        return None
    names, numbers = topics
    tags_codes, key_records, key_hashes, key_sizes = found
    prefixes = np.array([topic_prefix_hash(name) for name in names], dtype=np.uint32)
    values = prefixes[numbers[key_records]] * powers_of(key_sizes) + key_hashes
    end = int(heads["offset"][-1] + heads["size"][-1])
    return Columns(
        end, heads["offset"], heads["size"], heads["queue_id"], heads["queue_offset"],
        heads["timestamp"], names, numbers, tags_codes, key_records,
        _never_negative(values.astype(np.uint32)),
    )  # fmt: skip


def _walk(data: bytes) -> list[int]:
    """Where records begin, if the sizes are right: the only step for each record in Python."""
    starts: list[int] = []
    position, end, unpack, append = 0, len(data), _I32.unpack_from, starts.append
    while end - position >= RECORD_SIZE_MIN:
        (size,) = unpack(data, position)
        if size < RECORD_SIZE_MIN or position + size > end:
            break
        append(position)
        position += size
    return starts


def _column(raw: Any, kind: str, at: Any) -> Any:
    """Big-endian numbers at the positions `at`."""
    width = int(kind[-1])
    view = np.ndarray(shape=(len(raw) - width + 1,), dtype=kind, buffer=raw, strides=(1,))
    return view[np.clip(at, 0, len(view) - 1)].astype(np.int64)


def _heads(raw: Any, starts: Any, physical_offset: int) -> dict[str, Any]:
    """Fixed fields, the places of what follows them, and whether all of it fits together."""
    fixed = rows_at(raw, starts, HEAD_SIZE)
    head = {
        name: np.ndarray(
            len(starts), dtype=kind, buffer=fixed, offset=at, strides=(HEAD_SIZE,)
        ).astype(np.int64)
        for name, (kind, at) in _HEAD_FIELDS.items()
    }
    end = starts + head["size"]
    body_size = head["body_size"]
    topic_at = starts + HEAD_SIZE + body_size
    topic_size = _column(raw, ">u1", topic_at)
    properties_at = topic_at + 3 + topic_size
    properties_size = _column(raw, ">u2", properties_at - 2)
    plain = head["magic"] == MAGIC_V1
    plain &= head["sys_flag"] & (HOSTS_V6_MASK | UNQUEUED_FLAG) == 0
    plain &= (
        (body_size >= 0)
        & (topic_at + 3 <= end)
        & (topic_size > 0)
        & (topic_size <= TOPIC_LENGTH_MAX)
    )
    plain &= (properties_size > 0) & (properties_at + properties_size == end)
    plain &= head["offset"] == starts + physical_offset
    return {
        **head, "plain": plain, "start": starts, "end": end,
        "topic_at": topic_at, "topic_size": topic_size, "properties_at": properties_at,
    }  # fmt: skip


def _first_false(flags: Any) -> int:
    return len(flags) if flags.all() else int(flags.argmin())


def _crc_matches(data: bytes, heads: dict[str, Any], count: int) -> Any:
    begin = heads["start"][:count] + HEAD_SIZE
    end = heads["topic_at"][:count]
    bodies = map(memoryview(data).__getitem__, map(slice, begin.tolist(), end.tolist()))
    sums = list(map(crc32, bodies))
    is_right = (np.array(sums, dtype=np.int64) & CRC_MASK) == heads["crc"][:count]
    return is_right | (begin == end)


def _topics(raw: Any, heads: dict[str, Any]) -> tuple[list[str], Any] | None:
    """Distinct topics, and the number of each record's; None when one is not ASCII."""
    names: list[str] = []
    numbers = np.zeros(len(heads["start"]), dtype=np.int64)
    for size, members in by_size(heads["topic_size"]):
        matrix = rows_at(raw, heads["topic_at"][members] + 1, size)
        if (matrix >= 0x80).any():
            return None
        rows = matrix.view(f"S{size}").ravel()
        is_one = bool((matrix == matrix[0]).all())
        distinct, places = (rows[:1], 0) if is_one else np.unique(rows, return_inverse=True)
        # numpy takes zeros at the end for padding: such a topic is left to the other path.
        texts = [bytes(text) for text in distinct]
        if any(len(text) != size for text in texts):
            return None
        numbers[members] = places + len(names)
        names += [text.decode("ascii") for text in texts]
    return names, numbers


def _properties(
    data: bytes, heads: dict[str, Any], observed: bytes
) -> tuple[Any, Any, Any, Any] | None:
    """(tags codes; of each key its record, its hash, its size), None: look at each record."""
    blob = _joined(data, heads["properties_at"], heads["end"])
    if not blob.isascii() or b"\0" in blob or (observed and observed in blob):
        return None
    raw = np.frombuffer(blob, dtype=np.uint8)
    sizes = heads["end"] - heads["properties_at"]
    record_starts = np.cumsum(sizes + 1) - sizes  # Behind the separator before each.
    ends = np.flatnonzero(raw == _PAIR_END)
    piece_starts, piece_ends = ends[:-16] + 1, ends[1:-15]
    found = {}
    for name in (b"TAGS", b"KEYS", b"UNIQ_KEY"):
        spans_of = _values(raw, piece_starts, piece_ends, name, record_starts)
        if spans_of is None:
            return None
        found[name] = spans_of
    if b" " in blob and _has_space(raw, *found[b"KEYS"][1:]):
        return None
    tags_codes = np.zeros(len(sizes), dtype=np.int64)
    records, starts, lengths = found[b"TAGS"]
    tags_codes[records] = hash_spans(raw, starts, lengths).view(np.int32)
    both = [np.concatenate(pair) for pair in zip(found[b"UNIQ_KEY"], found[b"KEYS"], strict=True)]
    order = np.argsort(both[0], kind="stable")  # By record; in it the unique id stays first.
    records, starts, lengths = (column[order] for column in both)
    return tags_codes, records, hash_spans(raw, starts, lengths), lengths


def _joined(data: bytes, starts: Any, ends: Any) -> bytes:
    """The properties of all records, each behind a separator."""
    size = int(ends[0] - starts[0])
    if (ends - starts == size).all():
        # Of one producer they often are of one size: no step for each.
        matrix = np.full((len(starts), size + 1), _PAIR_END, dtype=np.uint8)
        matrix[:, 1:] = rows_at(np.frombuffer(data, dtype=np.uint8), starts, size)
        joined: bytes = matrix.tobytes()
        return joined + _PADDING
    texts = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return b"\x02" + b"\x02".join(texts) + _PADDING


def _values(
    raw: Any, starts: Any, ends: Any, name: bytes, record_starts: Any
) -> tuple[Any, Any, Any] | None:
    """Records, starts and sizes of a property's values; None when the rules need a closer look."""
    size = len(name)
    maybe = np.flatnonzero(raw[starts] == name[0])
    starts, ends = starts[maybe], ends[maybe]
    is_named = _column(raw, f">u{size}", starts) == _WORD[name]
    is_named &= raw[starts + size] == _NAME_END
    value_starts, value_ends = starts[is_named] + size + 1, ends[is_named]
    records = np.searchsorted(record_starts, value_starts, side="right") - 1
    if (value_ends <= value_starts).any() or (records[1:] == records[:-1]).any():
        return None
    return records, value_starts, value_ends - value_starts


def _has_space(raw: Any, starts: Any, lengths: Any) -> bool:
    """Whether a value holds several keys."""
    spaces = np.flatnonzero(raw == _SPACE)
    before = np.searchsorted(spaces, starts)
    return bool((before != np.searchsorted(spaces, starts + lengths)).any())


def _never_negative(values: Any) -> Any:
    """Java's Math.abs, with 0 for the number that has no positive twin."""
    signed = values.view(np.int32).astype(np.int64)
    signed[signed == -(1 << 31)] = 0
    return np.abs(signed)
