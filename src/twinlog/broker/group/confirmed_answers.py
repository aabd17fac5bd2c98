"""Answers of a controlled group's master that wait until what they say cannot be lost.

A topic that was created, a group that was changed, a queue that was locked: each is a record of
metadata in the log. RocketMQ answers at once, and a switch right after it forgets them (#9804).
"""

from __future__ import annotations

from typing import Any, cast

from twinlog.broker.pull.held_answers import HeldAnswers
from twinlog.broker.role import Role
from twinlog.ha.service import HAService
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.watermark import Outcome
from twinlog.store.message_store import MessageStore

CONFIRMED_CODES = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.LOCK_BATCH_MQ,
    }
)


class ConfirmedAnswers:
    """`hold` before the handler runs, `handled` after it."""

    def __init__(self, store: MessageStore, ha: HAService, role: Role) -> None:
        self._store = store
        self._ha = ha
        self._role = role

    def wants(self, request: Request) -> bool:
        return request.code in CONFIRMED_CODES and self._role.is_master

    def hold(self, connection: ServerConnection) -> ServerConnection:
        return cast("ServerConnection", HeldAnswers(connection))

    def handled(self, connection: ServerConnection, request: Request) -> None:
        """What the handler put is in the log: its answer leaves when all of the set has it."""
        held = cast("HeldAnswers", connection)
        self._store.write_pending()

        def decided(_: Any, outcome: Outcome, reason: str) -> None:
            if outcome is not Outcome.REACHED:
                text = f"done here, and not confirmed by the group: {reason}"
                held.drop()
                connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=text)
            held.release()

        self._ha.group_transfer.wait(self._store.commit_log.max_offset, decided)
