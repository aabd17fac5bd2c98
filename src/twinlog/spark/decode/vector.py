"""Bytes to columns without a Python step per row.

Three tricks carry the whole decoder:

1. A strided view of the mapped file (`strides=(1,)`) is indexed by byte position, so one numpy
   gather reads a big-endian integer of every row.
2. A zero-copy Arrow binary array *over the mapped file* whose offsets are start, end, start, end,
   ...: its even elements are the wanted slices, its odd ones the gaps. One `take` of the even
   elements copies all of them in C++.
3. Properties are split by the positions of the two separators: a handful of array operations for a
   whole batch. Messages of one producer carry the same names in the same order; such a batch is
   recognised by comparing names as integers and needs no look-up by name at all.

Where the compiled parts are, `_decode` does 2 and 3 with one loop each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twinlog.runtime.compiled import load

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

NAME_END = 1  # RocketMQ's NAME_VALUE_SEPARATOR
PAIR_END = 2  # RocketMQ's PROPERTY_SEPARATOR
MASK_BITS = 40  # low enough that the sum of bits of the longest property string cannot wrap
INT32_END = 1 << 31
WORDS = ((8, "<u8"), (4, "<u4"), (2, "<u2"), (1, "<u1"))

_compiled = load("twinlog.spark.decode._decode")


def strided(buffer: U8, kind: str) -> npt.NDArray[Any]:
    """View bytes as big-endian integers of numpy kind `kind` (such as ">i4") at every position."""
    width = int(kind[-1])
    count = max(0, len(buffer) - width + 1)
    return np.ndarray(shape=(count,), dtype=kind, buffer=buffer, strides=(1,))


def gather_bytes(data: pa.Buffer, starts: I64, lengths: I64, kind: pa.DataType) -> pa.Array:
    """Copy [start, start + length) of every row into one array; rows must rise and not overlap."""
    count = len(starts)
    if count == 0:
        return pa.array([], kind)
    if _compiled is not None and 0 < (total := int(lengths.sum())) < INT32_END:
        places, copied = np.empty(count + 1, np.int32), pa.allocate_buffer(total)
        view = np.frombuffer(data, np.uint8)
        _compiled.gather(view, starts, lengths, places, np.frombuffer(copied, np.uint8))
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(places), copied])
    base = int(starts[0])
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts - base
    offsets[1::2] = starts - base + lengths
    offsets[-1] = offsets[-2]
    slices = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), data.slice(base)])
    return slices.take(every(0, 2 * count, 2))


@lru_cache(maxsize=32)
def every(begin: int, end: int, step: int) -> pa.Array:
    """Return the indices begin, begin + step, ... as Arrow wants them; full batches share them."""
    return pa.array(np.arange(begin, end, step, dtype=np.int64))


@lru_cache(maxsize=64)
def repeated(text: str, count: int) -> pa.Array:
    """Return a column of one text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(maxsize=16)
def tiled(texts: tuple[str, ...], count: int) -> pa.Array:
    """Return the texts, all of them `count` times over."""
    data = "".join(texts).encode()
    sizes = np.array([len(text.encode()) for text in texts], np.int32)
    offsets = np.zeros(len(texts) * count + 1, np.int32)
    np.cumsum(np.tile(sizes, count), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), len(texts) * count, buffers)


class SameNames:
    """The properties of rows that all have the same names in the same order."""

    def __init__(self, names: tuple[str, ...], values: pa.Array) -> None:
        self.names, self.values = names, values  # the values of row 0, then those of row 1, ...

    def column(self, name: str) -> pa.Array:
        """Return the value of one property of every row, null where it is absent."""
        width = len(self.names)
        if name not in self.names:
            return pa.nulls(len(self.values) // width, pa.string())
        return self.values.take(every(self.names.index(name), len(self.values), width))

    def map_column(self) -> pa.Array:
        """Return all properties of every row as a map."""
        width = len(self.names)
        rows = len(self.values) // width
        offsets = pa.array(np.arange(0, len(self.values) + 1, width, dtype=np.int32))
        return pa.MapArray.from_arrays(offsets, tiled(self.names, rows), self.values)


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a batch of rows, split but not yet copied into columns."""

    parts: pa.Array  # key, separator, value, gap of every pair
    codes: I64  # which distinct key each pair has
    names: list[str]  # the distinct keys
    row_offsets: I32  # pairs of row r: row_offsets[r] .. row_offsets[r + 1]

    def column(self, name: str) -> pa.Array:
        """Return the value of one property of every row, null where it is absent."""
        rows = len(self.row_offsets) - 1
        if name not in self.names:
            return pa.nulls(rows, pa.string())
        hits = (self.codes == self.names.index(name)).nonzero()[0]
        chosen = np.full(rows, -1, np.int64)
        chosen[self.row_offsets.searchsorted(hits, "right") - 1] = hits * 4 + 2
        return self.parts.take(pa.array(chosen, mask=chosen < 0))

    def map_column(self) -> pa.Array:
        """Return all properties of every row as a map."""
        first = np.arange(0, len(self.codes) * 4, 4, dtype=np.int64)
        keys = self.parts.take(pa.array(first))
        values = self.parts.take(pa.array(first + 2))
        return pa.MapArray.from_arrays(pa.array(self.row_offsets), keys, values)


def split_alike(data: pa.Buffer, starts: I64, lengths: I64) -> SameNames | None:
    """Split the property strings at these places if all have the names of the first.

    None where they differ, and without the compiled part: `split_properties` splits everything.
    """
    if _compiled is None or len(starts) == 0 or not lengths[0]:
        return None
    view = np.frombuffer(data, np.uint8)
    first = view[starts[0] : starts[0] + lengths[0]].tobytes()
    pieces = first.removesuffix(b"\2").split(b"\2")
    names = tuple(piece[: piece.find(b"\1") + 1] for piece in pieces)
    total = int(lengths.sum())
    if min(map(len, names)) < 2 or total >= INT32_END:
        return None
    # The last of equal names wins: members of a batch carry WAIT twice.
    is_kept = bytes(name not in names[at + 1 :] for at, name in enumerate(names))
    offsets = np.empty(sum(is_kept) * len(starts) + 1, np.int32)
    values = pa.allocate_buffer(total)
    if not _compiled.split_alike(
        view, starts, lengths, names, is_kept, offsets, np.frombuffer(values, np.uint8)
    ):
        return None
    buffers = [None, pa.py_buffer(offsets), values]
    kept = [name for name, wanted in zip(names, is_kept, strict=True) if wanted]
    texts = tuple(name[:-1].decode("utf-8", "replace") for name in kept)
    return SameNames(texts, pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers))


def split_properties(texts: pa.Array) -> Properties | SameNames:
    """Split property strings by RocketMQ's rule.

    A piece between two pair separators counts if its first name separator is neither its first nor
    its last byte; of two pairs with one name the last wins. Separators inside values need no
    special case.
    """
    count = len(texts)
    raw = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + count + 1]
    bounds: I64 = raw.astype(np.int64)
    data = texts.buffers()[2]
    low, high = int(bounds[0]), int(bounds[-1])
    if data is None or low == high:
        return Properties(pa.array([], pa.string()), np.empty(0, np.int64), [], _zeros(count + 1))
    content = np.frombuffer(data, np.uint8)[low:high]
    separators: I64 = (content <= PAIR_END).nonzero()[0]
    kinds = content[separators]
    separators += low
    same = _same_names(data, bounds, separators, kinds)
    if same is not None:
        return same
    starts, ends, row_last = _pieces(separators[kinds == PAIR_END], bounds)
    name_ends = separators[kinds == NAME_END]
    place = np.minimum(name_ends.searchsorted(starts), max(0, len(name_ends) - 1))
    middle = name_ends[place] if len(name_ends) else np.full(len(starts), -1, np.int64)
    valid = (middle > starts) & (middle + 1 < ends)
    row_offsets = _zeros(count + 1)
    row_offsets[1:] = np.cumsum(valid)[row_last]
    parts = _parts(data, starts[valid], middle[valid], ends[valid])
    keys = parts.take(pa.array(np.arange(0, len(parts), 4, dtype=np.int64))).dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    split = Properties(parts, codes, keys.dictionary.to_pylist(), row_offsets)
    return _last_wins(split)


def _same_names(data: pa.Buffer, bounds: I64, separators: I64, kinds: U8) -> SameNames | None:
    """Split rows that all have the same form; None when they are not."""
    rows = len(bounds) - 1
    each = len(separators) // rows
    if each * rows != len(separators) or each == 0:
        return None
    places, kinds = separators.reshape(rows, each), kinds.reshape(rows, each)
    names_at, pairs_at = places[:, 0::2], places[:, 1::2]
    if not (kinds[:, 0::2] == NAME_END).all() or not (kinds[:, 1::2] == PAIR_END).all():
        return None
    if not ((places[:, 0] >= bounds[:-1]) & (places[:, -1] < bounds[1:])).all():
        return None
    width = names_at.shape[1]
    ends = np.empty((rows, width), np.int64)
    ends[:, : pairs_at.shape[1]] = pairs_at
    if each % 2:  # no separator after the last pair
        ends[:, -1] = bounds[1:]
    elif not (places[:, -1] == bounds[1:] - 1).all():
        return None
    starts = np.empty((rows, width), np.int64)
    starts[:, 0] = bounds[:-1]
    starts[:, 1:] = ends[:, :-1] + 1
    sizes, values_at = names_at - starts, names_at + 1
    if not (sizes == sizes[0]).all() or not sizes[0].all() or not (ends > values_at).all():
        return None
    view = np.frombuffer(data, np.uint8)
    if not _equal_columns(view, starts, sizes[0].tolist()):
        return None
    names = tuple(
        view[at : at + size].tobytes().decode("utf-8", "replace")
        for at, size in zip(starts[0].tolist(), sizes[0].tolist(), strict=True)
    )
    if len(set(names)) != width:
        return None
    lengths = (ends - values_at).reshape(-1)
    return SameNames(names, gather_bytes(data, values_at.reshape(-1), lengths, pa.string()))


def _equal_columns(view: U8, begins: I64, sizes: list[int]) -> bool:
    """Say whether column by column all rows have the bytes of the first row; sizes are equal."""
    for column, size in enumerate(sizes):
        width, kind = next(word for word in WORDS if word[0] <= size)
        words = strided(view, kind)
        for at in {*range(0, size - width + 1, width), size - width}:
            found = words[begins[:, column] + at]
            if not (found == found[0]).all():
                return False
    return True


def _zeros(count: int) -> I32:
    return np.zeros(count, np.int32)


def _pieces(separators: I64, bounds: I64) -> tuple[I64, I64, I64]:
    """Return start and end of every piece, and for every row the index of its last piece."""
    rows = len(bounds) - 1
    row_last = separators.searchsorted(bounds[1:], "left") + np.arange(rows)
    ends = np.empty(rows + len(separators), np.int64)
    is_row_end = np.zeros(len(ends), bool)
    is_row_end[row_last] = True
    ends[is_row_end] = bounds[1:]
    ends[~is_row_end] = separators
    starts = np.empty_like(ends)
    starts[0] = bounds[0]
    starts[1:] = ends[:-1] + ~is_row_end[:-1]  # a separator is stepped over, a row end is not
    return starts, ends, row_last


def _parts(data: pa.Buffer, starts: I64, middle: I64, ends: I64) -> pa.Array:
    pairs = len(starts)
    if pairs == 0:
        return pa.array([], pa.string())
    offsets = np.empty(4 * pairs + 1, np.int32)
    offsets[0:-1:4] = starts
    offsets[1::4] = middle
    offsets[2::4] = middle + 1
    offsets[3::4] = ends
    offsets[-1] = ends[-1]
    return pa.Array.from_buffers(pa.string(), 4 * pairs, [None, pa.py_buffer(offsets), data])


def _last_wins(split: Properties) -> Properties:
    """Drop all but the last of equal names within one row (batch members carry WAIT twice)."""
    if not _has_repeats(split):
        return split
    rows = np.repeat(np.arange(len(split.row_offsets) - 1), np.diff(split.row_offsets))
    labels = rows * len(split.names) + split.codes
    _, first_of_reversed = np.unique(labels[::-1], return_index=True)
    kept = np.sort(len(labels) - 1 - first_of_reversed)
    row_offsets = _zeros(len(split.row_offsets))
    row_offsets[1:] = np.searchsorted(kept, split.row_offsets[1:], "left")
    wanted = (kept[:, None] * 4 + np.arange(4)).reshape(-1)
    parts = split.parts.take(pa.array(wanted))
    return Properties(parts, split.codes[kept], split.names, row_offsets)


def _has_repeats(split: Properties) -> bool:
    offsets = split.row_offsets
    filled = offsets[:-1] < offsets[1:]
    if not filled.any():
        return False
    if len(split.names) > MASK_BITS:
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        labels = rows * len(split.names) + split.codes
        return len(np.unique(labels)) != len(labels)
    # One bit per name: a row repeats a name exactly if the sum of its bits is not their union.
    bits = np.left_shift(np.int64(1), split.codes)
    begins = offsets[:-1][filled]
    return bool((np.add.reduceat(bits, begins) != np.bitwise_or.reduceat(bits, begins)).any())


def times_us(milliseconds: I64) -> pa.Array:
    """Milliseconds since the epoch as Spark's timestamps."""
    micros = np.ascontiguousarray(milliseconds * 1000)
    return pa.Array.from_buffers(
        pa.timestamp("us", "UTC"), len(micros), [None, pa.py_buffer(micros)]
    )
