"""Offsets of a stream: the JSON in Spark's checkpoint, and how far a batch may go. Pure.

    {"v":1,
     "offsets":{"TopicA":{"broker-a":{"0":1041,"1":998}}},
     "marks":{"broker-a":{"crc":77,"epoch":3,"last":1073741700,"phys":1073741824}},
     "plan":{"phys":[1073741000]}}

`offsets` are next queue offsets (exclusive ends). A mark holds, per broker, the end of the
furthest record behind those offsets (`phys`), where that record begins (`last`), a checksum of its
numbers (`crc`) and the replication epoch it belongs to. If the log holds something else there now,
what was read has been cut off by a failover, or the checkpoint is another cluster's. `plan` says
how the batch that ends here is cut into tasks: when it is done again, on another machine or with
other options, each task has the same rows in the same order, which sinks that count rows rely on.

Before the first batch the offset is a symbol, {"v":1,"start":"latest"}: Spark asks for the initial
offset more than once and keeps no answer, so an answer that moves with the log would lose rows.
The first batch is empty and its end, which Spark does keep, pins the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from twinlog.spark.errors import OptionError

VERSION = 1
QueueKey = tuple[str, str, int]  # topic, broker, queue id
Offsets = dict[QueueKey, int]


def symbol(position: str) -> dict[str, Any]:
    """Make the offset that stands for a start not yet resolved."""
    return {"start": position, "v": VERSION}


def is_symbol(offset: Mapping[str, Any]) -> bool:
    """Say whether an offset is a symbol."""
    return "offsets" not in offset


def to_json(
    offsets: Mapping[QueueKey, int],
    marks: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the offset object; keys sorted, because Spark compares offsets as text."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for topic, broker, queue in sorted(offsets):
        row = table.setdefault(topic, {}).setdefault(broker, {})
        row[str(queue)] = int(offsets[topic, broker, queue])
    ordered = {name: dict(sorted(mark.items())) for name, mark in sorted(marks.items())}
    cuts = {"plan": dict(sorted(plan.items()))} if plan else {}
    return {"marks": ordered, "offsets": table, **cuts, "v": VERSION}


def from_json(offset: Mapping[str, Any]) -> tuple[Offsets, dict[str, Any]]:
    """Read an offset object.

    Raises:
        OptionError: it is not ours, or of a newer version.
    """
    if offset.get("v") != VERSION or not isinstance(offset.get("offsets"), dict):
        raise OptionError(
            "BAD_OFFSETS",
            "the checkpoint has an offset that this version cannot read: use the version that "
            f"wrote it, or a new checkpoint ({str(offset)[:200]})",
        )
    offsets = {
        (topic, broker, int(queue)): int(number)
        for topic, brokers in offset["offsets"].items()
        for broker, queues in brokers.items()
        for queue, number in queues.items()
    }
    return offsets, dict(offset.get("marks", {}))


def limit_rows(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Go at most about `rows_max` rows past `start`, shared among queues by what they have.

    As in Spark's Kafka source a queue's share below one row is rounded up, so that no queue
    starves.
    """
    available = {key: max(0, high - start.get(key, high)) for key, high in end.items()}
    total = sum(available.values())
    if total <= rows_max:
        return dict(end)
    limited = {}
    for key, high in end.items():
        share = rows_max * available[key] / total
        step = math.ceil(share) if share < 1 else math.floor(share)
        limited[key] = min(high, start.get(key, high) + step)
    return limited


def smaller(one: Offsets, other: Offsets) -> Offsets:
    """Return the lower end of each queue."""
    return {key: min(high, other.get(key, high)) for key, high in one.items()}


def rows_between(start: Offsets, end: Offsets) -> int:
    """Count the rows between two offsets."""
    return sum(max(0, high - start.get(key, high)) for key, high in end.items())
