"""How far groups are behind, for a scrape (RocketMQ 5's ConsumerLagCalculator).

Of each queue there are three positions: what the group committed, what was handed out to it, and
the end. Between the first two messages are in flight, between the last two they are ready; both
together are the lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Metric

from twinlog.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from twinlog.observe import families as f
from twinlog.observe.collect import Row, Samples

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_STORE_TIMES_MAX = 500  # Each is a read of a record: the oldest that a group has not consumed.


class QueueLag(NamedTuple):
    """Positions of a group in a queue, in order: committed <= pulled <= end."""

    queue_id: int
    committed: int
    pulled: int
    end: int


def queue_lag(queue_id: int, committed: int, pulled: int, end: int) -> QueueLag:
    """In order, whatever the three say: a reset goes back, a promoted broker's queue is shorter."""
    committed = max(0, committed)
    end = max(committed, end)
    return QueueLag(queue_id, committed, min(max(committed, pulled), end), end)


class ConsumerLag:
    """The families of consumer lag of one scrape."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._found: dict[str, list[QueueLag]] = {}

    def collect(self, out: Samples) -> Iterator[Metric]:
        """The first walk reads; the others tell what it found, so that they agree."""
        yield from out.many(f.LAG_MESSAGES, self._read())
        yield from out.many(f.LAG_LATENCY, self._ages(lambda q: q.committed))
        yield from out.many(f.INFLIGHT_MESSAGES, self._sums(lambda q: q.pulled - q.committed))
        yield from out.many(f.READY_MESSAGES, self._sums(lambda q: q.end - q.pulled))
        yield from out.many(f.QUEUEING_LATENCY, self._ages(lambda q: q.pulled))
        if self._broker.config.twinlog_metrics_per_queue:
            yield from out.many(f.QUEUE_LAG, self._by_queue())

    def _read(self) -> Iterator[Row]:
        offsets, queue_end = self._broker.offsets, self._broker.store.max_offset_in_queue
        for key in list(offsets.table):
            topic, _, group = key.partition("@")
            # Without a member nobody has anything in hand.
            is_alive = self._broker.consumers.find(group) is not None
            pulled = offsets.pulled.get(key, {}) if is_alive else {}
            self._found[key] = queues = [
                queue_lag(queue_id, offset, pulled.get(queue_id, 0), queue_end(topic, queue_id))
                for queue_id, offset in offsets.table.get(key, {}).items()
            ]
            yield consumer_labels(topic, group), sum(q.end - q.committed for q in queues)

    def _sums(self, count: Callable[[QueueLag], int]) -> Iterator[Row]:
        for key, queues in self._found.items():
            topic, _, group = key.partition("@")
            yield consumer_labels(topic, group), sum(map(count, queues))

    def _ages(self, position: Callable[[QueueLag], int]) -> Iterator[Row | None]:
        """Of a group beyond the limit of reads there is no row: 0 would say that it has all."""
        now_ms, reads = self._broker.clock.now_ms(), 0
        for key, queues in self._found.items():
            topic, _, group = key.partition("@")
            behind = [queue for queue in queues if position(queue) < queue.end]
            if behind and reads + len(behind) > _STORE_TIMES_MAX:
                yield None
                continue
            reads += len(behind)
            times = [self._store_time(topic, queue.queue_id, position(queue)) for queue in behind]
            oldest_ms = min((time for time in times if time > 0), default=now_ms)
            yield consumer_labels(topic, group), max(0, now_ms - oldest_ms)

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        store = self._broker.store
        there = max(offset, store.min_offset_in_queue(topic, queue_id))  # The rest has expired.
        return store.message_store_time(topic, queue_id, there)

    def _by_queue(self) -> Iterator[Row]:
        for key, queues in self._found.items():
            topic, _, group = key.partition("@")
            for queue in queues:
                yield (topic, group, str(queue.queue_id)), queue.end - queue.committed


def consumer_labels(topic: str, group: str) -> tuple[str, ...]:
    is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    is_system = is_system_topic(topic) or is_system_group(group)
    return (topic, group, truth(is_retry), truth(is_system))


def truth(value: bool) -> str:
    return "true" if value else "false"
