"""Sends: single (10, 310) and batch (320). Corresponds to RocketMQ's SendMessageProcessor.

The common case runs inside `data_received`: typed header, one pass over the properties, one
`store.put`, one tuple in the list of replies. No task, future, map or log line per message; what
is not common (new topic, retry, delay, transaction, refusal) leaves that path.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from twinlog.broker.delay.levels import delayed, park_delayed
from twinlog.broker.errors import BrokerError, see_faq
from twinlog.broker.host import store_host
from twinlog.broker.names import topic_fault
from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.processors.send_once import SendOnce
from twinlog.broker.put.idempotence import Place
from twinlog.broker.put.send_properties import WAITS, WAITS_NOT, scan_properties
from twinlog.broker.rng import Rng
from twinlog.broker.stats.broker_stats import TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, BrokerStatsManager
from twinlog.broker.tables.topic_config import java_text
from twinlog.broker.transaction.half import half_message, park_half
from twinlog.message import names, perm, sysflag
from twinlog.message.batch import BatchError, BatchMember, decode_batch
from twinlog.message.layout import HOST_V4_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.once import ONCE_PROPERTY, Mark
from twinlog.message.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT_STORE_MSG_OK,
    decode_properties,
)
from twinlog.remoting.bodies.common import TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import FLAG_ONEWAY, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError, HeaderError
from twinlog.remoting.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2
from twinlog.remoting.server import ServerConnection
from twinlog.remoting.traffic import Lane
from twinlog.runtime.compiled import load
from twinlog.runtime.numbers import INT32_MAX, number_or_none
from twinlog.store.log.appender import Appender
from twinlog.store.log.batch_put import unusual_max
from twinlog.store.message_store import MessageStore
from twinlog.store.status import AppendResult, PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_Header = SendMessageRequestHeader | SendMessageRequestHeaderV2
_PUT_OK = PutMessageStatus.PUT_OK
_YEAR_9999_MS = 253_370_764_800_000  # Later ones have no calendar here.
VERSION_MAX_RECONSUME_TIMES = 121  # Since 3.4.9 the producer's own limit counts.
_UNDELAYED_TYPES = (sysflag.TRANSACTION_NOT_TYPE, sysflag.TRANSACTION_COMMIT_TYPE)

# Called with a half message as it was put, where in the log and in its queue, its real topic and
# queue, and whether its end waits for durability.
HalfListener = Callable[[PutMessage, int, int, str, int, bool], None]


class _Route:
    """What the hot path needs of a topic, kept until the topic changes."""

    __slots__ = ("config", "is_retry", "nums", "queue_limit", "size", "sys_flag")

    def __init__(self, config: TopicConfig, stats: BrokerStatsManager) -> None:
        self.config = config
        self.queue_limit = max(config.write_queue_nums, config.read_queue_nums)
        self.is_retry = config.topic_name.startswith(names.RETRY_PREFIX)
        self.sys_flag = sysflag.MULTI_TAGS_FLAG if config.topic_filter_type == "MULTI_TAG" else 0
        self.nums = stats.item(TOPIC_PUT_NUMS, config.topic_name)
        self.size = stats.item(TOPIC_PUT_SIZE, config.topic_name)

    def count(self, messages: int, size: int) -> None:
        """So many single messages were put, with records of so many bytes."""
        nums, sizes = self.nums, self.size
        nums.value += messages
        nums.times += messages
        sizes.value += size
        sizes.times += messages

    def count_batch(self, result: AppendResult) -> None:
        """A batch was put: many messages at one time, as Apache counts."""
        self.nums.value += result.message_count
        self.nums.times += 1
        self.size.add(result.end_offset - result.physical_offset)


class SendMessageProcessor:
    """Handlers of the send codes."""

    def __init__(
        self,
        broker: Broker,
        *,
        rng: Rng,
        once: SendOnce,
        answer_when_routed: Callable[[ServerConnection], ServerConnection],
    ) -> None:
        self._config = broker.config
        self._role = broker.role
        self._unusual_max = unusual_max()
        self._store = broker.store
        self._put = broker.store.put
        self._topics = broker.topics
        self._groups = broker.groups
        self._replies = broker.replies
        self._reply = broker.replies.add
        self._stats = broker.stats
        self._store_stats = broker.store_stats
        self._delay_levels = broker.config.delay_levels
        self._level_max = max(self._delay_levels, default=0)
        self._clock = broker.clock
        self._rng = rng
        self._store_host = store_host(broker.config)
        self._once = once
        self._remember_half = broker.transactions.remember
        self._answer_when_routed = answer_when_routed
        self._has_created_topic = False
        self._cluster_piece = f"{PROPERTY_CLUSTER}\x01{broker.config.broker_cluster_name}"
        self._routes: dict[str, _Route] = {}
        broker.topics.subscribe(self._topics_changed)

    def lane(self, gate: OffsetReturn) -> Lane | None:
        """The compiled form of this path, where there is one."""
        compiled = load("twinlog.broker.put._send_lane")
        is_pure = isinstance(self._store.appender, Appender)
        if compiled is None or is_pure or len(self._store_host) != HOST_V4_SIZE:
            return None
        lane: Lane = compiled.SendLane(
            store=self._store,
            replies=self._replies,
            routes=self._routes,
            gate=gate,
            config=self._config,
            cluster_piece=self._cluster_piece,
            store_host=self._store_host,
            delay_levels=self._delay_levels,
            remember_half=self._remember_half,
        )
        return lane

    def send(self, connection: ServerConnection, request: Request) -> None:
        """SEND_MESSAGE (10)."""
        self._handle(connection, request, SendMessageRequestHeader)

    def send_v2(self, connection: ServerConnection, request: Request) -> None:
        """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the flag decides, not the code."""
        self._handle(connection, request, SendMessageRequestHeaderV2)

    def _handle(
        self, connection: ServerConnection, request: Request, header_class: type[Any]
    ) -> None:
        """The hot path, in one function: a call costs as much as a step of it."""
        try:
            header = request.header(header_class)
            topic = header.topic
            route = self._routes.get(topic)
            if (
                route is None
                or self._replies.is_overloaded
                or self._config.start_accept_send_request_time_stamp
            ):
                route = self._find_route(connection, header)
                if self._has_created_topic:
                    self._has_created_topic = False
                    connection = self._answer_when_routed(connection)
            queue_id = header.queue_id
            if queue_id < 0 or queue_id >= route.queue_limit:
                queue_id = self._choose_queue(queue_id, route.config, connection)
            if header.batch:
                self._send_batch(connection, request, header, route, queue_id)
                return
            properties, tags_code, keys, must_wait, rare = scan_properties(
                header.properties, self._cluster_piece
            )
            message = PutMessage(
                topic,
                queue_id,
                request.body,
                properties,
                header.flag,
                header.sys_flag | route.sys_flag,
                header.born_timestamp,
                connection.remote_host,
                self._store_host,
                header.reconsume_times,
                0,
                tags_code,
                keys,
            )
            mark = None
            if rare is not None or route.is_retry:
                if rare is not None and ONCE_PROPERTY in rare:
                    mark = self._once.mark_of(header.properties, topic, queue_id)
                    if mark is not None and self._is_repeat(connection, request, mark, must_wait):
                        return
                self._redirect(message, request, header, must_wait, rare or {})
            result = self._put(message)
            if result.status is not _PUT_OK:
                raise self._refusal(result)
            if rare is not None:
                if mark is not None:
                    self._once.stored(mark, result, is_elsewhere=message.topic != topic)
                if message.topic == names.HALF_TOPIC and not route.is_retry:
                    self._remember_half(
                        message,
                        result.physical_offset,
                        result.queue_offset,
                        topic,
                        queue_id,
                        must_wait,
                    )
        except (BrokerError, HeaderError) as refusal:
            self._refuse(connection, request, refusal)
            return
        offset = result.physical_offset
        count = route.nums
        count.value += 1
        count.times += 1
        count = route.size
        count.value += result.end_offset - offset
        count.times += 1
        if not request.flag & FLAG_ONEWAY:
            self._reply(
                result,
                (
                    connection,
                    request.opaque,
                    request.serialize_type,
                    queue_id,
                    result.queue_offset,
                    offset,
                ),
                must_wait,
            )

    # What is not common

    def _is_repeat(
        self, connection: ServerConnection, request: Request, mark: Mark, must_wait: bool
    ) -> bool:
        """Whether an idempotent send is stored already; it is answered then."""
        if self._store.refusal_reason:
            return False  # The put will say so.
        if not self._once.known_count(mark, 1):
            return False
        places = self._once.places(mark, [request.body])
        self._once.answer_repeat(connection, request, mark, places, must_wait)
        return True

    def _redirect(
        self,
        message: PutMessage,
        request: Request,
        header: _Header,
        must_wait: bool,
        rare: dict[str, str],
    ) -> None:
        """Retry sends, delayed and half messages go to a topic of the broker's own."""
        if message.topic.startswith(names.RETRY_PREFIX):
            self._redirect_to_dead_letters(message, request, header)
        level = _delay_level(rare)
        is_half = rare.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"
        if is_half and not (message.reconsume_times > 0 and level > 0):
            if self._config.reject_transaction_message:
                remark = (
                    f"the broker[{self._config.broker_ip1}] sending transaction message "
                    "is forbidden"
                )
                raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        elif level <= 0 or sysflag.transaction_type(message.sys_flag) not in _UNDELAYED_TYPES:
            return
        else:
            is_half = False
        text = header.properties or ""
        if PROPERTY_REAL_TOPIC in rare or level > self._level_max:
            self._park_again(message, text, level, is_half)
            return
        if f"{PROPERTY_WAIT_STORE_MSG_OK}\x01" in text:
            # Not among what is stored of an ordinary message; of a parked one Apache keeps it.
            message.properties += WAITS if must_wait else WAITS_NOT
        if is_half:
            park_half(message)
        else:
            park_delayed(message, level)

    def _park_again(self, message: PutMessage, text: str, level: int, is_half: bool) -> None:
        """A message that was parked before, or by a level that there is not: properties again."""
        properties = decode_properties(text.encode())
        properties[PROPERTY_CLUSTER] = self._config.broker_cluster_name
        if is_half:
            half_message(message, properties)
        else:
            delayed(message, properties, level, self._delay_levels)

    def _redirect_to_dead_letters(
        self, message: PutMessage, request: Request, header: _Header
    ) -> None:
        group = message.topic[len(names.RETRY_PREFIX) :]
        config = self._groups.find(group)
        if config is None:
            remark = f"subscription group not exist, {group} {see_faq()}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        times_max = config.retry_max_times
        if (
            request.version >= VERSION_MAX_RECONSUME_TIMES
            and header.max_reconsume_times is not None
        ):
            times_max = header.max_reconsume_times
        if message.reconsume_times >= times_max:
            target = names.dlq_topic(group)
            self._topics.create_in_send_back(target, queue_count=1)
            self._topics.saver.hold(target)
            message.topic = target
            message.queue_id = 0

    def _choose_queue(self, queue_id: int, topic: TopicConfig, connection: ServerConnection) -> int:
        """A negative number lets the broker choose; one above the topic's is refused."""
        if queue_id >= 0:
            raise _bad_queue(queue_id, topic, connection)
        return self._rng.randrange(max(1, topic.write_queue_nums))

    def _refuse(
        self, connection: ServerConnection, request: Request, refusal: CommandError
    ) -> None:
        self._store_stats.put_failed_times += 1
        connection.reply(
            request, refusal.code, remark=refusal.remark, header=self._replies.trace_header
        )

    def _send_batch(
        self,
        connection: ServerConnection,
        request: Request,
        header: _Header,
        route: _Route,
        queue_id: int,
    ) -> None:
        if route.is_retry:
            remark = f"batch request does not support retry group {header.topic}"
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, remark)
        message, must_wait = self._batch_message(connection, request, header, queue_id)
        result = self._store.put_batch_body(message)
        if result is None:
            members = self._batch_members(request.body)
            mark = self._once.batch_mark(members, header.topic, queue_id)
            if mark is not None and not self._store.refusal_reason:
                self._send_batch_once(connection, request, message, members, mark, must_wait)
                return
            result = self._store.put_batch(message, members)
        if result.status is not _PUT_OK:
            raise self._refusal(result)
        route.count_batch(result)
        if not request.flag & FLAG_ONEWAY:
            reply = (
                connection,
                request.opaque,
                request.serialize_type,
                queue_id,
                result.queue_offset,
                result.ids or result.offsets,
            )
            self._reply(result, reply, must_wait)

    def _send_batch_once(
        self,
        connection: ServerConnection,
        request: Request,
        message: PutMessage,
        members: list[BatchMember],
        mark: Mark,
        must_wait: bool,
    ) -> None:
        """Of a batch that is sent again a part may be new: its first try, or what a crash took."""
        known = self._once.known_count(mark, len(members))
        places = self._once.places(mark, [member.body for member in members[:known]])
        if known == len(members):
            self._once.answer_repeat(connection, request, mark, places, must_wait)
            return
        result = self._store.put_batch(message, members[known:])
        if result.status is not _PUT_OK:
            raise self._refusal(result)
        first_new = mark._replace(number=mark.number + known)
        self._once.stored(first_new, result, is_elsewhere=False)
        route = self._routes.get(message.topic)
        if route is not None:
            route.count_batch(result)
        if request.flag & FLAG_ONEWAY:
            return
        waiting: Any = (
            connection,
            request.opaque,
            request.serialize_type,
            message.queue_id,
            result.queue_offset,
            result.offsets,
        )
        if known:
            places += [
                Place(result.queue_offset + index, offset, result.end_offset)
                for index, offset in enumerate(result.offsets)
            ]
            waiting = self._once.reply_later(connection, request, mark, places, must_wait)
        self._reply(result, waiting, must_wait)

    def _batch_message(
        self, connection: ServerConnection, request: Request, header: _Header, queue_id: int
    ) -> tuple[PutMessage, bool]:
        """What all members share. Its properties are put behind those of each member."""
        properties = decode_properties((header.properties or "").encode())
        must_wait = properties.get(PROPERTY_WAIT_STORE_MSG_OK, "true").lower() == "true"
        if _delay_level(properties) > 0 or sysflag.transaction_type(header.sys_flag):
            raise self._illegal()
        text = header.properties or ""
        tail = self._cluster_piece if not text else f"{self._cluster_piece}\x02{text}"
        message = PutMessage(
            header.topic,
            queue_id,
            request.body,
            tail.rstrip("\x02").encode(),
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            connection.remote_host,
            self._store_host,
            header.reconsume_times,
        )
        return message, must_wait

    def _batch_members(self, body: bytes) -> list[BatchMember]:
        if len(body) > self._config.max_message_size:
            raise self._illegal()
        try:
            members = decode_batch(body, self._unusual_max)
        except BatchError as error:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the batch: {error}") from error
        if not members:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "the batch has no members")
        return members

    def _find_route(self, connection: ServerConnection, header: _Header) -> _Route:
        """Check a topic that is not in the cache, create it if it may be; raise why not."""
        topic = header.topic
        self._check_may_send(topic)
        fault = topic_fault(topic)
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        if topic in names.SEND_FORBIDDEN_TOPICS:
            remark = f"Sending message to topic[{topic}] is forbidden."
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        config = self._topics.select(topic) or self._create_topic(header)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please!{see_faq()}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
        self._topics.saver.hold(topic)
        if self._topics.saver.is_refused(topic):
            remark = f"topic[{topic}] cannot be saved: {self._topics.saver.problem}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        route = _Route(config, self._stats)
        # An ordered topic depends on the broker's permission, which may change: always checked.
        if not config.order:
            self._routes[topic] = route
        return route

    def _check_may_send(self, topic: str) -> None:
        start = self._config.start_accept_send_request_time_stamp
        if self._clock.now_ms() < start:
            until = datetime.fromtimestamp(min(start, _YEAR_9999_MS) // 1000)
            remark = f"broker unable to service, until {until:%Y-%m-%d %H:%M:%S},{start % 1000:03d}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if self._replies.is_overloaded:
            remark = "[REJECTREQUEST]system busy, too many sends wait for disk or slave"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)
        if not perm.is_writeable(self._config.broker_permission) and self._topics.is_order_topic(
            topic
        ):
            remark = f"the broker[{self._config.broker_ip1}] sending message is forbidden"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)

    def _create_topic(self, header: _Header) -> TopicConfig | None:
        if self._role.is_slave:
            raise self._unavailable()
        is_retry = header.topic.startswith(names.RETRY_PREFIX)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = TOPIC_FLAG_UNIT_SUB if is_retry else TOPIC_FLAG_UNIT
        created = self._topics.create_in_send(
            header.topic,
            header.default_topic,
            queue_count=header.default_topic_queue_nums,
            sys_flag=sys_flag,
        )
        if created is None and is_retry:
            created = self._topics.create_in_send_back(
                header.topic, queue_count=1, sys_flag=sys_flag
            )
        self._has_created_topic = created is not None
        return created

    def _topics_changed(self, topics: Any) -> None:
        for topic in topics:
            self._routes.pop(topic, None)

    # Refusals

    def _illegal(self) -> BrokerError:
        return BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self._config.max_message_size}B, "
            "msg properties length limit 32KB.",
        )

    def _unavailable(self) -> BrokerError:
        return BrokerError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: "
            f"the broker's disk is full [{disk_text(self._store)}], messages are put to the "
            "slave, message store has been shut down, etc.",
        )

    def _refusal(self, result: AppendResult) -> BrokerError:
        """The answer to a put that the store did not take, in Apache's words plus the reason."""
        match result.status:
            case PutMessageStatus.MESSAGE_ILLEGAL | PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
                return self._illegal()
            case PutMessageStatus.SERVICE_NOT_AVAILABLE:
                if result.reason and result.reason == self._store.closed_reason:
                    # Of a controlled group, or of a stop: nothing that Apache guesses at.
                    text = f"service not available now: {result.reason}"
                    return BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, text)
                error = self._unavailable()
            case PutMessageStatus.OS_PAGECACHE_BUSY:
                error = BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
                )
            case PutMessageStatus.CREATE_MAPEDFILE_FAILED:
                error = BrokerError(
                    ResponseCode.SYSTEM_ERROR,
                    "create mapped file failed, server is busy or broken.",
                )
            case _:
                error = BrokerError(ResponseCode.SYSTEM_ERROR, result.status.name)
        if result.reason:
            error.remark = f"{error.remark} ({result.reason})"
        return error


def disk_text(store: MessageStore) -> str:
    """The three ratios that Apache puts into the remark."""
    ratio = store.disk_space().ratio
    return f"CL: {ratio:5.2f} CQ: {ratio:5.2f} INDEX: {ratio:5.2f}"


def _bad_queue(queue_id: int, config: TopicConfig, connection: ServerConnection) -> BrokerError:
    producer = connection.remote_text
    remark = f"request queueId[{queue_id}] is illegal, {java_text(config)} Producer: {producer}"
    return BrokerError(ResponseCode.SYSTEM_ERROR, remark)


def _delay_level(properties: dict[str, str]) -> int:
    text = properties.get(PROPERTY_DELAY_TIME_LEVEL)
    if text is None:
        return 0
    level = number_or_none(text, -INT32_MAX - 1, INT32_MAX)
    if level is None:
        remark = f"the property DELAY is not a delay level: {text[:64]!r}"
        raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
    return level
