"""Does a replica have what its master has? Tables, ends of queues, and the bytes of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinlog.admin.client import Admin
from twinlog.admin.groups import group_configs, is_user_group
from twinlog.admin.messages import read_queue
from twinlog.admin.names import kind_of_topic
from twinlog.admin.topics import QueueStats, all_topic_configs, queue_stats, system_topics
from twinlog.client.errors import ClientError
from twinlog.client.net.answers import body_as
from twinlog.remoting.bodies.offsets import ConsumerOffsets
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.admin import GetTopicStatsInfoRequestHeader
from twinlog.remoting.headers.pull import ViewMessageRequestHeader

FINDINGS_MAX = 100
_AT_ONCE = 32  # Requests on the way: both brokers have other things to do.
_BEHIND_POLLS, _BEHIND_SECONDS = 20, 0.1
Offsets = dict[tuple[str, str, int], int]


@dataclass(frozen=True, slots=True)
class Tables:
    """What one broker knows next to its log; our own and RocketMQ's inner names left out."""

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    offsets: Offsets


@dataclass(slots=True)
class Checked:
    """What was compared, and what differs."""

    topics: int = 0
    groups: int = 0
    offsets: int = 0
    queues: int = 0
    messages: int = 0
    findings: list[str] = field(default_factory=list)
    offsets_behind: int = 0
    """Committed offsets that the replica does not know yet; they come within ten seconds."""

    @property
    def is_equal(self) -> bool:
        return not self.findings


async def read_tables(admin: Admin, address: str) -> Tables:
    topics, groups, offsets, system = await asyncio.gather(
        all_topic_configs(admin, address),
        group_configs(admin, address),
        read_offsets(admin, address),
        system_topics(admin),
    )
    return Tables(
        {n: config for n, config in topics.items() if kind_of_topic(n, system) != "system"},
        {name: config for name, config in groups.items() if is_user_group(name)},
        offsets,
    )


async def read_offsets(admin: Admin, address: str) -> Offsets:
    """Every committed offset of one broker, by topic, group and queue."""
    answer = await admin.ask(
        address, RequestCode.GET_ALL_CONSUMER_OFFSET, action="committed offsets"
    )
    return committed_offsets(body_as(answer, ConsumerOffsets))


def committed_offsets(body: ConsumerOffsets) -> Offsets:
    found: Offsets = {}
    for key, queues in body.offset_table.items():
        topic, at, group = key.partition("@")
        if at:
            for queue, offset in queues.items():
                found[topic, group, queue] = offset
    return found


def compare_tables(source: Tables, target: Tables, checked: Checked) -> None:
    """Topics and groups must be equal; offsets may be behind, never ahead."""
    checked.topics, checked.groups = len(source.topics), len(source.groups)
    checked.offsets = len(source.offsets)
    checked.findings += _differing("topic", source.topics, target.topics)
    checked.findings += _differing("group", source.groups, target.groups)
    for (topic, group, queue), offset in source.offsets.items():
        if target.offsets.get((topic, group, queue), -1) < offset:
            checked.offsets_behind += 1


def _differing(kind: str, source: Mapping[str, Any], target: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(set(source) | set(target)):
        if name not in target:
            yield f"{kind} {name} is missing at the replica"
        elif name not in source:
            yield f"{kind} {name} is only at the replica"
        elif source[name] != target[name]:
            yield f"{kind} {name} differs: {source[name]} and {target[name]}"


async def compare_logs(
    admin: Admin,
    source: str,
    target: str,
    topics: Sequence[str],
    checked: Checked,
    *,
    samples: int | None,
    tell: Callable[[int], None] = lambda _: None,
) -> None:
    """Ends of every queue, and messages byte for byte: `samples` of each queue, or all (None)."""
    for topic in topics:
        mine = await _queues(admin, source, topic)
        theirs = await _queues_up_to(admin, target, topic, mine)
        for queue, stats in mine.items():
            checked.queues += 1
            other = theirs.get(queue)
            if other is None or other.max_offset < stats.max_offset:
                end = "nothing" if other is None else other.max_offset
                checked.findings.append(
                    f"{topic} queue {queue} ends at {stats.max_offset} and at the replica at {end}"
                )
                continue
            low = max(stats.min_offset, other.min_offset)
            await _compare_queue(admin, (source, target), stats, low, samples, checked)
            tell(checked.messages)
        if len(checked.findings) >= FINDINGS_MAX:
            return


async def _queues(admin: Admin, address: str, topic: str) -> dict[int, QueueStats]:
    answer = await admin.ask(
        address, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic),
        action=f"queues of {topic}",
    )  # fmt: skip
    return {stats.queue.queue_id: stats for stats in queue_stats(answer)}


async def ends_without_messages(admin: Admin, address: str) -> dict[tuple[str, int], int]:
    """How far the queues went of which a broker has no message any more. Both makes know no time of
    the last message then."""
    found = {}
    for topic in await all_topic_configs(admin, address):
        for queue_id, stats in (await _queues(admin, address, topic)).items():
            if stats.max_offset > 0 and stats.last_update_ms <= 0:
                found[topic, queue_id] = stats.max_offset
    return found


async def _queues_up_to(
    admin: Admin, address: str, topic: str, wanted: Mapping[int, QueueStats]
) -> dict[int, QueueStats]:
    """Asked again for a moment: while clients send, the replica is a little behind."""
    for _ in range(_BEHIND_POLLS):
        found = await _queues(admin, address, topic)
        if all(
            queue in found and found[queue].max_offset >= stats.max_offset
            for queue, stats in wanted.items()
        ):
            break
        await asyncio.sleep(_BEHIND_SECONDS)
    return found


async def _compare_queue(
    admin: Admin,
    sides: tuple[str, str],
    stats: QueueStats,
    low: int,
    samples: int | None,
    checked: Checked,
) -> None:
    step = 1
    if samples is not None:
        step = max(1, (stats.max_offset - low) // max(1, samples))
    offset = low
    while offset < stats.max_offset:
        count = _AT_ONCE if step == 1 else 1
        messages = await read_queue(admin, stats.queue, offset, max_count=count)
        if not messages:
            break
        outcomes = await asyncio.gather(
            *(_differs(admin, sides, message.physical_offset) for message in messages)
        )
        checked.messages += len(outcomes)
        for message, difference in zip(messages, outcomes, strict=True):
            if difference:
                place = f"{stats.queue.topic} queue {stats.queue.queue_id} at"
                checked.findings.append(f"{place} {message.queue_offset}: {difference}")
        offset = messages[-1].queue_offset + step
        if len(checked.findings) >= FINDINGS_MAX:
            return


async def _differs(admin: Admin, sides: tuple[str, str], physical_offset: int) -> str:
    """The record at one place of both logs: equal bytes, or why not."""
    header = ViewMessageRequestHeader(physical_offset)

    async def read(address: str) -> bytes:
        answer = await admin.ask(
            address, RequestCode.VIEW_MESSAGE_BY_ID, header, action="message of a replica"
        )
        return bytes(answer.body)

    try:
        mine, theirs = await asyncio.gather(*(read(address) for address in sides))
    except ClientError as error:
        return f"not read ({error})"
    return "" if mine == theirs else f"other bytes at physical offset {physical_offset}"
