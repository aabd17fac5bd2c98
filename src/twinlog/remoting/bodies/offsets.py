"""Tables of offsets. A key that is a queue is written as a whole object (`by_queue` reads it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

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


class QueueTimeSpan(Body):
    """One queue of an answer to QUERY_CONSUME_TIME_SPAN: times as numbers and as text."""

    message_queue: dict[str, str | int]
    min_time_stamp: int
    min_time_stamp_str: str
    max_time_stamp: int
    max_time_stamp_str: str
    consume_time_stamp: int
    consume_time_stamp_str: str
    delay_time: int


class CorrectionOffsets(Body):
    """Answer to QUERY_CORRECTION_OFFSET: by queue id."""

    correction_offsets: dict[int, int] = msgspec.field(default_factory=dict)


class ConsumeQueueData(Body):
    """One entry of a consume queue as it stands in the file. The optional members are Apache's."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    """Answer to QUERY_CONSUME_QUEUE. What the group wants only when one was named."""

    subscription_data: dict[str, Any] | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = msgspec.field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


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
