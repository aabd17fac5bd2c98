"""The accepting end of remoting: corresponds to RocketMQ's NettyRemotingServer.

Owns its listeners and connections, the limits over all of them, idle closing and the choice
between TLS and plain text. What a request means is the handler's business. A peer that breaks a
rule costs its own connection and one line of log.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from twinlog.remoting import codec
from twinlog.remoting.codes import FLAG_RESPONSE, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.connection import Connection
from twinlog.remoting.errors import BodyTooLargeError, CommandError, RemoteProtocolError
from twinlog.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from twinlog.remoting.session import OpaqueCounter
from twinlog.remoting.traffic import Lane
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.descriptors import connections_possible
from twinlog.runtime.failures import Failures
from twinlog.runtime.loop_share import FIRST_SHARE_MS, Rotation, is_done_within
from twinlog.runtime.memory import give_back
from twinlog.runtime.tls import ServerTls, TlsMode
from twinlog.runtime.tls_channel import HANDSHAKE_RECORD, TlsChannel, TlsError
from twinlog.runtime.turn import Turn

_LOG = logging.getLogger("twinlog.remoting")
_SWEEP_MS = 1000
_GIVE_BACK_MS_MIN = 5000
_CLOSE_MS_MAX = 1000  # So long a stopping server waits for peers to read their last answers.

_T = TypeVar("_T")
_Owner = TypeVar("_Owner")
Handler = Callable[["ServerConnection", Request], None]
ON_LOOP_SIZE_MAX = 64 * 1024  # A longer body is read in a thread, where one may be that long.


PLAIN_TEXT = ServerTls(TlsMode.DISABLED, None)


class ServerConnection(Connection):
    """A peer that dialled us."""

    def __init__(self, server: RemotingServer, handler: Handler) -> None:
        super().__init__(
            handler,
            clock=server.clock,
            limits=server.limits,
            turn=server.turn,
            opaques=server.opaques,
            failures=server.failures,
        )
        self._server = server
        self._is_first_read = True
        self._rest = b""  # What was read and is for the next turn: nothing is read meanwhile.
        self._partial = 0
        self._partial_since_ms: int | None = None
        self.is_waiting_for_room = False
        self._is_above_share = False

    @property
    def is_tls(self) -> bool:
        return self._channel is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.connection_added(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.connection_removed(self)

    def _read(self, data: bytes) -> None:
        self.was_active = True
        if self._is_first_read:
            self._is_first_read = False
            if not self._choose_channel(data[0]):
                return
        if self._channel is not None:
            data = self._decrypt(data)
            if not data:
                self._end_if_peer_did()
                return
        has_frames = self.receive(data)
        partial = self._splitter.buffered
        if partial or self._partial:
            self._partial_changed(partial, has_frames)
        self._end_if_peer_did()

    def _read_later(self, data: bytes) -> None:
        """Go on in the next turn, when the others have had theirs."""
        assert not self._rest
        self._rest = data
        self._update_reading()
        self._turn.next(self._read_on)

    def _read_on(self) -> None:
        data, self._rest = self._rest, b""
        if self.is_closed:
            return
        self.data_received(data)
        if not self._rest:
            self._update_reading()

    def _end_if_peer_did(self) -> None:
        if self._channel is not None and self._channel.is_ended and not self.is_closed:
            self.flush()
            self._channel.end()
            self._send_records()
            self.close("closed by the peer")

    def _choose_channel(self, first: int) -> bool:
        tls = self._server.tls
        if first == HANDSHAKE_RECORD:
            if tls.mode is TlsMode.DISABLED or tls.context is None:
                self._refuse("TLS is not offered here")
                return False
            self._channel = TlsChannel(tls.context)
        elif tls.mode is TlsMode.ENFORCING:
            self._refuse("plain text where TLS is required")
            return False
        else:
            self._lanes = self._server.lanes
        return True

    def _refuse(self, reason: str) -> None:
        _LOG.warning("connection refused peer=%s reason=%s", self.remote_text, reason)
        self.abort(reason)

    def _decrypt(self, data: bytes) -> bytes:
        assert self._channel is not None
        try:
            plain = self._channel.receive(data)
        except TlsError as error:
            self._send_records()  # The alert that tells the peer why.
            self._broken(RemoteProtocolError(str(error)))
            return b""
        self._send_records()
        return plain

    def _send_records(self) -> None:
        assert self._channel is not None
        records = self._channel.outgoing()
        if records and self._transport is not None:
            self._transport.write(records)

    def _write_secured(self, data: codec.Body) -> None:
        assert self._channel is not None
        self._channel.encrypt(data)
        self._send_records()

    # What takes long

    def in_steps(self, request: Request, steps: Iterator[None]) -> None:
        """Handle a request in steps: what is not done soon waits for the next turns.

        Requests that come behind this one wait, so that they find what it did.
        """
        if not is_done_within(steps, self._clock, FIRST_SHARE_MS):
            self._wait_behind(request, steps)

    def _wait_behind(self, request: Request, steps: Iterator[None]) -> None:
        self._is_elsewhere = True
        self._update_reading()
        self._server.rotation.add(
            self._while_open(steps), lambda error: self._handled(request, error)
        )

    def afterwards(self, steps: Iterator[None]) -> None:
        """What follows from the end of this connection, and may be long."""
        if not is_done_within(steps, self._clock, FIRST_SHARE_MS):
            self._server.rotation.add(steps, self._tidied)

    def _tidied(self, error: Exception | None) -> None:
        if error is not None:
            self._failures.note("close callback", error, self.remote_text)

    def _while_open(self, steps: Iterator[None]) -> Iterator[None]:
        while not self.is_closed and next(steps, steps) is None:
            yield

    def read_elsewhere(
        self,
        request: Request,
        work: Callable[[], _T],
        done: Callable[[_T], Iterator[None]],
    ) -> None:
        """Read a large body in a thread, then go on with it in steps. All peers share one thread.

        Requests that come behind this one wait, so that they find what it did.
        """
        self._is_elsewhere = True
        self._update_reading()

        def finished(future: asyncio.Future[_T]) -> None:
            try:
                body = future.result()
            except Exception as error:
                self._handled(request, error)
            else:
                self._wait_behind(request, done(body))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._server.reader, work).add_done_callback(finished)

    def _handled(self, request: Request, error: Exception | None) -> None:
        self._is_elsewhere = False
        if self.is_closed:
            return
        try:
            if error is not None:
                self._failed(request, error)
            self.flush()
            self._continue_backlog()
        except Exception as unforeseen:
            self.failed("reading", unforeseen)

    # Incomplete frames

    def _admit(self, kind: int, header: bytes, body_size: int) -> bool:
        """A body above the limit of its request code is refused before it is kept."""
        try:
            request = codec.decode_header(kind, header)
        except RemoteProtocolError:
            return True  # Said when the frame is complete, as of every frame.
        limit = self._server.body_max(request.code)
        if request.flag & FLAG_RESPONSE or body_size <= limit:
            return True
        self._requests_in_flight += 1
        refusal = BodyTooLargeError(request.code, body_size, limit)
        self._server.on_refused(self, request.code, refusal.remark)
        self.reply(request, refusal.code, remark=refusal.remark)
        return False

    def _partial_changed(self, partial: int, has_frames: bool) -> None:
        if partial == 0:
            self._partial_since_ms = None
        elif has_frames or self._partial_since_ms is None:
            self._partial_since_ms = self._clock.monotonic_ms()
        before, self._partial = self._partial, partial
        self._server.partial_changed(self, before, partial)

    def wait_for_room(self, must_wait: bool) -> None:
        self.is_waiting_for_room = must_wait
        self._update_reading()

    def _must_pause(self) -> bool:
        if self._rest or self.is_waiting_for_room or self._is_above_share:
            return True
        return super()._must_pause()

    # Quotas of its address

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes_in_flight

    def take_request_count(self) -> int:
        """Requests since the last call."""
        count, self.request_count = self.request_count, 0
        return count

    def hold_to_share(self, *, is_busy: bool, is_above: bool) -> None:
        """Until the next call: answer requests with SYSTEM_BUSY; read nothing."""
        server = self._server
        self._handler = server.busy_handler if is_busy else server.usual_handler
        self._lanes = () if is_busy or self._channel or self._is_first_read else server.lanes
        if is_above != self._is_above_share:
            self._is_above_share = is_above
            self._update_reading()

    def forget_partial(self) -> None:
        before, self._partial = self._partial, 0
        self._server.partial_changed(self, before, 0)

    # Time

    def sweep(self, now_ms: int) -> None:
        """Close an idle peer, and one whose frame does not become complete."""
        if self.was_active:
            self.was_active = False
            self.last_active_ms = now_ms
        elif now_ms - self.last_active_ms >= self._limits.idle_ms_max:
            seconds = self._limits.idle_ms_max // 1000
            _LOG.info("connection idle peer=%s closed after %d s", self.remote_text, seconds)
            self.close("idle")
            return
        since_ms = self._partial_since_ms
        if since_ms is None or now_ms - since_ms < self._limits.frame_completion_ms_max:
            return
        # A long frame may take its time while there is room; a short one has no excuse.
        if self._partial <= self._limits.partial_bytes_free or self._server.is_short_of_room:
            reason = f"a frame is not complete after {now_ms - since_ms} ms"
            _LOG.warning("peer cut off peer=%s reason=%s", self.remote_text, reason)
            self.abort(reason)


def in_steps(
    handler: Callable[[_Owner, ServerConnection, Request], Iterator[None]],
) -> Callable[[_Owner, ServerConnection, Request], None]:
    """A handler that yields after each piece of its work, of which there may be very much."""

    @functools.wraps(handler)
    def handled(owner: _Owner, connection: ServerConnection, request: Request) -> None:
        connection.in_steps(request, handler(owner, connection, request))

    return handled


class AddressShares:
    """What each address has of a server, and whether that is more than its share.

    Connections are counted as they come; requests and bytes once a second, over all connections of
    an address: a request costs the counter of its connection and nothing else.
    """

    def __init__(self, limits: RemotingLimits, connections_max: int) -> None:
        self._limits = limits
        wanted = limits.connections_per_address_max
        self.connections_max = min(wanted, max(1, connections_max * 4 // 5)) if wanted else 0
        self._connections: dict[str, int] = {}
        self._held: set[str] = set()

    def add(self, host: str) -> bool:
        count = self._connections.get(host, 0)
        if self.connections_max and count >= self.connections_max:
            return False
        self._connections[host] = count + 1
        return True

    def remove(self, host: str) -> None:
        left = self._connections[host] - 1
        if left:
            self._connections[host] = left
        else:
            del self._connections[host]

    def sweep(self, connections: Iterable[ServerConnection]) -> None:
        """Called once a second."""
        requests: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for connection in connections:
            host = connection.remote_address[0]
            requests[host] = requests.get(host, 0) + connection.take_request_count()
            sizes[host] = sizes.get(host, 0) + connection.bytes_in_flight
        limits = self._limits
        busy = _above(requests, limits.requests_per_address_max)
        full = _above(sizes, limits.bytes_per_address_max)
        changed = busy | full | self._held
        self._held = busy | full
        if changed:
            for connection in list(connections):
                host = connection.remote_address[0]
                if host in changed:
                    connection.hold_to_share(is_busy=host in busy, is_above=host in full)


def _above(amounts: dict[str, int], limit: int) -> set[str]:
    return {host for host, amount in amounts.items() if amount > limit} if limit else set()


class RemotingServer:
    """Listens on one or several ports with one handler."""

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Clock,
        limits: RemotingLimits = DEFAULT_LIMITS,
        tls: ServerTls | None = None,
        name: str = "remoting",
        failures: Failures | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._handler = handler
        self.clock = clock
        self.limits = limits
        self.tls = tls if tls is not None else PLAIN_TEXT
        self.name = name
        self.failures = failures if failures is not None else Failures()
        self.opaques = OpaqueCounter()
        self.lanes: tuple[Lane, ...] = ()  # For connections made from then on.
        # Told of each refusal for a limit or a quota: connection, request code, reason.
        self.on_refused: Callable[[ServerConnection, int, str], None] = lambda *_: None
        # The largest body of a request code; what serves a table sets it.
        self.body_max: Callable[[int], int] = lambda code: limits.frame_size_max
        self.turn = turn if turn is not None else Turn()
        self.rotation = Rotation(clock)
        self.connections: dict[ServerConnection, None] = {}  # In the order of their coming.
        self.partial_bytes = 0
        self._large: dict[ServerConnection, None] = {}  # In the order they became long.
        self._is_stopping = False
        self._listeners: list[asyncio.Server] = []
        self._sweeper: TimerHandle | None = None
        self._refused = 0
        self._refused_shares = 0
        self._connections_max = min(limits.connections_max, connections_possible())
        self._shares = AddressShares(limits, self._connections_max)
        self._had_burst = False
        self._gave_back_ms = 0
        self._emptied: asyncio.Future[None] | None = None
        self._reader: ThreadPoolExecutor | None = None

    @property
    def reader(self) -> Executor:
        """The thread that reads large bodies. One: they may not take the loop's turns together."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, f"{self.name}-reader")
        return self._reader

    async def listen(self, host: str, port: int) -> int:
        """Open a port (0: any free one) and return its number.

        Raises:
            OSError: the address is in use or not ours.
        """
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: ServerConnection(self, self._handler),
            host,
            port,
            backlog=self.limits.backlog,
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self.clock.call_later_ms(_SWEEP_MS, self._sweep)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def flush(self) -> None:
        """Write now what all connections have queued, without waiting for the end of the turn."""
        self.turn.run()

    async def close(self) -> None:
        """Stop listening, write what is queued, close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close("the server stops")
        await self._until_empty()
        for listener in self._listeners:
            await listener.wait_closed()
        self._listeners.clear()
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._reader = None

    async def _until_empty(self) -> None:
        """Wait until the peers have read what they were sent; who does not read is cut off."""
        if not self.connections:
            return
        self._emptied = asyncio.get_running_loop().create_future()
        cutting = self.clock.call_later_ms(_CLOSE_MS_MAX, self._cut_off)
        await self._emptied
        cutting.cancel()

    def _cut_off(self) -> None:
        for connection in list(self.connections):
            connection.cut_off()

    # Called by connections

    def connection_added(self, connection: ServerConnection) -> None:
        if self._is_stopping:  # Accepted in the turn in which we stopped listening.
            connection.abort("the server stops")
            return
        if len(self.connections) >= self._connections_max:
            self._refused += 1
            connection.abort("too many connections")
            return
        if not self._shares.add(connection.remote_address[0]):
            reason = "its address has as many connections as it may have"
            self._refused_shares += 1
            self.on_refused(connection, 0, reason)
            connection.abort(reason)
            return
        self.connections[connection] = None

    def connection_removed(self, connection: ServerConnection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self._shares.remove(connection.remote_address[0])
        connection.forget_partial()
        self._had_burst |= connection.is_congested
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    @property
    def usual_handler(self) -> Handler:
        return self._handler

    def busy_handler(self, connection: ServerConnection, request: Request) -> None:
        """Answers instead of the handler while an address sends more than it may."""
        limit = self.limits.requests_per_address_max
        remark = f"[REJECTREQUEST]system busy, more than {limit} requests per second of one address"
        self.on_refused(connection, request.code, remark)
        raise CommandError(remark, ResponseCode.SYSTEM_BUSY)

    @property
    def is_short_of_room(self) -> bool:
        return self.partial_bytes > self.limits.partial_bytes_max

    def partial_changed(self, connection: ServerConnection, before: int, after: int) -> None:
        """Account for incomplete frames. When room is short, long ones wait for the oldest.

        One of them always goes on: it ends by becoming complete or by its time limit.
        """
        self.partial_bytes += after - before
        if after > self.limits.partial_bytes_free:
            self._large[connection] = None
            self._had_burst |= self.partial_bytes > self.limits.partial_bytes_max // 2
            if self.is_short_of_room and next(iter(self._large)) is not connection:
                connection.wait_for_room(True)
        elif connection in self._large:
            del self._large[connection]
            connection.wait_for_room(False)
            self._give_room()

    def _give_room(self) -> None:
        first = next(iter(self._large), None)
        for connection in self._large:
            connection.wait_for_room(self.is_short_of_room and connection is not first)

    def _give_back(self, now_ms: int) -> None:
        """After a burst: what peers made us allocate goes back to the system."""
        is_over = self.partial_bytes < self.limits.partial_bytes_max // 8
        if self._had_burst and is_over and now_ms - self._gave_back_ms >= _GIVE_BACK_MS_MIN:
            self._had_burst = False
            self._gave_back_ms = now_ms
            give_back()

    def _sweep(self) -> None:
        self._sweeper = self.clock.call_later_ms(_SWEEP_MS, self._sweep)
        now_ms = self.clock.monotonic_ms()
        self.failures.contain("memory given back", self._give_back, now_ms)
        if self._refused:
            _LOG.warning(
                "connections refused name=%s count=%d reason=limit of %d reached",
                self.name, self._refused, self._connections_max,
            )  # fmt: skip
            self._refused = 0
        if self._refused_shares:
            _LOG.warning(
                "connections refused name=%s count=%d reason=one address has its limit of %d",
                self.name, self._refused_shares, self._shares.connections_max,
            )  # fmt: skip
            self._refused_shares = 0
        for connection in list(self.connections):
            self.failures.contain("idle sweep", connection.sweep, now_ms)
        self.failures.contain("idle sweep", self._shares.sweep, self.connections)
