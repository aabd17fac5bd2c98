"""Which handler answers which request code: the one table of the broker.

A new feature is a module in `processors` and a row here. Each processor gets what it needs through
its constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.broker.processors.admin_acl import AdminAclProcessor
from twinlog.broker.processors.admin_clients import AdminClientsProcessor
from twinlog.broker.processors.admin_config import AdminConfigProcessor
from twinlog.broker.processors.admin_stats import AdminStatsProcessor
from twinlog.broker.processors.admin_topics import AdminTopicsProcessor
from twinlog.broker.processors.client_manage import ClientManageProcessor
from twinlog.broker.processors.consumer_manage import ConsumerManageProcessor
from twinlog.broker.processors.end_transaction import EndTransactionProcessor
from twinlog.broker.processors.ha_status import HAStatusProcessor
from twinlog.broker.processors.query import QueryMessageProcessor
from twinlog.broker.processors.reply_message import ReplyMessageProcessor
from twinlog.broker.processors.send import SendMessageProcessor
from twinlog.broker.processors.send_back import SendBackProcessor
from twinlog.broker.processors.send_once import SendOnce
from twinlog.broker.rng import Rng
from twinlog.broker.runtime_info import RuntimeInfo
from twinlog.message.ids import pack_host
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.addresses import resolve
from twinlog.runtime.config import BrokerConfig

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

Handler = Callable[[ServerConnection, Request], None]


def store_host(config: BrokerConfig) -> bytes:
    """The address that records and message ids carry, packed."""
    return pack_host(resolve(config.broker_ip1), config.listen_port)


def handler_table(
    broker: Broker, *, rng: Rng, memory_size: int, config_path: str | None
) -> dict[int, Handler]:
    """Request code -> handler; with access control on, each behind its guard."""
    rows = _rows(broker, rng=rng, memory_size=memory_size, config_path=config_path)
    guard = broker.guard
    if guard is None:
        return rows
    return {code: _guarded(guard, handler) for code, handler in rows.items()}


def _guarded(guard: AccessGuard, handler: Handler) -> Handler:
    def checked(connection: ServerConnection, request: Request) -> None:
        guard.check(connection, request)
        handler(connection, request)

    return checked


def _rows(
    broker: Broker, *, rng: Rng, memory_size: int, config_path: str | None
) -> dict[int, Handler]:
    config, code = broker.config, RequestCode
    send = SendMessageProcessor(
        config,
        store=broker.store,
        topics=broker.topics,
        groups=broker.groups,
        replies=broker.replies,
        stats=broker.stats,
        store_stats=broker.store_stats,
        delay_levels=config.delay_levels,
        clock=broker.clock,
        rng=rng,
        store_host=store_host(config),
        once=SendOnce(broker.once, broker.replies),
        remember_half=broker.transactions.remember,
    )
    if broker.guard is None:
        broker.server.lane = broker.vip_server.lane = send.lane(broker.pair.offset_return)
    send_back = SendBackProcessor(
        config,
        store=broker.store,
        topics=broker.topics,
        groups=broker.groups,
        replies=broker.replies,
        stats=broker.stats,
        delay_levels=config.delay_levels,
        rng=rng,
    )
    query = QueryMessageProcessor(config, store=broker.store)
    consumer = ConsumerManageProcessor(
        store=broker.store,
        offsets=broker.offsets,
        consumers=broker.consumers,
        locks=broker.locks,
        clock=broker.clock,
        memory_size=memory_size,
        committed=broker.pair.committed,
    )
    return {
        code.SEND_MESSAGE: send.send,
        code.SEND_MESSAGE_V2: send.send_v2,
        code.SEND_BATCH_MESSAGE: send.send_v2,
        code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        code.PULL_MESSAGE: broker.pulls.pull,
        code.LITE_PULL_MESSAGE: broker.pulls.pull,
        code.QUERY_MESSAGE: query.query,
        code.VIEW_MESSAGE_BY_ID: query.view,
        code.GET_CONSUMER_LIST_BY_GROUP: consumer.consumer_list,
        code.QUERY_CONSUMER_OFFSET: consumer.query_offset,
        code.UPDATE_CONSUMER_OFFSET: consumer.update_offset,
        code.SEARCH_OFFSET_BY_TIMESTAMP: consumer.search_offset,
        code.GET_MAX_OFFSET: consumer.max_offset,
        code.GET_MIN_OFFSET: consumer.min_offset,
        code.GET_EARLIEST_MSG_STORETIME: consumer.earliest_time,
        code.LOCK_BATCH_MQ: consumer.lock_batch,
        code.UNLOCK_BATCH_MQ: consumer.unlock_batch,
        **_transaction_rows(broker),
        **_client_rows(broker),
        **_topic_rows(broker),
        **_stats_rows(broker),
        **_config_rows(broker, config_path),
        **_acl_rows(broker),
    }


def _transaction_rows(broker: Broker) -> dict[int, Handler]:
    """Transactions, and the replies of request-reply."""
    code = RequestCode
    ends = EndTransactionProcessor(
        broker.config, store=broker.store, transactions=broker.transactions
    )
    replies = ReplyMessageProcessor(
        broker.config,
        store=broker.store,
        topics=broker.topics,
        producers=broker.producers,
        replies=broker.replies,
        clock=broker.clock,
        host=store_host(broker.config),
    )
    return {
        code.END_TRANSACTION: ends.end,
        code.RESUME_CHECK_HALF_MESSAGE: ends.resume_check,
        code.SEND_REPLY_MESSAGE: replies.reply,
        code.SEND_REPLY_MESSAGE_V2: replies.reply_v2,
    }


def _client_rows(broker: Broker) -> dict[int, Handler]:
    code = RequestCode
    clients = ClientManageProcessor(
        broker.config,
        producers=broker.producers,
        consumers=broker.consumers,
        groups=broker.groups,
        topics=broker.topics,
        filters=broker.filters,
        clock=broker.clock,
    )
    admin = AdminClientsProcessor(
        broker.config,
        store=broker.store,
        topics=broker.topics,
        offsets=broker.offsets,
        producers=broker.producers,
        consumers=broker.consumers,
        tasks=broker.tasks,
        clock=broker.clock,
    )
    return {
        code.HEART_BEAT: clients.heartbeat,
        code.UNREGISTER_CLIENT: clients.unregister,
        code.CHECK_CLIENT_CONFIG: clients.check_config,
        code.GET_CONSUMER_CONNECTION_LIST: admin.consumer_connections,
        code.GET_PRODUCER_CONNECTION_LIST: admin.producer_connections,
        code.GET_ALL_PRODUCER_INFO: admin.all_producers,
        code.INVOKE_BROKER_TO_RESET_OFFSET: admin.reset_offset,
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: admin.consumer_status,
        code.GET_CONSUMER_RUNNING_INFO: admin.running_info,
        code.CONSUME_MESSAGE_DIRECTLY: admin.consume_directly,
    }


def _topic_rows(broker: Broker) -> dict[int, Handler]:
    code = RequestCode
    admin = AdminTopicsProcessor(
        broker.config,
        store=broker.store,
        topics=broker.topics,
        groups=broker.groups,
        offsets=broker.offsets,
        consumers=broker.consumers,
        stats=broker.stats,
        registration=broker.registration,
        tasks=broker.tasks,
    )
    return {
        code.UPDATE_AND_CREATE_TOPIC: admin.update_topic,
        code.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
        code.GET_ALL_TOPIC_CONFIG: admin.all_topics,
        code.GET_TOPIC_CONFIG: admin.topic_config,
        code.GET_TOPIC_STATS_INFO: admin.topic_stats,
        code.QUERY_TOPIC_CONSUME_BY_WHO: admin.consumed_by,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.system_topics,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_group,
        code.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group_config,
    }


def _stats_rows(broker: Broker) -> dict[int, Handler]:
    code = RequestCode
    runtime = RuntimeInfo(
        broker.config,
        store=broker.store,
        disk=broker.disk,
        clock=broker.clock,
        stats=broker.stats,
        store_stats=broker.store_stats,
        schedule=broker.schedule,
        replies=broker.replies,
        ha=broker.ha,
        metadata=broker.pair.status,
    )
    admin = AdminStatsProcessor(
        broker.config,
        store=broker.store,
        topics=broker.topics,
        groups=broker.groups,
        offsets=broker.offsets,
        consumers=broker.consumers,
        stats=broker.stats,
        schedule=broker.schedule,
        runtime_table=runtime.table,
        broker_address=broker.address,
        clock=broker.clock,
    )
    return {
        code.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
        code.TWINLOG_INFO: broker.pair.info,
        code.TWINLOG_OFFSETS: broker.pair.offset_return.take,
        code.GET_BROKER_HA_STATUS: HAStatusProcessor(broker.ha, broker.pair.status).status,
        code.GET_ALL_CONSUMER_OFFSET: admin.all_consumer_offsets,
        code.GET_ALL_DELAY_OFFSET: admin.all_delay_offsets,
        code.GET_CONSUME_STATS: admin.consume_stats,
        code.GET_BROKER_CONSUME_STATS: admin.broker_consume_stats,
        code.QUERY_CONSUME_TIME_SPAN: admin.consume_time_span,
        code.QUERY_CORRECTION_OFFSET: admin.correction_offset,
        code.CLONE_GROUP_OFFSET: admin.clone_offset,
        code.VIEW_BROKER_STATS_DATA: admin.stats_data,
        code.QUERY_CONSUME_QUEUE: admin.consume_queue,
    }


def _config_rows(broker: Broker, config_path: str | None) -> dict[int, Handler]:
    code = RequestCode

    def changed(attributes: list[str]) -> None:
        if "broker_permission" in attributes:
            broker.registration.wake()

    admin = AdminConfigProcessor(
        broker.config,
        store=broker.store,
        topics=broker.topics,
        clock=broker.clock,
        disk=broker.disk,
        config_path=config_path,
        changed=changed,
    )
    return {
        code.UPDATE_BROKER_CONFIG: admin.update,
        code.GET_BROKER_CONFIG: admin.get,
        code.CLEAN_EXPIRED_CONSUMEQUEUE: admin.clean_expired_queues,
        code.CLEAN_UNUSED_TOPIC: admin.clean_unused_topics,
        code.DELETE_EXPIRED_COMMITLOG: admin.delete_expired_log,
    }


def _acl_rows(broker: Broker) -> dict[int, Handler]:
    code = RequestCode
    admin = AdminAclProcessor(
        broker.config,
        files=None if broker.guard is None else broker.guard.files,
        clock=broker.clock,
        broker_address=broker.address,
    )
    return {
        code.UPDATE_AND_CREATE_ACL_CONFIG: admin.update_account,
        code.DELETE_ACL_CONFIG: admin.delete_account,
        code.GET_BROKER_CLUSTER_ACL_INFO: admin.version,
        code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: admin.update_white,
    }
