"""Slave side of one twin connection: shell over TwinReceiver."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from twinlog.ha.flow import FlowMonitor
from twinlog.ha.receiver import BodyReceived, MasterGone
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.twin.digests import Steps, digests_of
from twinlog.ha.twin.receiver import (
    DigestsWanted,
    Refused,
    SlaveFacts,
    Started,
    TailWanted,
    TruncateWanted,
    TwinReceiver,
)
from twinlog.ha.twin.wire import HEADER_SIZE, PAYLOAD_SIZE_MAX, EpochEntry
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.limits import HA_REPORT_BACKLOG_MAX
from twinlog.runtime.watermark import Watermark
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.ha")
LINGER_MS = 2000
# One TAIL at a time, and acknowledgements besides it.
_BACKLOG_MAX = HEADER_SIZE + PAYLOAD_SIZE_MAX + HA_REPORT_BACKLOG_MAX


class TwinLink(asyncio.BufferedProtocol):
    """One connection to a twinlog master. `closed` is set when it is over."""

    def __init__(
        self,
        log: ReplicaLog,
        flushed: Watermark,
        clock: Clock,
        facts: SlaveFacts,
        *,
        on_started: Callable[[str], None],
        on_refused: Callable[[int, str, int], None],
        on_confirmed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        on_epochs: Callable[[tuple[EpochEntry, ...]], None] | None = None,
    ) -> None:
        now_ms = clock.monotonic_ms()
        self.core = TwinReceiver(facts, now_ms)
        self.flow = FlowMonitor(now_ms)
        self.closed = asyncio.Event()
        self.stored_size = 0
        self.since_ms = clock.now_ms()
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._log = log
        self._flushed = flushed
        self._clock = clock
        self._on_started = on_started
        self._on_refused = on_refused
        self._on_confirmed = on_confirmed
        self._confirmed = -1
        self._on_failure = on_failure
        self._on_epochs = on_epochs
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def reported_offset(self) -> int:
        return self.core.log_end

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_BACKLOG_MAX)
        self._unsubscribe = self._flushed.subscribe(self._flush_moved)
        self._send()
        self._tick()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.core.is_ended:
            return
        try:
            now_ms = self._clock.monotonic_ms()
            self.last_read_ms = self._clock.now_ms()
            self.flow.add(nbytes, now_ms)
            self.core.buffer_filled(nbytes, now_ms)
            self._run_events()
            self._send()
            self._note_confirmed()
        except Exception as error:
            self._on_failure(error)

    def eof_received(self) -> bool:
        if not self.core.is_ended:
            self.core.receive_eof()
            self._run_events()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.core.is_ended:
            self.core.receive_eof()
            self.core.events()
            if error is not None:
                self.core.reason = f"connection lost: {error}"
            if isinstance(error, ssl.SSLError):
                # In TLS 1.3 a master looks at the certificate when the slave is through already.
                self.core.reason += "; it may have refused this slave's certificate"
        if self._timer is not None:
            self._timer.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None  # It knows this link: a cycle around a megabyte of buffer.
        self.closed.set()

    def close(self, reason: str) -> None:
        """Tell the master why and close; a frame that is not complete is forgotten."""
        self.core.stop(reason)
        self._run_events()

    def speak(self) -> None:
        """Repeat the last acknowledgement: a master that does not know this connection ends it."""
        self.core.repeat_ack()
        self._send()

    def pause_writing(self) -> None:
        self.close(f"the master takes no acknowledgements: {_BACKLOG_MAX} bytes unsent")
        self._abort()

    # Work.

    def _run_events(self) -> None:
        while events := self.core.events():
            for event in events:
                match event:
                    case DigestsWanted():
                        self._compute_digests(digests_of(self._log, event.ranges))
                    case TruncateWanted():
                        self._truncate(event.offset, event.reason)
                    case TailWanted():
                        self._read_tail(event)
                    case Started():
                        self._start(event)
                    case BodyReceived():
                        self._append(event)
                    case Refused():
                        self._on_refused(event.code, event.reason, event.master_min)
                    case MasterGone():
                        self._send()
                        self._close_transport()

    def _close_transport(self) -> None:
        """The reason may still go out; a master that reads nothing does not hold up the redial."""
        if self._transport is not None:
            self._transport.close()
            self._clock.call_later_ms(LINGER_MS, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _compute_digests(self, steps: Steps[list[str]]) -> None:
        """One megabyte in a turn of the loop: who reads from this slave is not held up."""
        if self.core.is_ended:
            return
        try:
            next(steps)
        except StopIteration as done:
            self.core.digests_computed(done.value)
            self._send()
        except StoreError as error:
            # Retention deleted the oldest file meanwhile: the next handshake knows the new start.
            self.core.append_failed(f"the log changed during the handshake: {error}")
            self._run_events()
        except Exception as error:
            self._on_failure(error)
        else:
            asyncio.get_running_loop().call_soon(self._compute_digests, steps)

    def _read_tail(self, event: TailWanted) -> None:
        try:
            body = self._log.read(event.offset, event.size)
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the tail cannot be read: {error}")
            return
        self.core.tail_read(event.offset, body)

    def _note_confirmed(self) -> None:
        confirmed = self.core.known_confirmed
        if confirmed > self._confirmed and self.core.state is HAConnectionState.TRANSFER:
            self._confirmed = confirmed
            self._on_confirmed(confirmed)

    def _truncate(self, offset: int, reason: str) -> None:
        _LOG.warning("HA: the tail is cut offset=%d reason=%s", offset, reason)
        try:
            self._log.truncate_to(offset, reason=reason)
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the tail cannot be cut: {error}")
            return
        self.core.truncated(offset)

    def _start(self, event: Started) -> None:
        if self._log.max_offset != event.offset:
            try:
                self._log.start_at(event.offset)
            except (StoreError, OSError) as error:
                self.core.append_failed(f"the log cannot begin at {event.offset}: {error}")
                return
        if self._on_epochs is not None:
            try:
                self._on_epochs(event.epochs)
            except OSError as error:
                self.core.append_failed(f"the epochs of the log cannot be saved: {error}")
                return
        # On its disk is what the store has flushed; an empty log has nothing to lose.
        self.core.flushed(self._flushed.value)
        self._on_started(event.store_id)

    def _append(self, event: BodyReceived) -> None:
        if self.core.state is HAConnectionState.SHUTDOWN:
            return
        end_offset = event.offset + event.size
        try:
            self._log.append_raw(event.offset, event.bodies[0])
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the log did not take bytes up to {end_offset}: {error}")
            return
        self.stored_size += event.size
        self.core.appended(end_offset)

    def _flush_moved(self, offset: int) -> None:
        if self.core.state is HAConnectionState.TRANSFER:
            self.core.flushed(offset)
            if self.core.facts.hello.is_durable:
                self._send()

    def _send(self) -> None:
        data = self.core.data_to_send(self._clock.monotonic_ms())
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self.last_write_ms = self._clock.now_ms()

    def _tick(self) -> None:
        if self._transport is None or self.core.is_ended:
            return
        try:
            self.core.tick(self._clock.monotonic_ms())
            self._run_events()
            self._send()
        except Exception as error:
            self._on_failure(error)
        facts = self.core.facts
        period_ms = min(1000, facts.heartbeat_interval_ms // 4, facts.housekeeping_interval_ms // 4)
        self._timer = self._clock.call_later_ms(max(1, period_ms), self._tick)

    def configure(self, heartbeat_interval_ms: int, housekeeping_interval_ms: int) -> None:
        """Other intervals, from now on."""
        self.core.facts = replace(
            self.core.facts,
            heartbeat_interval_ms=heartbeat_interval_ms,
            housekeeping_interval_ms=housekeeping_interval_ms,
        )
        if self._timer is not None:
            self._timer.cancel()
            self._tick()
