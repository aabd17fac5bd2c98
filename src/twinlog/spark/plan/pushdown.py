"""Filters that narrow a plan: topic, broker, queue, offset, tag, key; times in an archive. Pure.

What is taken here makes the plan smaller; rows are tested one by one in `predicates`. The log is
never narrowed by time: stored times step back when a clock does, so a search for one finds a place
behind which earlier times may still follow. Files of an archive know their own first and last time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from twinlog.spark.plan.offsets import Offsets, QueueKey

# Columns that name a part of the log, and the field that holds what is wanted of it.
SETS = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids", "tags": "tags"}


def _ms(value: Any) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


@dataclass(slots=True)
class Pushed:
    """What the filters leave to read."""

    topics: set[str] | None = None
    topic_prefixes: tuple[str, ...] = ()
    brokers: set[str] | None = None
    queue_ids: set[int] | None = None
    tags: set[str] | None = None
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
        if kind == "EqualNullSafe" and value is not None:
            kind = "EqualTo"
        values: set[Any] = set(value) - {None} if kind == "In" else {value}
        if kind in ("EqualTo", "In") and column in SETS:
            known = getattr(self, SETS[column])
            setattr(self, SETS[column], values if known is None else known & values)
        elif kind == "StringStartsWith" and column == "topic":
            self.topic_prefixes = (*self.topic_prefixes, value)
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
        return (
            (self.topics is None or key[0] in self.topics)
            and all(key[0].startswith(prefix) for prefix in self.topic_prefixes)
            and (self.brokers is None or key[1] in self.brokers)
            and (self.queue_ids is None or key[2] in self.queue_ids)
        )

    def narrow(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Move starts up and ends down as far as queue offsets allow."""
        high = dict(end)
        if self.offset_high is not None:
            high = {key: min(number, self.offset_high) for key, number in high.items()}
        low = {key: max(number, self.offset_low) for key, number in start.items()}
        return {key: min(low[key], high[key]) for key in high}, high

    def narrowed_tags(self, tags: Collection[str]) -> tuple[str, ...] | None:
        """Return the tags to read, of those that the options ask for; None: no row can pass."""
        if self.tags is None or not all(is_plain_tag(tag) for tag in self.tags):
            return tuple(tags)
        return tuple(sorted(self.tags & set(tags) if tags else self.tags)) or None


def is_plain_tag(tag: str) -> bool:
    """Say whether a tag stands for itself in the option `tags`."""
    return bool(tag) and tag == tag.strip() and "||" not in tag and tag != "*"
