"""Which handler answers which request code, who may ask and how much: the table of the broker.

A new feature is a module in `processors` and a row here; a row without an access rule (they are in
`acl_guard.py`) or without a limit of the body cannot be made. A processor takes the parts of the
broker that it needs in its constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twinlog.broker import acl_guard as rules
from twinlog.broker.group.requests import group_rows
from twinlog.broker.pair.replica_rows import replica_rows
from twinlog.broker.processors.admin_acl import AdminAclProcessor
from twinlog.broker.processors.admin_clients import AdminClientsProcessor
from twinlog.broker.processors.admin_config import AdminConfigProcessor
from twinlog.broker.processors.admin_stats import AdminStatsProcessor
from twinlog.broker.processors.admin_topics import AdminTopicsProcessor
from twinlog.broker.processors.client_manage import ClientManageProcessor
from twinlog.broker.processors.consumer_manage import ConsumerManageProcessor
from twinlog.broker.processors.end_transaction import EndTransactionProcessor
from twinlog.broker.processors.ha_status import status_rows
from twinlog.broker.processors.promote import PromoteProcessor
from twinlog.broker.processors.query import QueryMessageProcessor
from twinlog.broker.processors.reply_message import ReplyMessageProcessor
from twinlog.broker.processors.send import SendMessageProcessor
from twinlog.broker.processors.send_back import SendBackProcessor
from twinlog.broker.processors.send_once import SendOnce
from twinlog.broker.pull.held_answers import answer_when_routed
from twinlog.broker.rng import Rng
from twinlog.broker.stats.runtime_info import RuntimeInfo
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers import admin as admin_headers
from twinlog.remoting.headers import clients as client_headers
from twinlog.remoting.headers import offsets as offset_headers
from twinlog.remoting.headers import pull as pull_headers
from twinlog.remoting.headers import send as send_headers
from twinlog.remoting.headers import twinlog as twinlog_headers
from twinlog.remoting.headers.base import GroupHeader, QueueHeader, TopicHeader
from twinlog.remoting.json_body import read_body, text
from twinlog.remoting.request_table import (
    ADMIN,
    ADMIN_UNLESS_APACHE,
    ANY_ACCOUNT,
    LIST_BODY,
    MESSAGES,
    QUEUES_BODY,
    SMALL_BODY,
    UNUSED_BODY,
    WHOLE_TABLE,
    NoHeader,
    RequestTable,
    Row,
)
from twinlog.runtime.config_format import parse_update

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


def serve_requests(broker: Broker, *, rng: Rng, memory_size: int, config_path: str | None) -> None:
    """From now on this broker answers: its lanes, where there are some, and behind them all."""
    send = SendMessageProcessor(
        broker,
        rng=rng,
        once=SendOnce(broker.once, broker.replies),
        answer_when_routed=partial(answer_when_routed, broker.registration, broker.tasks),
    )
    ends = EndTransactionProcessor(broker)
    if broker.guard is None:  # A lane looks at no signature.
        _install_lanes(broker, send, ends)
    table = RequestTable(
        [
            *_message_rows(broker, send, SendBackProcessor(broker, rng=rng)),
            *_consumer_rows(broker, memory_size),
            *_transaction_rows(broker, ends),
            *_client_rows(broker),
            *_topic_rows(broker),
            *_stats_rows(broker),
            *_config_rows(broker, config_path),
            *_acl_rows(broker),
            *(group_rows(broker) if broker.role.is_controlled else ()),
            *replica_rows(broker.replica_ranges),
        ]
    )
    broker.requests.serve(table, broker.guard, broker.pair)
    broker.server.body_max = broker.vip_server.body_max = table.body_max


def _install_lanes(
    broker: Broker, send: SendMessageProcessor, ends: EndTransactionProcessor
) -> None:
    """The compiled forms of three paths, for connections made from now on."""
    gate = broker.pair.offset_return
    puts = (send.lane(gate), ends.lane(broker.requests.relay))
    pulls = broker.pulls.lane(gate)
    broker.server.lanes = tuple(lane for lane in (*puts, pulls) if lane is not None)
    broker.vip_server.lanes = tuple(lane for lane in puts if lane is not None)


def _fields(*attributes: str) -> Callable[[Any, Request], str]:
    """Says what a request is about by members of its header."""

    def described(header: Any, request: Request) -> str:
        return " ".join(f"{name}={getattr(header, name)}" for name in attributes)

    return described


def _group_of_body(header: NoHeader, request: Request) -> str:
    return f"group_name={text(read_body(request), 'groupName')}"


def _keys_of_body(header: NoHeader, request: Request) -> str:
    """Names of the keys: a value may be a secret."""
    return "keys=" + ",".join(sorted(parse_update(request.body)))


def _message_rows(
    broker: Broker, send: SendMessageProcessor, send_back: SendBackProcessor
) -> list[Row[Any]]:
    code = RequestCode
    query = QueryMessageProcessor(broker)
    records = rules.RecordRules(broker.store)
    return [
        Row(code.SEND_MESSAGE, send_headers.SendMessageRequestHeader,
            send.send, rules.PUBLISH, MESSAGES),
        Row(code.SEND_MESSAGE_V2, send_headers.SendMessageRequestHeaderV2,
            send.send_v2, rules.PUBLISH, MESSAGES),
        Row(code.SEND_BATCH_MESSAGE, send_headers.SendMessageRequestHeaderV2,
            send.send_v2, rules.PUBLISH, MESSAGES),
        Row(code.CONSUMER_SEND_MSG_BACK, send_headers.ConsumerSendMsgBackRequestHeader,
            send_back.send_back, records.send_back, UNUSED_BODY),
        Row(code.PULL_MESSAGE, pull_headers.PullMessageRequestHeader,
            broker.pulls.pull, rules.CONSUME, UNUSED_BODY),
        Row(code.LITE_PULL_MESSAGE, pull_headers.PullMessageRequestHeader,
            broker.pulls.pull, rules.CONSUME, UNUSED_BODY),
        Row(code.QUERY_MESSAGE, pull_headers.QueryMessageRequestHeader,
            query.query, rules.QUERY, UNUSED_BODY),
        Row(code.VIEW_MESSAGE_BY_ID, pull_headers.ViewMessageRequestHeader,
            query.view, records.view, UNUSED_BODY),
    ]  # fmt: skip


def _consumer_rows(broker: Broker, memory_size: int) -> list[Row[Any]]:
    code = RequestCode
    consumer = ConsumerManageProcessor(broker, memory_size=memory_size)
    return [
        Row(code.GET_CONSUMER_LIST_BY_GROUP, client_headers.GetConsumerListByGroupRequestHeader,
            consumer.consumer_list, rules.OWN_GROUP, UNUSED_BODY),
        Row(code.QUERY_CONSUMER_OFFSET, offset_headers.QueryConsumerOffsetRequestHeader,
            consumer.query_offset, rules.CONSUME_UNLESS_APACHE, UNUSED_BODY),
        Row(code.UPDATE_CONSUMER_OFFSET, offset_headers.UpdateConsumerOffsetRequestHeader,
            consumer.update_offset, rules.CONSUME, UNUSED_BODY),
        Row(code.SEARCH_OFFSET_BY_TIMESTAMP, offset_headers.SearchOffsetRequestHeader,
            consumer.search_offset, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.GET_MAX_OFFSET, QueueHeader, consumer.max_offset, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.GET_MIN_OFFSET, QueueHeader, consumer.min_offset, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.GET_EARLIEST_MSG_STORETIME, offset_headers.GetEarliestMsgStoretimeRequestHeader,
            consumer.earliest_time, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.LOCK_BATCH_MQ, NoHeader, consumer.lock_batch, rules.LOCK, QUEUES_BODY),
        Row(code.UNLOCK_BATCH_MQ, NoHeader, consumer.unlock_batch, rules.LOCK, QUEUES_BODY),
    ]  # fmt: skip


def _transaction_rows(broker: Broker, ends: EndTransactionProcessor) -> list[Row[Any]]:
    """Transactions, and the replies of request-reply."""
    code = RequestCode
    records = rules.RecordRules(broker.store)
    replies = ReplyMessageProcessor(broker)
    return [
        Row(code.END_TRANSACTION, send_headers.EndTransactionRequestHeader,
            ends.end, records.end_transaction, UNUSED_BODY),
        Row(code.RESUME_CHECK_HALF_MESSAGE, admin_headers.ResumeCheckHalfMessageRequestHeader,
            ends.resume_check, ADMIN_UNLESS_APACHE, UNUSED_BODY, _fields("msg_id")),
        Row(code.SEND_REPLY_MESSAGE, send_headers.SendMessageRequestHeader,
            replies.reply, rules.PUBLISH, MESSAGES),
        Row(code.SEND_REPLY_MESSAGE_V2, send_headers.SendMessageRequestHeaderV2,
            replies.reply_v2, rules.PUBLISH, MESSAGES),
    ]  # fmt: skip


def _client_rows(broker: Broker) -> list[Row[Any]]:
    code = RequestCode
    records = rules.RecordRules(broker.store)
    clients = ClientManageProcessor(broker)
    admin = AdminClientsProcessor(broker)
    return [
        Row(code.HEART_BEAT, NoHeader, clients.heartbeat, rules.HEARTBEAT, LIST_BODY),
        Row(code.UNREGISTER_CLIENT, client_headers.UnregisterClientRequestHeader,
            clients.unregister, rules.UNREGISTER, UNUSED_BODY),
        Row(code.CHECK_CLIENT_CONFIG, NoHeader,
            clients.check_config, rules.CLIENT_CONFIG, SMALL_BODY),
        Row(code.GET_CONSUMER_CONNECTION_LIST, GroupHeader,
            admin.consumer_connections, rules.OWN_GROUP_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_PRODUCER_CONNECTION_LIST,
            client_headers.GetProducerConnectionListRequestHeader,
            admin.producer_connections, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_ALL_PRODUCER_INFO, NoHeader,
            admin.all_producers, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.INVOKE_BROKER_TO_RESET_OFFSET, offset_headers.ResetOffsetRequestHeader,
            admin.reset_offset, rules.RESET_OFFSET, UNUSED_BODY,
            _fields("group", "topic", "timestamp")),
        Row(code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            offset_headers.GetConsumerStatusRequestHeader,
            admin.consumer_status, rules.RESET_OFFSET, UNUSED_BODY),
        Row(code.GET_CONSUMER_RUNNING_INFO, client_headers.GetConsumerRunningInfoRequestHeader,
            admin.running_info, rules.RUNNING_INFO, UNUSED_BODY),
        Row(code.CONSUME_MESSAGE_DIRECTLY, client_headers.ConsumeMessageDirectlyResultRequestHeader,
            admin.consume_directly, records.consume_directly, UNUSED_BODY),
    ]  # fmt: skip


def _topic_rows(broker: Broker) -> list[Row[Any]]:
    code = RequestCode
    admin = AdminTopicsProcessor(broker)
    return [
        Row(code.UPDATE_AND_CREATE_TOPIC, admin_headers.CreateTopicRequestHeader,
            admin.update_topic, ADMIN, UNUSED_BODY, _fields("topic")),
        Row(code.DELETE_TOPIC_IN_BROKER, TopicHeader,
            admin.delete_topic, ADMIN, UNUSED_BODY, _fields("topic")),
        Row(code.GET_ALL_TOPIC_CONFIG, NoHeader,
            admin.all_topics, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_TOPIC_CONFIG, TopicHeader, admin.topic_config, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.GET_TOPIC_STATS_INFO, TopicHeader,
            admin.topic_stats, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader,
            admin.consumed_by, rules.ABOUT_TOPIC, UNUSED_BODY),
        Row(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoHeader,
            admin.system_topics, ANY_ACCOUNT, UNUSED_BODY),
        Row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader,
            admin.update_group, ADMIN, SMALL_BODY, _group_of_body),
        Row(code.DELETE_SUBSCRIPTIONGROUP, admin_headers.DeleteSubscriptionGroupRequestHeader,
            admin.delete_group, ADMIN, UNUSED_BODY, _fields("group_name")),
        Row(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NoHeader,
            admin.all_groups, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_SUBSCRIPTIONGROUP_CONFIG,
            admin_headers.GetSubscriptionGroupConfigRequestHeader,
            admin.group_config, rules.GROUP_CONFIG, UNUSED_BODY),
    ]  # fmt: skip


def _stats_rows(broker: Broker) -> list[Row[Any]]:
    code = RequestCode
    runtime = RuntimeInfo(
        broker,
        metadata=lambda: {
            **broker.pair.status(),
            **broker.table_check.status(),
            **broker.failures.status(),
        },
        unsaved=lambda: broker.saves.problems,
    )
    admin = AdminStatsProcessor(broker, runtime_table=runtime.table)
    return [
        Row(code.GET_BROKER_RUNTIME_INFO, NoHeader, admin.runtime_info, ANY_ACCOUNT, UNUSED_BODY),
        Row(code.TWINLOG_INFO, twinlog_headers.TwinlogInfoRequestHeader,
            broker.pair.info, rules.TWIN_INFO, UNUSED_BODY),
        Row(code.TWINLOG_OFFSETS, twinlog_headers.TwinlogOffsetsRequestHeader,
            broker.pair.offset_return.take, ADMIN, WHOLE_TABLE),
        *status_rows(broker),
        Row(code.GET_ALL_CONSUMER_OFFSET, NoHeader,
            admin.all_consumer_offsets, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_ALL_DELAY_OFFSET, NoHeader,
            admin.all_delay_offsets, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.GET_CONSUME_STATS, admin_headers.GetConsumeStatsRequestHeader,
            admin.consume_stats, rules.CONSUME_STATS, UNUSED_BODY),
        Row(code.GET_BROKER_CONSUME_STATS, admin_headers.GetConsumeStatsInBrokerHeader,
            admin.broker_consume_stats, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.QUERY_CONSUME_TIME_SPAN, admin_headers.QueryConsumeTimeSpanRequestHeader,
            admin.consume_time_span, rules.TIME_SPAN, UNUSED_BODY),
        Row(code.QUERY_CORRECTION_OFFSET, offset_headers.QueryCorrectionOffsetHeader,
            admin.correction_offset, rules.CORRECTION, UNUSED_BODY),
        Row(code.CLONE_GROUP_OFFSET, offset_headers.CloneGroupOffsetRequestHeader,
            admin.clone_offset, rules.CLONE, UNUSED_BODY,
            _fields("src_group", "dest_group", "topic")),
        Row(code.VIEW_BROKER_STATS_DATA, admin_headers.ViewBrokerStatsDataRequestHeader,
            admin.stats_data, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.QUERY_CONSUME_QUEUE, pull_headers.QueryConsumeQueueRequestHeader,
            admin.consume_queue, rules.QUEUE_ENTRIES, UNUSED_BODY),
    ]  # fmt: skip


def _config_rows(broker: Broker, config_path: str | None) -> list[Row[Any]]:
    code = RequestCode

    admin = AdminConfigProcessor(broker, config_path=config_path)
    promotion = PromoteProcessor(
        broker, config_path=config_path, restart=lambda reason: broker.on_restart(reason)
    )
    return [
        Row(code.TWINLOG_REPLICA, twinlog_headers.TwinlogReplicaRequestHeader,
            promotion.replica, ADMIN, UNUSED_BODY),
        Row(code.TWINLOG_PROMOTE, twinlog_headers.TwinlogPromoteRequestHeader,
            promotion.promote, ADMIN, UNUSED_BODY, _fields("broker_name", "broker_role")),
        Row(code.UPDATE_BROKER_CONFIG, NoHeader, admin.update, ADMIN, SMALL_BODY, _keys_of_body),
        Row(code.GET_BROKER_CONFIG, admin_headers.GetBrokerConfigRequestHeader,
            admin.get, ADMIN_UNLESS_APACHE, UNUSED_BODY),
        Row(code.CLEAN_EXPIRED_CONSUMEQUEUE, NoHeader,
            admin.clean_expired_queues, ADMIN_UNLESS_APACHE, UNUSED_BODY, _fields()),
        Row(code.CLEAN_UNUSED_TOPIC, NoHeader,
            admin.clean_unused_topics, ADMIN_UNLESS_APACHE, UNUSED_BODY, _fields()),
        Row(code.DELETE_EXPIRED_COMMITLOG, NoHeader,
            admin.delete_expired_log, ADMIN_UNLESS_APACHE, UNUSED_BODY, _fields()),
    ]  # fmt: skip


def _acl_rows(broker: Broker) -> list[Row[Any]]:
    code = RequestCode
    admin = AdminAclProcessor(broker, files=None if broker.guard is None else broker.guard.files)
    return [
        Row(code.UPDATE_AND_CREATE_ACL_CONFIG, admin_headers.CreateAccessConfigRequestHeader,
            admin.update_account, ADMIN, UNUSED_BODY, _fields("access_key")),
        Row(code.DELETE_ACL_CONFIG, admin_headers.DeleteAccessConfigRequestHeader,
            admin.delete_account, ADMIN, UNUSED_BODY, _fields("access_key")),
        Row(code.GET_BROKER_CLUSTER_ACL_INFO, NoHeader, admin.version, ADMIN, UNUSED_BODY),
        Row(code.GET_BROKER_CLUSTER_ACL_CONFIG, NoHeader, admin.accounts, ADMIN, UNUSED_BODY),
        Row(code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            admin_headers.UpdateGlobalWhiteAddrsConfigRequestHeader,
            admin.update_white, ADMIN, UNUSED_BODY, _fields("global_white_addrs")),
    ]  # fmt: skip
