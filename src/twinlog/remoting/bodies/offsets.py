"""Tables of offsets. A key that is a queue is written as a whole object (`by_queue` reads it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import Body, MessageQueue, queue_from_answer

_T = TypeVar("_T")


class TopicOffset(Body):
    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(Body):
    """Answer to GET_TOPIC_STATS_INFO."""

    offset_table: dict[str, TopicOffset] = msgspec.field(default_factory=dict)


class OffsetWrapper(Body):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(Body):
    """Answer to GET_CONSUME_STATS."""

    consume_tps: float = 0.0
    offset_table: dict[str, OffsetWrapper] = msgspec.field(default_factory=dict)


class ConsumeStatsList(Body):
    """Answer to GET_BROKER_CONSUME_STATS: by group, one of each topic."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = msgspec.field(default_factory=list)
    total_diff: int = 0


class ConsumerOffsets(Body):
    """Answer to GET_ALL_CONSUMER_OFFSET: by `topic@group`, then by queue id."""

    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)


class DelayOffsets(Body):
    """Answer to GET_ALL_DELAY_OFFSET: by delay level."""

    offset_table: dict[int, int] = msgspec.field(default_factory=dict)


def by_queue(table: Mapping[str, _T]) -> dict[MessageQueue, _T]:
    """A table whose keys are queues. Raises ValueError when one of them is none."""
    try:
        return {queue_from_answer(fastjson.loads(key)): value for key, value in table.items()}
    except (KeyError, TypeError) as error:
        raise ValueError(f"a key of a table is not a queue: {error!r}") from error
