"""How far a streaming query is, in words: rows, bytes of the log, rate, and when it will be done.

All of it comes from what our source puts into the progress of a query: offsets with the physical
place of the furthest record, and how many rows are behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from twinlog.spark.plan.offsets import Offsets, from_json, is_symbol, rows_between

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
MINUTE, HOUR = 60, 3600


class Pace:
    """Follows one run of a query; progress comes in as Spark's objects do."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.began = now()
        self.start: tuple[Offsets, dict[str, Any]] | None = None

    def text(self, progress: Any) -> str:
        """Describe the newest progress; empty when it says nothing of ours yet."""
        source = progress["sources"][0] if progress and progress["sources"] else None
        ends = None if source is None else _offsets(source["endOffset"])
        if source is None or ends is None:
            return ""
        if self.start is None:
            self.start = _offsets(source["startOffset"]) or ends
        done = rows_between(self.start[0], ends[0])
        rate = done / max(0.001, self.now() - self.began)
        words = [f"{done:,} rows"]
        if size := _bytes_between(self.start[1], ends[1]):
            words.append(f"{size_text(size)} of the log")
        words.append(f"{rate:,.0f} rows per second")
        left = _behind(source["latestOffset"])
        if left and rate:
            words.append(f"{left:,} rows to go, about {time_text(left / rate)}")
        return ", ".join(words)


def _offsets(value: Any) -> tuple[Offsets, dict[str, Any]] | None:
    data = json.loads(value) if isinstance(value, str) else value
    return None if not isinstance(data, dict) or is_symbol(data) else from_json(data)


def _behind(value: Any) -> int:
    data = json.loads(value) if isinstance(value, str) else value
    return int(data.get("behind", 0)) if isinstance(data, dict) else 0


def _bytes_between(start: dict[str, Any], end: dict[str, Any]) -> int:
    """Return how far the logs of brokers were passed; brokers without a mark at first are not."""
    return sum(
        max(0, int(mark["phys"]) - int(start[name]["phys"]))
        for name, mark in end.items()
        if name in start
    )


def size_text(size: float) -> str:
    """Write a number of bytes as people read it."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{size:.0f} B"


def time_text(seconds: float) -> str:
    """Write a duration in the largest fitting unit."""
    if seconds < MINUTE:
        return f"{max(1, round(seconds))} s"
    if seconds < HOUR:
        return f"{round(seconds / MINUTE)} min"
    return f"{seconds / HOUR:.1f} h"
