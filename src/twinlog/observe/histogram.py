"""A histogram of plain integers: what is measured often adds to it, a scrape reads it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

LATENCY_MS: tuple[float, ...] = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Histogram:
    """Counts of values in milliseconds, told in seconds as Prometheus wants them."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[float] = LATENCY_MS) -> None:
        assert list(bounds_ms) == sorted(set(bounds_ms))
        self.bounds_ms = tuple(bounds_ms)
        self.counts = [0] * (len(self.bounds_ms) + 1)
        self.sum_ms = 0.0

    def observe(self, value_ms: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds_ms, value_ms)] += count
        self.sum_ms += value_ms * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """(upper bound in seconds, values up to it), the last for all."""
        total = 0
        for bound, count in zip(self.bounds_ms, self.counts, strict=False):
            total += count
            yield repr(bound / 1000), total
        yield "+Inf", total + self.counts[-1]
