"""Offsets: 14, 15, 29 to 32, and the operations that move them (222, 223, 314, 220, 221)."""

from __future__ import annotations

import msgspec

from twinlog.remoting.headers.base import Header, Int, Long, QueueHeader


class QueryConsumerOffsetRequestHeader(Header):
    """14."""

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class UpdateConsumerOffsetRequestHeader(Header):
    """15."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long
    broker_name: str | None = msgspec.field(default=None, name="bname")


class SearchOffsetRequestHeader(Header):
    """29."""

    topic: str
    queue_id: Int
    timestamp: Long
    boundary_type: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class GetMaxOffsetRequestHeader(QueueHeader):
    """30."""


class GetMinOffsetRequestHeader(QueueHeader):
    """31."""


class GetEarliestMsgStoretimeRequestHeader(QueueHeader):
    """32."""


class ResetOffsetRequestHeader(Header):
    """222, and 220 to the members. A time of -1 means the end."""

    topic: str
    group: str
    timestamp: Long
    is_force: bool = False
    queue_id: Int | None = None
    offset: Long | None = None


class GetConsumerStatusRequestHeader(Header):
    """223, and 221 to the members."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffsetRequestHeader(Header):
    """314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetHeader(Header):
    """308."""

    topic: str
    compare_group: str
    filter_groups: str | None = None
