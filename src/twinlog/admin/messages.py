"""Messages: find them by id, key, place or time, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from twinlog.admin.client import Admin, gather
from twinlog.admin.groups import group_members, group_progress
from twinlog.admin.topics import topic_groups
from twinlog.client.errors import (
    BrokerError,
    ClientError,
    NoWritableQueueError,
    QueryNotFoundError,
    UsageError,
)
from twinlog.client.message import RESERVED_PROPERTIES, Message, ReceivedMessage, SendReceipt
from twinlog.client.net import calls
from twinlog.client.net.answers import body_as
from twinlog.client.producer.outgoing import SendRequest, read_receipts, send_command
from twinlog.client.queues import MessageQueue
from twinlog.message import properties
from twinlog.message.ids import host_text, parse_offset_message_id
from twinlog.message.names import TOOLS_GROUP, retry_topic
from twinlog.message.properties import PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, encode_properties
from twinlog.message.sysflag import COMPRESSION_MASK
from twinlog.remoting.bodies.clients import ConsumeMessageDirectlyResult
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.headers.clients import ConsumeMessageDirectlyResultRequestHeader
from twinlog.remoting.headers.pull import QueryMessageRequestHeader, ViewMessageRequestHeader

if TYPE_CHECKING:
    from twinlog.client.producer.producer import Producer

TIME_MAX_MS = (1 << 63) - 1
SCAN_MAX = 10_000  # Messages looked at by a search over time: shown, never silently cut.
COPY_TIMEOUT_MS = 1_000
RESEND_GROUP = "TWINLOG_CLI_RESEND"
_PROPERTIES_OF_DEAD_LETTERS = frozenset(
    (
        properties.PROPERTY_RECONSUME_TIME,
        properties.PROPERTY_REAL_TOPIC,
        properties.PROPERTY_REAL_QUEUE_ID,
        properties.PROPERTY_DELAY_TIME_LEVEL,
        properties.PROPERTY_MAX_RECONSUME_TIMES,
    )
)


class Track(msgspec.Struct, frozen=True):
    """What one group did with a message. States are those of mqadmin."""

    group: str
    state: str
    reason: str = ""


async def query_by_key(
    admin: Admin,
    topic: str,
    key: str,
    *,
    max_count: int = 64,
    begin_ms: int = 0,
    end_ms: int = TIME_MAX_MS,
    is_unique_key: bool = False,
) -> list[ReceivedMessage]:
    """Messages of a topic that carry the key. The broker's index may hold others: checked here."""
    header = QueryMessageRequestHeader(topic, key, max_count, begin_ms, end_ms, is_unique_key)
    route = await admin.route(topic)
    names = {
        broker.master_address or next(iter(broker.broker_addrs.values())): broker.broker_name
        for broker in route.brokers.values()
        if broker.broker_addrs
    }

    async def ask(address: str) -> list[ReceivedMessage]:
        answer = await admin.ask(
            address, RequestCode.QUERY_MESSAGE, header, action=f"query for key {key!r}",
            accepted=(0, ResponseCode.QUERY_NOT_FOUND), timeout_ms=15_000,
        )  # fmt: skip
        return calls.decode_messages(answer.body, names[address]) if answer.body else []

    found = await gather(names, ask)
    found.any_or_raise()
    messages = [m for answer in found.values.values() for m in answer]
    return sorted(
        (m for m in messages if m.record.topic == topic and has_key(m, key, is_unique_key)),
        key=lambda m: (m.store_timestamp, m.queue, m.queue_offset),
    )


def has_key(message: ReceivedMessage, key: str, is_unique_key: bool) -> bool:
    if is_unique_key:
        return message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == key
    return key in message.keys or (
        message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == key
    )


async def query_by_unique_id(admin: Admin, topic: str, message_id: str) -> ReceivedMessage:
    """The message that a producer's receipt names."""
    found = await query_by_key(admin, topic, message_id, is_unique_key=True)
    if not found:
        raise QueryNotFoundError(22, f"no message {message_id} in topic {topic!r}")
    return found[0]


async def query_by_offset_id(admin: Admin, message_id: str) -> ReceivedMessage:
    """The message at the place that an offset message id names: broker address and log offset."""
    try:
        place = parse_offset_message_id(message_id)
    except ValueError as error:
        raise UsageError(f"{message_id!r} is not an offset message id: {error}") from error
    address = host_text(place.host)
    answer = await admin.ask(
        address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(place.physical_offset),
        action=f"message {message_id}",
    )  # fmt: skip
    messages = calls.decode_messages(answer.body, await _broker_name(admin, address))
    if not messages:
        raise QueryNotFoundError(22, f"no message {message_id} at {address}")
    return messages[0]


async def _broker_name(admin: Admin, address: str) -> str:
    for broker in (await admin.cluster()).brokers.values():
        if address in broker.broker_addrs.values():
            return broker.broker_name
    return ""


async def query_by_offset(admin: Admin, queue: MessageQueue, offset: int) -> ReceivedMessage:
    """The message at an offset of a queue."""
    messages = await read_queue(admin, queue, offset, max_count=1)
    if not messages or messages[0].queue_offset != offset:
        raise QueryNotFoundError(22, f"no message at offset {offset} of {queue}")
    return messages[0]


async def read_queue(
    admin: Admin, queue: MessageQueue, offset: int, *, max_count: int = 32
) -> list[ReceivedMessage]:
    """Messages of a queue from an offset on, as many as one request gives."""
    await admin.instance.route(queue.topic)
    result = await calls.pull(admin.instance, queue, offset, group=TOOLS_GROUP, count_max=max_count)
    return result.messages


async def offset_for_time(admin: Admin, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first offset stored at or after the time."""
    await admin.instance.route(queue.topic)
    return await calls.offset_for_time(admin.instance, queue, timestamp_ms)


async def find(admin: Admin, message_id: str, topic: str | None = None) -> ReceivedMessage:
    """A message by the id of its receipt (needs the topic) or by its offset message id."""
    if topic is not None:
        try:
            return await query_by_unique_id(admin, topic, message_id)
        except QueryNotFoundError:
            pass
    try:
        address = host_text(parse_offset_message_id(message_id).host)
    except ValueError as error:
        raise UsageError(f"{message_id!r} is not a message id: {error}") from error
    # The address in an id may be any: only brokers of this cluster are asked.
    if address not in (await admin.cluster()).addresses():
        where = "this cluster" if topic is None else f"topic {topic!r}"
        raise QueryNotFoundError(
            ResponseCode.QUERY_NOT_FOUND, f"no message {message_id} in {where}"
        )
    try:
        return await query_by_offset_id(admin, message_id)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        text = f"no message {message_id} at {address}"
        raise QueryNotFoundError(ResponseCode.QUERY_NOT_FOUND, text) from error


class TimeScan(msgspec.Struct, frozen=True):
    """Messages of a span of time, oldest first, and whether that is all of them."""

    messages: list[ReceivedMessage]
    has_more: bool
    is_cut: bool
    """Stopped after `SCAN_MAX` messages."""


async def query_by_time(
    admin: Admin, topic: str, begin_ms: int, end_ms: int, *, limit: int = 64
) -> TimeScan:
    """The first messages of each queue that were stored in a span of time."""
    found: list[ReceivedMessage] = []
    looked_at = 0
    for queue in (await admin.route(topic)).read_queues(topic):
        offset = await offset_for_time(admin, queue, begin_ms)
        taken = 0
        while taken < limit and looked_at < SCAN_MAX:
            batch = await read_queue(admin, queue, offset)
            looked_at += len(batch)
            inside = [entry for entry in batch if entry.store_timestamp <= end_ms]
            found += inside
            taken += len(inside)
            if not batch or len(inside) < len(batch):
                break
            offset = batch[-1].queue_offset + 1
    found.sort(key=lambda entry: entry.store_timestamp)
    return TimeScan(found[:limit], len(found) > limit, looked_at >= SCAN_MAX)


async def copies(admin: Admin, message: ReceivedMessage) -> dict[str, bool | None]:
    """Which replicas of its group have a message, by `name:id`; None for one that did not answer.

    A replica has it when the same record is at the same place of its log.
    """
    broker = (await admin.cluster()).brokers.get(message.queue.broker_name)
    if broker is None:
        return {}
    header = ViewMessageRequestHeader(message.physical_offset)

    async def ask(address: str) -> bool:
        try:
            answer = await admin.ask(
                address, RequestCode.VIEW_MESSAGE_BY_ID, header, action="copy of a message",
                timeout_ms=COPY_TIMEOUT_MS,
            )  # fmt: skip
        except BrokerError:
            return False
        return any(
            copy.message_id == message.message_id and copy.queue_offset == message.queue_offset
            for copy in calls.decode_messages(answer.body, broker.broker_name)
        )

    found = await gather(broker.broker_addrs.values(), ask)
    return {
        f"{broker.broker_name}:{number}": found.values.get(address)
        for number, address in sorted(broker.broker_addrs.items())
    }


async def send_again(producer: Producer, message: ReceivedMessage, target: str) -> SendReceipt:
    """Send a message once more: body, tags, keys and the sender's own properties."""
    own = {k: v for k, v in message.properties.items() if k not in RESERVED_PROPERTIES}
    again = Message(
        target, message.body, tags=message.tags, keys=message.keys, properties=own or None,
        flag=message.flag,
    )  # fmt: skip
    return await producer.send(again)


async def consume_directly(
    admin: Admin, group: str, client_id: str, message: ReceivedMessage
) -> ConsumeMessageDirectlyResult:
    """Have one member of a group handle a message now; what its handler did."""
    address = admin.instance.master_address(message.queue.broker_name) or message.store_host
    header = ConsumeMessageDirectlyResultRequestHeader(
        group, client_id, message.offset_message_id, message.queue.broker_name
    )
    answer = await admin.ask(
        address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, action="direct consumption",
        timeout_ms=15_000,
    )  # fmt: skip
    return body_as(answer, ConsumeMessageDirectlyResult)


async def send_to_retry(admin: Admin, group: str, message: ReceivedMessage) -> SendReceipt:
    """Give one group a message again, through its retry topic, with a fresh count of retries.

    The stored body goes out as it is, compressed or not; the properties too, but for those that
    only say how the message came to be a dead letter.
    """
    return await send_stored(admin, retry_topic(group), message, _PROPERTIES_OF_DEAD_LETTERS)


async def send_stored(
    admin: Admin,
    topic: str,
    message: ReceivedMessage,
    dropped: frozenset[str],
    *,
    queue_id: int | None = None,
) -> SendReceipt:
    """Send a stored message as it is, without the properties of `dropped`."""
    route = await admin.route(topic)
    queues = route.write_queues(topic)
    first = next(iter(queues), None)
    queue = next((queue for queue in queues if queue.queue_id == queue_id), first)
    if queue is None:
        raise NoWritableQueueError(f"no master takes messages for {topic!r}")
    return await send_stored_to(admin, queue, message, dropped)


async def send_stored_to(
    admin: Admin,
    queue: MessageQueue,
    message: ReceivedMessage,
    dropped: frozenset[str],
    *,
    added: Mapping[str, str] | None = None,
    reconsume_times: int = 0,
) -> SendReceipt:
    """The same to a queue whose route is known, with properties of `added`."""
    kept = {name: value for name, value in message.properties.items() if name not in dropped}
    text = encode_properties({**kept, **(added or {})}).decode()
    request = SendRequest(
        queue.topic, bytes(message.record.body), text, tickets=[],
        born_ms=message.born_timestamp, deadline_ms=0, flag=message.flag,
        sys_flag=message.sys_flag & COMPRESSION_MASK, queue=queue,
    )  # fmt: skip
    request.reconsume_times = reconsume_times
    address = calls.writable(admin.instance, queue.broker_name)
    command = send_command(request, RESEND_GROUP)
    answer = await admin.instance.transport.invoke(address, command, 5000)
    return read_receipts(answer, request, [message.message_id], address)[0]


async def track(admin: Admin, message: ReceivedMessage) -> list[Track]:
    """What each group of the topic did with a message, by its offsets."""
    topic = message.record.topic
    return [await _track_one(admin, group, topic, message) for group in
            await topic_groups(admin, topic)]  # fmt: skip


async def _track_one(admin: Admin, group: str, topic: str, message: ReceivedMessage) -> Track:
    try:
        members = await group_members(admin, group)
    except ClientError as error:
        state = "NOT_ONLINE" if error.code == ResponseCode.CONSUMER_NOT_ONLINE else "UNKNOWN"
        remark = error.remark if isinstance(error, BrokerError) else str(error)
        return Track(group, state, f"CODE:{error.code} DESC:{remark}")
    if members.message_model == "BROADCASTING":
        return Track(group, "CONSUME_BROADCASTING")
    if members.consume_type == "CONSUME_ACTIVELY":
        return Track(group, "PULL")
    progress = await group_progress(admin, group, topic=topic)
    place = message.queue
    is_consumed = any(
        entry.queue == place and entry.consumer_offset > message.queue_offset
        for entry in progress.queues
    )
    if not is_consumed:
        return Track(group, "NOT_CONSUME_YET")
    for subscription in members.subscriptions:
        if subscription.topic == topic and not subscription.accepts(message.tags):
            return Track(group, "CONSUMED_BUT_FILTERED")
    return Track(group, "CONSUMED")
