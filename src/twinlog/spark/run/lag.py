"""How far streaming queries are behind, from their progress: for people and for Prometheus.

Spark takes no metrics from Python sources, but shows what they report as their latest offset:
`behind` (rows that are there and not read yet) and `skipped` (rows that failOnDataLoss=false left
out) stand there in every progress of a query. The listener gives both to Prometheus.

    spark.streams.addListener(LagListener(port=9400))
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


def lag_of(latest_offset: str | None) -> tuple[int, int] | None:
    """Return (rows behind, rows skipped) of a source's latest offset; None if it is not ours."""
    try:
        found: Any = json.loads(latest_offset or "")
    except ValueError:
        return None
    if not isinstance(found, dict) or "behind" not in found:
        return None
    return int(found["behind"]), int(found["skipped"])


class LagListener(StreamingQueryListener):
    """Keeps the lag of each query by its name, and shows it to Prometheus when given a port."""

    def __init__(self, port: int | None = None, address: str = "127.0.0.1") -> None:
        super().__init__()
        self.lags: dict[str, tuple[int, int]] = {}
        self._gauges: Any = None
        if port is not None:
            from prometheus_client import CollectorRegistry, Gauge, start_http_server

            registry = CollectorRegistry()
            names = {"rows_behind": "Rows not read yet.", "rows_skipped": "Rows that were lost."}
            self._gauges = [
                Gauge(f"twinlog_spark_{name}", text, ["query"], registry=registry)
                for name, text in names.items()
            ]
            self.server, self.thread = start_http_server(port, address, registry)

    def take(self, query: str, latest_offsets: list[str | None]) -> None:
        """Note the progress of a query."""
        found = [lag for text in latest_offsets if (lag := lag_of(text)) is not None]
        if not found:
            return
        behind, skipped = (sum(column) for column in zip(*found, strict=True))
        self.lags[query] = (behind, skipped)
        for gauge, value in zip(self._gauges or (), self.lags[query], strict=False):
            gauge.labels(query).set(value)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Take the progress."""
        progress = event.progress
        self.take(progress.name or str(progress.id), [s.latestOffset for s in progress.sources])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """What was known stays."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """What was known stays: the lag of a query that ended is worth an alarm."""
