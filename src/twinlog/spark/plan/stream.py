"""How far each micro-batch goes: the planner of a stream, without Spark.

One object lives as long as the query (Spark keeps its process), so head caches, the timer of the
minimum and the target of AvailableNow live here. After a restart everything follows from Spark's
own log of offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from twinlog.spark.errors import DataLossError
from twinlog.spark.options import LATEST, SourceOptions
from twinlog.spark.plan.offsets import (
    Offsets,
    QueueKey,
    from_json,
    is_symbol,
    limit_rows,
    rows_between,
    select,
    smaller,
    symbol,
    to_json,
)
from twinlog.spark.plan.positions import describe_start, ranges_between, resolve_start
from twinlog.spark.read.transport import (
    ADVICE,
    LossPolicy,
    Skip,
    Transport,
    Window,
    log,
    select_queues,
)

# A slave that took over has the records of its master, but its queues may be a moment behind them.
BEHIND_TRIES = 25
BEHIND_SECONDS = 0.2


class StreamPlanner:
    """Answers Spark's questions about a stream."""

    def __init__(
        self,
        options: SourceOptions,
        transport: Transport,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options, self.transport, self.now, self.pause = options, transport, now, pause
        self.policy = LossPolicy(options.fail_on_data_loss)
        self.target: Offsets | None = None
        self.waiting_since: float | None = None

    def initial(self) -> dict[str, Any]:
        """Return a symbol: the same at every call, whatever the log does meanwhile."""
        return symbol(describe_start(self.options, "latest"))

    def heads(self) -> dict[QueueKey, tuple[int, int]]:
        """Return the bounds of all queues that are read."""
        keys = select_queues(self.options, self.transport.queues())
        return self.transport.bounds(keys)

    def _heads_reaching(
        self, offsets: Offsets, read: Callable[[], dict[QueueKey, tuple[int, int]]]
    ) -> dict[QueueKey, tuple[int, int]]:
        """Read the bounds, again for some seconds while a queue ends before what was read of it."""
        bounds = read()
        for _ in range(BEHIND_TRIES):
            if all(bounds[key][1] >= end for key, end in offsets.items() if key in bounds):
                break
            self.pause(BEHIND_SECONDS)
            bounds = read()
        return bounds

    def fix_target(self) -> None:
        """AvailableNow: what is there now is all that this run reads."""
        self.target = {key: end for key, (_, end) in self.heads().items()}

    def latest(self, start: Mapping[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself when there is nothing to do."""
        if is_symbol(start):
            pinned = resolve_start(self.options, self.transport, self.heads(), LATEST)
            return to_json(pinned, self.transport.marks(pinned))
        begin, marks = from_json(start)
        self._check_marks(marks)
        bounds = self._heads_reaching(begin, self.heads)
        end = self._ends(begin, bounds)
        fresh = {key: number for key, number in end.items() if key not in begin}
        if limited:
            end = self._limited(begin, end)
        if end == begin or (limited and not fresh and self._must_wait(begin, end)):
            return dict(start)
        self.waiting_since = None
        return to_json(end, self.transport.marks(end))

    def _check_marks(self, marks: Mapping[str, Any]) -> None:
        try:
            self.transport.check_marks(marks)
        except DataLossError as error:
            if self.policy.fail:
                raise
            log.warning("going on after %s", error)

    def _ends(self, begin: Offsets, bounds: Mapping[QueueKey, tuple[int, int]]) -> Offsets:
        topics = {topic for topic, _, _ in begin}
        end: Offsets = {}
        for key, number in select(begin, {k[0] for k in bounds} | set(self.options.topics)).items():
            if key not in bounds:
                reason = "QUEUE_VANISHED the queue does not exist any more"
                self.policy.lost(Skip(*key, number, number, reason), ADVICE)
                continue
            head = bounds[key][1]
            if head < number:
                reason = f"OFFSET_AHEAD the queue ends at {head}: the topic was made anew or cut"
                self.policy.lost(Skip(*key, head, number, reason), ADVICE)
            if self.target is not None:
                head = min(head, self.target.get(key, number))
            end[key] = max(head, number) if self.policy.fail else head
        for key, (first, _) in bounds.items():
            if key not in begin:
                # A new queue is entered at its first offset in a batch of its own, which pins
                # that start in Spark's log before any row of it is read.
                if key[0] in topics and first > 0:
                    reason = f"OFFSET_EXPIRED the queue is new but begins at {first}"
                    self.policy.lost(Skip(*key, 0, first, reason), ADVICE)
                end[key] = first
        return end

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self.options
        limited = end
        if options.max_rows_per_trigger:
            limited = limit_rows(begin, end, options.max_rows_per_trigger)
        if options.max_bytes_per_trigger:
            by_bytes = self.transport.limit_bytes(begin, end, options.max_bytes_per_trigger)
            limited = smaller(limited, by_bytes)
        return limited

    def _must_wait(self, begin: Offsets, end: Offsets) -> bool:
        least = self.options.min_rows_per_trigger
        if not least or self.target is not None or rows_between(begin, end) >= least:
            return False
        now = self.now()
        if self.waiting_since is None:
            self.waiting_since = now
        return (now - self.waiting_since) * 1000 < self.options.max_trigger_delay_ms

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Window]:
        """Plan a batch. Also called for a batch of an earlier run that must be done again."""
        if is_symbol(start) or is_symbol(end):
            return []
        low, _ = from_json(start)
        high, marks = from_json(end)
        self._check_marks(marks)
        bounds = self._heads_reaching(high, lambda: self.transport.bounds(high))
        return self.transport.plan(ranges_between(low, high, bounds, self.policy))
