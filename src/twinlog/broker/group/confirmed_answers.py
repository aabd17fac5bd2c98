"""Answers of a controlled group's master that wait until what they say cannot be lost.

A topic that was created, a group that was changed, a queue that was locked, an offset that was set
back: each is a record of metadata in the log. RocketMQ answers at once, and a switch right after it
forgets them (#9804). Commits that move forward are not waited for: they may be consumed again.
"""

from __future__ import annotations

from typing import Any, cast

from twinlog.broker.pair.metadata_service import MetadataWriter
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
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)
NOT_WRITTEN = (
    "done here, and not in the log of the group: the next master does not know of it. Repeat it"
    " when this broker takes messages again, or at the next master"
)


class ConfirmedAnswers:
    """`hold` before the handler runs, `handled` after it."""

    def __init__(
        self, store: MessageStore, ha: HAService, role: Role, writer: MetadataWriter
    ) -> None:
        self._store = store
        self._ha = ha
        self._role = role
        self._writer = writer

    def wants(self, request: Request) -> bool:
        return request.code in CONFIRMED_CODES and self._role.is_master and not request.is_oneway

    def hold(self, connection: ServerConnection) -> ServerConnection:
        return cast("ServerConnection", HeldAnswers(connection))

    def handled(self, connection: ServerConnection, request: Request) -> None:
        """What the handler put is in the log: its answer leaves when all of the set has it."""
        held = cast("HeldAnswers", connection)
        if self._is_forward(request):
            held.release()
            return
        if not self._writer.write_now() and request.code != RequestCode.LOCK_BATCH_MQ:
            # What cannot be recorded of locks is not granted in the first place.
            held.answer_instead(request, ResponseCode.SYSTEM_ERROR, remark=NOT_WRITTEN)
            return
        self._store.write_pending()

        def decided(_: Any, outcome: Outcome, reason: str) -> None:
            if outcome is Outcome.REACHED:
                held.release()
                return
            text = f"done here, and not confirmed by the group: {reason}"
            held.answer_instead(request, ResponseCode.SYSTEM_ERROR, remark=text)

        self._ha.wait_confirmed(self._store.commit_log.max_offset, decided)

    def _is_forward(self, request: Request) -> bool:
        journal = self._writer.journal
        is_commit = request.code == RequestCode.UPDATE_CONSUMER_OFFSET
        return is_commit and (journal is None or not journal.is_set_back)
