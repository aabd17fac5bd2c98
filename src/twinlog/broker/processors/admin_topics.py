"""Topics and groups of this broker: 17, 21, 200, 201, 202, 207, 215, 300, 305, 351, 352.

Corresponds to the topic and group codes of RocketMQ's AdminBrokerProcessor. What was answered is on
disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from twinlog.broker import names
from twinlog.broker.errors import BrokerError
from twinlog.broker.tables.topic_config import FILTER_TYPES
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import GroupList
from twinlog.remoting.bodies.common import MessageQueue, TopicList
from twinlog.remoting.bodies.offsets import TopicOffset
from twinlog.remoting.bodies.subscription_group import group_from_json
from twinlog.remoting.bodies.topic import TopicConfig, members_text
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from twinlog.remoting.headers.base import TopicHeader
from twinlog.remoting.json_body import read_body
from twinlog.remoting.server import ServerConnection, in_steps
from twinlog.runtime.limits import TOPIC_QUEUES_MAX

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

# Apache leaves its default remark on some answers that succeeded; people's captures show it.
UNSET_REMARK = "not set any response code"
_TOPICS_A_STEP = 200  # Half a millisecond.


class AdminTopicsProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._role = broker.role
        self._store = broker.store
        self._topics = broker.topics
        self._groups = broker.groups
        self._offsets = broker.offsets
        self._consumers = broker.consumers
        self._stats = broker.stats
        self._registration = broker.registration
        self._tasks = broker.tasks

    def update_topic(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_AND_CREATE_TOPIC (17): saved, registered everywhere, then answered."""
        self._refuse_on_slave()
        header = request.header(CreateTopicRequestHeader)
        self._check_topic(header.topic)
        if header.topic_filter_type not in FILTER_TYPES:
            remark = f"No enum constant TopicFilterType.{header.topic_filter_type}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        for count in (header.read_queue_nums, header.write_queue_nums):
            if not 0 <= count <= TOPIC_QUEUES_MAX:
                remark = f"a topic has 0 to {TOPIC_QUEUES_MAX} queues, not {count}"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        self._topics.update(
            TopicConfig(
                header.topic,
                perm=header.perm,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
            )
        )
        self._tasks.job(
            "register-topic", self._register(connection, request, header.topic),
            about=header.topic, failed=connection.refuse(request),
        )  # fmt: skip

    async def _register(self, connection: ServerConnection, request: Request, topic: str) -> None:
        reason = await self._topics.saver.saved()
        warning = await self._registration.announce()
        if reason:
            _answer(connection, request, f"topic[{topic}]", reason)
        else:
            connection.reply(request, remark=warning or UNSET_REMARK)

    def delete_topic(self, connection: ServerConnection, request: Request) -> None:
        """DELETE_TOPIC_IN_BROKER (215). Consumer offsets stay, as in 4.9."""
        self._refuse_on_slave()
        topic = request.header(TopicHeader).topic
        self._check_topic(topic)
        self._topics.delete(topic)
        self._store.delete_topics([topic])
        self._stats.topic_deleted(topic)
        self._topics.saver.when_saved(
            lambda reason: _answer(connection, request, f"topic[{topic}]", reason)
        )

    @in_steps
    def all_topics(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """GET_ALL_TOPIC_CONFIG (21)."""
        version = self._topics.data_version.to_json()
        topics, members = iter(list(self._topics.table.values())), []
        while some := list(islice(topics, _TOPICS_A_STEP)):
            members.append(members_text(some))
            yield
        table = fastjson.Text(b"{%b}" % b",".join(members))
        body = fastjson.dumps({"dataVersion": version, "topicConfigTable": table})
        connection.reply(request, header={}, body=body)

    def topic_config(self, connection: ServerConnection, request: Request) -> None:
        """GET_TOPIC_CONFIG (351) of 5.x."""
        topic = self._topic(request.header(TopicHeader).topic)
        connection.reply(request, body=fastjson.dumps(topic))

    @in_steps
    def topic_stats(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """GET_TOPIC_STATS_INFO (202)."""
        topic = self._topic(request.header(TopicHeader).topic)
        name = topic.topic_name
        table = fastjson.MapText()
        for queue_id in range(topic.write_queue_nums):
            low = max(0, self._store.min_offset_in_queue(name, queue_id))
            high = max(0, self._store.max_offset_in_queue(name, queue_id))
            newest = self._store.message_store_time(name, queue_id, high - 1) if high else 0
            queue = MessageQueue(name, self._config.broker_name, queue_id)
            table.add(queue, TopicOffset(low, high, max(0, newest)))
            yield
        connection.reply(request, body=fastjson.dumps({"offsetTable": table.text}))

    @in_steps
    def consumed_by(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """QUERY_TOPIC_CONSUME_BY_WHO (300)."""
        topic = request.header(TopicHeader).topic
        groups = yield from self._offsets.groups_of_topic(topic)
        groups |= self._consumers.groups_of_topic(topic)
        connection.reply(request, body=fastjson.dumps(GroupList(sorted(groups))))

    def system_topics(self, connection: ServerConnection, request: Request) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        body = TopicList(sorted(self._topics.system_topics))
        connection.reply(request, body=fastjson.dumps(body))

    def update_group(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        self._refuse_on_slave()
        try:
            config = group_from_json(read_body(request))
        except msgspec.ValidationError as error:
            remark = f"the body is not a subscription group: {error}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None
        fault = names.group_fault(config.group_name)
        if fault is None and config.retry_queue_nums > TOPIC_QUEUES_MAX:
            fault = f"retryQueueNums is at most {TOPIC_QUEUES_MAX}, not {config.retry_queue_nums}"
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)
        self._groups.update(config)
        self._answer_group(connection, request, config.group_name)

    def delete_group(self, connection: ServerConnection, request: Request) -> None:
        """DELETE_SUBSCRIPTIONGROUP (207)."""
        self._refuse_on_slave()
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        self._groups.delete(header.group_name)
        if header.remove_offset or header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._stats.group_deleted(header.group_name)
        self._answer_group(connection, request, header.group_name)

    def _answer_group(self, connection: ServerConnection, request: Request, name: str) -> None:
        self._groups.saver.when_saved(
            lambda reason: _answer(connection, request, f"subscription group [{name}]", reason)
        )

    @in_steps
    def all_groups(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)."""
        version, table = self._groups.data_version.to_json(), fastjson.MapText()
        for name, group in list(self._groups.table.items()):
            table.add(name, group)
            yield
        body = {"dataVersion": version, "subscriptionGroupTable": table.text}
        connection.reply(request, body=fastjson.dumps(body))

    def group_config(self, connection: ServerConnection, request: Request) -> None:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352) of 5.x."""
        name = request.header(GetSubscriptionGroupConfigRequestHeader).group
        group = self._groups.table.get(name)
        if group is None:
            remark = f"subscription group [{name}] does not exist"
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        connection.reply(request, body=fastjson.dumps(group))

    def _topic(self, name: str) -> TopicConfig:
        topic = self._topics.select(name)
        if topic is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def _check_topic(self, topic: str) -> None:
        fault = names.topic_fault(topic)
        if fault is None and self._topics.is_system_topic(topic):
            fault = f"The topic[{topic}] is conflict with system topic."
        if fault is not None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, fault)

    def _refuse_on_slave(self) -> None:
        if not self._role.is_master:
            remark = (
                "Can't modify topic or subscription group from slave broker, "
                "please execute it from master broker."
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)


def _answer(connection: ServerConnection, request: Request, what: str, reason: str) -> None:
    """What was changed is on disk; or it holds for this process and is tried again."""
    if not reason:
        connection.reply(request)
        return
    remark = f"{what} is changed, but not saved yet; it is tried again until it is: {reason}"
    connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
