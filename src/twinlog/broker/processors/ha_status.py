"""How replication is: 907, as RocketMQ 5 has it (AdminBrokerProcessor.getBrokerHaStatus)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from twinlog.ha.service import HAService
from twinlog.ha.status import runtime_info
from twinlog.observe.health import ServerFacts
from twinlog.remoting import fastjson
from twinlog.remoting.command import Request
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.failures import Failures
from twinlog.store.message_store import MessageStore


class HAStatusProcessor:
    """Answers with the truth of the moment; the body is HARuntimeInfo and our own keys."""

    def __init__(
        self,
        ha: HAService,
        metadata: Callable[[], dict[str, str]],
        failures: Failures,
        rivals: Callable[[], list[dict[str, object]]],
        store: MessageStore,
        server: Callable[[], ServerFacts],
    ) -> None:
        self._ha = ha
        self._metadata = metadata
        self._failures = failures
        self._rivals = rivals
        self._store = store
        self._server = server

    def status(self, connection: ServerConnection, request: Request) -> None:
        info = runtime_info(self._ha.status())
        info["twinlog"]["metadata"] = self._metadata()
        info["twinlog"]["failures"] = self._failures.status()
        info["twinlog"]["rivals"] = self._rivals()
        info["twinlog"]["marks"] = self._marks()
        info["twinlog"]["server"] = msgspec.to_builtins(self._server())
        connection.reply(request, body=fastjson.dumps(info))

    def _marks(self) -> dict[str, int]:
        """How far each stage of this replica's own log is."""
        store = self._store
        return {
            "min": store.commit_log.min_offset,
            "appended": store.appended.value,
            "flushed": store.flushed.value,
            "dispatched": store.dispatched.value,
        }
