"""Reading: PULL_MESSAGE (11), LITE_PULL_MESSAGE (361), QUERY_MESSAGE (12), VIEW_MESSAGE_BY_ID (33),
QUERY_CONSUME_QUEUE (321)."""

from __future__ import annotations

import msgspec

from twinlog.remoting.headers.base import Header, Int, Long

# Bits of a pull's sysFlag (RocketMQ's PullSysFlag).
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4


class PullMessageRequestHeader(Header):
    """11 and 361."""

    consumer_group: str
    topic: str
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int
    sys_flag: Int
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class PullMessageResponseHeader(Header):
    """Answer to a pull: all four always, Java unboxes them unchecked."""

    suggest_which_broker_id: Long
    next_begin_offset: Long
    min_offset: Long
    max_offset: Long


class QueryMessageRequestHeader(Header):
    """12."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class ViewMessageRequestHeader(Header):
    """33: the physical offset out of an offset message id."""

    offset: Long
    topic: str | None = None


class QueryConsumeQueueRequestHeader(Header):
    """321."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None
