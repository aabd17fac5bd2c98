"""Who is connected to a broker, as it tells."""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.remoting.bodies.common import Body, MessageQueue


class ConnectionInfo(Body):
    """RocketMQ's Connection: one client."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class ProducerConnection(Body):
    """Answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ConnectionInfo] = msgspec.field(default_factory=list)


class ConsumerConnection(Body):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ConnectionInfo] = msgspec.field(default_factory=list)
    subscription_table: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class ConsumerIdList(Body):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (GetConsumerListByGroupResponseBody)."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)


class LockBatchResponseBody(Body):
    """Answer to LOCK_BATCH_MQ: the queues that are the client's now."""

    locked: list[dict[str, Any]] = msgspec.field(default_factory=list, name="lockOKMQSet")


class GetConsumerStatusBody(Body):
    """Positions of consumers by queue: a member's own (`message_queue_table`, our client's with
    the text of the queue as key), or those that a broker collected, by client id."""

    consumer_table: dict[str, dict[MessageQueue, int]] = msgspec.field(default_factory=dict)
    message_queue_table: dict[MessageQueue | str, int] = msgspec.field(default_factory=dict)


class ConsumeMessageDirectlyResult(Body):
    """Answer to CONSUME_MESSAGE_DIRECTLY: what the handler of a client did with the message."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = ""
    remark: str | None = None
    spent_time_mills: int = 0


class ProcessQueueInfo(Body):
    """One queue as its consumer sees it. In the order in which Apache prints them."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumeStatus(Body):
    """Rates of one topic in a consumer."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    """Answer to GET_CONSUMER_RUNNING_INFO: what one consumer says of itself. `mq_table` has queues
    as keys (`by_queue` reads them)."""

    mq_table: dict[str, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    properties: dict[str, Any] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    subscription_set: list[dict[str, Any]] = msgspec.field(default_factory=list)
    jstack: str | None = None


class ProducerInfo(Body):
    client_id: str = ""
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    language: str = ""
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(Body):
    """Answer to GET_ALL_PRODUCER_INFO: by group."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=dict)


class GroupList(Body):
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    group_list: list[str] = msgspec.field(default_factory=list)
