"""Master side of one classic HA connection. Bytes and facts in, bytes and events out; no I/O.

Corresponds to RocketMQ's HAConnection with its ReadSocketService and WriteSocketService.

    READY     -- first report inside [min, end], or 0 --> TRANSFER   SlaveJoined
    READY     -- any other first report --------------->  SUSPEND    SlaveRefused
    TRANSFER  -- later report within [ack, sent] ------>  TRANSFER   SlaveAcked
    TRANSFER  -- later report outside ----------------->  SHUTDOWN   ConnectionEnded
    TRANSFER  -- oldest file deleted below the slave --->  SHUTDOWN   ConnectionEnded
    any       -- end of stream, silence, refuse() ----->  SHUTDOWN   ConnectionEnded (or SUSPEND)

SUSPEND is a connection held open, silent and uncounted: an Apache slave that is closed redials
thousands of times per second. Housekeeping closes it.

Invariants: nothing is sent before the first report; `ack_offset <= next_offset <= log end`; runs
are contiguous and never cross the end of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from twinlog.ha.states import CLASSIC_SENDER, Step, after
from twinlog.ha.wire import (
    REPORT,
    REPORT_SIZE,
    HAConnectionState,
    LocalProtocolError,
    encode_frame_header,
)
from twinlog.runtime.limits import HA_RUN_SIZE_MAX


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """The configuration that one connection needs; times in milliseconds, sizes in bytes."""

    segment_size: int
    batch_size: int
    heartbeat_interval_ms: int
    housekeeping_interval_ms: int


@dataclass(frozen=True, slots=True)
class SlaveJoined:
    """The first report was good: the peer counts as a replica that has `request_offset`."""

    request_offset: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class SlaveAcked:
    """The slave has everything below `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class SlaveRefused:
    """The connection stays open, silent and uncounted, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """Close the connection, for this reason."""

    reason: str


SenderEvent = SlaveJoined | SlaveAcked | SlaveRefused | ConnectionEnded


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes [offset, offset + size) of one log file, to be sent as frames of at most one batch.

    A heartbeat is a run of size 0: one header, no body.
    """

    offset: int
    size: int
    batch_size: int

    def frames(self) -> list[tuple[int, int]]:
        """(offset, size) of each frame."""
        if self.size == 0:
            return [(self.offset, 0)]
        end = self.offset + self.size
        batch = self.batch_size
        return [(start, min(batch, end - start)) for start in range(self.offset, end, batch)]

    def pieces(self, body: bytes | memoryview) -> list[bytes | memoryview]:
        """Headers and slices of `body`, in the order of the wire."""
        assert len(body) == self.size
        if self.size <= self.batch_size:
            header = encode_frame_header(self.offset, self.size)
            return [header, body] if self.size else [header]
        view = memoryview(body)
        pieces: list[bytes | memoryview] = []
        for offset, size in self.frames():
            start = offset - self.offset
            pieces.append(encode_frame_header(offset, size))
            pieces.append(view[start : start + size])
        return pieces


class HASender:
    """Decides what one slave is sent and what its reports are worth."""

    RUN_SIZE_MAX: ClassVar = HA_RUN_SIZE_MAX
    WRITE_BUFFER_LIMITS: ClassVar = (2 * HA_RUN_SIZE_MAX, HA_RUN_SIZE_MAX)
    """How much may wait to be written, and at how much the next run is built."""
    tells_why: ClassVar = False

    __slots__ = (
        "_events",
        "_is_write_complete",
        "_last_read_ms",
        "_last_write_ms",
        "_partial",
        "_suspended_ms",
        "ack_offset",
        "log_end",
        "log_min",
        "next_offset",
        "reason",
        "request_offset",
        "settings",
        "state",
    )

    def __init__(
        self, settings: SenderSettings, *, log_min: int, log_end: int, now_ms: int
    ) -> None:
        assert settings.batch_size > 0
        assert settings.segment_size > 0
        self.settings = settings
        self._events: list[SenderEvent] = []
        self._partial = b""
        # The idle timers run from accept, as RocketMQ's do.
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self._suspended_ms = now_ms
        self._is_write_complete = True
        self.state = HAConnectionState.READY
        self.reason = ""
        self.log_min = log_min
        self.log_end = log_end
        self.request_offset = -1
        """`slaveRequestOffset`: the first report."""
        self.ack_offset = -1
        """`slaveAckOffset`: the latest report."""
        self.next_offset = -1
        """`nextTransferFromWhere`: everything below was handed to the connection."""

    # The same questions as of a twin connection; this dialect knows less.

    @property
    def is_proved(self) -> bool:
        """It has reported an offset that a slave of this master can have."""
        return self.ack_offset >= 0

    @property
    def received_offset(self) -> int:
        return self.ack_offset

    @property
    def durable_offset(self) -> int:
        return -1

    @property
    def is_durable(self) -> bool:
        return False

    def data_to_send(self) -> bytes:
        return b""

    # What the shell asks of every core.

    @property
    def is_ended(self) -> bool:
        return self.state is HAConnectionState.SHUTDOWN

    def configure(self, settings: SenderSettings) -> None:
        """Other intervals and sizes, from now on."""
        self.settings = settings

    def stop(self, reason: str) -> None:
        """This side ends it."""
        self._end(reason)

    def frames(
        self, run: Run, body: bytes | memoryview, confirmed: int
    ) -> list[bytes | memoryview]:
        """The bytes of a run; this dialect does not tell what is confirmed."""
        return run.pieces(body)

    # Facts in.

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Bytes from the slave: reports, in any split. Of several the last complete one counts."""
        if self.state is HAConnectionState.SHUTDOWN:
            raise LocalProtocolError("data after the connection ended")
        self._last_read_ms = now_ms
        if self._partial:
            data = self._partial + data
        complete = len(data) - len(data) % REPORT_SIZE
        self._partial = data[complete:]
        if complete == 0:
            return
        (report,) = REPORT.unpack_from(data, complete - REPORT_SIZE)
        if self.state is HAConnectionState.READY:
            self._first_report(report, now_ms)
        elif self.state is HAConnectionState.TRANSFER:
            self._later_report(report)
        self.check()

    def receive_eof(self) -> None:
        """The slave closed its end."""
        self._end("the slave closed the connection")

    def log_moved(self, log_min: int, log_end: int) -> None:
        """The master's log is now [log_min, log_end)."""
        self.log_min = log_min
        self.log_end = log_end
        if self.state is HAConnectionState.TRANSFER and self.next_offset < log_min:
            self._end(
                f"the slave needs offset {self.next_offset}, the oldest kept is {log_min}:"
                " its files were deleted before it was sent them"
            )

    def write_blocked(self) -> None:
        """The connection took no more; nothing new is built until `write_completed`."""
        self._is_write_complete = False

    def write_completed(self, now_ms: int) -> None:
        """What was handed over has gone; that is a write for the idle timer."""
        self._is_write_complete = True
        self._last_write_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Housekeeping: a silent slave is closed, a suspended one does not stay forever."""
        limit = self.settings.housekeeping_interval_ms
        if self.state is HAConnectionState.SHUTDOWN:
            return
        if self.state is HAConnectionState.SUSPEND:
            if now_ms - self._suspended_ms > limit:
                self._end(f"housekeeping: {self.reason}")
        elif now_ms - self._last_read_ms > limit:
            self._end(f"housekeeping: no report for {now_ms - self._last_read_ms} ms")

    def refuse(self, reason: str, now_ms: int) -> None:
        """Hold the connection, silent and uncounted."""
        if self.state in (HAConnectionState.SUSPEND, HAConnectionState.SHUTDOWN):
            return
        self.state = after(CLASSIC_SENDER, self.state, Step.HELD)
        self.reason = reason
        self._suspended_ms = now_ms
        self._events.append(SlaveRefused(reason))

    # Results out.

    def events(self) -> list[SenderEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def next_run(self, now_ms: int, size_max: int) -> Run | None:
        """The next thing to send, or None. It counts as sent from here on."""
        assert size_max > 0
        if self.state is not HAConnectionState.TRANSFER or not self._is_write_complete:
            return None
        idle_ms = now_ms - self._last_write_ms
        if idle_ms > self.settings.heartbeat_interval_ms:
            self._last_write_ms = now_ms
            return Run(self.next_offset, 0, self.settings.batch_size)
        size = self._readable_size(size_max)
        if size == 0:
            return None
        run = Run(self.next_offset, size, self.settings.batch_size)
        self.next_offset += size
        self._last_write_ms = now_ms
        self.check()
        return run

    def _readable_size(self, size_max: int) -> int:
        """Bytes at `next_offset` up to the end of the log or of that one file."""
        segment_size = self.settings.segment_size
        file_end = self.next_offset - self.next_offset % segment_size + segment_size
        available = min(self.log_end, file_end) - self.next_offset
        if available <= size_max:
            return max(available, 0)
        # Whole batches only, so that the frames are the same whatever is asked for at a time.
        batch_size = self.settings.batch_size
        return max(size_max - size_max % batch_size, min(batch_size, available, size_max))

    def check(self) -> None:
        """The invariants of this core."""
        if self.state is HAConnectionState.TRANSFER:
            assert 0 <= self.request_offset <= self.next_offset or self.request_offset == 0
            assert self.ack_offset <= self.next_offset <= self.log_end, (
                f"ack {self.ack_offset} next {self.next_offset} end {self.log_end}"
            )

    # Reports.

    def _first_report(self, report: int, now_ms: int) -> None:
        if reason := self._first_report_refusal(report):
            self.refuse(reason, now_ms)
            return
        self.request_offset = report
        self.ack_offset = report
        self.next_offset = report if report else self._last_file_start()
        self.state = after(CLASSIC_SENDER, self.state, Step.JOINED)
        self._events.append(SlaveJoined(report, self.next_offset))

    def _first_report_refusal(self, report: int) -> str:
        if report == 0 or self.log_min <= report <= self.log_end:
            return ""
        if report < 0:
            return f"its first report is negative ({report}): not an HA slave"
        if report > self.log_end:
            return (
                f"its first report {report} is beyond this master's end {self.log_end}:"
                " its log is not a copy of this one"
            )
        return (
            f"its first report {report} is below this master's oldest offset {self.log_min}:"
            " empty its store to copy again"
        )

    def _last_file_start(self) -> int:
        """An empty slave gets the last file only; older ones are never copied in this dialect."""
        return self.log_end - self.log_end % self.settings.segment_size

    def _later_report(self, report: int) -> None:
        if report > self.next_offset:
            self._end(f"it acknowledged {report}, only {self.next_offset} was sent")
        elif report < self.ack_offset:
            self._end(f"its report went back from {self.ack_offset} to {report}")
        else:
            self.ack_offset = report
            self._events.append(SlaveAcked(report))

    def _end(self, reason: str) -> None:
        if self.state is HAConnectionState.SHUTDOWN:
            return
        self.state = after(CLASSIC_SENDER, self.state, Step.ENDED)
        self.reason = reason
        self._events.append(ConnectionEnded(reason))
