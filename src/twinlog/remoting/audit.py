"""The audit log: who was refused, and who changed configuration, rules, topics, groups, offsets.

One JSON object a line on logger `twinlog.audit`: time, account, address, code, resource, outcome.
Refusals are gathered: the first of a peer for a code and a reason is a line at once, those that
follow are counted and told once a minute. So a flood of them costs a counter each.

Account is who signed; `claimed` is what a request that is not signed rightly says it is.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from twinlog.remoting.acl_guard import AccessGuard, AccessRefused
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError
from twinlog.remoting.request_table import Handler, Row
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.audit_file import LOGGER
from twinlog.runtime.clock import Clock
from twinlog.runtime.saving import HeldForSave

GATHER_MS = 60_000
PEERS_MAX = 1_000  # Different (address, code, reason) at a time; the rest is one line of others.
_TEXT_MAX = 256
_NAMES = {code.value: code.name for code in RequestCode}
_OTHERS = ("others", 0, "refused")


class AuditLog:
    """Writes to the logger; where its lines go is `runtime/audit_file.py`'s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = logging.getLogger(LOGGER)
        self._gathered: dict[tuple[str, int, str], int] = {}
        self._gathering_since_ms = clock.monotonic_ms()

    def refused(
        self, connection: ServerConnection, code: int, reason: str, *, claimed: str = ""
    ) -> None:
        """A request was refused: access control, a limit, a quota."""
        host = connection.remote_address[0]
        key = (host, code, reason[:_TEXT_MAX])
        if key in self._gathered:
            self._gathered[key] += 1
        elif len(self._gathered) >= PEERS_MAX:
            self._gathered[_OTHERS] = self._gathered.get(_OTHERS, 0) + 1
        else:
            self._gathered[key] = 0
            self._write(connection.remote_text, code, f"refused: {reason}", claimed=claimed)

    def changed(
        self, connection: ServerConnection, code: int, account: str, resource: str, outcome: str
    ) -> None:
        """Somebody changed something, or tried to."""
        self._write(connection.remote_text, code, outcome, account=account, resource=resource)

    def tick(self) -> None:
        """Called now and then: what was gathered for a minute becomes one line each."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._gathering_since_ms >= GATHER_MS:
            self.flush()

    def flush(self) -> None:
        self._gathering_since_ms = self._clock.monotonic_ms()
        gathered, self._gathered = self._gathered, {}
        for (host, code, reason), count in gathered.items():
            if count:
                self._write(host, code, f"refused: {reason}", count=count)

    def _write(self, address: str, code: int, outcome: str, **more: str | int) -> None:
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "account": more.pop("account", ""),
            "address": address,
            "code": code,
            "request": _NAMES.get(code, ""),
            "resource": more.pop("resource", ""),
            "outcome": outcome,
            **{name: value for name, value in more.items() if value != ""},
        }
        cut = {k: v[:_TEXT_MAX] if isinstance(v, str) else v for k, v in line.items()}
        self._log.info("%s", json.dumps(cut))


class Door:
    """What a request passes before its handler: access control and the audit log."""

    def __init__(self, guard: AccessGuard | None, audit: AuditLog) -> None:
        self._guard = guard
        self._audit = audit

    def handler(self, row: Row[Any]) -> Handler:
        """The handler of a row behind the door; without access control most have none."""
        if self._guard is None and row.change is None:
            return row.handler
        return self._behind(row)

    def _behind(self, row: Row[Any]) -> Handler:
        guard, handler = self._guard, row.handler

        def checked(connection: ServerConnection, request: Request) -> None:
            account = "" if guard is None else self._account(guard, connection, request, row)
            if row.change is None:
                handler(connection, request)
            else:
                self._change(connection, request, row, account)

        return checked

    def _account(
        self,
        guard: AccessGuard,
        connection: ServerConnection,
        request: Request,
        row: Row[Any],
    ) -> str:
        try:
            return guard.check(connection, request, row)
        except AccessRefused as refusal:
            claimed = request.ext().get("AccessKey", "")
            self._audit.refused(connection, request.code, refusal.reason, claimed=claimed)
            raise

    def _change(
        self, connection: ServerConnection, request: Request, row: Row[Any], account: str
    ) -> None:
        resource = _resource(row, request)
        try:
            row.handler(connection, request)
        except HeldForSave:
            raise  # It comes again, and is told then.
        except CommandError as refusal:
            outcome = f"failed: {refusal.code} {refusal.remark}"
            self._audit.changed(connection, request.code, account, resource, outcome)
            raise
        except Exception as error:
            outcome = f"failed: {type(error).__name__}"
            self._audit.changed(connection, request.code, account, resource, outcome)
            raise
        self._audit.changed(connection, request.code, account, resource, "done")


def _resource(row: Row[Any], request: Request) -> str:
    """What the request is about; one that cannot be read changes nothing and says so itself."""
    assert row.change is not None
    try:
        return row.change(request.header(row.header), request)
    except (CommandError, ValueError):
        return "not readable"
