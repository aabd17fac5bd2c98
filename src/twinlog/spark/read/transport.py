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


ADVICE = "Start from what is there, or set failOnDataLoss=false to skip it and have it reported"


class Transport(Protocol):
    """A place to read from."""

    policy: LossPolicy

    def queues(self) -> list[QueueKey]:
        """Return every queue there is, system topics included."""

    def bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return first and end offset of queues; queues that are not there are left out."""

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the offset of the first record stored at or after a time, if there is one."""

    def group_offsets(self, group: str) -> Offsets:
        """Return a consumer group's committed offsets."""

    def limit_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """Lower the ends so that at most `bytes_max` bytes (but at least one row) lie between."""

    def marks(self, offsets: Offsets) -> dict[str, Any]:
        """Return per broker what identifies the log up to these offsets."""

    def check_marks(self, marks: Mapping[str, Any]) -> None:
        """Raise DataLossError(LOG_DIVERGED) if the log is not the one that was marked."""

    def plan(self, ranges: Sequence[Range]) -> list[Window]:
        """Cut ranges into tasks."""

    def read(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a window."""

    def with_keys(self, ranges: list[Range], keys: Collection[str]) -> list[Range]:
        """Leave out rows that cannot have one of these values in `keys` or `msg_id`."""

    def commit_group(self, group: str, offsets: Offsets) -> None:
        """Report progress to a consumer group, for lag tools."""

    def close(self) -> None:
        """Let go of connections."""


def select_queues(options: SourceOptions, queues: Iterable[QueueKey]) -> list[QueueKey]:
    """Choose the queues that the options ask for.

    Raises:
        NotFoundError: a topic that is named does not exist.
    """
    present = sorted(queues)
    if options.assign:
        return _assigned(options.assign, present)
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        system = options.include_system_topics
        return [k for k in present if matches(k[0]) and (system or is_user_topic(k[0]))]
    topics = {topic for topic, _, _ in present}
    for topic in options.topics:
        if topic not in topics:
            hint = nearest(topic, topics)
            raise NotFoundError("TOPIC_NOT_FOUND", f"there is no topic {topic!r}{hint}")
    return [key for key in present if key[0] in options.topics]


def _assigned(
    assign: Mapping[str, dict[str, list[int]]], present: Sequence[QueueKey]
) -> list[QueueKey]:
    wanted = [
        (topic, broker, queue)
        for topic, brokers in assign.items()
        for broker, ids in brokers.items()
        for queue in ids
    ]
    known = set(present)
    for key in wanted:
        if key not in known:
            names = ", ".join(sorted({f"{t}/{b}" for t, b, _ in present if t == key[0]})) or "none"
            raise NotFoundError(
                "TOPIC_NOT_FOUND",
                f"assign names topic {key[0]!r} broker {key[1]!r} queue {key[2]}, which is not "
                f"there (topic/broker that are: {names})",
            )
    return sorted(wanted)
