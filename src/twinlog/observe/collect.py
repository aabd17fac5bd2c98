"""From facts to samples: what collectors are made of.

A collector yields `prometheus_client` families. A large one comes in several pieces of the same
name, so that whoever writes them out can let the event loop go on in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import Metric

from twinlog.observe.families import SERIES_LEFT_OUT, Family, Kind
from twinlog.observe.histogram import Histogram

CHUNK = 20
SKIPPED = 100
SERIES_MAX = 2_000
Row = tuple[Sequence[str], float]


class Source(Protocol):
    """A server's numbers, read when somebody asks."""

    def collect(self, out: Samples) -> Iterator[Metric]: ...


class Sources:
    """Several as one."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def collect(self, out: Samples) -> Iterator[Metric]:
        for source in self._sources:
            yield from source.collect(out)


class Samples:
    """Makes families with the labels that all series of a server have, and bounds their number."""

    def __init__(self, labels: Mapping[str, str], series_max: int = SERIES_MAX) -> None:
        self._labels = dict(labels)
        self._series_max = series_max
        self.left_out: dict[str, int] = {}

    def one(self, family: Family, value: float) -> Metric:
        """A family with a single series."""
        metric = self._metric(family)
        metric.add_sample(family.exposed_name, self._labels, value)
        return metric

    def many(self, family: Family, rows: Iterable[Row | None]) -> Iterator[Metric]:
        """A series for each row, in pieces; rows beyond the limit, and Nones, are only counted."""
        metric, size = self._metric(family), 0
        for number, row in enumerate(rows):
            if row is None or number >= self._series_max:
                self.left_out[family.name] = self.left_out.get(family.name, 0) + 1
                if number % SKIPPED == 0:
                    yield self._metric(family)  # Nothing to write: a place to pause.
                continue
            if size == CHUNK:
                yield metric
                metric, size = self._metric(family), 0
            values, value = row
            labels = dict(zip(family.labels, values, strict=True))
            metric.add_sample(family.exposed_name, {**self._labels, **labels}, value)
            size += 1
        yield metric

    def histogram(self, family: Family, histogram: Histogram) -> Metric:
        metric = self._metric(family)
        for bound, count in histogram.buckets():
            metric.add_sample(f"{family.name}_bucket", {**self._labels, "le": bound}, count)
        metric.add_sample(f"{family.name}_sum", self._labels, histogram.sum_ms / 1000)
        metric.add_sample(f"{family.name}_count", self._labels, histogram.count)
        return metric

    def left_out_rows(self) -> Iterator[Metric]:
        """Last, when all others have been counted."""
        rows = [((name,), float(count)) for name, count in self.left_out.items()]
        return self.many(SERIES_LEFT_OUT, rows)

    def _metric(self, family: Family) -> Metric:
        kind = family.kind
        assert kind is not Kind.HISTOGRAM or not family.labels
        return Metric(family.name, family.text, kind.value)
