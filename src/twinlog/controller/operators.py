"""Requests of operators that RocketMQ does not have: facts, drain, adoption, events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from twinlog.controller import events
from twinlog.controller.core import Controller, Event
from twinlog.controller.events import Reply
from twinlog.controller.facts import group_facts
from twinlog.controller.refusals import RESPONSE_CODES
from twinlog.remoting.bodies.controller import ControllerGroups, Events
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.request_table import ADMIN, ANY_ACCOUNT, UNUSED_BODY, Handler, NoHeader, Row
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.event_journal import RecentEvents


class KnowsGroups(Protocol):
    """The shell that owns the core while this process leads."""

    @property
    def core(self) -> Controller | None: ...

    @property
    def now_ms(self) -> int: ...

    def handle(self, event: Event) -> None:
        """Pass an event to the core and carry out its effects; replies go to their tokens."""
        ...

    @property
    def events(self) -> RecentEvents: ...


class OperatorRequests:
    """Rows for the table of a controller. `leading` refuses while another controller leads."""

    def __init__(self, shell: KnowsGroups, leading: Callable[[Handler], Handler]) -> None:
        self._shell = shell
        self._leading = leading

    def rows(self) -> list[Row[Any]]:
        code, leads = RequestCode, self._leading
        return [
            Row(code.TWINLOG_GROUPS, NoHeader, leads(self._groups), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.TWINLOG_SET_LEARNER, headers.SetLearnerRequestHeader,
                leads(self._set_learner), ADMIN, UNUSED_BODY, _learner_change),
            Row(code.TWINLOG_ADOPT, headers.AdoptRequestHeader,
                leads(self._adopt), ADMIN, UNUSED_BODY,
                lambda header, _: f"adopt {header.broker_name}"),
            # Each controller has a journal of its own, whoever leads.
            Row(code.TWINLOG_EVENTS, headers.EventsRequestHeader,
                self._events, ANY_ACCOUNT, UNUSED_BODY),
        ]  # fmt: skip

    def _groups(self, connection: ServerConnection, request: Request) -> None:
        core, now_ms = self._shell.core, self._shell.now_ms
        groups = [] if core is None else [group_facts(g, now_ms) for g in core.groups.values()]
        body = msgspec.json.encode(ControllerGroups(groups))
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    def _set_learner(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.SetLearnerRequestHeader)
        event = events.SetLearner(
            header.broker_name, header.broker_id, header.learner, _answer(connection, request)
        )
        self._shell.handle(event)

    def _adopt(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.AdoptRequestHeader)
        answer = _answer(connection, request)
        self._shell.handle(events.Adopt(header.broker_name, header.twinlog_group, answer))

    def _events(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.EventsRequestHeader)
        found = self._shell.events.select(header.broker_name, header.since, header.limit)
        body = msgspec.json.encode(Events(found))
        connection.reply(request, ResponseCode.SUCCESS, body=body)


def _answer(connection: ServerConnection, request: Request) -> Callable[[Reply], None]:
    def answer(reply: Reply) -> None:
        connection.reply(request, RESPONSE_CODES[reply.kind], remark=reply.error or None)

    return answer


def _learner_change(header: headers.SetLearnerRequestHeader, request: Request) -> str:
    verb = "drain" if header.learner else "undrain"
    return f"{verb} {header.broker_name} {header.broker_id}"
