"""Clients and groups: 35, 38, 203, 204, 307, 309, and what a broker asks its clients (39, 40)."""

from __future__ import annotations

import msgspec

from twinlog.remoting.headers.base import GroupHeader, Header, Long


class UnregisterClientRequestHeader(Header):
    """35. An empty group (the C++ client sends one) is no group."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(GroupHeader):
    """38."""


class NotifyConsumerIdsChangedRequestHeader(GroupHeader):
    """40, one-way, broker to client."""


class GetConsumerConnectionListRequestHeader(GroupHeader):
    """203."""


class GetProducerConnectionListRequestHeader(Header):
    """204."""

    producer_group: str


class GetConsumerRunningInfoRequestHeader(Header):
    """307, to the broker and on to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header):
    """309, to the broker and on to the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CheckTransactionStateRequestHeader(Header):
    """39, one-way, broker to producer."""

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")
