"""Consumer groups: progress with rates, members, moving offsets with a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from twinlog.admin import groups
from twinlog.admin.client import gather
from twinlog.client.errors import ClientError, RouteError, TransportError
from twinlog.client.queues import MessageQueue
from twinlog.console.access import Role
from twinlog.console.operations import BadParameters, Context, Done, Operation, Preview, Refused
from twinlog.console.versions import Version, check_version, version_of
from twinlog.console.views.lists import (
    PAGE_SIZE,
    GroupName,
    Milliseconds,
    Moment,
    TopicName,
    cut,
    done_on,
    milliseconds,
    missing_of,
)
from twinlog.message.names import RETRY_PREFIX
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codes import version_description


class GroupsParams(Struct, frozen=True):
    search: str = ""
    kind: Literal["user", "all"] = "user"
    page: Annotated[int, Meta(ge=1)] = 1
    size: Annotated[int, Meta(ge=1, le=1_000)] = PAGE_SIZE


class GroupRow(Struct, frozen=True):
    name: str
    members: int
    lag: int | None
    rate: float | None
    model: str
    error: str


class GroupList(Struct, frozen=True):
    groups: list[GroupRow]
    total: int
    page: int
    pages: int
    missing: list[str]


class GroupParams(Struct, frozen=True):
    group: GroupName


class QueueProgress(Struct, frozen=True):
    topic: str
    broker: str
    queue: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_ms: int
    client: str = ""


class MemberRow(Struct, frozen=True):
    client_id: str
    address: str
    language: str
    version: str


class GroupSettings(Struct, frozen=True):
    """Of one broker."""

    broker: str
    retry_max: int
    consume_enable: bool


class GroupDetails(Struct, frozen=True, kw_only=True):
    """Progress of one group. `left_ms`: how long until the backlog is gone, at the rate now."""

    name: str
    topics: list[str]
    queues: list[QueueProgress]
    members: list[MemberRow]
    subscriptions: list[dict[str, str]]
    consume_type: str
    message_model: str
    lag: int
    rate: float
    left_ms: int | None
    missing: list[str]
    settings: list[GroupSettings]
    version: str


class ResetParams(Struct, frozen=True):
    """`to`: start, end or time; with time, `time_ms` since 1970 or `time` in ISO 8601."""

    group: GroupName
    topic: TopicName
    to: Literal["start", "end", "time"] = "time"
    time_ms: Milliseconds | None = None
    time: Moment | None = None


class SkipParams(Struct, frozen=True):
    group: GroupName
    topic: TopicName


class CreateGroup(Struct, frozen=True):
    """What is absent stays as it is; of a new group 16 retries, and it may consume."""

    group: GroupName
    retry_max: Annotated[int, Meta(ge=0, le=1_000)] | None = None
    consume_enable: bool | None = None
    version: Version | None = None


async def list_groups(context: Context, params: GroupsParams) -> GroupList:
    admin = context.admin
    found = await groups.list_groups(admin)
    names = sorted({name for table in found.values.values() for name in table})
    wanted = params.search.lower()
    chosen = [
        name
        for name in names
        if wanted in name.lower() and (params.kind == "all" or groups.is_user_group(name))
    ]
    page, number, pages = cut(chosen, params.page, params.size)
    progress, members = await asyncio.gather(
        groups.progress_of_many(admin, page), groups.members_of_many(admin, page)
    )
    rows = [_row(name, progress[name], members.get(name)) for name in page]
    return GroupList(rows, len(chosen), number, pages, missing_of(found))


def _row(
    name: str,
    progress: groups.GroupProgress | ClientError,
    members: groups.GroupMembers | None,
) -> GroupRow:
    count = len(members.members) if members is not None else 0
    model = members.message_model if members is not None else ""
    if isinstance(progress, ClientError):
        return GroupRow(name, count, None, None, model, str(progress))
    return GroupRow(name, count, progress.lag, progress.tps, model, "")


async def show_group(context: Context, params: GroupParams) -> GroupDetails:
    name = params.group
    members_now, progress, configs = await asyncio.gather(
        groups.members_of_many(context.admin, [name]),
        _progress(context, name),
        _check_group(context, name),
    )
    online = members_now.get(name)
    owners = await _owners(context, name) if online is not None else {}
    queues = [
        QueueProgress(
            topic=entry.queue.topic, broker=entry.queue.broker_name, queue=entry.queue.queue_id,
            broker_offset=entry.broker_offset, consumer_offset=entry.consumer_offset,
            lag=entry.lag, last_ms=entry.last_ms, client=owners.get(entry.queue, ""),
        )
        for entry in progress.queues
    ]  # fmt: skip
    members = online or groups.GroupMembers(())
    return GroupDetails(
        name=name,
        topics=sorted({q.topic for q in queues if not q.topic.startswith(RETRY_PREFIX)}),
        queues=queues,
        members=[
            MemberRow(m.client_id, m.address, m.language, version_description(m.version))
            for m in members.members
        ],
        subscriptions=[
            {"topic": s.topic, "expression": s.sub_string} for s in members.subscriptions
        ],
        consume_type=members.consume_type,
        message_model=members.message_model,
        lag=progress.lag,
        rate=progress.tps,
        left_ms=round(1000 * progress.lag / progress.tps) if progress.tps > 0 else None,
        missing=[f"{a}: {error}" for a, error in progress.failures.items()],
        settings=[
            GroupSettings(address, config.retry_max_times, config.consume_enable)
            for address, config in configs.items()
        ],
        version=version_of(configs),
    )


async def _check_group(context: Context, name: str) -> dict[str, SubscriptionGroupConfig]:
    """Its settings by broker. Raises Refused where every broker answers and none has the group: a
    slip of the pen."""
    found = await groups.list_groups(context.admin)
    if found.is_complete and not any(name in table for table in found.values.values()):
        raise Refused(f"there is no group {name!r}", 404)
    return {address: table[name] for address, table in found.values.items() if name in table}


async def _progress(context: Context, name: str) -> groups.GroupProgress:
    """None of any queue for a group that has not consumed yet."""
    try:
        return await groups.group_progress(context.admin, name)
    except (RouteError, TransportError):
        raise
    except ClientError:
        return groups.GroupProgress(name, ())


async def _owners(context: Context, name: str) -> dict[MessageQueue, str]:
    """Who reads which queue, as far as members tell within a second."""
    try:
        async with asyncio.timeout(1.0):
            return await groups.queue_owners(context.admin, name)
    except (ClientError, TimeoutError):
        return {}


def _target(params: ResetParams) -> int | None:
    if params.to == "end":
        return None
    if params.to == "start":
        return 0
    if params.time is not None:
        return milliseconds(params.time)
    if params.time_ms is None:
        raise BadParameters("to: start, end, or time together with a time")
    return params.time_ms


async def preview_reset(context: Context, params: ResetParams) -> Preview:
    """The dry run."""
    await _check_group(context, params.group)
    plan = await groups.plan_reset(
        context.admin, params.group, params.topic, timestamp_ms=_target(params)
    )
    rows = [
        {
            "broker": entry.queue.broker_name, "queue": entry.queue.queue_id,
            "before": entry.before, "after": entry.after,
            "change": None if entry.before is None else entry.after - entry.before,
        }
        for entry in plan
    ]  # fmt: skip
    again = sum(max(0, (e.before or 0) - e.after) for e in plan)
    skipped = sum(max(0, e.after - (e.before or 0)) for e in plan)
    lines = []
    if again:
        lines.append(f"{again} messages will be delivered again.")
    if skipped:
        lines.append(f"{skipped} messages will be skipped.")
    online = (await groups.members_of_many(context.admin, [params.group])).get(params.group)
    if online is None:
        return Preview([*lines, "Nobody is online: the committed offsets are changed."], rows)
    count = len(online.members)
    if online.consume_type == "CONSUME_ACTIVELY":
        refusal = "the members of this group pull for themselves: stop them first"
        return Preview(lines, rows, refusal)
    return Preview([*lines, f"{count} members are online: the broker tells them to move."], rows)


async def reset(context: Context, params: ResetParams) -> Done:
    preview = await preview_reset(context, params)
    if preview.refusal:
        raise Refused(preview.refusal)
    moved = await groups.reset_offsets(
        context.admin, params.group, params.topic, timestamp_ms=_target(params)
    )
    details = [
        {"broker": e.queue.broker_name, "queue": e.queue.queue_id, "before": e.before,
         "after": e.after}
        for e in moved
    ]  # fmt: skip
    return Done(f"{params.group} was moved in {len(moved)} queues of {params.topic}", details)


async def preview_skip(context: Context, params: SkipParams) -> Preview:
    return await preview_reset(context, ResetParams(params.group, params.topic, "end"))


async def skip(context: Context, params: SkipParams) -> Done:
    return await reset(context, ResetParams(params.group, params.topic, "end"))


async def create(context: Context, params: CreateGroup) -> Done:
    admin, name = context.admin, params.group
    given = {"consume_enable": params.consume_enable, "retry_max_times": params.retry_max}
    now = await gather(await admin.masters(), lambda address: groups.group_configs(admin, address))
    known = {address: table[name] for address, table in now.values.items() if name in table}
    check_version(params.version, known, f"group {name}", _settings(known.values()))
    found = await groups.change_group(
        admin,
        name,
        {key: value for key, value in given.items() if value is not None},
        {address: known.get(address) for address in now.values},
    )
    found.failures.update(now.failures)
    return done_on(found, f"group {params.group} is")


def _settings(configs: Iterable[SubscriptionGroupConfig]) -> str:
    texts = (
        f"{c.retry_max_times} retries, {'consumes' if c.consume_enable else 'does not consume'}"
        for c in configs
    )
    return ", ".join(dict.fromkeys(texts))


async def delete(context: Context, params: GroupParams) -> Done:
    await _check_group(context, params.group)
    found = await groups.delete_group(context.admin, params.group)
    return done_on(found, f"group {params.group} is deleted")


async def preview_delete(context: Context, params: GroupParams) -> Preview:
    details = await show_group(context, params)
    lines = [
        f"Its offsets in {len(details.queues)} queues are forgotten,"
        " and its retry and dead-letter topics are deleted."
    ]
    if details.members:
        lines.append(f"{len(details.members)} members are online and will consume again.")
    return Preview(lines)


OPERATIONS = [
    Operation(
        name="groups", method="GET", path="/groups", run=list_groups, params=GroupsParams,
        result=GroupList, summary="Consumer groups with members, backlog and rate.",
    ),
    Operation(
        name="group", method="GET", path="/groups/{group}", run=show_group, params=GroupParams,
        result=GroupDetails, summary="Progress of one group by queue, and its members.",
    ),
    Operation(
        name="group.create", method="POST", path="/groups", run=create, params=CreateGroup,
        role=Role.ADMIN, summary="Create a group on every master, or change it.",
    ),
    Operation(
        name="group.reset", method="POST", path="/groups/{group}/reset", run=reset,
        params=ResetParams, role=Role.ADMIN, preview=preview_reset, asks=True,
        summary="Move a group to another place of a topic.",
    ),
    Operation(
        name="group.skip", method="POST", path="/groups/{group}/skip", run=skip,
        params=SkipParams, role=Role.ADMIN, preview=preview_skip, asks=True,
        summary="Move a group to the end of a topic: what waits is given up.",
    ),
    Operation(
        name="group.delete", method="DELETE", path="/groups/{group}", run=delete,
        params=GroupParams, role=Role.ADMIN, preview=preview_delete, asks=True,
        summary="Delete a group with its offsets, retry and dead-letter topics.",
    ),
]  # fmt: skip
