"""What stands at the HA port until the first bytes say what a connection speaks.

Three things share the port: TLS (first byte 0x16), the twin dialect (its magic) and RocketMQ's own,
which begins with an offset. No offset begins like either: it would be beyond an exabyte.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Protocol, cast

from twinlog.ha.connection import HAConnection
from twinlog.ha.tls_front import TlsFront
from twinlog.ha.twin.wire import MAGIC as TWIN_MAGIC
from twinlog.runtime.tls_channel import HANDSHAKE_RECORD, NOT_OFFERED

_LOG = logging.getLogger("twinlog.ha")


class FrontOwner(Protocol):
    """The HAService."""

    def connection_opened(self, connection: HAConnection) -> None: ...

    def classic_refusal(self, host: str, *, is_local: bool) -> str: ...

    def tls_detected(self, connection: HAConnection) -> ssl.SSLContext | None: ...

    def twin_detected(self, connection: HAConnection) -> HAConnection | None: ...


class HAFront(asyncio.Protocol):
    """Before `connection`, which is a classic one until something else is known; it then stands
    there itself, or one of the twin dialect does."""

    def __init__(self, owner: FrontOwner, connection: HAConnection) -> None:
        self._owner = owner
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(transport)
        self._connection.guard(self._owner.connection_opened, self._connection)

    def data_received(self, data: bytes) -> None:
        if not self._connection.core.is_ended:
            self._connection.is_notable = True
            self._connection.guard(self._look_at, self._first + data)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._connection.connection_lost(error)

    def _look_at(self, data: bytes) -> None:
        connection = self._connection
        if data[0] == HANDSHAKE_RECORD and not connection.is_tls:
            self._begin_tls(data)
        elif data.startswith(TWIN_MAGIC):
            twin = self._owner.twin_detected(connection)
            if twin is not None:
                assert self._transport is not None
                twin.connection_made(self._transport)
                self._step_aside(twin, data)
        elif TWIN_MAGIC.startswith(data):
            self._first = data
        elif reason := self._owner.classic_refusal(connection.host, is_local=connection.is_local):
            _LOG.warning("HA connection refused address=%s reason=%s", connection.address, reason)
            connection.close(reason)
        else:
            self._step_aside(connection, data)

    def _step_aside(self, connection: HAConnection, data: bytes) -> None:
        assert self._transport is not None
        self._connection = connection
        self._transport.set_protocol(connection)
        connection.data_received(data)

    def _begin_tls(self, data: bytes) -> None:
        assert self._transport is not None
        context = self._owner.tls_detected(self._connection)
        if context is None:
            self._transport.write(NOT_OFFERED)
            self._transport.close()
            return
        tls = TlsFront(self._transport, context, self)
        self._transport.set_protocol(tls)
        self._transport = tls.transport
        self._connection.connection_made(tls.transport)
        tls.data_received(data)
