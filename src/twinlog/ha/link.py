"""The slave's end of one HA connection, in either dialect: a shell over the core that it is given.

What the master sends is stored, what is stored is reported; an acknowledgement leaves only when the
log has taken the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from twinlog.ha.flow import FlowMonitor
from twinlog.ha.receiver import (
    BodyReceived,
    HAReceiver,
    LogStarted,
    MasterGone,
    ReceiverEvent,
    ReceiverSettings,
)
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.resume import append_again
from twinlog.ha.shell import HAShell
from twinlog.ha.twin.common import DigestsWanted
from twinlog.ha.twin.digests import digests_of
from twinlog.ha.twin.receiver import (
    Refused,
    Started,
    TailWanted,
    TruncateWanted,
    TwinReceiver,
    TwinReceiverEvent,
)
from twinlog.ha.twin.wire import EpochEntry
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.watermark import Watermark
from twinlog.store.errors import StoreError

# Members that are asked for in hot paths: by their class they cost ten times as much.
_TRANSFER: Final = HAConnectionState.TRANSFER

_LOG = logging.getLogger("twinlog.ha")


class LinkOwner(Protocol):
    """Who is told what becomes of a link: the HAClient."""

    def link_made(self, link: MasterLink) -> None:
        """The connection is there. What the master says may come before the dial returns."""
        ...

    def link_failed(self, error: BaseException) -> None: ...

    def master_refusal(self, host: str) -> str:
        """Why nothing is taken from a classic master at `host`; empty when it is."""
        ...

    # Of the twin dialect.

    def link_refused(self, code: int, reason: str, master_min: int) -> None: ...

    def epochs_learnt(self, epochs: tuple[EpochEntry, ...]) -> None: ...

    def link_started(self, store_id: str) -> None: ...

    def confirmed_heard(self, confirmed: int) -> None: ...


class MasterLink(HAShell, asyncio.BufferedProtocol):
    """One connection to the master. `closed` is set when it is over; `core.reason` says why."""

    core: HAReceiver | TwinReceiver

    def __init__(
        self,
        owner: LinkOwner,
        log: ReplicaLog,
        flushed: Watermark,
        clock: Clock,
        core: HAReceiver | TwinReceiver,
        settings: ReceiverSettings,
    ) -> None:
        super().__init__(clock)
        self.core = core
        self.twin = core if isinstance(core, TwinReceiver) else None
        """The core when the link speaks the twin dialect."""
        self.flow = FlowMonitor(clock.monotonic_ms())
        self.closed = asyncio.Event()
        self.stored_size = 0
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._owner = owner
        self._log = log
        self._flushed = flushed
        self._settings = settings
        self._resumed_at = core.log_end
        self._confirmed = -1
        self._is_announced = True
        self._timer: TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def reported_offset(self) -> int:
        return self.core.reported_offset

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's classes.
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        stream.set_write_buffer_limits(high=self.core.BACKLOG_MAX)
        if self.twin is not None:
            self._unsubscribe = self._flushed.subscribe(self._flush_moved)
        self._owner.link_made(self)
        if self.core.is_ended:
            return
        if self.twin is None:
            host = str((stream.get_extra_info("peername") or ("?",))[0])
            if reason := self._owner.master_refusal(host):
                self.close(reason)
                return
        self._send()
        self._tick()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._take(nbytes)
        except Exception as error:  # A bug costs this connection, no more.
            self._failed(error)

    def eof_received(self) -> bool:
        self.core.receive_eof()
        self._run_events()
        return False

    def pause_writing(self) -> None:
        self.close(f"the master takes no reports: {self.core.BACKLOG_MAX} bytes are unsent")
        self._abort()

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

    # What the client calls.

    def close(self, reason: str) -> None:
        """Close now, with the reason where the dialect can say it; a frame that is not complete is
        forgotten."""
        self.core.stop(reason)
        self._run_events()

    def speak(self) -> None:
        """Repeat the last acknowledgement: a master that does not know this connection ends it."""
        if self.twin is not None:
            self.twin.repeat_ack()
            self._send()

    def configure(self, settings: ReceiverSettings) -> None:
        """Other intervals, from now on."""
        self._settings = settings
        self.core.configure(settings)
        if self._timer is not None:
            self._timer.cancel()
            self._tick()

    # Work.

    def _failed(self, error: BaseException) -> None:
        self._owner.link_failed(error)

    def _take(self, size: int) -> None:
        now_ms = self._clock.monotonic_ms()
        twin = self.twin
        run = None if twin is None else twin.take_run(size, now_ms)
        try:
            if twin is not None and run is not None:
                self._take_run(twin, *run, now_ms)
            elif self.core.is_ended:
                return
            else:
                self.core.buffer_filled(size, now_ms)
                self._run_events()
                self._send()
        finally:
            self._announce()
        # A send of the master's may wait for what has left: all else comes after it.
        self.last_read_ms = self._clock.now_ms()
        self.flow.add(size, now_ms)
        self._note_confirmed()

    def _take_run(self, core: TwinReceiver, offset: int, body: memoryview, now_ms: int) -> None:
        """One frame of a transfer is stored, and acknowledged at once."""
        try:
            self._append(offset, body)
        except (StoreError, OSError) as error:
            self._not_stored(offset + len(body), error)
            self._run_events()
        else:
            core.appended(offset + len(body))
        if self._write(core.data_to_send(now_ms)):
            self.last_write_ms = self._clock.now_ms()

    def _announce(self) -> None:
        """Only when the acknowledgement has left are those told who follow the log."""
        if not self._is_announced:
            self._is_announced = True
            self._log.announce_raw()

    def _tick(self) -> None:
        if self._transport is None or self.core.is_ended:
            return
        self.guard(self._look_at_time)
        self._timer = self._clock.call_later_ms(self._settings.tick_period_ms, self._tick)

    def _look_at_time(self) -> None:
        self.core.tick(self._clock.monotonic_ms())
        self._run_events()
        self._send()

    def _send(self) -> None:
        if self._write(self.core.data_to_send(self._clock.monotonic_ms())):
            self.last_write_ms = self._clock.now_ms()

    def _run_events(self) -> None:
        while events := self.core.events():
            for event in events:
                self._execute(event)

    def _execute(self, event: ReceiverEvent | TwinReceiverEvent) -> None:
        match event:
            case BodyReceived():
                body = event.bodies[0] if len(event.bodies) == 1 else b"".join(event.bodies)
                self._store(event.offset + event.size, self._append, event.offset, body)
            case LogStarted():
                self._store(event.offset, self._log.start_at, event.offset)
            case MasterGone():
                self._send()
                self._end_transport()
            case Started():
                self._start(event)
            case Refused():
                self._owner.link_refused(event.code, event.reason, event.master_min)
            case DigestsWanted():
                self._look(digests_of(self._log, event.ranges), self._digests_computed)
            case TruncateWanted():
                self._truncate(event.offset, event.reason)
            case TailWanted():
                self._read_tail(event)

    def _store(self, end_offset: int, write: Callable[..., None], *arguments: object) -> None:
        """An acknowledgement leaves only when the log has taken the bytes."""
        if self.core.is_ended:
            return
        try:
            write(*arguments)
        except (StoreError, OSError) as error:
            self._not_stored(end_offset, error)
            return
        self.core.appended(end_offset)

    def _not_stored(self, end_offset: int, error: Exception) -> None:
        self.core.append_failed(f"the log did not take bytes up to {end_offset}: {error}")

    def _append(self, offset: int, body: bytes | memoryview) -> None:
        if offset == self._log.max_offset:
            self._log.write_raw(offset, body)
            self._is_announced = False
            self.stored_size += len(body)
        else:
            # Known bytes do not count: a full disk right behind them must not redial at once.
            self.stored_size += append_again(self._log, self._resumed_at, offset, body)

    # Of the twin dialect.

    def _start(self, event: Started) -> None:
        assert self.twin is not None
        try:
            if self._log.max_offset != event.offset:
                self._log.start_at(event.offset)
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the log cannot begin at {event.offset}: {error}")
            return
        try:
            self._owner.epochs_learnt(event.epochs)
        except OSError as error:
            self.core.append_failed(f"the epochs of the log cannot be saved: {error}")
            return
        # On its disk is what the store has flushed; an empty log has nothing to lose.
        self.twin.flushed(self._flushed.value)
        self._owner.link_started(event.store_id)

    def _digests_computed(self, digests: list[str]) -> None:
        assert self.twin is not None
        self.twin.digests_computed(digests)
        self._send()

    def _log_changed(self, reason: str) -> None:
        self.core.append_failed(reason)
        self._run_events()

    def _truncate(self, offset: int, reason: str) -> None:
        assert self.twin is not None
        _LOG.warning("HA: the tail is cut offset=%d reason=%s", offset, reason)
        try:
            self._log.truncate_to(offset, reason=reason)
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the tail cannot be cut: {error}")
            return
        self.twin.truncated(offset)

    def _read_tail(self, event: TailWanted) -> None:
        assert self.twin is not None
        try:
            body = self._log.read(event.offset, event.size)
        except (StoreError, OSError) as error:
            self.core.append_failed(f"the tail cannot be read: {error}")
            return
        self.twin.tail_read(event.offset, body)

    def _note_confirmed(self) -> None:
        core = self.twin
        if core is None or core.state is not _TRANSFER:
            return
        confirmed = core.known_confirmed
        if confirmed > self._confirmed:
            self._confirmed = confirmed
            self._owner.confirmed_heard(confirmed)

    def _flush_moved(self, offset: int) -> None:
        core = self.twin
        if core is not None and core.state is _TRANSFER:
            core.flushed(offset)
            if core.facts.hello.is_durable:
                self._send()
