"""What a request of a broker needs, by rule: the access column of the table in `handlers.py`.

Corresponds to PlainAccessValidator.parse. A request that is denied is answered with 1 and the
reason; the connection stays; a one-way request is dropped.

Stricter than 4.9 where 4.9 forgets. It asks nothing but an account for most requests: each account
reads every body by its offset, locks the queues of every group, moves and clones offsets, deletes
log files. Here such a request needs what its owner has, or an admin account;
`twinlogAclAsApache=true` opens it again. In both modes batch sends and replies need PUB like other
sends, and the requests that change the rules themselves an admin account.
"""

from __future__ import annotations

from typing import Any, TypeVar

from twinlog.message import names
from twinlog.message.ids import parse_offset_message_id
from twinlog.message.model import Record
from twinlog.message.properties import PROPERTY_REAL_TOPIC
from twinlog.message.record import RecordError, decode_record
from twinlog.remoting.acl import Permission, Resource
from twinlog.remoting.command import Request
from twinlog.remoting.headers import admin, clients, offsets, pull, send, twinlog
from twinlog.remoting.headers.base import GroupHeader, QueueHeader, TopicHeader
from twinlog.remoting.json_body import members, read_body, text
from twinlog.remoting.request_table import EITHER, Access, Needs, Rule, Standing, unless_apache
from twinlog.store.errors import RecordDamagedError
from twinlog.store.message_store import MessageStore

_SUB = Permission.SUB
_H = TypeVar("_H", TopicHeader, QueueHeader, offsets.SearchOffsetRequestHeader)
_SendHeader = send.SendMessageRequestHeader | send.SendMessageRequestHeaderV2


def _topic(name: str, permission: Permission) -> Resource:
    """A retry topic stands for its group, and its group is consumed."""
    return Resource(name, _SUB if name.startswith(names.RETRY_PREFIX) else permission)


def _group(name: str) -> Resource:
    return Resource(names.retry_topic(name), _SUB)


def _groups(*group_names: str | None) -> list[Resource]:
    return [_group(name) for name in group_names if name]


def _topics(*topic_names: str | None) -> list[Resource]:
    return [_topic(name, _SUB) for name in topic_names if name]


# Sends, heartbeats, pulls: as 4.9


def _publish(header: _SendHeader, request: Request) -> Needs:
    return [_topic(header.topic, Permission.PUB)]


def _consume(
    header: pull.PullMessageRequestHeader
    | offsets.UpdateConsumerOffsetRequestHeader
    | offsets.QueryConsumerOffsetRequestHeader,
    request: Request,
) -> Needs:
    return [_topic(header.topic, _SUB), _group(header.consumer_group)]


def _heartbeat(header: Any, request: Request) -> Needs:
    """Every group that consumes and every topic it subscribes to."""
    needed: list[Resource] = []
    for data in members(read_body(request), "consumerDataSet"):
        needed.append(_group(text(data, "groupName")))
        subscriptions = members(data, "subscriptionDataSet")
        needed.extend(_topic(text(each, "topic"), _SUB) for each in subscriptions)
    return needed or Standing.ANY_ACCOUNT


def _unregister(header: clients.UnregisterClientRequestHeader, request: Request) -> Needs:
    return _groups(header.consumer_group) or Standing.ANY_ACCOUNT


def _group_alone(header: GroupHeader, request: Request) -> Needs:
    return [_group(header.consumer_group)]


PUBLISH: Access[Any] = Access(_publish)
CONSUME: Access[Any] = Access(_consume)
HEARTBEAT: Access[Any] = Access(_heartbeat)
UNREGISTER = Access(_unregister)
OWN_GROUP: Access[Any] = Access(_group_alone)
QUERY: Access[pull.QueryMessageRequestHeader] = Access(lambda h, _: [_topic(h.topic, _SUB)])


# Closed here, open to every account of 4.9


def _lock(header: Any, request: Request) -> Needs:
    body = read_body(request)
    queues = {text(queue, "topic") for queue in members(body, "mqSet")}
    return [_group(text(body, "consumerGroup")), *(_topic(name, _SUB) for name in sorted(queues))]


def _client_config(header: Any, request: Request) -> Needs:
    body = read_body(request)
    data = body.get("subscriptionData")
    topic = text(data, "topic") if isinstance(data, dict) else ""
    return [*_groups(text(body, "group")), *_topics(topic)] or Standing.ANY_ACCOUNT


def _info(header: twinlog.TwinlogInfoRequestHeader, request: Request) -> Needs:
    """Anyone may ask who is there. Who says to be the master that is back moves a slave."""
    return Standing.ADMIN if header.ha_address else Standing.ANY_ACCOUNT


CONSUME_UNLESS_APACHE: Access[Any] = unless_apache(_consume)
OWN_GROUP_UNLESS_APACHE: Access[Any] = unless_apache(_group_alone)
LOCK: Access[Any] = unless_apache(_lock)
CLIENT_CONFIG: Access[Any] = unless_apache(_client_config)
TWIN_INFO = Access(_info)
# Where a topic begins and ends, how it is: whoever writes or reads it may know.
ABOUT_TOPIC: Access[Any] = unless_apache(lambda h, _: [_topic(h.topic, EITHER)])
RESET_OFFSET: Access[Any] = unless_apache(lambda h, _: [_topic(h.topic, _SUB), _group(h.group)])
TIME_SPAN: Access[Any] = RESET_OFFSET
GROUP_CONFIG: Access[admin.GetSubscriptionGroupConfigRequestHeader] = unless_apache(
    lambda h, _: [_group(h.group)]
)
CONSUME_STATS: Access[admin.GetConsumeStatsRequestHeader] = unless_apache(
    lambda h, _: [_group(h.consumer_group), *_topics(h.topic)]
)
RUNNING_INFO: Access[clients.GetConsumerRunningInfoRequestHeader] = unless_apache(
    lambda h, _: [_group(h.consumer_group)]
)
CORRECTION: Access[offsets.QueryCorrectionOffsetHeader] = unless_apache(
    lambda h, _: [_topic(h.topic, _SUB), _group(h.compare_group)]
)
CLONE: Access[offsets.CloneGroupOffsetRequestHeader] = unless_apache(
    lambda h, _: [_group(h.src_group), _group(h.dest_group), *_topics(h.topic)]
)
QUEUE_ENTRIES: Access[pull.QueryConsumeQueueRequestHeader] = unless_apache(
    lambda h, _: [_topic(h.topic, _SUB), *_groups(h.consumer_group)]
)


class RecordRules:
    """Rules for requests that name a record by its place: its topic is what they need."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def view(self) -> Access[pull.ViewMessageRequestHeader]:
        return unless_apache(lambda h, _: self._readable(h.offset) or Standing.ANY_ACCOUNT)

    @property
    def send_back(self) -> Access[send.ConsumerSendMsgBackRequestHeader]:
        """A group may have back what it may read: else it is a way to read everything."""
        rule: Rule[send.ConsumerSendMsgBackRequestHeader]
        rule = lambda h, _: [_group(h.group), *self._readable(h.offset)]  # noqa: E731
        return Access(rule, lambda h, _: [_group(h.group)])

    @property
    def end_transaction(self) -> Access[send.EndTransactionRequestHeader]:
        def rule(header: send.EndTransactionRequestHeader, request: Request) -> Needs:
            topic = self._topic_at(header.commit_log_offset)
            return Standing.ANY_ACCOUNT if topic is None else [_topic(topic, Permission.PUB)]

        return unless_apache(rule)

    @property
    def consume_directly(self) -> Access[clients.ConsumeMessageDirectlyResultRequestHeader]:
        def rule(
            header: clients.ConsumeMessageDirectlyResultRequestHeader, request: Request
        ) -> Needs:
            needed = [_group(header.consumer_group)]
            try:
                offset = parse_offset_message_id(header.msg_id or "").physical_offset
            except ValueError:
                return needed  # The handler says what is wrong with it.
            return needed + self._readable(offset)

        return unless_apache(rule)

    def _readable(self, offset: int) -> list[Resource]:
        return _topics(self._topic_at(offset))

    def _topic_at(self, offset: int) -> str | None:
        """The topic that a record was sent to; None where there is none."""
        try:
            data = self._store.message_by_offset(offset)
            record: Record | None = None if data is None else decode_record(data)
        except (RecordError, RecordDamagedError):
            return None
        if record is None:
            return None
        if record.topic in (names.SCHEDULE_TOPIC, names.HALF_TOPIC):
            return record.property_map.get(PROPERTY_REAL_TOPIC, record.topic)
        return record.topic
