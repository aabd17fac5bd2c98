"""Topics: list, one with its queues, create, change, delete, send a test message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from twinlog.admin import topics
from twinlog.admin.client import Gathered, gather
from twinlog.admin.names import kind_of_topic
from twinlog.admin.sending import send_one
from twinlog.client.errors import (
    BrokerTopicNotFoundError,
    ClientError,
    NameServerUnreachableError,
    TopicNotFoundError,
)
from twinlog.client.message import Message, check_topic
from twinlog.console.access import Role
from twinlog.console.operations import Context, Done, Operation, Preview, Refused
from twinlog.console.versions import Version, check_version, version_of
from twinlog.console.views.lists import PAGE_SIZE, TopicName, cut, done_on, missing_of
from twinlog.remoting.bodies.topic import TopicConfig

QueueCount = Annotated[int, Meta(ge=1, le=1024)]
SEND_GROUP = "TWINLOG_CONSOLE"


class TopicsParams(Struct, frozen=True):
    search: str = ""
    kind: Literal["user", "retry", "dlq", "system", "all"] = "user"
    page: Annotated[int, Meta(ge=1)] = 1
    size: Annotated[int, Meta(ge=1, le=10_000)] = PAGE_SIZE


class TopicRow(Struct, frozen=True):
    name: str
    kind: str
    read_queues: int | None
    write_queues: int | None
    perm: int | None
    brokers: int

    @property
    def shape(self) -> tuple[object, ...]:
        """All but the name: most topics have the same."""
        return (self.kind, self.read_queues, self.write_queues, self.perm, self.brokers)


class TopicList(Struct, frozen=True):
    topics: list[TopicRow]
    total: int
    page: int
    pages: int
    missing: list[str]


class TopicParams(Struct, frozen=True):
    topic: TopicName


class QueueRow(Struct, frozen=True):
    broker: str
    queue: int
    min_offset: int
    max_offset: int
    last_update_ms: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


class TopicView(Struct, frozen=True):
    name: str
    kind: str
    configs: list[TopicRow]
    queues: list[QueueRow]
    groups: list[str]
    total: int
    missing: list[str]
    version: str = ""


class CreateTopic(Struct, frozen=True):
    """What is absent stays as it is; of a new topic 8 queues, read and write, not ordered."""

    topic: TopicName
    read_queues: QueueCount | None = None
    write_queues: QueueCount | None = None
    perm: int | None = None
    order: bool | None = None
    version: Version | None = None


class SendMessage(Struct, frozen=True):
    topic: TopicName
    body: str
    tags: str = ""
    keys: str = ""
    delay_level: Annotated[int, Meta(ge=0, le=18)] = 0


async def list_topics(context: Context, params: TopicsParams) -> TopicList:
    admin = context.admin
    told, system, info = await asyncio.gather(
        _told_names(context), topics.system_topics(admin), admin.cluster()
    )
    found = await gather(
        info.readable_addresses(), lambda address: topics.all_topic_configs(admin, address)
    )
    tables = list(found.values.values())
    names = told if told is not None else sorted({name for table in tables for name in table})
    wanted = params.search.lower()
    chosen = [
        (name, kind)
        for name in names
        if wanted in name.lower()
        and (kind := kind_of_topic(name, system))
        and params.kind in ("all", kind)
    ]
    page, number, pages = cut(chosen, params.page, params.size)
    rows = [_row(name, kind, tables) for name, kind in page]
    return TopicList(rows, len(chosen), number, pages, missing_of(found))


async def _told_names(context: Context) -> list[str] | None:
    """What a name server says; without one the brokers' own tables are what is known."""
    try:
        return await topics.list_topics(context.admin)
    except NameServerUnreachableError:
        return None


def _row(name: str, kind: str, tables: list[dict[str, TopicConfig]]) -> TopicRow:
    configs = [table[name] for table in tables if name in table]
    if not configs:
        return TopicRow(name, kind, None, None, None, 0)
    return TopicRow(
        name, kind,
        sum(c.read_queue_nums for c in configs), sum(c.write_queue_nums for c in configs),
        configs[0].perm, len(configs),
    )  # fmt: skip


async def show_topic(context: Context, params: TopicParams) -> TopicView:
    admin, name = context.admin, params.topic
    stats, configs, system = await asyncio.gather(
        topics.topic_stats(admin, name), topics.topic_config(admin, name),
        topics.system_topics(admin),
    )  # fmt: skip
    try:
        groups = await topics.topic_groups(admin, name)
    except ClientError:
        groups = []
    rows = [
        QueueRow(
            entry.queue.broker_name, entry.queue.queue_id, entry.min_offset, entry.max_offset,
            entry.last_update_ms,
        )
        for answer in stats.values.values()
        for entry in answer
    ]  # fmt: skip
    kind = kind_of_topic(name, system)
    return TopicView(
        name=name,
        kind=kind,
        configs=[
            TopicRow(address, kind, c.read_queue_nums, c.write_queue_nums, c.perm, 1)
            for address, c in configs.values.items()
            if c is not None
        ],
        queues=rows,
        groups=groups,
        total=sum(row.count for row in rows),
        missing=missing_of(stats),
        version=version_of(_known(configs)),
    )


def _known(found: Gathered[TopicConfig | None]) -> dict[str, TopicConfig]:
    """The settings by broker, of those that have the topic."""
    return {address: config for address, config in found.values.items() if config is not None}


async def create(context: Context, params: CreateTopic) -> Done:
    admin, name = context.admin, params.topic

    async def read(address: str) -> TopicConfig | None:
        return (await topics.all_topic_configs(admin, address)).get(name)

    check_topic(name)
    now = await gather(await admin.masters(), read)
    known = _known(now)
    check_version(params.version, known, f"topic {name}", _settings(known.values()))
    change = topics.TopicChange(params.read_queues, params.write_queues, params.perm, params.order)
    found = await topics.change_topic(admin, name, change, now.values)
    found.failures.update(now.failures)
    return done_on(found, f"topic {params.topic} is")


async def preview_create(context: Context, params: CreateTopic) -> Preview:
    """Nobody pulls from queues above the number of read queues."""
    if params.read_queues is None:
        return Preview()
    try:
        stats = await topics.topic_stats(context.admin, params.topic)
    except (TopicNotFoundError, BrokerTopicNotFoundError):
        return Preview()  # A new one.
    counts = [
        entry.max_offset - entry.min_offset
        for answer in stats.values.values()
        for entry in answer
        if entry.queue.queue_id >= params.read_queues and entry.max_offset > entry.min_offset
    ]
    if not counts:
        return Preview()
    return Preview([
        f"{sum(counts)} messages in {len(counts)} queues can no longer be read.",
        "They stay on disk: with as many read queues as before they can be read again.",
    ])  # fmt: skip


def _settings(configs: Iterable[TopicConfig]) -> str:
    return ", ".join(
        dict.fromkeys(
            f"{c.read_queue_nums} read and {c.write_queue_nums} write queues, permission {c.perm}"
            for c in configs
        )
    )


async def delete(context: Context, params: TopicParams) -> Done:
    await _check_topic(context, params.topic)
    found = await topics.delete_topic(context.admin, params.topic)
    return done_on(found, f"topic {params.topic} is deleted")


async def _check_topic(context: Context, name: str) -> None:
    """Raise Refused for a topic that neither a name server nor a broker has."""
    if name in await topics.list_topics(context.admin):
        return
    found = await topics.topic_config(context.admin, name)
    if found.is_complete and not any(found.values.values()):
        raise Refused(f"there is no topic {name!r}", 404)


async def preview_delete(context: Context, params: TopicParams) -> Preview:
    view = await show_topic(context, params)
    lines = [f"{view.total} messages in {len(view.queues)} queues can no longer be read."]
    if view.groups:
        lines.append(f"Groups that consume it: {', '.join(view.groups)}.")
    if view.kind == "system":
        return Preview(lines, refusal=f"{params.topic} belongs to RocketMQ itself")
    return Preview(lines)


async def send(context: Context, params: SendMessage) -> Done:
    message = Message(
        params.topic, params.body.encode(), tags=params.tags or None, keys=params.keys.split(),
        delay_level=params.delay_level,
    )  # fmt: skip
    receipt = await send_one(context.name_server, context.settings, SEND_GROUP, message)
    place = f"{receipt.queue.broker_name}/{receipt.queue.queue_id}@{receipt.queue_offset}"
    details = {
        "status": receipt.status.name, "message_id": receipt.message_id,
        "broker": receipt.queue.broker_name, "queue": receipt.queue.queue_id,
        "offset": receipt.queue_offset,
    }  # fmt: skip
    text = f"{receipt.status.name} {receipt.message_id} at {place}"
    return Done(text, [details], receipt.is_acknowledged)


OPERATIONS = [
    Operation(
        name="topics", method="GET", path="/topics", run=list_topics, params=TopicsParams,
        result=TopicList, summary="Topics by name, a page at a time.",
    ),
    Operation(
        name="topic", method="GET", path="/topics/{topic}", run=show_topic, params=TopicParams,
        result=TopicView, summary="One topic: settings, queues and groups.",
    ),
    Operation(
        name="topic.create", method="POST", path="/topics", run=create, params=CreateTopic,
        role=Role.ADMIN, preview=preview_create, asks=True, asks_if_told=True,
        summary="Create a topic on every master, or change it.",
    ),
    Operation(
        name="topic.delete", method="DELETE", path="/topics/{topic}", run=delete,
        params=TopicParams, role=Role.ADMIN, preview=preview_delete, asks=True,
        summary="Delete a topic on every master and in the name servers.",
    ),
    Operation(
        name="topic.send", method="POST", path="/topics/{topic}/messages", run=send,
        params=SendMessage, role=Role.ADMIN, summary="Send a message to a topic.",
    ),
]  # fmt: skip
