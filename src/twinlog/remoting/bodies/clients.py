"""Who is connected to a broker, as it tells."""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.remoting.bodies.common import Body


class ConnectionInfo(Body):
    """RocketMQ's Connection: one client."""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class ConsumerConnection(Body):
    """Answer to GET_CONSUMER_CONNECTION_LIST; of GET_PRODUCER_CONNECTION_LIST the first member."""

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
