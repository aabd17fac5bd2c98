"""Verbs that look into clients, traces and queues, and that time sends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from twinlog.admin import groups, messages
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.rows import Form
from twinlog.cli.times import now_ms
from twinlog.client.errors import ClientError
from twinlog.client.message import Message
from twinlog.client.net.answers import body_as, table_by_queue
from twinlog.client.producer.producer import Producer
from twinlog.message.names import TRACE_TOPIC
from twinlog.remoting.bodies.clients import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from twinlog.remoting.bodies.offsets import ConsumeQueueData, QueryConsumeQueueResponseBody
from twinlog.remoting.codes import RequestCode, version_description
from twinlog.remoting.headers.pull import QueryConsumeQueueRequestHeader
from twinlog.runtime.numbers import number_or_none

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call
    from twinlog.client.message import ReceivedMessage
    from twinlog.client.queues import MessageQueue

_SEPARATOR = "=" * 38
_AMOUNT = 100
_SIZE = 128
_CHINA_HOURS = 8  # Apache prints the time of `-p true` there, wherever it runs.


# consumerStatus


async def consumer_status(call: Call) -> None:
    group, with_stack = call.options.text("g"), "s" in call.options
    members = await groups.group_members(call.admin, group, address=call.options.get("b"))
    if "i" in call.options:
        info = await groups.running_info(
            call.admin, group, call.options.text("i"), with_stack=with_stack
        )
        call.line(running_info_text(info).rstrip("\n"))
        return
    form = Form("{:<10} {:<40} {:<20} {}")
    call.line(form("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    directory = Path(tempfile.mkdtemp(prefix="mqadmin-consumer-status-"))
    found: dict[str, ConsumerRunningInfo] = {}
    for member in members.members:
        try:
            info = await groups.running_info(
                call.admin, group, member.client_id, with_stack=with_stack
            )
        except ClientError as error:
            call.missing.append(f"mqadmin: {member.client_id}: {error}")
            continue
        found[member.client_id] = info
        path = directory / member.client_id.replace("/", "_")
        path.write_text(running_info_text(info), encoding="utf-8")
        version = version_description(member.version)
        call.line(form(len(found), member.client_id, version, path))
    if found:
        _judge(call, found)


def _judge(call: Call, found: Mapping[str, ConsumerRunningInfo]) -> None:
    subscriptions = [_subscriptions(info) for _, info in sorted(found.items())]
    call.line("\n")
    if any(entry != subscriptions[0] for entry in subscriptions):
        call.line("WARN: Different subscription in the same group of consumer!!!")
        return
    call.line("Same subscription in the same group of consumer")
    call.line("\nRebalance OK")
    for client_id, info in sorted(found.items()):
        for line in _stuck_queues(client_id, info):
            call.line(line)


def _subscriptions(info: ConsumerRunningInfo) -> set[tuple[str, str]]:
    return {(str(row.get("topic")), str(row.get("subString"))) for row in info.subscription_set}


def _stuck_queues(client_id: str, info: ConsumerRunningInfo) -> list[str]:
    properties = info.properties
    if properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        return []
    is_ordered = str(properties.get("PROP_CONSUMEORDERLY")).lower() == "true"
    now, lines = now_ms(), []
    for queue, process in _queues(info):
        name = f"{client_id} {java.queue_text(queue)}"
        waited = now - process.last_consume_timestamp
        if is_ordered and not process.locked:
            waited = now - process.last_lock_timestamp
            lines.append(f"{name} can't lock for a while, {waited}ms")
        elif is_ordered and process.droped and process.try_unlock_times:
            lines.append(f"{name} unlock {process.try_unlock_times} times, still failed")
        elif not is_ordered and waited > 60_000 and process.cached_msg_count:
            lines.append(f"{name} can't consume for a while, maybe blocked, {waited}ms")
    return lines


def _queues(info: ConsumerRunningInfo) -> list[tuple[MessageQueue, ProcessQueueInfo]]:
    return sorted(table_by_queue(info.mq_table).items(), key=lambda row: row[0])


def running_info_text(info: ConsumerRunningInfo) -> str:
    """What one consumer says of itself, as ConsumerRunningInfo.formatString has it."""
    lines = ["#Consumer Properties#"]
    lines += [f"{key:<40}: {value}" for key, value in info.properties.items()]
    lines += ["", "", "#Consumer Subscription#"]
    rows = sorted(info.subscription_set, key=lambda row: str(row.get("topic")))
    for number, row in enumerate(rows, 1):
        class_filter = java.boolean(bool(row.get("classFilterMode")))
        lines.append(
            f"{number:03d} Topic: {row.get('topic')!s:<40} ClassFilter: {class_filter:<8} "
            f"SubExpression: {row.get('subString')}"
        )
    queues = _queues(info)
    head = Form("{:<64}  {:<32}  {:<4}  {:<20}")
    lines += ["", "", "#Consumer Offset#"]
    lines.append(head("#Topic", "#Broker Name", "#QID", "#Consumer Offset"))
    lines += [
        f"{queue.topic:<32}  {queue.broker_name:<32}  {queue.queue_id:<4}  "
        f"{process.commit_offset:<20}"
        for queue, process in queues
    ]
    lines += ["", "", "#Consumer MQ Detail#"]
    lines.append(head("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo"))
    lines += [
        f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}  {_process_text(process)}"
        for queue, process in queues
    ]
    lines += ["", "", "#Consumer RT&TPS#", *_rate_lines(info.status_table)]
    if info.jstack:
        lines += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(lines) + "\n"


def _rate_lines(table: Mapping[str, ConsumeStatus]) -> list[str]:
    lines = [
        "{:<64}  {:>14} {:>14} {:>14} {:>14} {:>18} {:>25}".format(
            "#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS",
            "#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour",
        )
    ]  # fmt: skip
    for topic, row in sorted(table.items()):
        rates = (row.pull_rt, row.pull_tps, row.consume_rt, row.consume_ok_tps)
        cells = " ".join(f"{rate:14.2f}" for rate in rates)
        failed = f"{row.consume_failed_tps:18.2f} {row.consume_failed_msgs:25d}"
        lines.append(f"{topic:<32}  {cells} {failed}")
    return lines


def _process_text(process: ProcessQueueInfo) -> str:
    def text(name: str, value: int) -> str:
        if name.startswith("last"):
            seconds = java.time_text(value, "%Y%m%d%H%M%S")
            return seconds if seconds == str(value) else f"{seconds}{value % 1000:03d}"
        return java.boolean(value) if isinstance(value, bool) else str(value)

    members = zip(process.__struct_encode_fields__, msgspec.structs.astuple(process), strict=True)
    inside = ", ".join(f"{name}={text(name, value)}" for name, value in members)
    return f"ProcessQueueInfo [{inside}]"


# queryMsgTraceById

_TRACE = Form("{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}")


async def query_msg_trace_by_id(call: Call) -> None:
    message_id, topic = call.options.text("i"), call.options.text("t", TRACE_TOPIC)
    found = await messages.query_by_key(call.admin, topic, message_id, max_count=64)
    views = [view for message in found for view in trace_views(message, message_id)]
    if not views:
        raise CommandError(f"no trace of message {message_id} in topic {topic!r}", NOT_FOUND)
    for view in views:
        if view[0] == "Pub":
            call.line(_TRACE("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes",
                             "#Status"))  # fmt: skip
            call.line(_TRACE(*view))
            call.line()
    by_group: dict[str, list[tuple[str, ...]]] = {}
    for view in views:
        if view[0] == "Sub":
            by_group.setdefault(view[1], []).append(view)
    for group in java.hash_order(by_group):
        call.line(_TRACE("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes",
                         "#Status"))  # fmt: skip
        for view in by_group[group]:
            call.line(_TRACE(*view))
        call.line()


def trace_views(message: ReceivedMessage, message_id: str) -> list[tuple[str, ...]]:
    """(kind, group, host, time, cost, status) of what the record tells about the message.

    Contexts end with 0x02, their fields with 0x01 (TraceDataEncoder). Sends are `Pub`; of a
    consumption only what came after it, `SubAfter`, is shown.
    """
    host = message.born_host.rpartition(":")[0]
    views: list[tuple[str, ...]] = []
    for context in message.body.decode("utf-8", "replace").split("\x02"):
        line = context.split("\x01")
        if line[0] == "Pub" and len(line) >= 13 and line[5] == message_id:
            is_ok = line[12] if len(line) == 13 else line[13]
            time, group, cost = line[1], line[3], line[10]
        elif line[0] == "SubAfter" and len(line) >= 5 and line[2] == message_id:
            is_ok, cost = line[4], line[3]
            # Old clients say neither when nor who.
            time, group = line[7:9] if len(line) >= 9 else (str(now_ms()), "")
        else:
            continue
        status = "success" if is_ok.lower() == "true" else "failed"
        shown = java.second_time(number_or_none(time) or 0)
        views.append((line[0][:3], group, host, shown, f"{cost}ms", status))
    return views


# clusterRT, checkMsgSendRT


def _producer(call: Call) -> Producer:
    return Producer(
        f"mqadmin_{now_ms()}", name_server=call.session.namesrv, **call.session.client_settings
    )


def _amount_and_size(call: Call) -> tuple[int, int]:
    amount, size = call.options.number("a", _AMOUNT), call.options.number("s", _SIZE)
    if amount < 2 or size < 1:
        raise CommandError("-a (amount) must be above 1 and -s (size) above 0", USAGE)
    return amount, size


async def cluster_rt(call: Call) -> None:
    """Once, or with -i again and again: Apache never ends."""
    seconds = call.options.number("i", 0)
    if "i" in call.options and seconds < 1:
        raise CommandError("-i (interval) must be above 0", USAGE)
    amount, size = _amount_and_size(call)
    if not call.options.flag("p"):
        call.line(Form("{:<24}  {:<24}  {:<4}  {:<8}  {:<8}")(
            "#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"))  # fmt: skip
    async with _producer(call) as producer:
        while True:
            await _cluster_rt_once(call, producer, amount, size)
            if not seconds:
                return
            await asyncio.sleep(seconds)


async def _cluster_rt_once(call: Call, producer: Producer, amount: int, size: int) -> None:
    info = await call.admin.cluster()
    names = [call.options.text("c")] if "c" in call.options else java.hash_order(info.clusters)
    for cluster in names:
        if cluster not in info.clusters:
            raise CommandError(f"cluster [{cluster}] not exist", NOT_FOUND)
        for broker in java.hash_order(info.clusters[cluster]):
            # Every broker has a topic of its own name.
            times = [await _timed_send(producer, broker, size) for _ in range(amount)]
            failed = sum(error is not None for _, error in times)
            average = sum(elapsed for elapsed, _ in times[1:]) / (amount - 1)
            if call.options.flag("p"):
                moment = datetime.now(UTC) + timedelta(hours=_CHINA_HOURS)
                room = call.options.text("m", "noname")
                call.line(f"{moment:%Y-%m-%d %H:%M:%S}|{room}|{cluster}|{broker}|{average:.0f}")
            else:
                call.line(f"{cluster:<24}  {broker:<24}  {average:<8.2f}  {amount - failed:<16}  "
                          f"{failed:<16}")  # fmt: skip
            if failed:
                reason = next(error for _, error in times if error is not None)
                call.missing.append(f"mqadmin: {broker}: {failed} sends failed: {reason}")


async def _timed_send(producer: Producer, topic: str, size: int) -> tuple[int, str | None]:
    started = now_ms()
    try:
        await producer.send(Message(topic, b"a" * size))
    except ClientError as error:
        return now_ms() - started, str(error)
    return now_ms() - started, None


async def check_msg_send_rt(call: Call) -> None:
    topic = call.options.text("t")
    amount, size = _amount_and_size(call)
    queues = (await call.admin.instance.route(topic)).write_queues(topic)
    if not queues:
        raise CommandError(f"topic {topic!r} has no queue that takes messages", FAILED)
    form = Form("{:<32}  {:<4}  {:<20}    {}")
    call.line(form("#Broker Name", "#QID", "#Send Result", "#RT"))
    total, last_error = 0, ""
    async with _producer(call) as producer:
        for number in range(amount):
            queue, started, is_sent = queues[number % len(queues)], now_ms(), True
            try:
                await producer.send(Message(topic, b"a" * size), queue=queue)
            except ClientError as error:
                is_sent, last_error = False, str(error)
            elapsed = now_ms() - started
            total += elapsed if number else 0
            call.line(form(queue.broker_name, queue.queue_id, java.boolean(is_sent), elapsed))
    call.line(f"Avg RT: {total / (amount - 1):.2f}")
    if last_error:
        raise CommandError(f"not every send succeeded: {last_error}", FAILED)


# queryCq


async def query_cq(call: Call) -> None:
    options = call.options
    topic, index = options.text("t"), options.number("i", 0)
    address = options.get("b")
    if address is None:
        address = (await call.admin.route_masters(topic))[0]
    group = options.text("g") if "g" in options else None
    header = QueryConsumeQueueRequestHeader(
        topic, options.number("q", 0), index, options.number("c", 10), group
    )
    answer = await call.admin.ask(
        address, RequestCode.QUERY_CONSUME_QUEUE, header, action="entries of a queue"
    )
    if not answer.body:
        raise CommandError(answer.remark or f"no entry {index} in the queue", NOT_FOUND)
    body = body_as(answer, QueryConsumeQueueResponseBody)
    if body.subscription_data is not None:
        call.line(f"Subscription data: \n{java.pretty_json(body.subscription_data)}")
        call.line(_SEPARATOR)
    if body.filter_data is not None:
        call.line(f"Filter data: \n{body.filter_data}")
        call.line(_SEPARATOR)
    call.line(f"Queue data: \nmax: {body.max_queue_index}, min: {body.min_queue_index}")
    call.line(_SEPARATOR)
    for number, entry in enumerate(body.queue_data, index):
        call.line(f"idx: {number}")
        call.line(_entry_text(entry))
        call.line(_SEPARATOR)


def _entry_text(entry: ConsumeQueueData) -> str:
    def quoted(value: str | None) -> str:
        return f"'{'null' if value is None else value}'"

    return (
        f"ConsumeQueueData{{physicOffset={entry.physic_offset}, physicSize={entry.physic_size}, "
        f"tagsCode={entry.tags_code}, extendDataJson={quoted(entry.extend_data_json)}, "
        f"bitMap={quoted(entry.bit_map)}, eval={java.boolean(entry.eval)}, "
        f"msg={quoted(entry.msg)}}}"
    )
