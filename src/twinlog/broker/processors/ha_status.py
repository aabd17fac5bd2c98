"""How replication is: 907, as RocketMQ 5 has it (AdminBrokerProcessor.getBrokerHaStatus)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from twinlog.broker.stats.busiest import BusiestProcessor
from twinlog.ha.service import HAService
from twinlog.ha.status import runtime_info
from twinlog.observe.health import ServerFacts
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.ha import HAMarks, HARival
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.remoting.request_table import ANY_ACCOUNT, UNUSED_BODY, NoHeader, Row
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.failures import Failures
from twinlog.store.message_store import MessageStore

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class HAStatusProcessor:
    """Answers with the truth of the moment; the body is HARuntimeInfo and our own keys."""

    def __init__(
        self,
        ha: HAService,
        metadata: Callable[[], dict[str, str]],
        failures: Failures,
        rivals: Callable[[], list[HARival]],
        store: MessageStore,
        server: Callable[[], ServerFacts],
        *,
        is_controlled: bool,
    ) -> None:
        self._ha = ha
        self._metadata = metadata
        self._failures = failures
        self._rivals = rivals
        self._store = store
        self._server = server
        self._is_controlled = is_controlled

    def status(self, connection: ServerConnection, request: Request) -> None:
        info = runtime_info(self._ha.status())
        own = info.twinlog
        own.metadata = self._metadata()
        own.failures = self._failures.status()
        own.rivals = self._rivals()
        own.is_controlled = self._is_controlled
        own.marks = self._marks()
        own.server = msgspec.to_builtins(self._server())
        connection.reply(request, body=fastjson.dumps(info))

    def _marks(self) -> HAMarks:
        store = self._store
        return HAMarks(
            min=store.commit_log.min_offset,
            appended=store.appended.value,
            flushed=store.flushed.value,
            dispatched=store.dispatched.value,
        )


def status_rows(broker: Broker) -> list[Row[Any]]:
    """What a broker answers about itself: its state, and what changed."""
    status = HAStatusProcessor(
        broker.ha,
        broker.pair.status,
        broker.failures,
        broker.registration.rivals,
        broker.store,
        broker.facts.server,
        is_controlled=broker.config.enable_controller_mode,
    ).status
    code, events = RequestCode, broker.watch.answer
    return [
        Row(code.GET_BROKER_HA_STATUS, NoHeader, status, ANY_ACCOUNT, UNUSED_BODY),
        Row(code.TWINLOG_EVENTS, EventsRequestHeader, events, ANY_ACCOUNT, UNUSED_BODY),
        Row(code.TWINLOG_BUSIEST, NoHeader,
            BusiestProcessor(broker).answer, ANY_ACCOUNT, UNUSED_BODY),
    ]  # fmt: skip
