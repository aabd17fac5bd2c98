"""Consumer groups: settings, members, progress, and moving their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from twinlog.admin.client import Admin, Gathered, gather
from twinlog.admin.topics import delete_topic
from twinlog.client.consumer.subscription import subscription_from_wire
from twinlog.client.errors import (
    ClientError,
    ConsumerNotOnlineError,
    TopicNotFoundError,
    UsageError,
)
from twinlog.client.message import check_group
from twinlog.client.net.answers import body_as, parse_offset_table, table_by_queue
from twinlog.client.queues import MessageQueue
from twinlog.message.names import RETRY_PREFIX, dlq_topic, is_system_group, retry_topic
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
)
from twinlog.remoting.bodies.offsets import ConsumeStats
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.bodies.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
)
from twinlog.remoting.headers.clients import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
)
from twinlog.remoting.headers.offsets import ResetOffsetRequestHeader

PROGRESS_TIMEOUT_MS = 15_000  # mqadmin's, for brokers with very many queues.
CONCURRENT_MAX = 16  # Groups asked for at a time: a broker has other things to do.


class QueueProgress(msgspec.Struct, frozen=True):
    """How far a group is in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_ms: int

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is."""

    group: str
    queues: tuple[QueueProgress, ...]
    tps: float = 0.0
    failures: dict[str, ClientError] = {}

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


class Member(msgspec.Struct, frozen=True):
    """One connected client."""

    client_id: str
    address: str
    language: str
    version: int


class GroupMembers(msgspec.Struct, frozen=True):
    """Who is connected, and how the group consumes."""

    members: tuple[Member, ...]
    subscriptions: tuple[SubscriptionData, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from: str = ""


class OffsetReset(msgspec.Struct, frozen=True):
    """What a reset does, or would do, to one queue."""

    queue: MessageQueue
    before: int | None
    after: int


# Settings


async def list_groups(admin: Admin) -> Gathered[dict[str, SubscriptionGroupConfig]]:
    """Every group that a master has settings for, by broker address; a slave's without one."""
    return await gather(await admin.readers(), lambda address: group_configs(admin, address))


async def group_configs(admin: Admin, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Every group that one broker has settings for."""
    answer = await admin.ask(
        address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, action="list of groups"
    )
    return body_as(answer, SubscriptionGroupWrapper).subscription_group_table


def is_user_group(name: str) -> bool:
    return not is_system_group(name)


async def put_group_config(admin: Admin, address: str, config: SubscriptionGroupConfig) -> Request:
    """Create or change a group on one broker, every setting as given."""
    check_group(config.group_name)
    return await admin.ask(
        address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None,
        fastjson.dumps(config), action=f"group {config.group_name!r}",
    )  # fmt: skip


async def create_group(
    admin: Admin, config: SubscriptionGroupConfig, *, cluster: str | None = None
) -> Gathered[Request]:
    """Create or change a group on every master."""
    check_group(config.group_name)
    return await gather(
        await admin.masters(cluster), lambda address: put_group_config(admin, address, config)
    )


async def change_group(
    admin: Admin,
    name: str,
    change: Mapping[str, Any],
    old: Mapping[str, SubscriptionGroupConfig | None],
) -> Gathered[SubscriptionGroupConfig]:
    """Change fields of a group on the brokers of `old`, by what each has; None: it is made."""

    async def put(address: str) -> SubscriptionGroupConfig:
        config = replace(old[address] or SubscriptionGroupConfig(name), **change)
        await put_group_config(admin, address, config)
        return config

    return await gather(old, put)


async def delete_group(
    admin: Admin, group: str, *, remove_offsets: bool = True, cluster: str | None = None
) -> Gathered[Request]:
    """Delete a group with its retry and dead-letter topics."""
    header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets, remove_offsets)

    async def delete(address: str) -> Request:
        return await admin.ask(
            address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, action=f"deletion of {group!r}"
        )

    result = await gather(await admin.masters(cluster), delete)
    for topic in (retry_topic(group), dlq_topic(group)):
        result.failures.update((await delete_topic(admin, topic, cluster=cluster)).failures)
    return result


# Members


async def group_members(admin: Admin, group: str, *, address: str | None = None) -> GroupMembers:
    """Who is connected now. Raises ConsumerNotOnlineError when nobody is."""
    error: ClientError | None = None
    for place in [address] if address else await _addresses_of(admin, group):
        try:
            answer = await admin.ask(
                place, RequestCode.GET_CONSUMER_CONNECTION_LIST,
                GetConsumerConnectionListRequestHeader(group),
                action=f"members of {group!r}",
            )  # fmt: skip
        except ClientError as failure:
            error = failure
            continue
        return _group_members(body_as(answer, ConsumerConnection))
    raise error or ConsumerNotOnlineError(206, f"group {group!r} is not online")


async def members_of_many(admin: Admin, groups: Iterable[str]) -> dict[str, GroupMembers]:
    """Members of those of `groups` that are online."""
    room = asyncio.Semaphore(CONCURRENT_MAX)

    async def ask(group: str) -> tuple[str, GroupMembers | None]:
        async with room:
            try:
                return group, await group_members(admin, group)
            except ClientError:
                return group, None

    answers = await asyncio.gather(*(ask(group) for group in groups))
    return {group: members for group, members in answers if members is not None}


async def progress_of_many(
    admin: Admin, groups: Iterable[str]
) -> dict[str, GroupProgress | ClientError]:
    """The progress of each group, or why it is not known."""
    room = asyncio.Semaphore(CONCURRENT_MAX)

    async def ask(group: str) -> tuple[str, GroupProgress | ClientError]:
        async with room:
            try:
                return group, await group_progress(admin, group)
            except ClientError as error:
                return group, error

    return dict(await asyncio.gather(*(ask(group) for group in groups)))


def _members_of(connections: Iterable[ConnectionInfo]) -> tuple[Member, ...]:
    members = [
        Member(one.client_id, one.client_addr, one.language, one.version) for one in connections
    ]
    return tuple(sorted(members, key=lambda member: member.client_id))


def _group_members(body: ConsumerConnection) -> GroupMembers:
    return GroupMembers(
        members=_members_of(body.connection_set),
        subscriptions=tuple(map(subscription_from_wire, body.subscription_table.values())),
        consume_type=body.consume_type,
        message_model=body.message_model,
        consume_from=body.consume_from_where,
    )


async def producer_members(admin: Admin, group: str, topic: str) -> tuple[Member, ...]:
    """Producers of a group that are connected to the brokers of a topic."""

    async def read(address: str) -> tuple[Member, ...]:
        answer = await admin.ask(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST,
            GetProducerConnectionListRequestHeader(group),
            action=f"producers of {group!r}",
        )  # fmt: skip
        return _members_of(body_as(answer, ProducerConnection).connection_set)

    found = await gather(await admin.route_masters(topic), read)
    found.any_or_raise()
    members = {m.client_id: m for answer in found.values.values() for m in answer}
    return tuple(members[client_id] for client_id in sorted(members))


async def running_info(
    admin: Admin, group: str, client_id: str, *, with_stack: bool = False
) -> ConsumerRunningInfo:
    """What one member says of itself."""
    header = GetConsumerRunningInfoRequestHeader(group, client_id, with_stack)
    (address, *_) = await _addresses_of(admin, group)
    answer = await admin.ask(
        address, RequestCode.GET_CONSUMER_RUNNING_INFO, header, action="running information",
        timeout_ms=15_000,
    )  # fmt: skip
    return body_as(answer, ConsumerRunningInfo)


async def member_subscriptions(admin: Admin, group: str) -> Gathered[tuple[SubscriptionData, ...]]:
    """What each member says that it subscribes to, by client id. Empty when nobody is online."""
    members = (await members_of_many(admin, [group])).get(group)

    async def ask(client_id: str) -> tuple[SubscriptionData, ...]:
        info = await running_info(admin, group, client_id)
        return tuple(
            subscription_from_wire(item)
            for item in info.subscription_set
            if not str(item.get("topic", "")).startswith(RETRY_PREFIX)
        )

    return await gather([member.client_id for member in members.members] if members else [], ask)


async def queue_owners(admin: Admin, group: str) -> dict[MessageQueue, str]:
    """Which member reads which queue, as far as the members tell."""
    members = (await members_of_many(admin, [group])).get(group)
    clients = [member.client_id for member in members.members] if members else []
    found = await gather(clients, lambda client_id: running_info(admin, group, client_id))
    owners: dict[MessageQueue, str] = {}
    for client_id, info in found.values.items():
        owners |= dict.fromkeys(table_by_queue(info.mq_table), client_id)
    return owners


async def _addresses_of(admin: Admin, group: str) -> list[str]:
    """Brokers that may know the group: those of its retry topic, else all."""
    try:
        return await admin.route_masters(retry_topic(group))
    except TopicNotFoundError:
        return await admin.readers()


# Progress


async def group_progress(admin: Admin, group: str, *, topic: str | None = None) -> GroupProgress:
    """Offsets and lag of every queue that the group consumes."""

    async def read(address: str) -> tuple[list[QueueProgress], float]:
        answer = await admin.ask(
            address, RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(group, topic),
            action=f"progress of {group!r}", timeout_ms=PROGRESS_TIMEOUT_MS,
        )  # fmt: skip
        stats = body_as(answer, ConsumeStats)
        return queue_progress(stats), stats.consume_tps

    found = await gather(await _addresses_of(admin, group), read)
    found.any_or_raise()
    queues = [queue for entries, _ in found.values.values() for queue in entries]
    return GroupProgress(
        group=group,
        queues=tuple(sorted(queues, key=lambda entry: entry.queue)),
        tps=sum(tps for _, tps in found.values.values()),
        failures=found.failures,
    )


def queue_progress(stats: ConsumeStats) -> list[QueueProgress]:
    return [
        QueueProgress(queue, entry.broker_offset, entry.consumer_offset, entry.last_timestamp)
        for queue, entry in sorted(table_by_queue(stats.offset_table).items())
    ]


# Moving offsets


async def plan_reset(
    admin: Admin, group: str, topic: str, *, timestamp_ms: int | None
) -> list[OffsetReset]:
    """What a reset to a time (None: to the end) would do; nothing is changed."""
    from twinlog.client.net import calls  # With the codecs of records: most commands need none.

    route = await admin.route(topic)
    plan = []
    for queue in route.read_queues(topic):
        before = await calls.query_consumer_offset(admin.instance, group, queue)
        if timestamp_ms is None:
            after = await calls.max_offset(admin.instance, queue)
        else:
            after = await calls.offset_for_time(admin.instance, queue, timestamp_ms)
        plan.append(OffsetReset(queue, before, after))
    return plan


async def reset_offsets(
    admin: Admin, group: str, topic: str, *, timestamp_ms: int | None, force: bool = True
) -> list[OffsetReset]:
    """Move a group to a time (None: to the end), whether or not it is consuming now.

    A group that is online is moved by its members, which the broker tells; they must be alive for
    it. A group that is offline is moved by changing its committed offsets. Without `force` a queue
    is only moved back, never forward.
    """
    plan = await plan_reset(admin, group, topic, timestamp_ms=timestamp_ms)
    if not force:
        plan = [entry for entry in plan if entry.before is None or entry.after < entry.before]
    try:
        members = (await group_members(admin, group)).members
    except ClientError:
        members = ()
    if members:
        before = {entry.queue: entry.before for entry in plan}
        timestamp = -1 if timestamp_ms is None else timestamp_ms
        moved = await reset_online(admin, group, topic, timestamp=timestamp, force=force)
        return [OffsetReset(queue, before.get(queue), to) for queue, to in moved.items()]
    for entry in plan:
        await set_offset(admin, group, entry.queue, entry.after)
    return plan


async def reset_online(
    admin: Admin, group: str, topic: str, *, timestamp: int, force: bool
) -> dict[MessageQueue, int]:
    """Have the brokers tell the members of a group to move: to a time, or with -1 to the end.

    Raises ConsumerNotOnlineError when nobody is connected.
    """
    header = ResetOffsetRequestHeader(topic, group, timestamp, force)
    moved: dict[MessageQueue, int] = {}
    for address in await admin.route_masters(topic):
        answer = await admin.ask(
            address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, action="reset of offsets"
        )
        if answer.body:
            moved |= parse_offset_table(answer.body)
    return {queue: moved[queue] for queue in sorted(moved)}


async def clone_offsets(
    admin: Admin, source: str, target: str, *, topic: str | None = None
) -> list[QueueProgress]:
    """Give a group the offsets of another one; returns the offsets that were copied."""
    progress = await group_progress(admin, source, topic=topic)
    copied = [entry for entry in progress.queues if entry.consumer_offset >= 0]
    for entry in copied:
        await set_offset(admin, target, entry.queue, entry.consumer_offset)
    return copied


async def set_offset(admin: Admin, group: str, queue: MessageQueue, offset: int) -> None:
    """Commit an offset in the group's name."""
    from twinlog.client.net import calls

    if offset < 0:
        raise UsageError(f"offset {offset} is negative")
    await admin.instance.route(queue.topic)
    await calls.commit_offset(admin.instance, group, queue, offset, wait=True)
