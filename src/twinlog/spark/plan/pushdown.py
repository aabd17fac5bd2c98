"""Filters that narrow a plan: topic, queue, queue offset, store time, key. Pure.

A filter here only makes the plan smaller; Spark still applies every filter to the rows, so a
filter that is ignored costs time, never rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from twinlog.spark.plan.offsets import Offsets, QueueKey

if TYPE_CHECKING:
    from twinlog.spark.read.transport import Transport


def _ms(value: Any) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


@dataclass(slots=True)
class Pushed:
    """What the filters leave to read."""

    topics: set[str] | None = None
    queue_ids: set[int] | None = None
    offset_low: int = 0
    offset_high: int | None = None
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    keys: list[set[str]] = field(default_factory=list)  # a row has a key of each of these sets

    def take(self, item: Any) -> None:
        """Use one filter of Spark's."""
        kind = type(item).__name__
        column = item.attribute[0] if len(getattr(item, "attribute", ())) == 1 else None
        value: Any = getattr(item, "value", None)
        values: set[Any] = set(value) if kind == "In" else {value}
        if kind in ("EqualTo", "In") and column == "topic":
            self.topics = values if self.topics is None else self.topics & values
        elif kind in ("EqualTo", "In") and column == "queue_id":
            self.queue_ids = values if self.queue_ids is None else self.queue_ids & values
        elif kind in ("EqualTo", "In") and column in ("keys", "msg_id"):
            self.keys.append({value for value in values if isinstance(value, str)})
        elif column == "queue_offset" and isinstance(value, int):
            self._take_offset(kind, value)
        elif column == "store_ts" and (moment := _ms(value)) is not None:
            self._take_time(kind, moment)

    def _take_offset(self, kind: str, value: int) -> None:
        if kind in ("EqualTo", "GreaterThanOrEqual", "GreaterThan"):
            self.offset_low = max(self.offset_low, value + (kind == "GreaterThan"))
        if kind in ("EqualTo", "LessThanOrEqual", "LessThan"):
            high = value + (kind != "LessThan")
            self.offset_high = high if self.offset_high is None else min(self.offset_high, high)

    def _take_time(self, kind: str, moment: int) -> None:
        if kind in ("EqualTo", "GreaterThanOrEqual", "GreaterThan"):
            self.time_low_ms = max(self.time_low_ms or 0, moment)
        if kind in ("EqualTo", "LessThanOrEqual", "LessThan"):
            known = self.time_high_ms
            self.time_high_ms = moment if known is None else min(known, moment)

    def wants_queue(self, key: QueueKey) -> bool:
        """Say whether any row of a queue can pass."""
        return (self.topics is None or key[0] in self.topics) and (
            self.queue_ids is None or key[2] in self.queue_ids
        )

    def narrow(self, start: Offsets, end: Offsets, transport: Transport) -> tuple[Offsets, Offsets]:
        """Move starts up and ends down as far as offsets and times allow."""
        low = {key: max(number, self.offset_low) for key, number in start.items()}
        high = dict(end)
        if self.offset_high is not None:
            high = {key: min(number, self.offset_high) for key, number in high.items()}
        for key in high:
            if low[key] >= high[key]:
                continue
            if self.time_low_ms is not None:
                found = transport.at_time(key, self.time_low_ms)
                low[key] = max(low[key], high[key] if found is None else found)
            if self.time_high_ms is not None:
                found = transport.at_time(key, self.time_high_ms + 1)
                high[key] = min(high[key], high[key] if found is None else found)
        return {key: min(low[key], high[key]) for key in high}, high
