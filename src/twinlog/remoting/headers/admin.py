"""Administration of a broker: topics, groups, statistics, configuration, ACL."""

from __future__ import annotations

from twinlog.remoting.headers.base import GroupHeader, Header, Int, TopicHeader


class CreateTopicRequestHeader(Header):
    """17."""

    topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    default_topic: str | None = None
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None


class GetBrokerConfigRequestHeader(Header):
    """26. `twinlog_origins` asks where each value is from; Apache's brokers do not read it."""

    twinlog_origins: bool = False


class DeleteTopicRequestHeader(TopicHeader):
    """215."""


class GetTopicStatsInfoRequestHeader(TopicHeader):
    """202."""


class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """300."""


class DeleteSubscriptionGroupRequestHeader(Header):
    """207; 5.x says `cleanOffset` for `removeOffset`."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool | None = None


class GetSubscriptionGroupConfigRequestHeader(Header):
    """352 of 5.x."""

    group: str


class GetConsumeStatsRequestHeader(GroupHeader):
    """208."""

    topic: str | None = None


class GetConsumeStatsInBrokerHeader(Header):
    """317."""

    is_order: bool = False


class QueryConsumeTimeSpanRequestHeader(Header):
    """303."""

    topic: str
    group: str


class ViewBrokerStatsDataRequestHeader(Header):
    """315."""

    stats_name: str
    stats_key: str


class ResumeCheckHalfMessageRequestHeader(Header):
    """323."""

    msg_id: str
    topic: str | None = None


class CreateAccessConfigRequestHeader(Header):
    """50. What is absent stays as it is; Apache's brokers take an absent `admin` for false."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccessConfigRequestHeader(Header):
    """51."""

    access_key: str


class GetBrokerAclConfigResponseHeader(Header):
    """Answer to 52."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str | None = None
    broker_addr: str | None = None
    cluster_name: str | None = None


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """53."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class ResetMasterFlushOffsetHeader(Header):
    """908, of RocketMQ 5."""

    master_flush_offset: int
