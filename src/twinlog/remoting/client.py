"""The dialling end of remoting: corresponds to RocketMQ's NettyRemotingClient.

One connection per address, opened at the first use and again after it was lost: there is no
background redialling, the next request dials. Requests made while a connection is being opened
wait for it. A peer may send requests too (`request_handler`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from twinlog.remoting.addresses import split_address
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.connection import Connection
from twinlog.remoting.errors import (
    ConnectError,
    ConnectionClosedError,
    RemotingError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from twinlog.remoting.limits import CLIENT_LIMITS, RemotingLimits
from twinlog.remoting.session import AnswerCallback, OpaqueCounter
from twinlog.remoting.unsent import UnsentRequests
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.failures import Failures
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.turn import Turn

_SWEEP_MS = 5_000
_CLOSE_MS_MAX = 1_000  # So long closing waits for a peer to read the last words and to close too.
_WAITING_FOR_CONNECT_MAX = 10_000
_QUEUE_CHECK_MS = 100  # So often we look for requests that have waited too long to be sent.

# Called with the address before a request is encoded; may add ext fields (ACL signing does).
RequestHook = Callable[[str, RemotingCommand], None]


class ClientConnection(Connection):
    """A peer we dialled."""

    address: str = ""

    _lost: asyncio.Future[None] | None = None
    _reads_congested = True

    def __init__(
        self, handler: Callable[[Any, Request], None], *, clock: Clock, **parts: Any
    ) -> None:
        super().__init__(handler, clock=clock, **parts)
        self._queued = UnsentRequests()
        self._queue_check: TimerHandle | None = None

    def submit_in_turn(
        self, command: RemotingCommand, timeout_ms: float, callback: AnswerCallback
    ) -> None:
        """Like `submit`, but while the peer does not read the request waits on our side, and is
        dropped there when half of its time is over."""
        if self.is_closed or not (self.is_congested or self._queued):
            self.submit(command, timeout_ms, callback)
            return
        if len(self._queued) >= self._limits.pending_requests_max:
            raise TooManyRequestsError(self.remote_text, self._limits.pending_requests_max)
        self._queued.add(command, callback, timeout_ms, self._clock.monotonic_ms())
        if self._queue_check is None:
            self._queue_check = self._clock.call_later_ms(_QUEUE_CHECK_MS, self._drop_late)

    def _drop_late(self) -> None:
        self._queue_check = None
        for unsent in self._queued.expire(self._clock.monotonic_ms()):
            error = RequestTimeoutError(self.remote_text, unsent.command.code, was_sent=False)
            self._failures.contain("answer callback", unsent.callback, None, error)
        if self._queued and not self.is_closed:
            self._queue_check = self._clock.call_later_ms(_QUEUE_CHECK_MS, self._drop_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drop_late_now()
        while self._queued and not (self.is_congested or self.is_closed):
            unsent = self._queued.take()
            rest_ms = unsent.deadline_ms - self._clock.monotonic_ms()
            try:
                self.submit(unsent.command, max(1.0, rest_ms), unsent.callback)
            except RemotingError as error:
                self._failures.contain("answer callback", unsent.callback, None, error)
        self.flush()

    def _drop_late_now(self) -> None:
        if self._queue_check is not None:
            self._queue_check.cancel()
            self._drop_late()

    def _mark_closed(self, reason: str) -> None:
        was_closed = self.is_closed
        super()._mark_closed(reason)
        if was_closed:
            return
        if self._queue_check is not None:
            self._queue_check.cancel()
            self._queue_check = None
        for unsent in self._queued.drain():
            closed = ConnectionClosedError(self.remote_text, reason, was_sent=False)
            self._failures.contain("answer callback", unsent.callback, None, closed)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def gone(self) -> None:
        """Wait until a closed connection has let its socket go; a peer that dawdles is cut off.

        TLS closes in steps, and a loop that ends between them leaves the socket open.
        """
        if self._transport is None:
            return
        self._lost = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_CLOSE_MS_MAX / 1000):
                await self._lost
        except TimeoutError:
            self.cut_off()

    def sweep(self, now_ms: int) -> None:
        """Close when nothing was said for long, as RocketMQ's client does."""
        if self.was_active:
            self.was_active = False
            self.last_active_ms = now_ms
        elif now_ms - self.last_active_ms >= self._limits.idle_ms_max:
            self.close("idle")


def refuse_request(connection: ClientConnection, request: Request) -> None:
    """Answer of a client without a handler."""
    connection.reply(
        request,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f" request type {request.code} not supported",
    )


class RemotingClient:
    """Connections by address, shared by everybody in the process who asks."""

    def __init__(
        self,
        *,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        tls_server_name: str | None = None,
        request_handler: Callable[[ClientConnection, Request], None] | None = None,
        hooks: Sequence[RequestHook] = (),
        limits: RemotingLimits = CLIENT_LIMITS,
        tasks: TaskOwner | None = None,
        failures: Failures | None = None,
        name: str = "client",
    ) -> None:
        self._clock = clock
        self._tls = tls
        self._tls_server_name = tls_server_name
        self._handler = request_handler or refuse_request
        self._hooks = tuple(hooks)
        self._limits = limits
        self._owns_tasks = tasks is None
        if tasks is None:
            tasks = TaskOwner(f"{name}-dial", clock=clock, failures=failures)
        self._tasks = tasks
        self._turn = Turn()
        self._opaques = OpaqueCounter()
        self._connections: dict[str, ClientConnection] = {}
        self._dialling: dict[str, asyncio.Future[ClientConnection]] = {}
        self._waiting = 0
        self._sweeper: TimerHandle | None = None
        self._is_closed = False

    def reload_tls(self, context: ssl.SSLContext | None) -> None:
        """New certificates, for connections from now on."""
        self._tls = context

    # Connections

    def connection(self, address: str) -> ClientConnection | None:
        """The open connection to an address, if there is one."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    async def connect(self, address: str) -> ClientConnection:
        """The open connection to an address; dials when there is none.

        Raises:
            ConnectError: it cannot be had within the connect time-out.
        """
        connection = self.connection(address)
        if connection is not None:
            return connection
        if self._is_closed:
            raise ConnectError(address, "the client is closed")
        dialling = self._dialling.get(address)
        if dialling is None:
            dialling = asyncio.get_running_loop().create_future()
            self._dialling[address] = dialling
            self._tasks.job("dial", self._dial(address, dialling), about=address)
        return await asyncio.shield(dialling)

    async def _dial(self, address: str, result: asyncio.Future[ClientConnection]) -> None:
        try:
            connection = await self._open(address)
        except RemotingError as error:
            result.set_exception(error)
            result.exception()  # Whoever waited may have gone; the reason is then nobody's.
        except Exception as error:
            result.set_exception(ConnectError(address, f"{type(error).__name__}: {error}"))
            result.exception()
            raise
        except asyncio.CancelledError:
            result.set_exception(ConnectError(address, "the client is closed"))
            result.exception()
            raise
        else:
            self._connections[address] = connection
            if self._sweeper is None:
                self._sweeper = self._clock.call_later_ms(_SWEEP_MS, self._sweep)
            result.set_result(connection)
        finally:
            self._dialling.pop(address, None)

    async def _open(self, address: str) -> ClientConnection:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise ConnectError(address, str(error)) from None
        loop = asyncio.get_running_loop()
        server_name = (self._tls_server_name or host) if self._tls is not None else None
        try:
            async with asyncio.timeout(self._limits.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    self._make, host, port, ssl=self._tls, server_hostname=server_name
                )
        except TimeoutError:
            reason = f"no answer within {self._limits.connect_timeout_ms} ms"
            raise ConnectError(address, reason) from None
        except ConnectionRefusedError:
            # asyncio and uvloop have different words for it, and a promotion asks for this one.
            raise ConnectError(address, "connection refused") from None
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(address, str(error) or type(error).__name__) from None
        connection.address = address
        return connection

    def _make(self) -> ClientConnection:
        return ClientConnection(
            self._handler,
            clock=self._clock,
            limits=self._limits,
            turn=self._turn,
            opaques=self._opaques,
            failures=self._tasks.failures,
        )

    def _sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for address, connection in list(self._connections.items()):
            if connection.is_closed:
                del self._connections[address]
            else:
                self._tasks.failures.contain("idle sweep", connection.sweep, now_ms)
        self._sweeper = None
        if self._connections and not self._is_closed:
            self._sweeper = self._clock.call_later_ms(_SWEEP_MS, self._sweep)

    # Requests

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: float) -> Request:
        """Send a request and wait for its answer; dialling counts against the time-out.

        Raises:
            ConnectError, TooManyRequestsError: nothing was sent.
            RequestTimeoutError, ConnectionClosedError: the outcome is unknown.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self.connect(address)
                await self._writable(connection)
        except TimeoutError:
            raise ConnectError(address, f"not ready within {timeout_ms:.0f} ms") from None
        self.prepare(address, command)
        rest_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        return await connection.invoke(command, rest_ms)

    def submit(
        self, address: str, command: RemotingCommand, timeout_ms: float, callback: AnswerCallback
    ) -> None:
        """Send a request without waiting; `callback` gets the answer, or None and the reason.

        The path for many requests: on an open connection no task, future or timer is made.

        Raises:
            TooManyRequestsError: as many as allowed are under way; the callback is not called.
        """
        connection = self.connection(address)
        if connection is not None:
            self.prepare(address, command)
            connection.submit_in_turn(command, timeout_ms, callback)
            return
        if self._waiting >= _WAITING_FOR_CONNECT_MAX:
            raise TooManyRequestsError(address, _WAITING_FOR_CONNECT_MAX)
        self._waiting += 1
        task = self._tasks.job(
            "submit", self._submit_later(address, command, timeout_ms, callback), about=address
        )

        def ended(task: asyncio.Task[None]) -> None:
            # Also one that was cancelled before it ran at all.
            if task.cancelled():
                callback(None, ConnectError(address, "the client is closed"))

        task.add_done_callback(ended)

    async def _submit_later(
        self, address: str, command: RemotingCommand, timeout_ms: float, callback: AnswerCallback
    ) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            connection = await self.connect(address)
            rest_ms = timeout_ms - (self._clock.monotonic_ms() - started_ms)
            if rest_ms <= 0:
                raise ConnectError(address, f"not connected within {timeout_ms:.0f} ms")
            self.prepare(address, command)
            connection.submit_in_turn(command, rest_ms, callback)
        except RemotingError as error:
            callback(None, error)
        except Exception as error:
            callback(None, ConnectError(address, f"not sent: {type(error).__name__}: {error}"))
            raise
        finally:
            self._waiting -= 1

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that is never answered; returns when it is handed to the transport.

        Raises:
            ConnectError: nothing was sent.
        """
        connection = await self.connect(address)
        await self._writable(connection)
        self.prepare(address, command)
        connection.oneway(command)

    def prepare(self, address: str, command: RemotingCommand) -> None:
        """Let the hooks add to a request that is about to be encoded."""
        for hook in self._hooks:
            hook(address, command)

    async def _writable(self, connection: ClientConnection) -> None:
        """Wait until the peer has read enough of what it was sent."""
        if not connection.is_congested:
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        connection.when_writable(wake)
        await ready

    def flush(self) -> None:
        """Write now what all connections have queued."""
        self._turn.run()

    def close_connection(self, address: str, reason: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close(reason)

    def abandon(self) -> None:
        """Drop every connection: the loop that they belong to has ended."""
        self._is_closed = True
        self._sweeper = None
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.abandon("the event loop of this client has ended")

    async def close(self) -> None:
        """Close every connection; requests under way end with ConnectionClosedError."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        try:
            if self._owns_tasks:
                await self._tasks.stop()
        finally:
            connections = list(self._connections.values())
            for connection in connections:
                connection.close("the client is closed")
            self._connections.clear()
        await asyncio.gather(*(connection.gone() for connection in connections))
