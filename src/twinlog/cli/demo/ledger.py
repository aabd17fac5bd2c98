"""What was sent, acknowledged and consumed, message by message, and what follows from it.

Pure: times are seconds since the start of the run and are passed in. Messages carry numbers. Only
the status SEND_OK counts as acknowledged; every other outcome is *unknown*: such a message may be
stored or not, so it may be consumed without having been acknowledged, and that is no fault.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Ledger:
    """The books of one run."""

    acknowledged: dict[int, float] = field(default_factory=dict)  # number -> when
    latency_ms: list[tuple[float, float]] = field(default_factory=list)  # (when, latency)
    unknown: dict[str, int] = field(default_factory=dict)  # outcome -> how often
    consumed: dict[int, int] = field(default_factory=dict)  # number -> how often
    consumed_at: list[float] = field(default_factory=list)
    order_violations: int = 0
    duplicates: int = 0
    in_flight: int = 0
    unread: int = 0
    """Acknowledged messages that no consumer has seen yet."""
    drained_at: list[float] = field(default_factory=list)
    """When nothing was left to read: a pause that begins there is no fault of a broker."""
    _next_offset: dict[tuple[str, int], int] = field(default_factory=dict)

    def acknowledge(self, number: int, now: float, latency_ms: float) -> None:
        assert number not in self.acknowledged, f"message {number} acknowledged twice"
        self.acknowledged[number] = now
        if number not in self.consumed:
            self.unread += 1
        self.latency_ms.append((now, latency_ms))

    def leave_unknown(self, outcome: str) -> None:
        self.unknown[outcome] = self.unknown.get(outcome, 0) + 1

    def consume(self, number: int, queue: tuple[str, int], queue_offset: int, now: float) -> None:
        """One delivery. Order is judged on first deliveries: a repeat may come at any time."""
        self.consumed_at.append(now)
        times = self.consumed.get(number, 0)
        self.consumed[number] = times + 1
        if times:
            self.duplicates += 1
            return
        if number in self.acknowledged:
            self.unread -= 1
            if self.unread == 0:
                self.drained_at.append(now)
        if queue_offset < self._next_offset.get(queue, 0):
            self.order_violations += 1
        self._next_offset[queue] = max(queue_offset + 1, self._next_offset.get(queue, 0))

    def lost(self) -> list[int]:
        return sorted(number for number in self.acknowledged if number not in self.consumed)

    def acknowledged_until(self, when: float) -> set[int]:
        return {number for number, at in self.acknowledged.items() if at <= when}

    def seconds_without_reads(self, kill: float, restart: float) -> float | None:
        """The longest pause of the readers between the kill and the restart, while there was
        something to read; None when nothing was read in that time.

        What a client had fetched before the kill is read at once and says nothing about the
        slave: only the pause behind it does.
        """
        drained = next((at for at in self.drained_at if at > kill), restart)
        end = min(drained, restart)
        first, last = bisect_right(self.consumed_at, kill), bisect_right(self.consumed_at, end)
        times = self.consumed_at[first:last]
        if not times:
            return None
        edges = [kill, *times] if end == drained else [kill, *times, end]
        return max(after - before for before, after in pairwise(edges))

    def seconds_without_writes(self, kill: float) -> float | None:
        """From the last answer of the dead master to the first of the one that follows.

        Answers that were on their way still arrive after the kill, so the longest pause from there
        on is what counts.
        """
        times = [at for at, _ in self.latency_ms if at > kill]
        if not times:
            return None
        return max(after - before for before, after in pairwise([kill, *times]))

    def writes_again(self, kill: float) -> float:
        """When the longest pause behind the kill was over."""
        times = [kill, *(at for at, _ in self.latency_ms if at > kill)]
        return max(pairwise(times), key=lambda pair: pair[1] - pair[0], default=(kill, kill))[1]

    def first_write_after(self, since: float) -> float | None:
        """Seconds from `since` to the next acknowledgement."""
        return _first_after([at for at, _ in self.latency_ms], since)

    def latency_percentiles(self, start: float, end: float) -> dict[str, float]:
        """p50, p99 and max in milliseconds of the acknowledgements in [start, end)."""
        values = sorted(value for at, value in self.latency_ms if start <= at < end)
        return {
            "p50": percentile(values, 0.50),
            "p99": percentile(values, 0.99),
            "max": values[-1] if values else 0.0,
        }


def _first_after(times: list[float], since: float) -> float | None:
    index = bisect_right(times, since)
    return times[index] - since if index < len(times) else None


def percentile(ordered: list[float], fraction: float) -> float:
    """The value below which `fraction` of an ordered list lies (nearest rank)."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def rate_per_bin(times: Iterable[float], end: float, width: float) -> list[tuple[float, float]]:
    """Events a second in bins of `width` seconds: what the plots show."""
    ordered = sorted(times)
    bins = []
    start = 0.0
    while start < end:
        count = bisect_left(ordered, start + width) - bisect_left(ordered, start)
        bins.append((start + width / 2, count / width))
        start += width
    return bins


def latency_per_bin(
    samples: Iterable[tuple[float, float]], end: float, width: float, fraction: float
) -> list[tuple[float, float]]:
    """A latency percentile for each bin that has acknowledgements."""
    by_bin: dict[int, list[float]] = {}
    for at, value in samples:
        if at < end:
            by_bin.setdefault(int(at / width), []).append(value)
    return [
        ((index + 0.5) * width, percentile(sorted(values), fraction))
        for index, values in sorted(by_bin.items())
    ]
