"""Name server: registration, routes, KV configuration, write permission."""

from __future__ import annotations

from twinlog.remoting.headers.base import Header, Int, Long, TopicHeader


class RegisterBrokerRequestHeader(Header):
    """103.

    `twinlog_topics` is said to twinlog name servers only: `all` topics of the broker are in the
    body, or `some`, those that changed. `twinlog_lineage`: of the group that a controller has made
    this broker the master of; epochs of another one cannot be compared with its.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    compressed: bool = False
    body_crc32: Int = 0
    heartbeat_timeout_millis: Long | None = None
    twinlog_topics: str | None = None
    twinlog_lineage: str | None = None


class RegisterBrokerResponseHeader(Header):
    """Answer to 103: for a slave with a live master, where it is.

    The rest is said to twinlog brokers only. `twinlog`: this name server takes heartbeats (904).
    `twinlog_digest`: of the topics that it has of the broker's name. `twinlog_rival`: another
    living address with the same name and id; `twinlog_in_route`: whether the place is ours.
    `twinlog_epoch`: a master of this newer epoch has it.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    twinlog: str | None = None
    twinlog_digest: str | None = None
    twinlog_rival: str | None = None
    twinlog_in_route: bool | None = None
    twinlog_epoch: Long | None = None


class UnregisterBrokerRequestHeader(Header):
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionRequestHeader(Header):
    """322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionResponseHeader(Header):
    """Answer to 322."""

    changed: bool


class BrokerHeartbeatRequestHeader(Header):
    """904 of 5.x."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None


class GetRouteInfoRequestHeader(TopicHeader):
    """105."""

    accept_standard_json_only: bool = False


class GetTopicsByClusterRequestHeader(Header):
    """224."""

    cluster: str


class WipeWritePermOfBrokerRequestHeader(Header):
    """205."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """Answer to 205."""

    wipe_topic_count: Int


class AddWritePermOfBrokerRequestHeader(Header):
    """327."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """Answer to 327."""

    add_topic_count: Int


class DeleteTopicInNamesrvRequestHeader(TopicHeader):
    """216."""

    cluster_name: str | None = None


class PutKVConfigRequestHeader(Header):
    """100."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """101."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """Answer to 101."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header):
    """102."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header):
    """219."""

    namespace: str
