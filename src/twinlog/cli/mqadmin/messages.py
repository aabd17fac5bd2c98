"""Verbs about messages."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twinlog.admin import messages
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.rows import Form
from twinlog.cli.times import now_ms, parse_time
from twinlog.client.consumer.subscription import parse_subscription
from twinlog.client.message import RESERVED_PROPERTIES, Message, ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call
    from twinlog.client.message import SendReceipt
    from twinlog.client.net.calls import PullResult

PULL_COUNT = 32
_NOTHING: Mapping[str, str] = {}
CONSUME_COUNT = 128  # What consumeMessage reads when -c does not say.
_STATUS = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}


# One message


async def query_msg_by_id(call: Call) -> None:
    options = call.options
    ids = [part.strip() for part in options.text("i").split(",") if part.strip()]
    for message_id in ids:
        found = await _by_offset_id(call, message_id)
        if "g" in options and "d" in options:
            await _hand_over(call, found)
        elif "s" in options:
            if options.flag("s"):
                call.line(f"prepare resend msg. originalMsgId={message_id}")
                call.line(java.send_result(await _send(call, _again(found))))
        else:
            await print_message(call, found, with_id=True)


async def _by_offset_id(call: Call, message_id: str) -> ReceivedMessage:
    from twinlog.client.errors import BrokerError

    try:
        return await messages.query_by_offset_id(call.admin, message_id)
    except BrokerError as error:
        if error.code != 1:
            raise
        raise CommandError(f"no message {message_id}: {error}", NOT_FOUND) from error


async def query_msg_by_key(call: Call) -> None:
    topic, key = call.options.text("t"), call.options.text("k")
    found = await messages.query_by_key(call.admin, topic, key, max_count=64)
    call.line(Form("{:<50} {:>4} {:>40}")("#Message ID", "#QID", "#Offset"))
    for message in found:
        call.line(
            f"{message.message_id:<50} {message.queue.queue_id:>4} {message.queue_offset:>40}"
        )
    if not found:
        raise CommandError(f"no message with key {key!r} in topic {topic!r}", NOT_FOUND)


async def query_msg_by_unique_key(call: Call) -> None:
    topic, message_id = call.options.text("t"), call.options.text("i")
    found = await messages.query_by_key(
        call.admin, topic, message_id, max_count=32, is_unique_key=True
    )
    if not found:
        raise CommandError(f"no message {message_id} in topic {topic!r}", NOT_FOUND)
    if "g" in call.options and "d" in call.options:
        await _hand_over(call, found[0])
        return
    for message in found if "a" in call.options else found[:1]:
        await print_message(call, message, with_id=False)


async def query_msg_by_offset(call: Call) -> None:
    options = call.options
    queue = MessageQueue(options.text("t"), options.text("b"), options.number("i", 0))
    offset = options.number("o", 0)
    await call.admin.instance.route(queue.topic)
    result = await _pull(call, queue, offset, 1, parse_subscription(queue.topic, "*"))
    if not result.messages or result.messages[0].queue_offset != offset:
        raise CommandError(f"no message at offset {offset} of {java.queue_text(queue)}", NOT_FOUND)
    await print_message(call, result.messages[0], with_id=True, more=_of_pull(result))


def _of_pull(result: PullResult) -> dict[str, str]:
    """What a Java client adds to the properties of a message that it has pulled."""
    return {"MIN_OFFSET": str(result.min_offset), "MAX_OFFSET": str(result.max_offset)}


async def print_message(
    call: Call, message: ReceivedMessage, *, with_id: bool, more: Mapping[str, str] = _NOTHING
) -> None:
    """All that Apache prints about one message; its body goes to a file."""
    tags, keys = message.tags, message.properties.get("KEYS")
    rows = [("OffsetID:", message.offset_message_id)] if with_id else []
    rows += [
        ("Topic:", message.record.topic),
        ("Tags:", f"[{'null' if tags is None else tags}]"),
        ("Keys:", f"[{'null' if keys is None else keys}]"),
        ("Queue ID:", str(message.queue.queue_id)),
        ("Queue Offset:", str(message.queue_offset)),
        ("CommitLog Offset:", str(message.physical_offset)),
        ("Reconsume Times:", str(message.reconsume_times)),
        ("Born Timestamp:", java.human_time(message.born_timestamp)),
        ("Store Timestamp:", java.human_time(message.store_timestamp)),
        ("Born Host:", message.born_host),
        ("Store Host:", message.store_host),
        ("System Flag:", str(message.sys_flag)),
        ("Properties:", java.hash_map({**message.properties, **more})),
        ("Message Body Path:", _write_body(message)),
    ]
    for name, value in rows:
        call.line(f"{name:<20} {value}")
    tracks = await messages.track(call.admin, message)
    call.line()
    call.line()
    if not tracks:
        call.line("WARN: No Consumer")
    for track in tracks:
        reason = track.reason or "null"
        call.line(
            f"MessageTrack [consumerGroup={track.group}, trackType={track.state}, "
            f"exceptionDesc={reason}]"
        )


def _write_body(message: ReceivedMessage) -> str:
    """A directory of this user's own: a fixed path in /tmp could be anybody's."""
    directory = Path(tempfile.mkdtemp(prefix="mqadmin-msgbody-"))
    path = directory / message.message_id
    path.write_bytes(message.body)
    return str(path)


async def _hand_over(call: Call, message: ReceivedMessage) -> None:
    group, client = call.options.text("g"), call.options.text("d")
    await call.admin.route(message.record.topic)
    result = await messages.consume_directly(call.admin, group, client, message)
    call.line(java.direct_result(result))


def _again(message: ReceivedMessage) -> Message:
    own = {k: v for k, v in message.properties.items() if k not in RESERVED_PROPERTIES}
    return Message(
        message.record.topic, message.body, tags=message.tags, keys=message.keys,
        properties=own or None, flag=message.flag,
    )  # fmt: skip


# Sending


async def _send(call: Call, message: Message, queue: MessageQueue | None = None) -> SendReceipt:
    from twinlog.client.producer.producer import Producer

    async with Producer(
        f"mqadmin_{now_ms()}", name_server=call.session.namesrv, **call.session.client_settings
    ) as producer:
        return await producer.send(message, queue=queue)


async def send_message(call: Call) -> None:
    options = call.options
    queue = None
    if "i" in options:
        if "b" not in options:
            raise CommandError("-i (qid) needs -b (broker)", USAGE)
        queue = MessageQueue(options.text("t"), options.text("b"), options.number("i", 0))
    keys = options.text("k").split()
    message = Message(options.text("t"), options.text("p").encode(), tags=options.get("c"),
                      keys=keys)  # fmt: skip
    receipt = await _send(call, message, queue)
    form = Form("{:<32}  {:<4}  {:<20}    {}")
    call.line(form("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    call.line(form(receipt.queue.broker_name, receipt.queue.queue_id, receipt.status.name,
                   receipt.message_id))  # fmt: skip


# Many messages


def _line(message: ReceivedMessage, result: PullResult, charset: str, with_body: bool) -> str:
    body = message.body.decode(charset, "replace") if with_body else "NOT PRINT BODY"
    text = java.message_text(message, _of_pull(result))
    return f"MSGID: {message.message_id} {text} BODY: {body}"


def _charset(call: Call) -> str:
    name = call.options.text("c", "UTF-8")
    try:
        "".encode(name)
    except LookupError:
        raise CommandError(f"-c {name}: unknown charset", USAGE) from None
    return name


async def _borders(call: Call, queue: MessageQueue, begin: str, end: str) -> tuple[int, int]:
    """The offsets that -b and -e stand for: the nearest messages, as request 29 says them."""
    instance = call.admin.instance
    low = await calls.min_offset(instance, queue)
    high = await calls.max_offset(instance, queue)
    if begin in call.options:
        low = await calls.search_offset(instance, queue, parse_time(call.options.text(begin)))
    if end in call.options:
        high = await calls.search_offset(instance, queue, parse_time(call.options.text(end)))
    return low, high


async def _pull(
    call: Call, queue: MessageQueue, offset: int, count: int, subscription: SubscriptionData
) -> PullResult:
    group = call.options.get("g") or TOOLS_GROUP
    return await calls.pull(
        call.admin.instance, queue, offset, group=group, count_max=count, subscription=subscription
    )


async def print_msg(call: Call) -> None:
    topic = call.options.text("t")
    for queue in (await call.admin.instance.route(topic)).read_queues(topic):
        low, high = await _borders(call, queue, "b", "e")
        call.line(f"minOffset={low}, maxOffset={high}, {java.queue_text(queue)}")
        await _print_queue(call, queue, low, high, with_body=call.options.flag("d", True))
        call.line("-" * 56)


async def print_msg_by_queue(call: Call) -> None:
    options = call.options
    queue = MessageQueue(options.text("t"), options.text("a"), options.number("i", 0))
    await call.admin.instance.route(queue.topic)
    low, high = await _borders(call, queue, "b", "e")
    shows = options.flag("p")
    counts: dict[str, int] = {}
    await _print_queue(call, queue, low, high, with_body=options.flag("d", True),
                       is_silent=not shows, counts=counts)  # fmt: skip
    if options.flag("f"):
        for tag, count in sorted(counts.items(), key=lambda item: -item[1]):
            call.line(f"Tag: {tag:<30} Count: {count}")


async def _print_queue(
    call: Call,
    queue: MessageQueue,
    low: int,
    high: int,
    *,
    with_body: bool,
    is_silent: bool = False,
    counts: dict[str, int] | None = None,
) -> None:
    subscription = parse_subscription(queue.topic, call.options.text("s", "*"))
    charset = _charset(call)
    offset = low
    while offset < high:
        result = await _pull(call, queue, offset, PULL_COUNT, subscription)
        offset = result.next_offset
        status = _STATUS[ResponseCode(result.code)]
        chosen = [m for m in result.messages if subscription.accepts(m.tags)]
        for message in chosen:
            if counts is not None:
                tag = message.tags or "null"
                counts[tag] = counts.get(tag, 0) + 1
            if not is_silent:
                call.line(_line(message, result, charset, with_body))
        if status == "NO_MATCHED_MSG" and not is_silent:
            call.line(f"{java.queue_text(queue)} no matched msg. status={status}, offset={offset}")
        elif status in ("NO_NEW_MSG", "OFFSET_ILLEGAL"):
            if not is_silent:
                call.line(f"{java.queue_text(queue)} print msg finished. status={status}, "
                          f"offset={offset}")  # fmt: skip
            return


async def consume_message(call: Call) -> None:
    options = call.options
    topic, left = options.text("t"), options.number("c", CONSUME_COUNT)
    if left <= 0:
        raise CommandError("-c (MessageNumber) must be above 0", USAGE)
    if "i" in options and "b" not in options:
        raise CommandError("-i (queueId) needs -b (brokerName)", USAGE)
    if "o" in options and "i" not in options:
        raise CommandError("-o (offset) needs -i (queueId)", USAGE)
    for letter, name in (("s", "beginTimestamp"), ("e", "endTimestamp")):
        if letter in options and parse_time(options.text(letter)) > now_ms():
            raise CommandError(f"-{letter} ({name}) is in the future", USAGE)
    route = await call.admin.instance.route(topic)
    if "i" in options:
        queue = MessageQueue(topic, options.text("b"), options.number("i", 0))
        await _consume_one(call, queue, left)
        return
    for queue in route.read_queues(topic):
        if left <= 0:
            return
        low, high = await _borders(call, queue, "s", "e")
        if high - low > left:
            call.line(f"The older {left} message of the {queue.queue_id} queue will be provided")
            high, left = low + left - 1, 0
        else:
            left -= high - low + 1
        await _consume_queue(call, queue, low, high)


async def _consume_one(call: Call, queue: MessageQueue, count: int) -> None:
    low, high = await _borders(call, queue, "s", "e")
    offset = call.options.number("o", 0)
    if offset > high:
        call.line(f"{java.queue_text(queue)} no matched msg, offset={offset}")
        return
    low = max(low, offset)
    if high - low > count:
        call.line(f"The oldler {count} message will be provided")
        high = low + count - 1
    await _consume_queue(call, queue, low, high)


async def _consume_queue(call: Call, queue: MessageQueue, low: int, high: int) -> None:
    """From `low` to `high`, both included, as Apache counts here."""
    subscription = parse_subscription(queue.topic, "*")
    offset = low
    while offset <= high:
        result = await _pull(call, queue, offset, high - offset + 1, subscription)
        offset = result.next_offset
        status = _STATUS[ResponseCode(result.code)]
        if status == "FOUND":
            call.line("Consume ok")
            for message in result.messages:
                call.line(_line(message, result, "utf-8", with_body=True))
        elif status == "NO_MATCHED_MSG":
            call.line(f"{java.queue_text(queue)} no matched msg. status={status}, offset={offset}")
        else:
            call.line(f"{java.queue_text(queue)} print msg finished. status={status}, "
                      f"offset={offset}")  # fmt: skip
            return
