"""Cut a batch into tasks by physical windows of the log. Pure but for reads of index entries.

The pages of a commit log hold records of many queues side by side. One task per queue would touch
every page once per queue; a window of the log with all its queues touches it once. Cuts are
quantiles of a sample of each queue's entries weighted by bytes, so planning costs a few hundred
entry reads however long the log is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

WINDOW_BYTES_MIN = 4 << 20  # below this a task costs more than it saves
SAMPLES_PER_QUEUE = 64


class Range(NamedTuple):
    """Rows [low, high) of one queue."""

    topic: str
    broker: str
    queue_id: int
    low: int
    high: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.high - self.low


class Index(Protocol):
    """What planning needs to know of a queue."""

    def sample(self, queue_offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of one entry."""

    def first_from(self, physical: int, low: int, high: int) -> int:
        """Return the first entry of [low, high) whose record begins at or after `physical`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large and how many tasks may be."""

    partitions_min: int
    partitions_max: int | None
    bytes_max: int
    records_max: int | None = None


def find_cuts(ranges: Sequence[Range], indexes: Sequence[Index], limits: Limits) -> list[int]:
    """Choose the physical offsets at which a batch is cut into tasks."""
    pairs = _with_rows(ranges, indexes)
    if not pairs:
        return []
    positions, weights = _sample(pairs)
    count = _count(int(weights.sum()), sum(r.rows for r, _ in pairs), limits)
    return _quantiles(positions, weights, count)


def windows(
    ranges: Sequence[Range],
    indexes: Sequence[Index],
    cuts: Sequence[int],
    records_max: int | None = None,
) -> list[tuple[Range, ...]]:
    """Cut ranges into windows: each a task, each holding sub-ranges of several queues."""
    pairs = _with_rows(ranges, indexes)
    found = []
    begins = [r.low for r, _ in pairs]
    for cut in [*cuts, None]:
        window = []
        for number, (r, index) in enumerate(pairs):
            end = r.high if cut is None else index.first_from(cut, begins[number], r.high)
            if end > begins[number]:
                window.append(r._replace(low=begins[number], high=end))
            begins[number] = end
        if window:
            found += split_rows(tuple(window), records_max)
    return found


def _with_rows(ranges: Sequence[Range], indexes: Sequence[Index]) -> list[tuple[Range, Index]]:
    return [(r, index) for r, index in zip(ranges, indexes, strict=True) if r.rows > 0]


def _count(total_bytes: int, total_rows: int, limits: Limits) -> int:
    count = max(limits.partitions_min, -(-total_bytes // limits.bytes_max))
    count = min(count, max(1, total_bytes // WINDOW_BYTES_MIN))
    if limits.partitions_max:
        count = min(count, limits.partitions_max)
    if limits.records_max:
        count = max(count, -(-total_rows // limits.records_max))
    return count


def _sample(pairs: Sequence[tuple[Range, Index]]) -> tuple[np.ndarray, np.ndarray]:
    positions, weights = [], []
    for r, index in pairs:
        count = min(r.rows, SAMPLES_PER_QUEUE)
        step = r.rows / count
        for number in range(count):
            position, size = index.sample(r.low + int((number + 0.5) * step))
            positions.append(position)
            weights.append(size * step)
    return np.array(positions, np.int64), np.array(weights, np.float64)


def _quantiles(positions: np.ndarray, weights: np.ndarray, count: int) -> list[int]:
    if count <= 1:
        return []
    order = np.argsort(positions, kind="stable")
    spent = np.cumsum(weights[order])
    goals = spent[-1] * np.arange(1, count) / count
    chosen = positions[order][np.minimum(np.searchsorted(spent, goals), len(positions) - 1)]
    return [int(cut) for cut in np.unique(chosen)]


def by_queue(ranges: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Share whole queues among tasks: the rows of a queue stay in one, in their order."""
    bins: list[list[Range]] = [[] for _ in range(min(count, len(ranges)))]
    for r in sorted(ranges, key=lambda r: (-r.rows, r)):
        min(bins, key=lambda own: sum(other.rows for other in own)).append(r)
    return [tuple(sorted(own)) for own in bins if own]


def split_rows(window: tuple[Range, ...], records_max: int | None) -> list[tuple[Range, ...]]:
    """Cut a window that has too many rows; within a queue the order is kept."""
    if not records_max or sum(r.rows for r in window) <= records_max:
        return [window]
    found: list[tuple[Range, ...]] = []
    current: list[Range] = []
    room = records_max
    for r in window:
        low = r.low
        while low < r.high:
            high = min(r.high, low + room)
            current.append(r._replace(low=low, high=high))
            room -= high - low
            low = high
            if room == 0:
                found.append(tuple(current))
                current, room = [], records_max
    if current:
        found.append(tuple(current))
    return found
