"""What a source needs of the place it reads from, and the rule about lost data.

`files.StoreTransport` reads a replica's files, `network.BrokerTransport` pulls over the network;
both give the same offsets and the same rows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from twinlog.message.names import is_user_topic
from twinlog.spark.errors import DataLossError, NotFoundError, nearest
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import Offsets, QueueKey
from twinlog.spark.plan.windows import Range

log = logging.getLogger("twinlog.spark")
Window = tuple[Range, ...]
ROWS_PER_QUEUE_TASK = 100_000


@dataclass(frozen=True, slots=True)
class Skip:
    """Rows that were promised and are not there; recorded, never silent."""

    topic: str
    broker: str
    queue_id: int
    low: int
    high: int
    reason: str

    def text(self) -> str:
        """Describe it in one line."""
        where = f"{self.topic} broker {self.broker} queue {self.queue_id}"
        return f"{self.reason}: {where}, offsets {self.low} to {self.high}"


@dataclass(slots=True)
class LossPolicy:
    """failOnDataLoss: fail with the named reason, or skip, log and count."""

    fail: bool
    skipped: list[Skip] = field(default_factory=list)

    def lost(self, skip: Skip, advice: str) -> None:
        """Apply the rule to one loss.

        Raises:
            DataLossError: the policy is to fail.
        """
        condition, _, reason = skip.reason.partition(" ")
        if self.fail:
            where = f"{skip.topic} broker {skip.broker} queue {skip.queue_id}"
            raise DataLossError(
                condition,
                f"{where}, offsets {skip.low} to {skip.high}: {reason}. {advice}",
            )
        log.warning("skipped %s", skip.text())
        self.skipped.append(skip)


@dataclass(frozen=True, slots=True)
class Heads:
    """What a look at the queues found. A queue is in one of the three, or nobody knows of it.

    A queue that is gone also has bounds where an archive has its rows.
    """

    bounds: dict[QueueKey, tuple[int, int]]  # first and end offset
    gone: frozenset[QueueKey] = frozenset()  # a living broker says that they do not exist
    silent: Mapping[str, str] = field(default_factory=dict)  # who did not answer, and why
    # Its place, or its time: another record at the end of a queue has another one.
    lasts: Mapping[QueueKey, int] = field(default_factory=dict)


ADVICE = "Start from what is there, or set failOnDataLoss=false to skip and report the missing rows"
CUT = "the topic was created again, or the log was cut"
VANISHED = "QUEUE_VANISHED the queue, or the number of read queues that covered it, is gone"


class Transport(Protocol):
    """A place to read from."""

    policy: LossPolicy

    def queues(self) -> list[QueueKey]:
        """Return every queue there is, system topics included."""

    def bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return first and end offset of queues; queues that are not there are left out."""

    def heads(self, known: Mapping[QueueKey, int]) -> Heads:
        """Look at the queues that the options ask for, and at those that are known already.

        A queue that is missing from an answer is gone only when a living broker confirms it.
        Brokers and name servers that do not answer are named in the result.
        """

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the offset of the first record stored at or after a time, if there is one."""

    def group_offsets(self, group: str) -> Offsets:
        """Return a consumer group's committed offsets."""

    def limit_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """Lower the ends so that at most `bytes_max` bytes (but at least one row) lie between."""

    def marks(self, offsets: Offsets) -> dict[str, Any]:
        """Return per broker what identifies the log up to these offsets."""

    def places(self, offsets: Offsets) -> Offsets:
        """Return the physical offset of the last record before each offset, where it is there."""

    def check_marks(self, marks: Mapping[str, Any]) -> None:
        """Raise DataLossError(LOG_DIVERGED) if the log is not the one that was marked."""

    def cuts(self, ranges: Sequence[Range]) -> dict[str, Any]:
        """Choose how ranges are cut into tasks. JSON: a stream keeps it with its offsets."""

    def plan(self, ranges: Sequence[Range], cuts: Mapping[str, Any]) -> list[Window]:
        """Cut ranges into tasks; the same ranges and cuts give the same tasks everywhere.

        Raises:
            OptionError: LAYOUT_CHANGED, the cuts were made for another transport.
        """

    def read(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a window."""

    def with_keys(self, ranges: list[Range], keys: Collection[str]) -> list[Range]:
        """Leave out rows that cannot have one of these values in `keys` or `msg_id`."""

    def commit_group(self, group: str, offsets: Offsets) -> None:
        """Report progress to a consumer group, for lag tools."""

    def close(self) -> None:
        """Let go of connections."""


def queue_tasks(ranges: Sequence[Range], options: SourceOptions) -> int:
    """Return how many tasks share the queues of a batch when no queue is cut."""
    total = sum(r.rows for r in ranges)
    count = max(options.min_partitions, -(-total // ROWS_PER_QUEUE_TASK))
    if options.max_records_per_partition:
        count = max(count, -(-total // options.max_records_per_partition))
    return min(count, options.max_partitions or count, max(1, len(ranges)))


def wants(options: SourceOptions, key: QueueKey) -> bool:
    """Say whether the options ask for a queue."""
    if options.assign:
        return key[2] in options.assign.get(key[0], {}).get(key[1], ())
    if options.pattern is not None:
        is_allowed = options.include_system_topics or is_user_topic(key[0])
        return is_allowed and re.fullmatch(options.pattern, key[0]) is not None
    return key[0] in options.topics


def select_queues(
    options: SourceOptions, queues: Iterable[QueueKey], known: Collection[QueueKey] = ()
) -> list[QueueKey]:
    """Choose the queues that the options ask for; those that are `known` need not be there.

    Raises:
        NotFoundError: a topic that is named does not exist.
    """
    present = sorted(queues)
    if options.assign:
        _check_assigned(options.assign, present, known)
    topics = {topic for topic, _, _ in present}
    for topic in options.topics:
        if topic not in topics and all(topic != key[0] for key in known):
            hint = nearest(topic, topics)
            raise NotFoundError("TOPIC_NOT_FOUND", f"there is no topic {topic!r}{hint}")
    return [key for key in present if wants(options, key)]


def _check_assigned(
    assign: Mapping[str, dict[str, list[int]]],
    present: Sequence[QueueKey],
    known: Collection[QueueKey],
) -> None:
    wanted = [
        (topic, broker, queue)
        for topic, brokers in assign.items()
        for broker, ids in brokers.items()
        for queue in ids
    ]
    there = {*present, *known}
    for key in wanted:
        if key not in there:
            names = ", ".join(sorted({f"{t}/{b}" for t, b, _ in present if t == key[0]})) or "none"
            raise NotFoundError(
                "TOPIC_NOT_FOUND",
                f"assign names topic {key[0]!r} broker {key[1]!r} queue {key[2]}, which does "
                f"not exist (topic/broker pairs that do: {names})",
            )
