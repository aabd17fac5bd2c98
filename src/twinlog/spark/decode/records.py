"""Commit-log records to Arrow columns. Corresponds to RocketMQ's MessageDecoder, by the batch.

Owns the record layout as arrays of positions (`Layout`), the checks of a record against its index
entry, and one function per column. Only the columns that are asked for are decoded. No pyspark
import, no file access.

| pos (IPv4 hosts) | field | pos | field |
|---|---|---|---|
| 0 | i32 total size | 40 | i64 born time |
| 4 | i32 magic | 48 | born host, 8 or 20 bytes |
| 8 | i32 body crc | +0 | i64 store time |
| 12 | i32 queue id | +8 | store host, 8 or 20 bytes |
| 16 | i32 flag | +0 | i32 reconsume times |
| 20 | i64 queue offset | +4 | i64 prepared transaction offset |
| 28 | i64 physical offset | +12 | i32 body length, body |
| 36 | i32 system flag | | i8 (V1) or i16 (V2) + topic, i16 + properties |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twinlog.message.compression import CompressionError, inflate_body
from twinlog.message.crc import crc32
from twinlog.message.layout import (
    BORN_HOST_AT,
    CRC_MASK,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_EXTRA,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_MAGICS,
    PREPARED_OFFSET_AT,
    RECONSUME_TIMES_AT,
    RECORD_SIZE_MIN,
    SIZE_MAGIC,
    STORE_TIMESTAMP_AT,
)
from twinlog.message.sysflag import BORNHOST_V6_FLAG, COMPRESSED_FLAG, STOREHOSTADDRESS_V6_FLAG
from twinlog.runtime.compiled import load
from twinlog.spark.decode.columns import COLUMNS, PROPERTY_COLUMNS, arrow_schema
from twinlog.spark.decode.vector import (
    I64,
    U8,
    Properties,
    SameNames,
    gather_bytes,
    repeated,
    split_alike,
    split_properties,
    strided,
    times_us,
)
from twinlog.spark.errors import RecordCorruptError

HEX_BYTES = 64
HOST_CACHE_MAX = 65536
HEAD = np.dtype(
    [
        ("size", ">i4"), ("magic", ">u4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"),
        # What follows has moved where a host is IPv6.
        ("born_host", ">i8"), ("store", ">i8"), ("store_host", ">i8"), ("reconsume", ">i4"),
        ("prepared", ">i8"), ("body_size", ">i4"),
    ]
)  # fmt: skip
_compiled = load("twinlog.spark.decode._decode")
ANY_V6 = BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Some bytes of a commit log in memory; `base` is the physical offset of the first."""

    data: pa.Buffer
    view: U8
    base: int
    _views: dict[str, npt.NDArray[Any]] = field(default_factory=dict, compare=False)

    def ints(self, kind: str, positions: I64) -> I64:
        """Read a big-endian integer of numpy kind `kind` at every position."""
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = strided(self.view, kind)
        found: I64 = view[positions].astype(np.int64)
        return found

    def heads(self, positions: I64) -> npt.NDArray[Any]:
        """Copy the head of every record: one visit for all numbers of a record."""
        view = self._views.get("heads")
        if view is None:
            count = max(0, len(self.view) - HEAD.itemsize + 1)
            kind = f"V{HEAD.itemsize}"  # copied whole; a type with fields is copied field by field
            view = np.ndarray(shape=(count,), dtype=kind, buffer=self.view, strides=(1,))
            self._views["heads"] = view
        return view[positions].view(HEAD)

    @classmethod
    def over(cls, source: object, base: int) -> LogSlice:
        """Wrap anything that has the buffer interface (a mapped file, bytes), copying nothing."""
        data = pa.py_buffer(source)
        return cls(data, np.frombuffer(data, np.uint8), base)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the consume queue (or the answer of a broker) says about the rows of a batch."""

    sizes: I64 | None = None
    physical_offsets: I64 | None = None
    queue_ids: I64 | None = None
    queue_offsets: I64 | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of every record are."""

    log: LogSlice
    heads: npt.NDArray[Any]
    starts: I64
    sizes: I64
    sys_flags: I64
    store_time_at: I64
    body_at: I64
    body_sizes: I64
    topic_at: I64
    topic_sizes: I64
    properties_at: I64
    properties_sizes: I64

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> Layout:
        """Return the layout of some of the rows."""
        fields = [getattr(self, name)[chosen] for name in LAYOUT_ARRAYS]
        return Layout(self.log, *fields)

    @property
    def is_plain(self) -> bool:
        """Say whether no host is IPv6, so that `heads` holds for every field."""
        return not (self.sys_flags & ANY_V6).any()

    def int_at(self, kind: str, positions: I64) -> I64:
        """Read one integer of every row."""
        return self.log.ints(kind, positions)


LAYOUT_ARRAYS = tuple(name for name in Layout.__dataclass_fields__ if name != "log")


def corrupt(log: LogSlice, position: int, what: str) -> RecordCorruptError:
    """Make the error for the record at `position` of the slice: what is wrong, where, its bytes."""
    head = bytes(log.view[position : position + HEX_BYTES]).hex()
    return RecordCorruptError(
        "RECORD_CORRUPT",
        f"record at physical offset {log.base + position}: {what}; bytes there: {head}",
    )


def _demand(log: LogSlice, starts: I64, good: npt.NDArray[np.bool_], what: str) -> None:
    if not good.all():
        raise corrupt(log, int(starts[int(np.argmin(good))]), what)


def lay_out(log: LogSlice, starts: I64, expected: Expected | None = None) -> Layout:
    """Find the parts of the records that begin at `starts` (positions in the slice) and check them.

    Raises:
        RecordCorruptError: a record's magic, sizes or numbers are not what they must be.
    """
    layout = _find_parts(log, starts) or _lay_out(log, starts)
    if expected is not None:
        _compare(layout, expected)
    return layout


def _find_parts(log: LogSlice, starts: I64) -> Layout | None:
    """Do it with the compiled part; None without it, and where something is wrong."""
    if _compiled is None:
        return None
    heads = np.empty((len(starts), HEAD.itemsize), np.uint8)
    parts = np.empty((len(LAYOUT_ARRAYS) - 2, len(starts)), np.int64)
    if not _compiled.find_parts(log.view, starts, heads, parts):
        return None
    return Layout(log, heads.view(HEAD).reshape(-1), starts, *parts)


def _lay_out(log: LogSlice, starts: I64) -> Layout:
    end = len(log.view)
    _demand(log, starts, (starts >= 0) & (starts + RECORD_SIZE_MIN <= end), "it passes the end")
    heads = log.heads(starts)
    sizes = heads["size"].astype(np.int64)
    is_v2 = heads["magic"] == MAGIC_V2
    _demand(log, starts, is_v2 | (heads["magic"] == MAGIC_V1), "it has no message magic")
    _demand(log, starts, (sizes >= RECORD_SIZE_MIN) & (starts + sizes <= end), "its size is wrong")
    sys_flags = heads["sys_flag"].astype(np.int64)
    limits = starts + sizes
    if (sys_flags & ANY_V6).any():
        born_extra = np.where(sys_flags & BORNHOST_V6_FLAG, HOST_V6_EXTRA, 0)
        store_extra = np.where(sys_flags & STOREHOSTADDRESS_V6_FLAG, HOST_V6_EXTRA, 0)
        store_time_at = starts + STORE_TIMESTAMP_AT + born_extra
        body_at = starts + HEAD_SIZE + born_extra + store_extra
        _demand(log, starts, body_at + 3 <= limits, "its host addresses extend beyond its end")
        body_sizes = log.ints(">i4", body_at - 4)
    else:
        store_time_at, body_at = starts + STORE_TIMESTAMP_AT, starts + HEAD_SIZE
        body_sizes = heads["body_size"].astype(np.int64)
    topic_at = body_at + body_sizes
    good = (body_sizes >= 0) & (topic_at + 3 + is_v2 <= limits)
    _demand(log, starts, good, "its body extends beyond its end")
    topic_sizes = _topic_sizes(log, topic_at, is_v2)
    topic_at = topic_at + 1 + is_v2
    properties_at = topic_at + topic_sizes + 2
    _demand(log, starts, properties_at <= limits, "its topic extends beyond its end")
    properties_sizes = log.ints(">i2", properties_at - 2)
    good = (properties_sizes >= 0) & (properties_at + properties_sizes == limits)
    _demand(log, starts, good, "its lengths do not add up to its size")
    return Layout(
        log, heads, starts, sizes, sys_flags, store_time_at, body_at, body_sizes,
        topic_at, topic_sizes, properties_at, properties_sizes,
    )  # fmt: skip


def _topic_sizes(log: LogSlice, at: I64, is_v2: npt.NDArray[np.bool_]) -> I64:
    sizes = log.view[at].astype(np.int64)
    if is_v2.any():
        sizes = np.where(is_v2, log.ints(">u2", np.minimum(at, len(log.view) - 2)), sizes)
    return sizes


def _compare(layout: Layout, expected: Expected) -> None:
    heads = layout.heads
    pairs = (
        ("size", layout.sizes, expected.sizes),
        ("physical offset", heads["physical_offset"], expected.physical_offsets),
        ("queue id", heads["queue_id"], expected.queue_ids),
        ("queue offset", heads["queue_offset"], expected.queue_offsets),
    )
    for name, found, wanted in pairs:
        if wanted is None or (found == wanted).all():
            continue
        bad = int(np.argmax(found != wanted))
        raise corrupt(
            layout.log,
            int(layout.starts[bad]),
            f"its {name} is {found[bad]}, but the consume queue says {wanted[bad]}",
        )


def bad_crcs(layout: Layout) -> npt.NDArray[np.bool_]:
    """Mark the rows whose body does not have the stored checksum."""
    if _compiled is not None:
        marks = np.empty(len(layout), bool)
        places = (layout.starts, layout.body_at, layout.body_sizes)
        _compiled.check_bodies(layout.log.view, *places, crc32, marks.view(np.uint8))
        return marks
    stored = layout.heads["crc"]
    view = memoryview(layout.log.data)
    ends = (layout.body_at + layout.body_sizes).tolist()
    crc = crc32
    found = [crc(view[at:end]) for at, end in zip(layout.body_at.tolist(), ends, strict=True)]
    wrong: npt.NDArray[np.bool_] = (np.array(found, np.int64) & CRC_MASK) != stored
    return wrong


def tail_properties(layout: Layout) -> Properties | SameNames:
    """Split the properties of all rows."""
    places = (layout.log.data, layout.properties_at, layout.properties_sizes)
    return split_alike(*places) or split_properties(gather_bytes(*places, pa.string()))


def topics(layout: Layout) -> pa.Array:
    """Return the topic of every row."""
    return gather_bytes(layout.log.data, layout.topic_at, layout.topic_sizes, pa.string())


def bodies(layout: Layout, *, decompress: bool) -> pa.Array:
    """Return the body of every row, inflated where the system flag says so.

    Raises:
        RecordCorruptError: a body that is marked as compressed cannot be inflated.
    """
    stored = gather_bytes(layout.log.data, layout.body_at, layout.body_sizes, pa.binary())
    packed = (layout.sys_flags & COMPRESSED_FLAG) != 0
    if not decompress or not packed.any():
        return stored
    import pyarrow.compute as pc

    inflated = []
    for row in np.flatnonzero(packed).tolist():
        try:
            inflated.append(inflate_body(stored[row].as_py(), int(layout.sys_flags[row])))
        except CompressionError as error:
            raise RecordCorruptError(
                "BODY_UNDECODABLE",
                f"record at physical offset {layout.heads['physical_offset'][row]}: {error}; "
                "set decompress=false to read the body as it is stored",
            ) from error
    return pc.replace_with_mask(stored, pa.array(packed), pa.array(inflated, pa.binary()))


_host_texts: dict[bytes, str] = {}


def _host_text(packed: bytes) -> str:
    text = _host_texts.get(packed)
    if text is None:
        port = int.from_bytes(packed[-4:], "big", signed=True)
        if len(packed) == 8:
            address = ".".join(map(str, packed[:4]))
        else:  # Java's form: eight groups, no leading zeros, no "::"
            address = ":".join(f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2))
        text = f"{address}:{port}"
        if len(_host_texts) >= HOST_CACHE_MAX:
            _host_texts.clear()
        _host_texts[packed] = text
    return text


def hosts(layout: Layout, positions: I64, v6_flag: int) -> pa.Array:
    """Return host:port of every row; each distinct host of a batch is formatted once."""
    if layout.is_plain:
        packed_hosts = layout.heads["born_host" if v6_flag == BORNHOST_V6_FLAG else "store_host"]
        return _plain_hosts(packed_hosts.astype(np.int64))
    sizes = np.where(layout.sys_flags & v6_flag, HOST_V6_SIZE, HOST_V4_SIZE)
    packed = gather_bytes(layout.log.data, positions, sizes, pa.binary()).dictionary_encode()
    texts = [_host_text(value) for value in packed.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(packed.indices)


def _plain_hosts(packed: I64) -> pa.Array:
    """Return host:port of IPv4 hosts that are packed into integers."""
    first = int(packed[0]).to_bytes(8, "big", signed=True)
    if (packed == packed[0]).all():
        return repeated(_host_text(first), len(packed))
    coded = pa.array(packed).dictionary_encode()
    values = [value.to_bytes(8, "big", signed=True) for value in coded.dictionary.to_pylist()]
    return pa.array([_host_text(value) for value in values], pa.string()).take(coded.indices)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Turns layouts into record batches of the wanted columns."""

    columns: tuple[str, ...]
    broker: str
    decompress: bool = True

    def batch(self, layout: Layout) -> pa.RecordBatch:
        """Decode the wanted columns of these rows."""
        split = None
        if "properties" in self.columns or not PROPERTY_COLUMNS.keys().isdisjoint(self.columns):
            split = tail_properties(layout)
        arrays = [self._column(name, layout, split) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    def _column(self, name: str, layout: Layout, split: Properties | SameNames | None) -> pa.Array:
        if name == "broker":
            return repeated(self.broker, len(layout))
        if name == "body":
            return bodies(layout, decompress=self.decompress)
        if split is not None and name == "properties":
            return split.map_column()
        if split is not None and name in PROPERTY_COLUMNS:
            return split.column(PROPERTY_COLUMNS[name])
        if name in COMPUTED:
            return COMPUTED[name](layout)
        if name in HEAD_COLUMNS:
            field = HEAD_COLUMNS[name]
            kind = np.int32 if HEAD[field].itemsize == 4 else np.int64
            return pa.array(layout.heads[field].astype(kind))
        kind_text, before_body = MOVED[name]
        values = layout.int_at(kind_text, layout.body_at - before_body)
        return pa.array(values.astype(np.int32) if kind_text == ">i4" else values)


COMPUTED: dict[str, Callable[[Layout], pa.Array]] = {
    "topic": topics,
    "born_ts": lambda rows: times_us(rows.heads["born"].astype(np.int64)),
    "store_ts": lambda rows: times_us(rows.int_at(">i8", rows.store_time_at)),
    "born_host": lambda rows: hosts(rows, rows.starts + BORN_HOST_AT, BORNHOST_V6_FLAG),
    "store_host": lambda rows: hosts(rows, rows.store_time_at + 8, STOREHOSTADDRESS_V6_FLAG),
}
HEAD_COLUMNS = {
    "store_size": "size", "body_crc": "crc", "queue_id": "queue_id", "flag": "flag",
    "queue_offset": "queue_offset", "phys_offset": "physical_offset", "sys_flag": "sys_flag",
}  # fmt: skip
# Columns whose place depends on the hosts: type, distance before the body.
MOVED = {
    "prepared_tx_offset": (">i8", HEAD_SIZE - PREPARED_OFFSET_AT),
    "reconsume_times": (">i4", HEAD_SIZE - RECONSUME_TIMES_AT),
}


def cut_batches(sizes: I64, *, rows_max: int, bytes_max: int) -> list[tuple[int, int]]:
    """Cut rows into runs of at most `rows_max` rows, about `bytes_max` bytes, at least one row."""
    ends = np.cumsum(sizes)
    runs, begin = [], 0
    while begin < len(sizes):
        spent = int(ends[begin - 1]) if begin else 0
        by_bytes = int(np.searchsorted(ends, spent + bytes_max, "right"))
        end = min(len(sizes), begin + rows_max, max(begin + 1, by_bytes))
        runs.append((begin, end))
        begin = end
    return runs


def chain(log: LogSlice, position: int = 0, end: int | None = None) -> I64:
    """Walk records by their sizes from `position`; stop at a blank record, zeros or the end."""
    limit = len(log.view) if end is None else end
    if _compiled is not None:
        starts = np.empty(max(0, limit - position) // RECORD_SIZE_MIN, np.int64)
        return starts[: _compiled.walk(log.view, position, limit, starts)]
    found: list[int] = []
    add, head = found.append, SIZE_MAGIC.unpack_from
    while position + RECORD_SIZE_MIN <= limit:
        size, magic = head(log.data, position)
        if magic not in MESSAGE_MAGICS or size < RECORD_SIZE_MIN or position + size > limit:
            break
        add(position)
        position += size
    return np.array(found, np.int64)


__all__ = ["COLUMNS", "Decoder", "Expected", "Layout", "LogSlice", "bad_crcs", "chain", "lay_out"]
