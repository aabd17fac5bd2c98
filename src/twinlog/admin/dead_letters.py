"""Dead letters: messages whose handling failed too often, by group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from twinlog.admin.client import Admin
from twinlog.admin.messages import read_queue, send_to_retry
from twinlog.admin.topics import list_topics, topic_stats
from twinlog.client.errors import ClientError, QueryNotFoundError
from twinlog.client.message import ReceivedMessage, SendReceipt
from twinlog.client.net import calls
from twinlog.message.names import DLQ_PREFIX, dlq_topic
from twinlog.message.properties import PROPERTY_RETRY_TOPIC
from twinlog.remoting.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """How many messages a group gave up. `failures` are brokers that did not answer."""

    group: str
    count: int
    last_ms: int
    failures: dict[str, ClientError]


async def groups_with_letters(admin: Admin) -> list[str]:
    names = await list_topics(admin)
    return [name.removeprefix(DLQ_PREFIX) for name in names if name.startswith(DLQ_PREFIX)]


async def dead_letter_groups(admin: Admin) -> list[DeadLetterGroup]:
    """Every group that ever gave a message up."""
    found = []
    for group in await groups_with_letters(admin):
        stats = await topic_stats(admin, dlq_topic(group))
        entries = [entry for answer in stats.values.values() for entry in answer]
        found.append(
            DeadLetterGroup(
                group,
                sum(entry.count for entry in entries),
                max((entry.last_update_ms for entry in entries), default=0),
                stats.failures,
            )
        )
    return found


async def letters(admin: Admin, group: str) -> AsyncIterator[ReceivedMessage]:
    """All dead letters of a group, oldest first in each queue.

    Raises QueryNotFoundError when it has none.
    """
    if group not in await groups_with_letters(admin):
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"group {group!r} has no dead letters"
        )
    topic = dlq_topic(group)
    for queue in (await admin.instance.route(topic)).read_queues(topic):
        offset = await calls.min_offset(admin.instance, queue)
        end = await calls.max_offset(admin.instance, queue)
        while offset < end:
            batch = await read_queue(admin, queue, offset)
            for letter in batch:
                letter.show_topic(letter.properties.get(PROPERTY_RETRY_TOPIC))
                yield letter
            if not batch:
                break
            offset = batch[-1].queue_offset + 1


async def resend_letters(
    admin: Admin, group: str, ids: Collection[str] = (), *, limit: int | None = None
) -> list[tuple[ReceivedMessage, SendReceipt]]:
    """Give the group its dead letters again, with a fresh count of retries; all unless `ids`."""
    sent: list[tuple[ReceivedMessage, SendReceipt]] = []
    async for letter in letters(admin, group):
        if ids and letter.message_id not in ids and letter.offset_message_id not in ids:
            continue
        if limit is not None and len(sent) == limit:
            break
        sent.append((letter, await send_to_retry(admin, group, letter)))
    return sent
