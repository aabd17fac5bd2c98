"""The master's end of one HA connection, in either dialect: a shell over the core that it is given.

Corresponds to RocketMQ's HAConnection. Takes no decision of its own: bytes go into the core, its
events are executed in order, what it wants sent is read from the log and written. A slow slave
costs at most three runs in the transport's buffer: the core is told when the transport takes no
more, and goes on while one run is left, so that the link never waits for the loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from twinlog.ha.flow import FlowMonitor
from twinlog.ha.pipeline import Pipeline
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.sender import (
    ConnectionEnded,
    HASender,
    Run,
    SenderEvent,
    SenderSettings,
    SlaveAcked,
    SlaveJoined,
    SlaveRefused,
)
from twinlog.ha.shell import HAShell
from twinlog.ha.tls_front import TlsTransport
from twinlog.ha.twin.common import DigestsWanted
from twinlog.ha.twin.digests import digests_of, first_record, record_ends
from twinlog.ha.twin.sender import (
    BoundariesWanted,
    HelloReceived,
    RecordWanted,
    SlaveIsLonger,
    TailReceived,
    TwinSender,
    TwinSenderEvent,
)
from twinlog.ha.twin.wire import ErrorCode, Hello
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock
from twinlog.runtime.direct_write import DirectWriter
from twinlog.runtime.limits import HA_UNPROVED_PER_HOST_MAX
from twinlog.runtime.turn import Phase, Turn

# Members that are asked for in hot paths: by their class they cost ten times as much.
_TRANSFER: Final = HAConnectionState.TRANSFER

_LOG = logging.getLogger("twinlog.ha")
_BUDGET_STEP = 4096  # With a rate limit, wait for a few KiB rather than send single bytes.

_numbers = itertools.count(1)


class ConnectionOwner(Protocol):
    """Who is told what becomes of a connection: the HAService."""

    def slave_joined(self, connection: HAConnection) -> None: ...

    def slave_acked(self, connection: HAConnection) -> None: ...

    def slave_refused(self, connection: HAConnection, reason: str) -> None: ...

    def connection_closed(self, connection: HAConnection) -> None: ...

    def connection_failed(self, connection: HAConnection, error: BaseException) -> None: ...

    # Of the twin dialect.

    def twin_hello(self, connection: HAConnection) -> tuple[ErrorCode, str] | None: ...

    def slave_is_longer(self, connection: HAConnection, common: int) -> None: ...

    def tail_received(self, connection: HAConnection, body: bytes) -> None: ...

    @property
    def confirmed_offset(self) -> int: ...


def is_same_host(transport: asyncio.Transport) -> bool:
    """Both ends have the same address: a peer on this machine, by another name than loopback."""
    ends = (transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
    return None not in ends and ends[0][0] == ends[1][0]


class HAConnection(HAShell, asyncio.Protocol):
    """A slave, or whoever else connected to the HA port."""

    core: HASender | TwinSender

    def __init__(
        self,
        owner: ConnectionOwner,
        log: ReplicaLog,
        clock: Clock,
        core: HASender | TwinSender,
        *,
        bytes_per_second_max: int = 0,
        turn: Turn | None = None,
    ) -> None:
        super().__init__(clock)
        self.core = core
        self._twin = core if isinstance(core, TwinSender) else None
        self.flow = FlowMonitor(clock.monotonic_ms(), bytes_per_second_max)
        self.pipeline = Pipeline(clock.monotonic_ms())
        self.address = "?"
        self.host = "?"
        self.close_reason = ""
        self.is_notable = False
        """Whether its end is told: it has said something, or was turned away."""
        self.told_confirmed = 0
        self.number = next(_numbers)
        self._owner = owner
        self._log = log
        self._turn = turn if turn is not None else Turn()
        self._writer: DirectWriter | TlsTransport | None = None
        self._is_pump_scheduled = False
        self._is_budget_awaited = False

    @property
    def state(self) -> HAConnectionState:
        return self.core.state

    @property
    def is_twin(self) -> bool:
        return self._twin is not None

    @property
    def twin(self) -> TwinSender:
        """The core of a connection that speaks the twin dialect."""
        assert self._twin is not None
        return self._twin

    @property
    def hello(self) -> Hello | None:
        """Who the slave says it is; None as long as it has not, and always in the classic
        dialect."""
        return None if self._twin is None else self._twin.hello

    @property
    def is_local(self) -> bool:
        return self._transport is not None and is_same_host(self._transport)

    @property
    def is_tls(self) -> bool:
        return isinstance(self._transport, TlsTransport)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Again when the front has put TLS in between."""
        # uvloop's transports are not of asyncio's classes.
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        self._writer = stream if isinstance(stream, TlsTransport) else DirectWriter(stream)
        peer = stream.get_extra_info("peername") or ("?", 0)
        self.host = str(peer[0])
        self.address = f"{peer[0]}:{peer[1]}"
        high, low = self.core.WRITE_BUFFER_LIMITS
        stream.set_write_buffer_limits(high=high, low=low)

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data)
        except Exception as error:  # A bug costs this connection, no more.
            self._failed(error)

    def eof_received(self) -> bool:
        self.core.receive_eof()
        self.guard(self._run_events)
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
            lost = f"connection lost: {error}" if error else self.core.reason
            self.close_reason = self.close_reason or lost
        self._owner.connection_closed(self)

    # What the service calls.

    def log_moved(self, log_min: int, log_end: int) -> None:
        """The log grew, or lost its oldest file."""
        self.core.log_moved(log_min, log_end)
        if self.core.state is _TRANSFER:
            self._pump(is_told=True)

    def tick(self) -> None:
        """Housekeeping and heartbeats."""
        self.core.tick(self._clock.monotonic_ms())
        self._run_events()
        self._pump()

    def configure(self, settings: SenderSettings, bytes_per_second_max: int) -> None:
        """Other intervals and limits, from now on."""
        self.core.configure(settings)
        self.flow.limit(bytes_per_second_max, self._clock.monotonic_ms())

    def tell_confirmed(self) -> None:
        """A heartbeat now, when the last frame said less than is confirmed."""
        if self.told_confirmed < self._owner.confirmed_offset:
            self.twin.hurry_heartbeat()
            self.guard(self._pump)

    def hold(self, reason: str) -> None:
        """Leave the connection open, silent and uncounted; its dialect is not known yet."""
        assert isinstance(self.core, HASender)
        self.core.refuse(reason, self._clock.monotonic_ms())
        self._run_events()

    def close(self, reason: str) -> None:
        """End it now, with the reason where the dialect can say it. Otherwise what is buffered is
        dropped: the peer resumes from what it has stored."""
        if self.close_reason:
            return
        self.core.stop(reason)
        self.core.events()
        self._ended(reason)

    # Work.

    def _failed(self, error: BaseException) -> None:
        self._owner.connection_failed(self, error)

    def _receive(self, data: bytes) -> None:
        now_ms, twin = self._clock.monotonic_ms(), self._twin
        if twin is not None and twin.take_ack(data, now_ms):
            self._owner.slave_acked(self)
            if twin.next_offset == twin.log_end:
                return  # Nothing to send: heartbeats are the tick's.
        elif self.core.is_ended:
            return
        else:
            self.is_notable = True
            self.core.receive_data(data, now_ms)
            self._run_events()
        self._pump()

    def _run_events(self) -> None:
        while events := self.core.events():
            for event in events:
                self._execute(event)
        self._flush()

    def _execute(self, event: SenderEvent | TwinSenderEvent) -> None:
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
                self._ended(event.reason)
            case HelloReceived():
                self._answer_hello()
            case DigestsWanted() | RecordWanted() | BoundariesWanted():
                self._look_into_log(event)
            case SlaveIsLonger():
                self._owner.slave_is_longer(self, event.common)
            case TailReceived():
                self._owner.tail_received(self, event.body)

    def _answer_hello(self) -> None:
        refusal = self._owner.twin_hello(self)
        if refusal is None:
            self.twin.admit()
        else:
            self.twin.refuse(*refusal)

    def _look_into_log(self, event: DigestsWanted | RecordWanted | BoundariesWanted) -> None:
        core = self.twin
        match event:
            case DigestsWanted():
                steps = digests_of(self._log, event.ranges)
                self._look(steps, lambda digests: self._looked(core.digests_computed, digests))
            case RecordWanted():
                found = first_record(self._log, event.start, event.end)
                self._look(found, lambda start: self._looked(core.record_found, start))
            case BoundariesWanted():
                ends = record_ends(self._log, event.start, event.end)
                self._look(ends, lambda result: self._looked(core.boundaries, *result))

    def _looked(self, answer: Callable[..., None], *result: object) -> None:
        answer(*result)
        self._run_events()
        self._pump()

    def _log_changed(self, reason: str) -> None:
        self.core.stop(reason)
        self._run_events()

    def _ended(self, reason: str) -> None:
        """It counts no more from here on, whether or not the peer takes what is still buffered."""
        self._flush()
        self.close_reason = self.close_reason or reason
        self._end_transport()
        self._owner.connection_closed(self)

    def _flush(self) -> None:
        self._write(self.core.data_to_send())

    # The pump.

    def _schedule_pump(self) -> None:
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._turn.add(Phase.WAKE_REPLICAS, self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._is_pump_scheduled = False
        self.guard(self._pump)

    def _pump(self, *, is_told: bool = False) -> None:
        """Send one run; the rest in later turns of the loop, so that others have theirs.

        `is_told`: the core knows where the log begins now.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_pump_scheduled:
            return
        now_ms = self._clock.monotonic_ms()
        if not is_told and self._log.min_offset > self.core.log_min:
            # Retention was faster than the tick: what is gone cannot be read.
            self.core.log_moved(self._log.min_offset, self.core.log_end)
            self._run_events()
        size_max = self._run_size_max(now_ms) if self.flow.is_limited else self.core.RUN_SIZE_MAX
        run = self.core.next_run(now_ms, size_max) if size_max > 0 else None
        if run is None:
            return
        self._send(run, now_ms)
        if run.size == 0 or self.core.next_offset < self.core.log_end:
            self._schedule_pump()

    def _run_size_max(self, now_ms: int) -> int:
        budget = self.flow.budget(now_ms)
        if budget is None:
            return self.core.RUN_SIZE_MAX
        if budget == 0 and not self._is_budget_awaited:
            self._is_budget_awaited = True
            self._clock.call_later_ms(self.flow.wait_ms(_BUDGET_STEP), self._budget_earned)
        return min(budget, self.core.RUN_SIZE_MAX)

    def _budget_earned(self) -> None:
        self._is_budget_awaited = False
        self._schedule_pump()

    def _send(self, run: Run, now_ms: int) -> None:
        body = self._log.read(run.offset, run.size) if run.size else b""
        assert len(body) == run.size, f"log gave {len(body)} of {run.size} bytes at {run.offset}"
        assert self._writer is not None
        self.told_confirmed = self._owner.confirmed_offset
        pieces = self.core.frames(run, body, self.told_confirmed)
        self._writer.writelines(pieces)
        if run.size:
            self.pipeline.sent(self.core.next_offset, now_ms)
        self.flow.add(sum(map(len, pieces)), now_ms)


def crowded_out(connections: Iterable[HAConnection], new: HAConnection) -> HAConnection | None:
    """Of too many of one address that have neither reported nor proved who they are, who goes.

    The oldest, silent ones first: a crowd must not keep out a slave that comes from there, too.
    """
    waiting = [
        other for other in connections
        if other.host == new.host and not other.core.is_proved and other is not new
    ]  # fmt: skip
    if len(waiting) < HA_UNPROVED_PER_HOST_MAX:
        return None
    return min(waiting, key=lambda other: other.is_notable)
