"""Pulls (11, 361), answered at once or held. Corresponds to RocketMQ's PullMessageProcessor.

Bodies are slices of the log, never decoded. A pull that finds nothing new is held in hold.py
and evaluated again when its queue moves; a held pull is answered in JSON, whatever it asked in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from twinlog.broker.errors import BrokerError, see_faq
from twinlog.broker.filter.consumer_filter import message_filter, retry_filter
from twinlog.broker.filter.sql92 import FilterSyntaxError, Sql92Filter, compile_filter
from twinlog.broker.filter.subscription import SubscriptionError, build_subscription
from twinlog.broker.pull.hold import HeldPull, PullRequestHold, QueueKey
from twinlog.broker.stats.broker_stats import BROKER_GET_NUMS
from twinlog.message import perm
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codec import encode_pull_opening
from twinlog.remoting.codes import FLAG_ONEWAY, ResponseCode, SerializeType
from twinlog.remoting.command import Request
from twinlog.remoting.headers.pull import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
)
from twinlog.remoting.server import ServerConnection
from twinlog.remoting.traffic import Lane
from twinlog.runtime.compiled import load
from twinlog.runtime.failures import error_text
from twinlog.store.filter import MessageFilter
from twinlog.store.reader import Wanted, asked_of
from twinlog.store.status import GetMessageStatus, GetResult

# Members that are asked for in hot paths: by their class they cost ten times as much.
_FOUND: Final = GetMessageStatus.FOUND
_NO_MATCHED_MESSAGE: Final = GetMessageStatus.NO_MATCHED_MESSAGE
_SUCCESS: Final = ResponseCode.SUCCESS
_PULL_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_PULL_OFFSET_MOVED: Final = ResponseCode.PULL_OFFSET_MOVED
_PULL_RETRY_IMMEDIATELY: Final = ResponseCode.PULL_RETRY_IMMEDIATELY

if TYPE_CHECKING:
    from twinlog.broker.pair.offset_return import OffsetReturn
    from twinlog.broker.server import Broker

PULL_COUNT_MAX = 1024  # Above what Apache's own limits let through in one answer.
_HELD_MS_MAX = 24 * 3_600_000  # Clients ask for seconds; timers do not take every number.
_JSON = int(SerializeType.JSON)
_KEPT_LENGTH_MAX = 1024  # Of an expression: a longer one is compiled each time rather than kept.
# Attributes of a connection.
_HELD_KEY = "twinlog.broker.held"
_CONGESTED_KEY = "twinlog.broker.congested"

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_DAMAGED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_REMARKS = {status: status.name.encode() for status in GetMessageStatus}
_EMPTY_QUEUE = (GetMessageStatus.NO_MESSAGE_IN_QUEUE, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)
_OUT_OF_RANGE = (
    *_EMPTY_QUEUE,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY,
    GetMessageStatus.OFFSET_TOO_SMALL,
)


class _Pull(NamedTuple):
    """A pull that passed the checks."""

    header: PullMessageRequestHeader
    group: SubscriptionGroupConfig
    filter: MessageFilter | None


# Called with (group, topic, queue id, requested offset, corrected offset).
OffsetMovedListener = Callable[[str, str, int, int, int], None]


class PullMessageProcessor:
    """Handler of the pull codes."""

    def __init__(self, broker: Broker, *, offset_moved: OffsetMovedListener) -> None:
        self._config = broker.config
        self._role = broker.role
        self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._offsets = broker.offsets
        self._consumers = broker.consumers
        self._filters = broker.filters
        self._stats = broker.stats
        self._store_stats = broker.store_stats
        self._broker_gets = broker.stats.item(BROKER_GET_NUMS, broker.config.broker_cluster_name)
        self._clock = broker.clock
        self._skip_guard = broker.skip_guard
        self._offset_moved = offset_moved
        self.hold = PullRequestHold(
            broker.clock,
            max_offset=broker.store.max_offset_in_queue,
            try_answer=self._try_answer,
            answer=self._answer_held,
            failed=self._held_failed,
        )
        self._failures = broker.failures

    def lane(self, gate: OffsetReturn) -> Lane | None:
        """The compiled form of this path, where there is one."""
        compiled = load("twinlog.broker.pull._pull_lane")
        if compiled is None:
            return None
        lane: Lane = compiled.PullLane(
            store=self._store,
            config=self._config,
            role=self._role,
            gate=gate,
            skip_guard=self._skip_guard,
            groups=self._groups,
            topics=self._topics,
            consumers=self._consumers,
            filters=self._filters,
            posted=_posted_wanted,
            answered=self._answered,
            commit=self._offsets.commit,
        )
        return lane

    def pull(self, connection: ServerConnection, request: Request) -> None:
        """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""
        try:
            header = request.header(PullMessageRequestHeader)
            pull = self._check(connection, header)
        except BrokerError as refusal:
            # The typed header of a pull answer is there also when it is empty.
            connection.reply(request, refusal.code, remark=refusal.remark, header={})
            return
        if self._skip_guard.is_armed and self._sent_back(connection, request, pull):
            return
        result = self._get(pull, header.queue_offset)
        code = self._code(header, result)
        is_held = code == _PULL_NOT_FOUND and self._hold(connection, request, pull)
        if not is_held:
            self._answer(connection, request, pull, result, code, request.serialize_type)
        self._commit(header)

    def _commit(self, header: PullMessageRequestHeader) -> None:
        group = header.consumer_group
        if header.sys_flag & PULL_COMMIT_OFFSET and self._role.is_master:
            self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset)

    def _sent_back(self, connection: ServerConnection, request: Request, pull: _Pull) -> bool:
        """On a promoted broker: a pull in a tail that it never had is answered here."""
        header = pull.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = header.queue_offset
        end = self._store.max_offset_in_queue(topic, queue_id)
        info = self._consumers.find(group)
        if info is not None and info.message_model == "BROADCASTING":
            goal = self._skip_guard.pull_broadcast(
                group, topic, queue_id, offset, connection.attributes
            )
            # A Java client takes its position from this answer, and keeps what it has fetched.
            status, code = _NO_MATCHED_MESSAGE, _PULL_RETRY_IMMEDIATELY
        else:
            self._commit(header)  # First: it says what of the part that we have is consumed.
            committed = self._offsets.query(group, topic, queue_id)
            goal = self._skip_guard.pull(
                group, topic, queue_id, offset, connection.attributes,
                committed=committed, queue_end=end,
            )  # fmt: skip
            status, code = GetMessageStatus.OFFSET_OVERFLOW_BADLY, _PULL_OFFSET_MOVED
        if goal is None:
            return False
        first = max(0, self._store.min_offset_in_queue(topic, queue_id))
        result = GetResult(status, max(first, goal), first, end)
        self._answer(connection, request, pull, result, code, request.serialize_type)
        return True

    def queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        """The store dispatched something into these queues."""
        if len(self.hold):
            self.hold.queues_moved(keys)

    # Checks, in Apache's order

    def _check(self, connection: ServerConnection, header: PullMessageRequestHeader) -> _Pull:
        config = self._config
        if not perm.is_readable(config.broker_permission):
            remark = f"the broker[{config.broker_ip1}] pulling message is forbidden"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        name = header.consumer_group
        group = self._groups.table.get(name) or self._make_group(name)
        if group is None:
            remark = f"subscription group [{name}] does not exist, {see_faq()}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {name}"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        self._check_queue(connection, header)
        if header.sys_flag & PULL_SUBSCRIPTION:
            wanted = self._posted_filter(header)
        else:
            wanted = self._known_filter(header, group)
        if config.filter_support_retry:
            wanted = retry_filter(self._filters, header.topic) or wanted
        return _Pull(header, group, wanted)

    def _make_group(self, name: str) -> SubscriptionGroupConfig | None:
        group = self._groups.find(name)
        self._groups.saver.hold(name)
        return group

    def _check_queue(self, connection: ServerConnection, header: PullMessageRequestHeader) -> None:
        topic = self._topics.select(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please! {see_faq()}"
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not perm.is_readable(topic.perm):
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
                f"consumer:[/{connection.remote_text}]"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def _posted_filter(self, header: PullMessageRequestHeader) -> MessageFilter | None:
        """The filter of a pull that brings its own subscription."""
        try:
            is_kept = len(header.subscription or "") <= _KEPT_LENGTH_MAX
            read = _kept_subscription if is_kept else _subscription
            data, compiled = read(header.topic, header.subscription, header.expression_type)
        except (SubscriptionError, FilterSyntaxError) as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
        self._check_expression(data)
        return message_filter(data, compiled)

    def _known_filter(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> MessageFilter | None:
        """The filter that the group's heartbeat brought."""
        info = self._consumers.find(header.consumer_group)
        if info is None:
            remark = f"the consumer's group info not exist{see_faq()}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not group.consume_broadcast_enable and info.message_model == "BROADCASTING":
            remark = f"the consumer group[{info.group}] can not consume by broadcast way"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        data = info.subscriptions.get(header.topic)
        if data is None:
            remark = f"the consumer's subscription not exist{see_faq()}"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if data.sub_version < header.sub_version:
            remark = "the consumer's subscription not latest"
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        if data.is_tag_type:
            return message_filter(data, None)
        known = self._filters.find(header.topic, header.consumer_group)
        if known is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if known.client_version < header.sub_version:
            remark = "the consumer's consumer filter data not latest"
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        self._check_expression(data)
        return message_filter(data, known.compiled)

    def _check_expression(self, data: SubscriptionData) -> None:
        if not data.is_tag_type and not self._config.enable_property_filter:
            remark = (
                f"The broker does not support consumer to filter message by {data.expression_type}"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    # Reading

    def _look(self, pull: _Pull, offset: int) -> GetResult:
        header = pull.header
        bulk = None
        if header.consumer_group == TOOLS_GROUP:  # Spark reads whole topics with it.
            bulk = self._config.max_transfer_bytes_on_message_in_memory
        return self._store.get_message(
            header.topic,
            header.queue_id,
            offset,
            max(1, min(header.max_msg_nums, PULL_COUNT_MAX)),
            message_filter=pull.filter,
            max_bytes=bulk,
        )

    def _get(self, pull: _Pull, offset: int, seen: GetResult | None = None) -> GetResult:
        """What the pull will be answered with: counted, as a look is not."""
        result = self._look(pull, offset) if seen is None else seen
        header = pull.header
        self._note_read(
            header.consumer_group,
            header.topic,
            header.queue_id,
            result.next_begin_offset,
            result.message_count,
        )
        return result

    def _note_read(
        self, group: str, topic: str, queue_id: int, next_offset: int, count: int
    ) -> None:
        stats = self._store_stats
        if count:
            stats.get_found_times += 1
            stats.get_transferred += count
        else:
            stats.get_miss_times += 1
        self._offsets.handed_out(group, topic, queue_id, next_offset)

    def _code(self, header: PullMessageRequestHeader, result: GetResult) -> int:
        status = result.status
        if status in _EMPTY_QUEUE:
            code: int = _PULL_NOT_FOUND if header.queue_offset == 0 else _PULL_OFFSET_MOVED
        else:
            code = _CODES[status]
        if result.is_retried:
            return ResponseCode.SYSTEM_ERROR  # A client asks again, for the same message.
        if code == _PULL_OFFSET_MOVED and not self._store.corrects_offsets:
            return _PULL_RETRY_IMMEDIATELY
        return code

    # Answering

    def _answer(
        self,
        connection: ServerConnection,
        request: Request,
        pull: _Pull,
        result: GetResult,
        code: int,
        serialize_type: int,
    ) -> None:
        header = pull.header
        if code == _SUCCESS:
            self._count(header.consumer_group, header.topic, result.message_count, result.size)
        elif code == _PULL_OFFSET_MOVED:
            self._offset_moved(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.queue_offset,
                result.next_begin_offset,
            )
        if request.flag & FLAG_ONEWAY:
            return
        suggested = self._suggested_broker(pull.group, result, code)
        if serialize_type != _JSON or result.reason:
            self._answer_slowly(connection, request, result, code, suggested, serialize_type)
            return
        opening = encode_pull_opening(
            code,
            request.opaque,
            remark=_REMARKS[result.status],
            next_begin_offset=result.next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            body_size=result.size,
            suggest_which_broker_id=suggested,
        )
        connection.write_pieces([opening, *result.buffers])

    def _answer_slowly(
        self,
        connection: ServerConnection,
        request: Request,
        result: GetResult,
        code: int,
        suggested: int,
        serialize_type: int,
    ) -> None:
        """In binary, and where there is a sentence to say."""
        ext = {
            "suggestWhichBrokerId": suggested,
            "nextBeginOffset": result.next_begin_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
        }
        remark = result.reason or result.status.name
        connection.reply(
            request, code, remark=remark, header=ext, body=result.buffers,
            serialize_type=serialize_type,
        )  # fmt: skip

    def _suggested_broker(
        self, group: SubscriptionGroupConfig, result: GetResult, code: int
    ) -> int:
        if code == _PULL_RETRY_IMMEDIATELY and result.status in _OUT_OF_RANGE:
            # A slave that does not correct offsets: only the group's own broker can.
            return group.broker_id
        if not self._config.slave_read_enable:
            return 0
        if result.suggest_pulling_from_slave:
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _count(self, group: str, topic: str, count: int, size: int) -> None:
        self._stats.count_get(f"{topic}@{group}", count, size)
        self._broker_gets.add(count)

    def _answered(
        self, group: str, topic: str, queue_id: int, next_offset: int, count: int, size: int
    ) -> None:
        """The compiled path answers a pull, with so many messages."""
        self._note_read(group, topic, queue_id, next_offset, count)
        if count:
            self._count(group, topic, count, size)

    # Holding

    def _hold(self, connection: ServerConnection, request: Request, pull: _Pull) -> bool:
        """Hold the pull if it asked for that and there is room; false: answer it now."""
        header = pull.header
        if not header.sys_flag & PULL_SUSPEND or self.hold.is_full:
            return False
        timeout = header.suspend_timeout_millis
        if not self._config.long_polling_enable:
            timeout = self._config.short_polling_time_mills
        deadline = self._clock.monotonic_ms() + min(max(0, timeout), _HELD_MS_MAX)
        key = (header.topic, header.queue_id)
        if _HELD_KEY not in connection.attributes:
            connection.attributes[_HELD_KEY] = True
            connection.on_close(self.hold.connection_closed)
        self.hold.add(HeldPull(key, header.queue_offset, deadline, connection, request, pull))
        return True

    def _try_answer(self, held: HeldPull) -> bool:
        """Answer a held pull whose queue moved, if something in it matches."""
        if held.connection.is_congested:
            self._look_again_when_writable(held)
            return False
        result = self._look(held.pull, held.scan_offset)
        if result.status is _NO_MATCHED_MESSAGE:
            # What did not match once never will: look on from there next time.
            held.scan_offset = result.next_begin_offset
            return False
        self._answer_held(held, result if held.scan_offset == held.offset else None)
        return True

    def _look_again_when_writable(self, held: HeldPull) -> None:
        """One look at each queue when the peer has read, however many pulls of it wait there."""
        connection = held.connection
        keys: set[QueueKey] | None = connection.attributes.get(_CONGESTED_KEY)
        if keys is not None:
            keys.add(held.key)
            return
        connection.attributes[_CONGESTED_KEY] = {held.key}
        connection.when_writable(
            lambda: self.queues_moved(connection.attributes.pop(_CONGESTED_KEY, ()))
        )

    def _held_failed(self, held: HeldPull, error: Exception) -> None:
        header = held.pull.header
        about = f"group {header.consumer_group} {held.key} offset {held.offset}"
        self._failures.note("held pull", error, about)
        self._failures.contain(
            "held pull",
            lambda: held.connection.reply(
                held.request, ResponseCode.SYSTEM_ERROR, remark=error_text(error), header={},
                serialize_type=_JSON,
            ),
        )  # fmt: skip

    def _answer_held(self, held: HeldPull, seen: GetResult | None = None) -> None:
        """Evaluate a held pull once more, from its own offset and with all checks, and answer.

        `seen`: what its filter of then finds now; it is the answer if the filter is the same.
        """
        if held.connection.is_congested:
            held.connection.when_writable(lambda: self._answer_held(held))
            return
        if held.connection.is_closed:
            return
        request = held.request
        try:
            pull = self._check(held.connection, held.pull.header)
        except BrokerError as refusal:
            held.connection.reply(
                request, refusal.code, remark=refusal.remark, header={}, serialize_type=_JSON
            )
            return
        is_same = pull.filter == held.pull.filter
        result = self._get(pull, held.offset, seen if is_same else None)
        code = self._code(pull.header, result)
        self._answer(held.connection, request, pull, result, code, _JSON)


def _subscription(
    topic: str, expression: str | None, expression_type: str | None
) -> tuple[SubscriptionData, Sql92Filter | None]:
    """Subscription and, for SQL92, compiled filter."""
    data = build_subscription(topic, expression, expression_type)
    if data.is_tag_type:
        return data, None
    return data, compile_filter(data.expression_type, data.sub_string)


# A pull consumer sends the same every time.
_kept_subscription = lru_cache(maxsize=4096)(_subscription)


@lru_cache(maxsize=4096)
def _posted_wanted(
    topic: str, expression: str | None, expression_type: str | None
) -> tuple[bool, Wanted | None] | None:
    """For the compiled path: whether a subscription is by tags, and what it asks for.

    None where only the filter itself can say. Raises as `_subscription`.
    """
    if len(expression or "") > _KEPT_LENGTH_MAX:
        return None
    data, compiled = _kept_subscription(topic, expression, expression_type)
    wanted = message_filter(data, compiled)
    if wanted is None:
        return data.is_tag_type, None
    asked = asked_of(wanted)
    return None if asked is None else (data.is_tag_type, asked)
