"""One accepted HA connection: reads reports, writes runs of the log. Shell over HASender.

Corresponds to RocketMQ's HAConnection. Takes no decision of its own: bytes go into the core, its
events are executed in order, what it wants sent is read from the log and written. A slow slave
costs at most three runs in the transport's buffer: the core is told when the transport takes no
more, and goes on while one run is left, so that the link never waits for the loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from twinlog.ha.flow import FlowMonitor
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.sender import (
    ConnectionEnded,
    HASender,
    Run,
    SenderSettings,
    SlaveAcked,
    SlaveJoined,
    SlaveRefused,
)
from twinlog.ha.tls_front import TlsFront, TlsTransport
from twinlog.ha.twin.connection import is_same_host
from twinlog.ha.twin.wire import MAGIC as TWIN_MAGIC
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock
from twinlog.runtime.direct_write import DirectWriter
from twinlog.runtime.limits import HA_RUN_SIZE_MAX
from twinlog.runtime.tls_channel import HANDSHAKE_RECORD, NOT_OFFERED
from twinlog.runtime.turn import Phase, Turn

_LOG = logging.getLogger("twinlog.ha")
_BUDGET_STEP = 4096  # With a rate limit, wait for a few KiB rather than send single bytes.


class ConnectionOwner(Protocol):
    """Who is told what becomes of a connection: the HAService."""

    def connection_opened(self, connection: HAConnection) -> None: ...

    def slave_joined(self, connection: HAConnection) -> None: ...

    def slave_acked(self, connection: HAConnection) -> None: ...

    def slave_refused(self, connection: HAConnection, reason: str) -> None: ...

    def connection_closed(self, connection: HAConnection) -> None: ...

    def classic_refusal(self, host: str, *, is_local: bool) -> str: ...

    def twin_detected(
        self, connection: HAConnection, transport: asyncio.Transport, data: bytes
    ) -> None: ...

    def tls_detected(self, connection: HAConnection) -> ssl.SSLContext | None: ...

    def connection_failed(self, connection: HAConnection, error: BaseException) -> None: ...


class HAConnection(asyncio.Protocol):
    """A slave, or whoever else connected to the HA port."""

    def __init__(
        self,
        owner: ConnectionOwner,
        log: ReplicaLog,
        clock: Clock,
        settings: SenderSettings,
        *,
        bytes_per_second_max: int = 0,
        turn: Turn | None = None,
    ) -> None:
        now_ms = clock.monotonic_ms()
        self.core = HASender(
            settings, log_min=log.min_offset, log_end=log.max_offset, now_ms=now_ms
        )
        self.flow = FlowMonitor(now_ms, bytes_per_second_max)
        self.address = "?"
        self.host = "?"
        self.since_ms = clock.now_ms()
        self.close_reason = ""
        self.is_notable = False
        """Whether its end is told: it has said something, or was turned away."""
        self._owner = owner
        self._log = log
        self._clock = clock
        self._turn = turn if turn is not None else Turn()
        self._transport: asyncio.Transport | None = None
        self._writer: DirectWriter | None = None
        self._is_classic = False
        self._first = b""
        self._is_pump_scheduled = False
        self._is_budget_awaited = False

    @property
    def state(self) -> HAConnectionState:
        return self.core.state

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's classes.
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        self._writer = DirectWriter(stream)
        peer = stream.get_extra_info("peername") or ("?", 0)
        self.host = str(peer[0])
        self.address = f"{peer[0]}:{peer[1]}"
        stream.set_write_buffer_limits(high=2 * HA_RUN_SIZE_MAX, low=HA_RUN_SIZE_MAX)
        self._guard(self._owner.connection_opened, self)

    def data_received(self, data: bytes) -> None:
        if self.core.state is HAConnectionState.SHUTDOWN:
            return
        self.is_notable = True
        self._guard(self._receive, data)

    def eof_received(self) -> bool:
        self.core.receive_eof()
        self._guard(self._run_events)
        return False

    def pause_writing(self) -> None:
        self.core.write_blocked()

    def resume_writing(self) -> None:
        self.core.write_completed(self._clock.monotonic_ms())
        self._schedule_pump()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self.core.state is not HAConnectionState.SHUTDOWN:
            self.core.receive_eof()
            self.core.events()
            lost = f"connection lost: {error}" if error else self.core.reason
            self.close_reason = self.close_reason or lost
        self._owner.connection_closed(self)

    # What the service calls.

    def log_moved(self, log_min: int, log_end: int) -> None:
        """The log grew, or lost its oldest file."""
        if self.core.state is HAConnectionState.TRANSFER:
            self.core.log_moved(log_min, log_end)
            self._run_events()
            self._pump()
        elif self.core.state is HAConnectionState.READY:
            self.core.log_moved(log_min, log_end)

    def tick(self) -> None:
        """Housekeeping and heartbeats."""
        self.core.tick(self._clock.monotonic_ms())
        self._run_events()
        self._pump()

    def refuse(self, reason: str) -> None:
        """Hold the connection silent and uncounted."""
        self.core.refuse(reason, self._clock.monotonic_ms())
        self._run_events()

    def close(self, reason: str) -> None:
        """Close now; what is buffered is dropped, the peer resumes from what it has stored."""
        if not self.close_reason:
            self.close_reason = reason
        if self._transport is not None:
            self._transport.abort()

    # Work.

    def _receive(self, data: bytes) -> None:
        if not self._is_classic:
            data = self._first + data
            if data[0] == HANDSHAKE_RECORD and not isinstance(self._transport, TlsTransport):
                self._begin_tls(data)
                return
            if data.startswith(TWIN_MAGIC):
                assert self._transport is not None
                self._owner.twin_detected(self, self._transport, data)
                return
            if TWIN_MAGIC.startswith(data):
                self._first = data
                return
            assert self._transport is not None
            is_local = is_same_host(self._transport)
            if reason := self._owner.classic_refusal(self.host, is_local=is_local):
                _LOG.warning("HA connection refused address=%s reason=%s", self.address, reason)
                self.close(reason)
                return
            self._is_classic, self._first = True, b""
        self.core.receive_data(data, self._clock.monotonic_ms())
        self._run_events()

    def _begin_tls(self, data: bytes) -> None:
        """No report begins with this byte: the offset would be beyond an exabyte."""
        assert self._transport is not None
        context = self._owner.tls_detected(self)
        if context is None:
            self._transport.write(NOT_OFFERED)
            self._transport.close()
            return
        front = TlsFront(self._transport, context, self)
        self._transport.set_protocol(front)
        self._transport = front.transport
        self._writer = None  # The socket's bytes are no longer ours.
        front.data_received(data)

    def _run_events(self) -> None:
        for event in self.core.events():
            match event:
                case SlaveJoined():
                    _LOG.info(
                        "master transfer data from %d to slave[%s], and slave request %d",
                        event.start_offset, self.address, event.request_offset,
                    )  # fmt: skip
                    self._owner.slave_joined(self)
                    self._schedule_pump()
                case SlaveAcked():
                    self._owner.slave_acked(self)
                case SlaveRefused():
                    self._owner.slave_refused(self, event.reason)
                case ConnectionEnded():
                    self.close(event.reason)

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._turn.add(Phase.WAKE_REPLICAS, self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._is_pump_scheduled = False
        self._guard(self._pump)

    def _pump(self) -> None:
        """Send one run; the rest in later turns of the loop, so that others have theirs."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_pump_scheduled:
            return
        now_ms = self._clock.monotonic_ms()
        if self._log.min_offset > self.core.log_min:
            # Retention was faster than the tick: what is gone cannot be read.
            self.core.log_moved(self._log.min_offset, self.core.log_end)
            self._run_events()
        size_max = self._run_size_max(now_ms)
        if size_max <= 0:
            return
        run = self.core.next_run(now_ms, size_max)
        if run is None:
            return
        self._send(transport, run, now_ms)
        if run.size == 0 or self.core.next_offset < self.core.log_end:
            self._schedule_pump()

    def _run_size_max(self, now_ms: int) -> int:
        budget = self.flow.budget(now_ms)
        if budget is None:
            return HA_RUN_SIZE_MAX
        if budget == 0 and not self._is_budget_awaited:
            self._is_budget_awaited = True
            self._clock.call_later_ms(self.flow.wait_ms(_BUDGET_STEP), self._budget_earned)
        return min(budget, HA_RUN_SIZE_MAX)

    def _budget_earned(self) -> None:
        self._is_budget_awaited = False
        self._schedule_pump()

    def _send(self, transport: asyncio.Transport, run: Run, now_ms: int) -> None:
        body = self._log.read(run.offset, run.size) if run.size else b""
        assert len(body) == run.size, f"log gave {len(body)} of {run.size} bytes at {run.offset}"
        writer = self._writer if self._writer is not None else transport
        writer.writelines(run.pieces(body))
        self.flow.add(run.wire_size, now_ms)

    def _guard(self, function: Callable[..., None], *arguments: object) -> None:
        """A bug in here must not end as a line of asyncio's log."""
        try:
            function(*arguments)
        except Exception as error:
            self._owner.connection_failed(self, error)
