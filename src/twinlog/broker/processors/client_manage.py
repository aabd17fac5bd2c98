"""Clients come, live and go: 34, 35, 46. Corresponds to RocketMQ's ClientManageProcessor."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from twinlog.broker.errors import BrokerError
from twinlog.broker.filter.consumer_filter import CompileBudget
from twinlog.broker.filter.sql92 import FilterSyntaxError, compile_filter
from twinlog.broker.filter.subscription import SubscriptionError, subscription_from_json
from twinlog.broker.tables.clients import GROUPS_MAX, ClientChannelInfo, ConsumerGroupInfo
from twinlog.message import names
from twinlog.remoting.bodies.common import TOPIC_FLAG_UNIT_SUB
from twinlog.remoting.bodies.subscription import is_tag_type
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.codec import language_name
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.headers.clients import (
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from twinlog.remoting.json_body import members, read_body, text
from twinlog.remoting.server import ServerConnection, in_steps
from twinlog.runtime.config import BrokerConfig

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")

_KNOWN_KEY = "twinlog.broker.client"

# The C++ client sends ordinals where Java sends names.
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ClientManageProcessor:
    """Handlers of heartbeat, unregister and check of a client's configuration."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._producers = broker.producers
        self._consumers = broker.consumers
        self._groups = broker.groups
        self._topics = broker.topics
        self._filters = broker.filters
        self._clock = broker.clock
        self._creations = broker.creations

    @in_steps
    def heartbeat(self, connection: ServerConnection, request: Request) -> Iterator[None]:
        """HEART_BEAT (34): a step for each group."""
        body = read_body(request)
        client_id = text(body, "clientID")
        if not client_id:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the heartbeat names no clientID")
        consuming, producing = members(body, "consumerDataSet"), members(body, "producerDataSet")
        if max(len(consuming), len(producing)) > GROUPS_MAX:
            remark = f"a heartbeat names at most {GROUPS_MAX} groups of consumers or producers"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        self._watch(connection)
        budget = CompileBudget()
        now = self._clock.monotonic_ms()
        language = language_name(request)
        for data in consuming:
            info = ClientChannelInfo(connection, client_id, language, request.version)
            yield from self._consumer_alive(data, info, now, budget)
            yield
        if budget.put_off:
            _LOG.warning("filters put off client=%s count=%d", client_id, budget.put_off)
        for data in producing:
            group = text(data, "groupName")
            if group:
                info = ClientChannelInfo(connection, client_id, language, request.version)
                self._producers.register(group, info, now)
                yield
        # Groups and retry topics that it made are on disk, or kept: it is alive anyway.
        topics = self._topics.saver
        self._groups.saver.when_saved(
            lambda _: topics.when_saved(lambda _: connection.reply(request))
        )

    def _consumer_alive(
        self, data: dict[str, Any], info: ClientChannelInfo, now_ms: int, budget: CompileBudget
    ) -> Iterator[None]:
        group = text(data, "groupName")
        if not group:
            return
        # What it makes is saved once, when the heartbeat is at its end.
        with (
            self._creations.by(info.connection),
            self._groups.saver.unhurried(),
            self._topics.saver.unhurried(),
        ):
            config = self._group(group, data)
        must_notify = self._config.notify_consumer_ids_changed_enable
        if config is not None:
            must_notify = must_notify and config.notify_consumer_ids_changed_enable
        try:
            subscriptions = [
                subscription_from_json(value) for value in members(data, "subscriptionDataSet")
            ]
        except SubscriptionError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        yield from self._filters.register(group, subscriptions, budget)
        self._consumers.register(
            group,
            info,
            subscriptions,
            consume_type=_enum(data.get("consumeType"), CONSUME_TYPES, 1),
            message_model=_enum(data.get("messageModel"), MESSAGE_MODELS, 1),
            consume_from_where=_enum(data.get("consumeFromWhere"), CONSUME_FROM_WHERE, 0),
            must_notify=must_notify,
            now_ms=now_ms,
        )

    def _group(self, group: str, data: dict[str, Any]) -> SubscriptionGroupConfig | None:
        """The group and its retry topic, made if they are not there and may be."""
        config = self._groups.find(group)
        if config is not None:
            self._topics.create_in_send_back(
                names.retry_topic(group),
                queue_count=config.retry_queue_nums,
                sys_flag=TOPIC_FLAG_UNIT_SUB if data.get("unitMode") else 0,
            )
        return config

    def unregister(self, connection: ServerConnection, request: Request) -> None:
        """UNREGISTER_CLIENT (35): this connection leaves the named groups."""
        header = request.header(UnregisterClientRequestHeader)
        if header.producer_group:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group:
            config = self._groups.table.get(header.consumer_group)
            must_notify = config is None or config.notify_consumer_ids_changed_enable
            self._consumers.unregister(header.consumer_group, connection, must_notify=must_notify)
        connection.reply(request, header={})

    def check_config(self, connection: ServerConnection, request: Request) -> None:
        """CHECK_CLIENT_CONFIG (46): may this subscription be used here?"""
        data = read_body(request).get("subscriptionData") or {}
        if not isinstance(data, dict):
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "subscriptionData is not an object")
        kind = data.get("expressionType")
        if not is_tag_type(kind):
            if not self._config.enable_property_filter:
                remark = f"The broker does not support consumer to filter message by {kind}"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
            try:
                compile_filter(kind, str(data.get("subString") or ""))
            except FilterSyntaxError as error:
                raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        connection.reply(request)

    def _watch(self, connection: ServerConnection) -> None:
        """See to it that the tables learn when the connection ends; once per connection."""
        if _KNOWN_KEY not in connection.attributes:
            connection.attributes[_KNOWN_KEY] = True
            connection.on_close(self._connection_closed)

    def _connection_closed(self, connection: ServerConnection) -> None:
        self._producers.connection_closed(connection)
        connection.afterwards(self._consumers.connection_closed(connection))


def notify_members(config: BrokerConfig, info: ConsumerGroupInfo) -> None:
    """NOTIFY_CONSUMER_IDS_CHANGED (40) to every member: they rebalance at once."""
    if not config.notify_consumer_ids_changed_enable:
        return
    header = NotifyConsumerIdsChangedRequestHeader(info.group)
    for connection in list(info.channels):
        command = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
        connection.oneway(command)


def _enum(value: Any, names_in_order: tuple[str, ...], default: int) -> str:
    if isinstance(value, int) and 0 <= value < len(names_in_order):
        return names_in_order[value]
    text = str(value or "").upper()
    return text if text in names_in_order else names_in_order[default]
