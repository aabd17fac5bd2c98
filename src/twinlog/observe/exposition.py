"""Writes a scrape, in slices: between two of them the event loop serves others.

`prometheus_client` makes the lines, of Prometheus's text and of OpenMetrics. It is given one piece
of a family at a time; the heads that it repeats for each are dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest

from twinlog.runtime.clock import Clock

SLICE_MS = 2
_EOF = b"# EOF\n"


class _One:
    """A registry of one piece."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def content_type(*, is_openmetrics: bool) -> str:
    return OPENMETRICS_CONTENT_TYPE if is_openmetrics else CONTENT_TYPE_LATEST


def wants_openmetrics(accept: str) -> bool:
    return "application/openmetrics-text" in accept


async def write_sliced(
    metrics: Iterator[Metric],
    clock: Clock,
    *,
    is_openmetrics: bool = False,
) -> AsyncIterator[bytes]:
    """The bytes of a scrape. When a slice has taken its time, others have theirs."""
    began_ms, last = clock.monotonic_ms(), ""
    for metric in metrics:
        if metric.samples:
            yield _lines(metric, is_openmetrics, with_head=metric.name != last)
            last = metric.name
        if clock.monotonic_ms() - began_ms >= SLICE_MS:
            await clock.sleep_ms(0)
            began_ms = clock.monotonic_ms()
    if is_openmetrics:
        yield _EOF


def _lines(metric: Metric, is_openmetrics: bool, *, with_head: bool) -> bytes:
    write: Callable[[Any], bytes] = openmetrics_latest if is_openmetrics else generate_latest
    text = write(_One(metric)).removesuffix(_EOF)
    while not with_head and text.startswith(b"#"):
        text = text[text.index(b"\n") + 1 :]
    return text
