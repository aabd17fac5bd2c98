"""From a request to its handler: the limit of its body, the gate, the quota, the door.

The table (`handlers.py`) says what is served; this is the way of each request through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.broker.group.confirmed_answers import ConfirmedAnswers
from twinlog.broker.tables.creation_quota import CreationQuota
from twinlog.remoting.audit import AuditLog, Door
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import BodyTooLargeError, CommandError
from twinlog.remoting.request_table import Handler, RequestTable
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.saving import HeldForSave

if TYPE_CHECKING:
    from twinlog.broker.group.relay import Relay
    from twinlog.broker.pair.service import PairService
    from twinlog.remoting.acl_guard import AccessGuard

_NOT_ON_VIP_PORT = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Dispatch:
    """The handlers of the broker's two ports."""

    def __init__(self, audit: AuditLog, creations: CreationQuota) -> None:
        self._audit = audit
        self._creations = creations
        self._handlers: dict[int, tuple[Handler, int]] = {}
        self._guard: AccessGuard | None = None
        self._pair: PairService
        # In a controlled group.
        self.relay: Relay | None = None
        self.confirms: ConfirmedAnswers | None = None
        self.table = RequestTable(())

    def serve(self, table: RequestTable, guard: AccessGuard | None, pair: PairService) -> None:
        """Answer these requests from now on, each behind the door."""
        self.table, self._guard, self._pair = table, guard, pair
        door = Door(guard, self._audit)
        for row in table:
            self._handlers[row.code] = (door.handler(row), row.body_max)

    def handle(self, connection: ServerConnection, request: Request) -> None:
        """A request of the service port."""
        known = self._handlers.get(request.code)
        if known is None:
            _unknown(connection, request)
            return
        handler, body_max = known
        if len(request.body) > body_max:
            refusal = BodyTooLargeError(request.code, len(request.body), body_max)
            self._audit.refused(connection, request.code, refusal.remark)
            raise refusal
        if self.relay is not None and self._is_relayed(self.relay, connection, request):
            return
        if self._pair.is_open or not self._hold(connection, request):
            quota = self._creations
            quota.client = connection
            try:
                self._answer(handler, connection, request)
            except HeldForSave as held:
                # What it made is on its way to the disk: handled again when it is there, or not.
                held.saver.when_saved(lambda _: connection.handle_again(self.handle, request))
            finally:
                quota.client = None

    def _answer(self, handler: Handler, connection: ServerConnection, request: Request) -> None:
        if self.confirms is None or not self.confirms.wants(request):
            handler(connection, request)
            return
        held = self.confirms.hold(connection)
        handler(held, request)
        self.confirms.handled(held, request)

    def handle_vip(self, connection: ServerConnection, request: Request) -> None:
        """The VIP port answers everything but pulls, as Apache's."""
        if request.code in _NOT_ON_VIP_PORT:
            _unknown(connection, request)
        else:
            self.handle(connection, request)

    def _hold(self, connection: ServerConnection, request: Request) -> bool:
        """Keep a request until the gate is open. Strangers are not kept: they would fill it."""
        return self._may_wait(connection, request) and self._pair.hold(connection, request)

    def _is_relayed(self, relay: Relay, connection: ServerConnection, request: Request) -> bool:
        """Whether another broker of the group answers it."""
        return (
            relay.wants(request)
            and self._may_wait(connection, request)
            and relay.takes(connection, request)
        )

    def _may_wait(self, connection: ServerConnection, request: Request) -> bool:
        if self._guard is not None:
            try:
                self._guard.check(connection, request, self.table.rows[request.code])
            except CommandError:
                return False  # Behind the door it is refused again, and audited.
        return True


def _unknown(connection: ServerConnection, request: Request) -> None:
    remark = f" request type {request.code} not supported"
    connection.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
