"""Master side of one twin connection: shell over TwinSender.

Looks to the HAService as a classic HAConnection does; a slow slave costs one frame and the
transport's buffer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from twinlog.ha.flow import FlowMonitor
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.sender import ConnectionEnded, SlaveAcked, SlaveJoined
from twinlog.ha.tls_front import TlsTransport
from twinlog.ha.twin import wire
from twinlog.ha.twin.digests import Steps, digests_of, first_record, record_ends
from twinlog.ha.twin.sender import (
    BoundariesWanted,
    DigestsWanted,
    HelloReceived,
    MasterFacts,
    RecordWanted,
    SlaveIsLonger,
    TailReceived,
    TwinSender,
    last_record_boundary,
)
from twinlog.ha.twin.wire import ErrorCode
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock
from twinlog.runtime.direct_write import DirectWriter
from twinlog.runtime.turn import Phase, Turn
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.ha")
LINGER_MS = 2000  # For the reason to arrive; a slave that reads nothing does not keep the rest.

_numbers = itertools.count(1)

_Question = DigestsWanted | RecordWanted | BoundariesWanted


class TwinOwner(Protocol):
    """Who is told what becomes of a connection: the HAService."""

    def twin_hello(self, connection: TwinConnection) -> tuple[ErrorCode, str] | None: ...

    def slave_is_longer(self, connection: TwinConnection, common: int) -> None: ...

    def tail_received(self, connection: TwinConnection, body: bytes) -> None: ...

    def slave_joined(self, connection: TwinConnection) -> None: ...

    def slave_acked(self, connection: TwinConnection) -> None: ...

    def connection_closed(self, connection: TwinConnection) -> None: ...

    def connection_failed(self, connection: TwinConnection, error: BaseException) -> None: ...

    @property
    def confirmed_offset(self) -> int: ...


def is_same_host(transport: asyncio.Transport) -> bool:
    """Both ends have the same address: a peer on this machine, by another name than loopback."""
    ends = (transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
    return None not in ends and ends[0][0] == ends[1][0]


class TwinConnection(asyncio.Protocol):
    """A twinlog slave. Takes over a connection whose first bytes were the magic."""

    def __init__(
        self,
        owner: TwinOwner,
        log: ReplicaLog,
        clock: Clock,
        facts: MasterFacts,
        nonce: str,
        *,
        address: str,
        host: str,
        turn: Turn | None = None,
    ) -> None:
        now_ms = clock.monotonic_ms()
        self.core = TwinSender(facts, log.min_offset, log.max_offset, now_ms, nonce)
        self.flow = FlowMonitor(now_ms)
        self.address = address
        self.host = host
        self.since_ms = clock.now_ms()
        self.close_reason = ""
        self.is_notable = True
        self._owner = owner
        self._log = log
        self._clock = clock
        self._turn = turn if turn is not None else Turn()
        self._transport: asyncio.Transport | None = None
        self._writer: DirectWriter | TlsTransport | None = None
        self._is_pump_scheduled = False
        self.told_confirmed = 0
        self.number = next(_numbers)

    @property
    def state(self) -> HAConnectionState:
        return self.core.state

    @property
    def is_local(self) -> bool:
        return self._transport is not None and is_same_host(self._transport)

    @property
    def is_tls(self) -> bool:
        return isinstance(self._transport, TlsTransport)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        self._writer = stream if isinstance(stream, TlsTransport) else DirectWriter(stream)
        stream.set_write_buffer_limits(high=wire.BODY_SIZE_MAX, low=0)

    def data_received(self, data: bytes) -> None:
        if not self.core.is_ended:
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
        if not self.core.is_ended:
            self.core.receive_eof()
            self.core.events()
            self.close_reason = f"connection lost: {error}" if error else self.core.reason
        self._owner.connection_closed(self)

    # What the service calls.

    def log_moved(self, log_min: int, log_end: int) -> None:
        self.core.log_moved(log_min, log_end)
        if self.core.state is HAConnectionState.TRANSFER:
            self._run_events()
            self._pump()

    def tick(self) -> None:
        self.core.tick(self._clock.monotonic_ms())
        self._run_events()
        self._pump()

    def tell_confirmed(self) -> None:
        """A heartbeat now, when the last frame said less than is confirmed."""
        if self.told_confirmed < self._owner.confirmed_offset:
            self.core.hurry_heartbeat()
            self._guard(self._pump)

    def refuse(self, reason: str) -> None:
        self.core.refuse(ErrorCode.NOT_A_MASTER, reason)
        self._run_events()

    def close(self, reason: str) -> None:
        """Tell the slave why and close; what is buffered still goes out."""
        if self.close_reason:
            return
        self.core.refuse(ErrorCode.STOPPING, reason)
        self.core.events()
        self._ended(reason)

    # Work.

    def _receive(self, data: bytes) -> None:
        self.core.receive_data(data, self._clock.monotonic_ms())
        self._run_events()
        self._pump()

    def _run_events(self) -> None:
        while events := self.core.events():
            for event in events:
                match event:
                    case HelloReceived():
                        refusal = self._owner.twin_hello(self)
                        if refusal is None:
                            self.core.admit()
                        else:
                            self.core.refuse(*refusal)
                    case DigestsWanted() | RecordWanted() | BoundariesWanted():
                        self._look_into_log(event)
                    case SlaveIsLonger():
                        self._owner.slave_is_longer(self, event.common)
                    case TailReceived():
                        self._owner.tail_received(self, event.body)
                    case SlaveJoined():
                        self._owner.slave_joined(self)
                        self._schedule_pump()
                    case SlaveAcked():
                        self._owner.slave_acked(self)
                    case ConnectionEnded():
                        self._ended(event.reason)
        self._flush()

    def _look_into_log(self, event: _Question) -> None:
        match event:
            case DigestsWanted():
                steps: Steps[Any] = digests_of(self._log, event.ranges)
            case RecordWanted():
                steps = first_record(self._log, event.start, event.end)
            case BoundariesWanted():
                steps = record_ends(self._log, event.start, event.end)
        self._next_step(event, steps)

    def _next_step(self, event: _Question, steps: Steps[Any]) -> None:
        """One megabyte in a turn of the loop: a slave that comes back holds up nobody."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._guard, self._step, event, steps)

    def _step(self, event: _Question, steps: Steps[Any]) -> None:
        if self.core.is_ended:
            return
        try:
            next(steps)
        except StopIteration as done:
            self._looked(event, done.value)
        except StoreError as error:
            # Retention deleted the oldest file meanwhile: the next handshake knows the new start.
            text = f"the log changed during the handshake: {error}"
            self.core.refuse(ErrorCode.STOPPING, text)
            self._run_events()
        else:
            self._next_step(event, steps)

    def _looked(self, event: _Question, result: Any) -> None:
        match event:
            case DigestsWanted():
                self.core.digests_computed(result)
            case RecordWanted():
                self.core.record_found(result)
            case BoundariesWanted():
                self.core.boundaries(*result)
        self._run_events()
        self._pump()

    def _ended(self, reason: str) -> None:
        """It counts no more from here on, whether or not the peer takes what is still buffered."""
        self._flush()
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._transport.close()
            self._clock.call_later_ms(LINGER_MS, self._abort)
        self._owner.connection_closed(self)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        data = self.core.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._turn.add(Phase.WAKE_REPLICAS, self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._is_pump_scheduled = False
        self._guard(self._pump)

    def _pump(self) -> None:
        """Send one frame; the rest in later turns, so that others have theirs."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_pump_scheduled:
            return
        now_ms = self._clock.monotonic_ms()
        if self._log.min_offset > self.core.log_min:
            # Retention was faster than the tick: what is gone cannot be read.
            self.core.log_moved(self._log.min_offset, self.core.log_end)
            self._run_events()
        span = self.core.next_range(now_ms)
        if span is None:
            return
        start, end = span
        body = self._read(start, end)
        assert self._writer is not None
        self.told_confirmed = self._owner.confirmed_offset
        self._writer.writelines(self.core.frame(start, body, self.told_confirmed))
        self.flow.add(len(body) + wire.HEADER_SIZE, now_ms)
        if self.core.next_offset < self.core.log_end:
            self._schedule_pump()

    def _read(self, start: int, end: int) -> bytes | memoryview:
        """The bytes of a range, cut at the last whole record where that is possible."""
        if start == end:
            return b""
        body = self._log.read(start, end - start)
        assert len(body) == end - start, f"log gave {len(body)} of {end - start} bytes at {start}"
        if end == self.core.log_end:
            return body  # The end of the log is always the end of a record.
        is_file_end = end % self._log.segment_size == 0
        whole = last_record_boundary(body, start, is_file_end=is_file_end)
        if 0 < whole < len(body):
            self.core.shortened(start + whole)
            return memoryview(body)[:whole]
        return body

    def _guard(self, function: Callable[..., object], *arguments: object) -> None:
        """A bug in here must not end as a line of asyncio's log."""
        try:
            function(*arguments)
        except Exception as error:
            self._owner.connection_failed(self, error)
