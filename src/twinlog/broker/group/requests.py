"""Requests that only a broker of a controlled group answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinlog.remoting import fastjson
from twinlog.remoting.bodies.controller import EpochEntry, EpochEntryCache
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.controller import NotifyBrokerRoleChangedRequestHeader
from twinlog.remoting.headers.twinlog import TwinlogRelayRequestHeader
from twinlog.remoting.request_table import ADMIN, ANY_ACCOUNT, MESSAGES, SMALL_BODY, NoHeader, Row
from twinlog.remoting.server import ServerConnection

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class GroupProcessor:
    """1007 and 1008."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def epochs(self, connection: ServerConnection, request: Request) -> None:
        """GET_BROKER_EPOCH_CACHE (1007): who wrote which part of this log."""
        broker, group = self._broker, self._broker.ha.group
        if group is None:
            remark = "this broker belongs to no controlled group"
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        history, end = group.history, broker.store.commit_log.max_offset
        body = EpochEntryCache(
            broker.config.broker_cluster_name,
            broker.config.broker_name,
            group.own_id,
            [EpochEntry(e.epoch, e.start, history.end_of(e.epoch, end)) for e in history],
            end,
        )
        connection.reply(request, body=fastjson.dumps(body))

    def role_changed(self, connection: ServerConnection, request: Request) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): a hint to ask the controller (R11)."""
        if self._broker.replicas is not None:
            self._broker.replicas.hint()
        connection.reply(request)


def group_rows(broker: Broker) -> list[Row[Any]]:
    code, group = RequestCode, GroupProcessor(broker)
    assert broker.relay is not None
    return [
        Row(code.GET_BROKER_EPOCH_CACHE, NoHeader, group.epochs, ANY_ACCOUNT, SMALL_BODY),
        Row(code.NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequestHeader,
            group.role_changed, ADMIN, SMALL_BODY),
        Row(code.TWINLOG_RELAY, TwinlogRelayRequestHeader, broker.relay.serve, ADMIN, MESSAGES),
    ]  # fmt: skip
