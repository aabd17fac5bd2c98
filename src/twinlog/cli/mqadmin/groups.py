"""Verbs about consumer groups, producers and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.admin import brokers, groups
from twinlog.admin.groups import GroupMembers, GroupProgress, QueueProgress
from twinlog.cli.exit_codes import NOT_FOUND, UNHEALTHY, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import cluster_names, masters, one_of_places
from twinlog.cli.mqadmin.rows import Form
from twinlog.cli.mqadmin.topics import delete_one
from twinlog.cli.times import parse_time
from twinlog.client.errors import BrokerError, ClientError, ConsumerNotOnlineError
from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue
from twinlog.message.names import RETRY_PREFIX, dlq_topic, retry_topic
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codes import RequestCode, version_description
from twinlog.remoting.headers.admin import DeleteSubscriptionGroupRequestHeader
from twinlog.runtime.numbers import INT64_MAX, number_or_none

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call


async def update_sub_group(call: Call) -> None:
    options = call.options
    config = SubscriptionGroupConfig(
        options.text("g"),
        consume_enable=options.flag("s", True),
        consume_from_min_enable=options.flag("m"),
        consume_broadcast_enable=options.flag("d"),
        retry_queue_nums=options.number("q", 1),
        retry_max_times=options.number("r", 16),
        broker_id=options.number("i", 0),
        which_broker_when_consume_slowly=options.number("w", 1),
        notify_consumer_ids_changed_enable=options.flag("a", True),
    )
    one_of_places(call)
    for address in await masters(call):
        await groups.put_group_config(call.admin, address, config)
        call.line(f"create subscription group to {address} success.")
    call.line(java.group_config(config))


async def delete_sub_group(call: Call) -> None:
    name, removes = call.options.text("g"), call.options.flag("r")
    one_of_places(call)
    header = DeleteSubscriptionGroupRequestHeader(name, removes, removes)
    cluster = None if "b" in call.options else call.options.text("c")
    for address in await masters(call):
        await call.admin.ask(
            address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, action=f"deletion of {name!r}"
        )
        where = f" in cluster [{cluster}]" if cluster else ""
        call.line(f"delete subscription group [{name}] from broker [{address}]{where} success.")
    if cluster:
        for topic in (retry_topic(name), dlq_topic(name)):
            await delete_one(call, cluster, topic)


async def get_consumer_config(call: Call) -> None:
    name = call.options.text("g")
    info = await call.admin.cluster()
    clusters = cluster_names(info)
    is_found = False
    for broker in java.hash_order(info.brokers):
        data = info.brokers[broker]
        address = data.master_address or next(iter(data.broker_addrs.values()))
        configs = await groups.group_configs(call.admin, address)
        config = configs.get(name)
        if config is None:
            continue
        is_found = True
        line = "=" * 29
        call.line(f"{line}{clusters.get(broker, 'null')}:{broker}{line}")
        for key, value in _config_fields(config):
            call.line(f"{key:<40}=  {value}")
    if not is_found:
        raise CommandError(f"no broker has settings of group {name!r}", NOT_FOUND)


def _config_fields(config: SubscriptionGroupConfig) -> list[tuple[str, str]]:
    return [
        ("groupName", config.group_name),
        ("consumeEnable", java.boolean(config.consume_enable)),
        ("consumeFromMinEnable", java.boolean(config.consume_from_min_enable)),
        ("consumeBroadcastEnable", java.boolean(config.consume_broadcast_enable)),
        ("retryQueueNums", str(config.retry_queue_nums)),
        ("retryMaxTimes", str(config.retry_max_times)),
        ("brokerId", str(config.broker_id)),
        ("whichBrokerWhenConsumeSlowly", str(config.which_broker_when_consume_slowly)),
        ("notifyConsumerIdsChangedEnable", java.boolean(config.notify_consumer_ids_changed_enable)),
    ]


# Progress


async def consumer_progress(call: Call) -> None:
    name = call.options.get("g")
    if name is None:
        await _progress_of_all(call)
        return
    progress = await groups.group_progress(call.admin, name, topic=call.options.get("t"))
    if not progress.queues:
        raise CommandError(
            f"group {name!r} has no offsets", NOT_FOUND, hint="perhaps it has not consumed anything"
        )
    owners = None
    if call.options.flag("s"):
        owners = await groups.queue_owners(call.admin, name)
    _print_progress(call, progress, owners)
    for address, error in progress.failures.items():
        call.incomplete(address, error)


def _print_progress(
    call: Call, progress: GroupProgress, owners: dict[MessageQueue, str] | None
) -> None:
    plain = Form("{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}")
    with_client = Form("{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20} {:<20}  {}")
    head = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    if owners is None:
        call.line(plain(*head, "#Diff", "#LastTime"))
    else:
        call.line(with_client(*head, "#Client IP", "#Diff", "#LastTime"))
    for entry in progress.queues:
        last = java.second_time(entry.last_ms) if entry.last_ms else "N/A"
        cells = (
            java.front(entry.queue.topic, 64), java.front(entry.queue.broker_name, 32),
            entry.queue.queue_id, entry.broker_offset, entry.consumer_offset,
        )  # fmt: skip
        if owners is None:
            call.line(plain(*cells, entry.lag, last))
        else:
            client = owners.get(entry.queue, "N/A").partition("@")[0]
            call.line(with_client(*cells, client, entry.lag, last))
    call.line()
    call.line(f"Consume TPS: {progress.tps:.2f}")
    call.line(f"Diff Total: {progress.lag}")


async def _progress_of_all(call: Call) -> None:
    from twinlog.admin import topics

    names = java.hash_order(await topics.list_topics(call.admin))
    form = Form("{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}")
    call.line(form("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    chosen = [n.removeprefix(RETRY_PREFIX) for n in names if n.startswith(RETRY_PREFIX)]
    members = await groups.members_of_many(call.admin, chosen)
    progress = await groups.progress_of_many(call.admin, chosen)
    for name in chosen:
        online, known = members.get(name), progress[name]
        tps, lag = (0, 0) if isinstance(known, ClientError) else (int(known.tps), known.lag)
        count = len(online.members) if online else 0
        version, kind, model = _online_cells(online)
        call.line(form(java.front(name, 64), count, version, kind, model, tps, lag))


def _online_cells(online: GroupMembers | None) -> tuple[str, str, str]:
    if online is None or not online.members:
        return "OFFLINE", "", ""
    version = version_description(min(member.version for member in online.members))
    is_push = online.consume_type == "CONSUME_PASSIVELY"
    return version, "PUSH" if is_push else "PULL", online.message_model if is_push else ""


# Members


async def consumer_connection(call: Call) -> None:
    name = call.options.text("g")
    members = await groups.group_members(call.admin, name, address=call.options.get("b"))
    form = Form("{:<36} {:<22} {:<10} {}")
    call.line(form("#ClientId", "#ClientAddr", "#Language", "#Version"))
    for member in members.members:
        version = version_description(member.version)
        call.line(form(member.client_id, member.address, member.language, version))
    call.line("\nBelow is subscription:")
    call.line(Form("{:<20} {}")("#Topic", "#SubExpression"))
    by_topic = {entry.topic: entry for entry in members.subscriptions}
    for topic in java.hash_order(by_topic):
        call.line(f"{topic:<20} {by_topic[topic].sub_string}")
    call.line()
    call.line(f"ConsumeType: {members.consume_type}")
    call.line(f"MessageModel: {members.message_model}")
    call.line(f"ConsumeFromWhere: {members.consume_from}")


async def producer_connection(call: Call) -> None:
    group, topic = call.options.text("g"), call.options.text("t")
    try:
        found = await groups.producer_members(call.admin, group, topic)
    except BrokerError as error:
        if error.code == 1:
            text = f"no producer of group {group!r} is connected to the brokers of {topic!r}"
            raise CommandError(text, NOT_FOUND) from error
        raise
    for number, member in enumerate(found, 1):
        version = version_description(member.version)
        call.line(
            f"{number:04d}  {member.client_id:<32} {member.address:<22} {member.language:<8} "
            f"{version}"
        )


async def producer(call: Call) -> None:
    for entry in await brokers.producers(call.admin, call.options.text("b")):
        call.line(
            f"producer group ({entry.group}) instance : clientId={entry.client_id},"
            f"remoteIP=/{entry.address}, language={entry.language}, version={entry.version}, "
            f"lastUpdateTimestamp={entry.last_update_ms}"
        )


# Offsets


async def reset_offset_by_time(call: Call) -> None:
    text = call.options.text("s")
    if text == "now":
        timestamp = -1
    elif (number := number_or_none(text, -INT64_MAX)) is not None:
        timestamp = number
    else:
        timestamp = parse_time(text)
    group, topic, force = (
        call.options.text("g"),
        call.options.text("t"),
        call.options.flag("f", True),
    )
    tail = (
        f"topic[{topic}], force[{java.boolean(force)}], timestamp(string)[{text}], "
        f"timestamp(long)[{timestamp}]"
    )
    await _reset(
        call, timestamp,
        online=f"rollback consumer offset by specified group[{group}], {tail}",
        offline=f"rollback consumer offset by specified consumerGroup[{group}], {tail}",
    )  # fmt: skip


async def skip_accumulated_message(call: Call) -> None:
    await _reset(call, -1, online="", offline="")


async def _reset(call: Call, timestamp: int, *, online: str, offline: str) -> None:
    group, topic = call.options.text("g"), call.options.text("t")
    force = call.options.flag("f", True)
    try:
        moved = await groups.reset_online(
            call.admin, group, topic, timestamp=timestamp, force=force
        )
    except ConsumerNotOnlineError:
        if offline:
            call.line(offline)
        await _reset_offline(call, timestamp, force)
        return
    if online:
        call.line(online)
    form = Form("{:<40}  {:<40}  {:<40}")
    call.line(form("#brokerName", "#queueId", "#offset"))
    for queue, offset in moved.items():
        call.line(form(java.front(queue.broker_name, 32), queue.queue_id, offset))


async def _reset_offline(call: Call, timestamp: int, force: bool) -> None:
    group, topic = call.options.text("g"), call.options.text("t")
    form = Form("{:<20}  {:<20}  {:<20}  {:<20}  {:<20}  {:<20}")
    call.line(form("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset",
                   "#timestampOffset", "#rollbackOffset"))  # fmt: skip
    for entry in await _places(call, group, topic):
        queue = entry.queue
        if timestamp == -1:
            target = await calls.max_offset(call.admin.instance, queue)
        else:
            target = await calls.search_offset(call.admin.instance, queue, timestamp)
        after = entry.consumer_offset
        if force or target <= after:
            await groups.set_offset(call.admin, group, queue, target)
            after = target
        call.line(form(java.front(queue.broker_name, 32), queue.queue_id, entry.broker_offset,
                       entry.consumer_offset, target, after))  # fmt: skip


async def _places(call: Call, group: str, topic: str) -> list[QueueProgress]:
    """Where the group is in each queue; at the start of those that it never consumed."""
    from twinlog.admin import topics

    await call.admin.instance.route(topic)
    progress = await groups.group_progress(call.admin, group, topic=topic)
    known = {entry.queue: entry for entry in progress.queues if entry.queue.topic == topic}
    consumed = {queue.broker_name for queue in known}
    stats = (await topics.topic_stats(call.admin, topic)).all_or_raise()
    for entries in stats.values():
        for entry in entries:
            if entry.queue.broker_name not in consumed:
                known[entry.queue] = QueueProgress(
                    entry.queue, entry.max_offset, entry.min_offset, 0
                )
    return [known[queue] for queue in sorted(known)]


async def clone_group_offset(call: Call) -> None:
    source, target = call.options.text("s"), call.options.text("d")
    topic = call.options.text("t")
    copied = await groups.clone_offsets(call.admin, source, target)
    if not copied:
        raise CommandError(f"group {source!r} has no offsets", UNHEALTHY)
    call.line(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    )
