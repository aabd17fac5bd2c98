"""Messages that wait for company: automatic batching by time and size.

RocketMQ has no such thing (its batches are explicit); the shape is that of Kafka's
RecordAccumulator. Messages are gathered by (topic, queue or none, WAIT). Without a sharding key the
queue is chosen when the batch leaves, so that a batch fills one queue and the next one another.

Invariants: a batch is never larger than its limits unless it holds a single message; messages of
one key leave in the order in which they were added; a serial lane has one batch on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from twinlog.client.queues import MessageQueue


class LaneKey(NamedTuple):
    """What messages must share to travel together."""

    topic: str
    queue: MessageQueue | None
    wait_store_ok: bool


@dataclass(slots=True)
class Batch:
    """Messages that leave in one request."""

    key: LaneKey
    ready_at_ms: float
    elements: list[bytes] = field(default_factory=list)
    # What belongs to each element: the producer keeps its futures and ids here.
    tickets: list[Any] = field(default_factory=list)
    size: int = 0
    count: int = 0
    is_single: bool = False


class _Lane:
    __slots__ = ("in_flight", "open", "waiting")

    def __init__(self) -> None:
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight = 0


class Accumulator:
    """Lanes of open batches. Time is passed in; `take_ready` hands out what is due."""

    def __init__(self, *, linger_ms: float, size_max: int, count_max: int) -> None:
        if size_max <= 0 or count_max <= 0 or linger_ms < 0:
            raise ValueError(
                "linger_ms must not be negative; size_max and count_max must be above 0"
            )
        self.linger_ms = linger_ms
        self.size_max = size_max
        self.count_max = count_max
        self.size = 0
        self._lanes: dict[Hashable, _Lane] = {}
        self._full: deque[Batch] = deque()

    @property
    def is_empty(self) -> bool:
        return self.size == 0

    def room(self, key: LaneKey) -> tuple[int, int]:
        """Bytes and messages that still fit into the batch that is open, or into a new one."""
        lane = self._lanes.get(key)
        batch = None if lane is None else lane.open
        if batch is None:
            return self.size_max, self.count_max
        return self.size_max - batch.size, self.count_max - batch.count

    def add(self, key: LaneKey, element: bytes, ticket: Any, now_ms: float, count: int = 1) -> bool:
        """Put one message, or `count` in one piece. True when a batch became full: call
        `take_ready` now."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        batch = lane.open
        size = len(element)
        is_full = False
        if batch is not None and (
            batch.size + size > self.size_max or batch.count + count > self.count_max
        ):
            self._close(lane, batch)
            batch = None
            is_full = True
        if batch is None:
            batch = lane.open = Batch(key, now_ms + self.linger_ms)
        batch.elements.append(element)
        batch.tickets.append(ticket)
        batch.size += size
        batch.count += count
        self.size += size
        if batch.size >= self.size_max or batch.count >= self.count_max:
            self._close(lane, batch)
            is_full = True
        return is_full

    def add_single(self, key: LaneKey, element: bytes, ticket: Any, now_ms: float) -> None:
        """Put one message that must travel alone (delayed, compressed) but keep its place."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        if lane.open is not None:
            self._close(lane, lane.open)
        batch = Batch(key, now_ms, [element], [ticket], len(element), 1, is_single=True)
        self.size += batch.size
        lane.open = batch
        self._close(lane, batch)

    def _close(self, lane: _Lane, batch: Batch) -> None:
        lane.open = None
        if batch.key.queue is None:
            self._full.append(batch)
        else:
            lane.waiting.append(batch)

    def take_ready(self, now_ms: float, *, force: bool = False) -> list[Batch]:
        """Batches that may leave: full, or older than the linger time (all with `force`)."""
        ready = list(self._full)
        self._full.clear()
        for key, lane in list(self._lanes.items()):
            batch = lane.open
            if batch is not None and (force or batch.ready_at_ms <= now_ms):
                if batch.key.queue is None:
                    lane.open = None
                    ready.append(batch)
                elif not lane.in_flight and not lane.waiting:
                    self._close(lane, batch)
            if lane.waiting and not lane.in_flight:
                lane.in_flight = 1
                ready.append(lane.waiting.popleft())
            if lane.open is None and not lane.waiting and not lane.in_flight:
                del self._lanes[key]
        for batch in ready:
            self.size -= batch.size
        return ready

    def take_all(self) -> list[Batch]:
        """Everything that has not left, in order: nothing will be sent any more."""
        batches = list(self._full)
        self._full.clear()
        for lane in self._lanes.values():
            batches += lane.waiting
            if lane.open is not None:
                batches.append(lane.open)
        self._lanes.clear()
        self.size = 0
        return batches

    def finished(self, batch: Batch) -> None:
        """The batch was answered, or given up: the next one of its lane may leave."""
        lane = self._lanes.get(batch.key)
        if lane is not None and batch.key.queue is not None:
            lane.in_flight = 0

    def next_ready_ms(self) -> float | None:
        """When to call `take_ready` again; None when nothing waits for time."""
        if self._full:
            return 0.0
        times = []
        for lane in self._lanes.values():
            if lane.in_flight:
                continue
            if lane.waiting:
                return 0.0
            if lane.open is not None:
                times.append(lane.open.ready_at_ms)
        return min(times, default=None)
