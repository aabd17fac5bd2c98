"""Requests to brokers as functions: one for each that consumers, tools and Spark need.

Corresponds to MQClientAPIImpl and MQAdminImpl. Reads go to the replica that can be reached, writes
to the master; offsets are committed to a slave while there is no master, as RocketMQ does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from twinlog.client.errors import (
    BrokerUnreachableError,
    NoWritableQueueError,
    TransportError,
    UnreadableAnswerError,
    broker_error,
)
from twinlog.client.message import ReceivedMessage
from twinlog.client.net.answers import body_as, table_by_queue
from twinlog.client.net.instance import ClientInstance
from twinlog.client.net.routes import ReadAddress
from twinlog.client.queues import MessageQueue
from twinlog.message.names import TOOLS_GROUP
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import ConsumerIdList, LockBatchResponseBody
from twinlog.remoting.bodies.common import queue_from_answer
from twinlog.remoting.bodies.offsets import TopicOffset, TopicStatsTable
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.bodies.subscription import TAG_TYPE, SubscriptionData
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Header, RemotingCommand, Request
from twinlog.remoting.errors import HeaderError
from twinlog.remoting.headers.admin import GetTopicStatsInfoRequestHeader
from twinlog.remoting.headers.clients import GetConsumerListByGroupRequestHeader
from twinlog.remoting.headers.offsets import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from twinlog.remoting.headers.pull import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from twinlog.remoting.headers.send import ConsumerSendMsgBackRequestHeader
from twinlog.runtime.numbers import number_of

OFFSET_TIMEOUT_MS = 5000
LOCK_TIMEOUT_MS = 1000


class PullResult(NamedTuple):
    """The answer to a pull."""

    code: int
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_id: int
    address: str
    is_slave: bool

    @property
    def is_offset_illegal(self) -> bool:
        return self.code == ResponseCode.PULL_OFFSET_MOVED


def readable(instance: ClientInstance, broker_name: str, suggested_id: int) -> ReadAddress:
    target = instance.read_address(broker_name, suggested_id)
    if target is None:
        raise BrokerUnreachableError(f"no address of broker {broker_name!r} is known")
    return target


def writable(instance: ClientInstance, broker_name: str) -> str:
    address = instance.master_address(broker_name)
    if address is None:
        raise NoWritableQueueError(f"broker {broker_name!r} has no master at the moment")
    return address


async def _read(
    instance: ClientInstance,
    broker_name: str,
    code: int,
    header: Header,
    *,
    action: str,
    accepted: Collection[int] = (0,),
    timeout_ms: float | None = None,
) -> Request:
    """A read from the master, or from a slave when the master cannot be reached."""
    for attempt in (1, 2):
        target = readable(instance, broker_name, MASTER_ID)
        try:
            return await instance.transport.call(
                target.address, code, header, action=action, accepted=accepted,
                timeout_ms=timeout_ms or instance.settings.request_timeout_ms,
            )  # fmt: skip
        except TransportError as error:
            instance.connection_failed(target.address, error)
            again = instance.read_address(broker_name)
            if attempt == 2 or again is None or again.address == target.address:
                raise
    raise AssertionError("unreachable")


def offset_of(answer: Request) -> int:
    """The field `offset` of an answer."""
    try:
        return number_of(answer.ext()["offset"])
    except (KeyError, ValueError) as error:
        raise UnreadableAnswerError(f"the answer has no readable offset: {error!r}") from error


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """One above the newest message."""
    header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
    answer = await _read(
        instance, queue.broker_name, RequestCode.GET_MAX_OFFSET, header, action="end offset"
    )
    return offset_of(answer)


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """The oldest message that is still there."""
    header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
    answer = await _read(
        instance, queue.broker_name, RequestCode.GET_MIN_OFFSET, header, action="begin offset"
    )
    return max(0, offset_of(answer))


async def topic_offsets(
    instance: ClientInstance, topic: str, broker_name: str
) -> dict[int, TopicOffset]:
    """The ends of every queue that one broker has of a topic, by queue id.

    Raises:
        BrokerTopicNotFoundError: the broker does not have the topic.
    """
    answer = await _read(
        instance, broker_name, RequestCode.GET_TOPIC_STATS_INFO,
        GetTopicStatsInfoRequestHeader(topic), action="queue offsets",
    )  # fmt: skip
    table = table_by_queue(body_as(answer, TopicStatsTable).offset_table)
    return {queue.queue_id: ends for queue, ends in table.items()}


async def search_offset(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """What a 4.9 broker answers: the message *nearest* to the time. See `offset_for_time`."""
    header = SearchOffsetRequestHeader(
        queue.topic, queue.queue_id, timestamp_ms, broker_name=queue.broker_name
    )
    answer = await _read(
        instance, queue.broker_name, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header,
        action="offset by time",
    )  # fmt: skip
    return offset_of(answer)


async def offset_for_time(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first message stored at or after the time; the end of the queue when there is none.

    The broker names the nearest message, which may be one before the time, and when several share
    a time any of them: its neighbours decide.
    """
    low, high = await min_offset(instance, queue), await max_offset(instance, queue)
    if low >= high:
        return high
    guess = min(max(await search_offset(instance, queue, timestamp_ms), low), high - 1)
    stored = await _store_time(instance, queue, guess)
    if stored is None:
        return guess
    if stored < timestamp_ms:
        while guess < high and stored is not None and stored < timestamp_ms:
            guess += 1
            stored = await _store_time(instance, queue, guess) if guess < high else None
        return guess
    while guess > low:
        before = await _store_time(instance, queue, guess - 1)
        if before is None or before < timestamp_ms:
            break
        guess -= 1
    return guess


async def _store_time(instance: ClientInstance, queue: MessageQueue, offset: int) -> int | None:
    result = await pull(instance, queue, offset, group=TOOLS_GROUP, count_max=1)
    return result.messages[0].store_timestamp if result.messages else None


async def query_consumer_offset(
    instance: ClientInstance, group: str, queue: MessageQueue
) -> int | None:
    """The group's committed offset; None when there is none."""
    header = QueryConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, broker_name=queue.broker_name
    )
    answer = await _read(
        instance, queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header,
        accepted=(0, ResponseCode.QUERY_NOT_FOUND), action="committed offset",
        timeout_ms=OFFSET_TIMEOUT_MS,
    )  # fmt: skip
    return offset_of(answer) if answer.code == 0 else None


def _commit_command(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, offset, queue.broker_name
    )
    return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def commit_offset(
    instance: ClientInstance, group: str, queue: MessageQueue, offset: int, *, wait: bool
) -> None:
    """Store the group's offset; with `wait` until the broker has said that it did."""
    target = readable(instance, queue.broker_name, MASTER_ID)
    command = _commit_command(group, queue, offset)
    if not wait:
        await instance.transport.oneway(target.address, command)
        return
    try:
        answer = await instance.transport.invoke(target.address, command, OFFSET_TIMEOUT_MS)
    except TransportError as error:
        instance.connection_failed(target.address, error)
        again = readable(instance, queue.broker_name, MASTER_ID)
        if again.address == target.address:
            raise
        answer = await instance.transport.invoke(
            again.address, _commit_command(group, queue, offset), OFFSET_TIMEOUT_MS
        )
    if answer.code != 0:
        raise broker_error(answer.code, answer.remark, address=target.address, action="commit")


async def consumer_ids(instance: ClientInstance, group: str, broker_name: str) -> list[str]:
    """The client ids of a group, as one broker knows them."""
    answer = await _read(
        instance, broker_name, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        GetConsumerListByGroupRequestHeader(group),
        accepted=(0, ResponseCode.SYSTEM_ERROR), action="list of group members",
    )  # fmt: skip
    if answer.code != 0 or not answer.body:
        return []
    return body_as(answer, ConsumerIdList).consumer_id_list


def _lock_body(instance: ClientInstance, group: str, queues: Iterable[MessageQueue]) -> bytes:
    body = {
        "clientId": instance.client_id,
        "consumerGroup": group,
        "mqSet": [queue.wire() for queue in queues],
    }
    return fastjson.dumps(body)


async def lock_queues(
    instance: ClientInstance, group: str, broker_name: str, queues: Sequence[MessageQueue]
) -> set[MessageQueue]:
    """Those of `queues` that are ours now, until 60 s after the last renewal."""
    answer = await instance.transport.call(
        writable(instance, broker_name), RequestCode.LOCK_BATCH_MQ, None,
        _lock_body(instance, group, queues), timeout_ms=LOCK_TIMEOUT_MS, action="lock",
    )  # fmt: skip
    try:
        return {queue_from_answer(data) for data in body_as(answer, LockBatchResponseBody).locked}
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableAnswerError(
            f"the answer with the locked queues is unreadable: {error!r}"
        ) from error


async def unlock_queues(
    instance: ClientInstance, group: str, broker_name: str, queues: Sequence[MessageQueue]
) -> None:
    await instance.transport.call(
        writable(instance, broker_name), RequestCode.UNLOCK_BATCH_MQ, None,
        _lock_body(instance, group, queues), timeout_ms=LOCK_TIMEOUT_MS, action="unlock",
    )  # fmt: skip


async def check_client_config(
    instance: ClientInstance, group: str, broker_name: str, subscription: SubscriptionData
) -> None:
    """Whether the broker can filter by this expression; raises what it says."""
    body = {
        "clientId": instance.client_id,
        "group": group,
        "subscriptionData": subscription.to_json(),
    }
    target = readable(instance, broker_name, MASTER_ID)
    await instance.transport.call(
        target.address, RequestCode.CHECK_CLIENT_CONFIG, None, fastjson.dumps(body),
        timeout_ms=instance.settings.request_timeout_ms,
        action=f"expression {subscription.sub_string!r}",
    )  # fmt: skip


async def send_back(
    instance: ClientInstance,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int,
    reconsume_times_max: int,
) -> None:
    """Give a message back to its broker, to be delivered again later or to the dead letters."""
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.physical_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=reconsume_times_max,
        broker_name=message.queue.broker_name,
    )
    await instance.transport.call(
        writable(instance, message.queue.broker_name), RequestCode.CONSUMER_SEND_MSG_BACK, header,
        timeout_ms=OFFSET_TIMEOUT_MS, action="return of a message",
    )  # fmt: skip


# Pull


def decode_messages(body: bytes, broker_name: str) -> list[ReceivedMessage]:
    """The records of a pull, query or view answer."""
    messages = []
    view = memoryview(body)
    position, end = 0, len(body)
    while position < end:
        record = decode_record(view, position, check_crc=False)
        messages.append(ReceivedMessage(record, broker_name))
        position += record.total_size
    return messages


def pull_command(
    queue: MessageQueue,
    offset: int,
    *,
    group: str,
    count_max: int,
    suspend_ms: int,
    subscription: SubscriptionData | None,
    posts_subscription: bool,
    commit_offset: int | None,
) -> RemotingCommand:
    sys_flag = (PULL_SUSPEND if suspend_ms else 0) | (PULL_COMMIT_OFFSET if commit_offset else 0)
    if posts_subscription:
        sys_flag |= PULL_SUBSCRIPTION
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count_max,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if subscription else "*",
        sub_version=subscription.sub_version if subscription else 0,
        expression_type=subscription.expression_type if subscription else TAG_TYPE,
        broker_name=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


async def pull(
    instance: ClientInstance,
    queue: MessageQueue,
    offset: int,
    *,
    group: str,
    count_max: int = 32,
    suspend_ms: int = 0,
    subscription: SubscriptionData | None = None,
    posts_subscription: bool = True,
    commit_offset: int | None = None,
    suggested_id: int = MASTER_ID,
    timeout_ms: float | None = None,
) -> PullResult:
    """One pull from `offset` on. Offsets outside the queue are an answer, not an error."""
    target = readable(instance, queue.broker_name, suggested_id)
    command = pull_command(
        queue, offset, group=group, count_max=count_max, suspend_ms=suspend_ms,
        subscription=subscription, posts_subscription=posts_subscription,
        commit_offset=None if target.is_slave else commit_offset,
    )  # fmt: skip
    try:
        answer = await instance.transport.invoke(
            target.address, command, timeout_ms or (suspend_ms + 15_000 if suspend_ms else 10_000)
        )
    except TransportError as error:
        instance.connection_failed(target.address, error)
        raise
    return read_pull_answer(answer, queue, target)


_PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def read_pull_answer(answer: Request, queue: MessageQueue, target: ReadAddress) -> PullResult:
    if answer.code not in _PULL_CODES:
        raise broker_error(answer.code, answer.remark, address=target.address, action="pull")
    try:
        said = answer.header(PullMessageResponseHeader)
        messages = decode_messages(answer.body, queue.broker_name) if answer.code == 0 else []
        return PullResult(
            answer.code, messages, said.next_begin_offset, said.min_offset, said.max_offset,
            said.suggest_which_broker_id, target.address, target.is_slave,
        )  # fmt: skip
    except (HeaderError, ValueError) as error:
        raise UnreadableAnswerError(
            f"{target.address}: the answer to a pull of {queue} is unreadable: {error!r}"
        ) from error
