"""Slave side of one classic HA connection. Bytes and facts in, bytes and events out; no I/O.

Corresponds to the reading half of RocketMQ's HAClient: reassembly of frames from any split, the
equality rule, reports. What leaves as a report is only what the store said it has (`appended`).

    TRANSFER  -- heartbeat or frame at the log's end -->  TRANSFER   LogStarted, BodyReceived
    TRANSFER  -- anything else, silence, end --------->   SHUTDOWN   MasterGone

Invariants: bodies come out contiguous, in order, each byte once; a body is never handed out in
part; the size of a frame is checked before it is used; a report never exceeds `appended`.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from twinlog.ha.states import CLASSIC_RECEIVER, Step, after
from twinlog.ha.wire import (
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HAConnectionState,
    LocalProtocolError,
    encode_report,
    tick_period_ms,
)
from twinlog.message.layout import (
    MAGIC_BLANK,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_AT,
    PLACE_SIZE,
    SIZE_MAGIC,
)
from twinlog.runtime.limits import HA_BODY_SIZE_MAX, HA_REPORT_BACKLOG_MAX

_BUFFER_SIZE_FIRST = 64 * 1024
_BUFFER_SIZE_MAX = HA_BODY_SIZE_MAX  # RocketMQ's slave read buffer.
_RECORD_MAGICS = frozenset((*MESSAGE_MAGICS, MAGIC_BLANK))


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """The configuration that one connection needs; times in milliseconds, sizes in bytes."""

    segment_size: int
    heartbeat_interval_ms: int
    housekeeping_interval_ms: int
    body_size_max: int = HA_BODY_SIZE_MAX - FRAME_HEADER_SIZE

    @property
    def tick_period_ms(self) -> int:
        return tick_period_ms(self.heartbeat_interval_ms, self.housekeeping_interval_ms)


@dataclass(frozen=True, slots=True)
class LogStarted:
    """The log was empty: it begins at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class BodyReceived:
    """Bodies of consecutive frames, of one log file, the first at `offset`.

    The views are good until the next call that takes bytes in.
    """

    offset: int
    bodies: list[memoryview]
    size: int


@dataclass(frozen=True, slots=True)
class MasterGone:
    """Close the connection, for this reason."""

    reason: str


ReceiverEvent = LogStarted | BodyReceived | MasterGone


class HAReceiver:
    """Turns the master's bytes into log bytes, and what was stored into reports."""

    BACKLOG_MAX: ClassVar = HA_REPORT_BACKLOG_MAX
    """Unsent bytes at which the master is left."""
    tells_why: ClassVar = False

    __slots__ = (
        "_buffer",
        "_events",
        "_expected",
        "_filled",
        "_frame_ends",
        "_is_fresh",
        "_last_read_ms",
        "_last_report_ms",
        "_outgoing",
        "_parsed",
        "_view",
        "_was_full",
        "log_end",
        "reason",
        "reported_offset",
        "settings",
        "state",
    )

    def __init__(self, settings: ReceiverSettings, *, log_end: int, now_ms: int) -> None:
        self.settings = settings
        self._buffer = bytearray(_BUFFER_SIZE_FIRST)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._parsed = 0
        self._was_full = False
        self._events: list[ReceiverEvent] = []
        self._frame_ends: deque[int] = deque()
        self._expected = log_end
        self._is_fresh = log_end == 0
        self._last_read_ms = now_ms
        self._last_report_ms = now_ms
        self.state = HAConnectionState.TRANSFER
        self.reason = ""
        self.log_end = log_end
        self.reported_offset = log_end
        """`currentReportedOffset`."""
        # The first report leaves at once: the master sends nothing before it.
        self._outgoing: list[bytes] = [encode_report(log_end)]

    # Bytes in.

    def get_buffer(self) -> memoryview:
        """Where the next bytes may be put; never empty. Bodies taken out before end here."""
        self._make_room()
        return self._view[self._filled :]

    def buffer_filled(self, size: int, now_ms: int) -> None:
        """`size` bytes were put at the start of `get_buffer()`."""
        if self.state is HAConnectionState.SHUTDOWN:
            raise LocalProtocolError("data after the connection ended")
        assert 0 < size <= len(self._buffer) - self._filled
        self._last_read_ms = now_ms
        self._filled += size
        self._was_full = self._filled == len(self._buffer)
        self._parse()
        self.check()

    def receive_data(self, data: bytes | memoryview, now_ms: int) -> None:
        """The same for bytes that are elsewhere."""
        rest = memoryview(data)
        while rest and self.state is not HAConnectionState.SHUTDOWN:
            target = self.get_buffer()
            size = min(len(target), len(rest))
            target[:size] = rest[:size]
            target.release()
            self.buffer_filled(size, now_ms)
            rest = rest[size:]

    def receive_eof(self) -> None:
        """The master closed its end."""
        self._end("the master closed the connection")

    # What the shell asks of every core.

    @property
    def is_ended(self) -> bool:
        return self.state is HAConnectionState.SHUTDOWN

    def configure(self, settings: ReceiverSettings) -> None:
        """Other intervals, from now on."""
        self.settings = settings

    def stop(self, reason: str) -> None:
        """This side ends it."""
        self._end(reason)

    # Facts in.

    def appended(self, end_offset: int) -> None:
        """The log has everything below `end_offset`: what was received up to there is reported."""
        assert self.log_end <= end_offset <= self._expected, (self.log_end, end_offset)
        self.log_end = end_offset
        ends = self._frame_ends
        while ends and ends[0] <= end_offset:
            offset = ends.popleft()
            assert offset > self.reported_offset, (offset, self.reported_offset)
            self.reported_offset = offset
            self._outgoing.append(encode_report(offset))
        self.check()

    def append_failed(self, reason: str) -> None:
        """The log did not take what was received."""
        self._end(reason)

    def tick(self, now_ms: int) -> None:
        """Reports when idle; drops a master that is silent. The two directions count apart."""
        if self.state is HAConnectionState.SHUTDOWN:
            return
        silence_ms = now_ms - self._last_read_ms
        if silence_ms > self.settings.housekeeping_interval_ms:
            self._end(f"housekeeping: nothing from the master for {silence_ms} ms")
        elif now_ms - self._last_report_ms > self.settings.heartbeat_interval_ms:
            self._outgoing.append(encode_report(self.reported_offset))

    # Results out.

    def data_to_send(self, now_ms: int) -> bytes:
        """Reports that may leave now."""
        if not self._outgoing:
            return b""
        self._last_report_ms = now_ms
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def events(self) -> list[ReceiverEvent]:
        """What to do, in order. Bodies must be stored before more bytes are taken in."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """The invariants of this core."""
        assert self.reported_offset <= self.log_end <= self._expected
        assert 0 <= self._parsed <= self._filled <= len(self._buffer)

    # Parsing.

    def _parse(self) -> None:
        unpack = FRAME_HEADER.unpack_from
        run: list[memoryview] = []
        run_offset = run_size = 0
        while self._filled - self._parsed >= FRAME_HEADER_SIZE:
            offset, size = unpack(self._buffer, self._parsed)
            if reason := self._header_fault(offset, size):
                self._emit(run_offset, run, run_size)
                self._end(reason)
                return
            body_start = self._parsed + FRAME_HEADER_SIZE
            if self._filled - body_start < size:
                break
            body = self._view[body_start : body_start + size]
            if self._is_fresh and not self._accept_first(offset, body):
                return
            self._parsed = body_start + size
            if size == 0:
                continue
            if run and offset % self.settings.segment_size == 0:
                self._emit(run_offset, run, run_size)
                run, run_size = [], 0
            if not run:
                run_offset = offset
            run.append(body)
            run_size += size
            self._expected = offset + size
            self._frame_ends.append(offset + size)
        self._emit(run_offset, run, run_size)

    def _header_fault(self, offset: int, size: int) -> str:
        """Why this frame cannot be taken. Tested before the body is there, heartbeats too."""
        if not 0 <= size <= self.settings.body_size_max:
            return f"frame at {offset} with size {size}, allowed 0..{self.settings.body_size_max}"
        if offset < 0:
            return f"frame at the negative offset {offset}"
        if self._expected != 0 and offset != self._expected:
            return (
                "master pushed offset not equal the max phy offset in slave,"
                f" SLAVE: {self._expected} MASTER: {offset}"
            )
        segment_size = self.settings.segment_size
        if size > segment_size - offset % segment_size:
            return (
                f"frame [{offset}, {offset + size}) crosses the end of a file of {segment_size}"
                " bytes: is mappedFileSizeCommitLog the same on both ends?"
            )
        return ""

    def _accept_first(self, offset: int, body: memoryview) -> bool:
        """The first frame of an empty log says where the log begins."""
        is_file_start = offset % self.settings.segment_size == 0
        if body and not is_file_start and not begins_record(body, offset):
            self._end(
                f"first frame at {offset}: neither the start of a file nor of a record:"
                " is mappedFileSizeCommitLog the same on both ends?"
            )
            return False
        if self._expected != offset:
            self._expected = offset
            self._events.append(LogStarted(offset))
            self._frame_ends.append(offset)
        if body:
            self._is_fresh = False
        return True

    def _emit(self, offset: int, bodies: list[memoryview], size: int) -> None:
        if bodies:
            self._events.append(BodyReceived(offset, bodies, size))

    # The buffer.

    def _make_room(self) -> None:
        """Move the started frame to the front; grow when reads fill the buffer or it is larger."""
        started = self._filled - self._parsed
        capacity = len(self._buffer)
        if self._was_full:
            capacity = min(2 * capacity, _BUFFER_SIZE_MAX)
        capacity = max(capacity, self._started_frame_size())
        if capacity == len(self._buffer) and self._parsed == 0 and self._filled < capacity:
            return
        rest = bytes(self._view[self._parsed : self._filled])
        if capacity > len(self._buffer) or self._events:
            # Bodies that nobody has taken out yet keep the old buffer.
            self._buffer = bytearray(capacity)
            self._view = memoryview(self._buffer)
        self._view[:started] = rest
        self._parsed, self._filled = 0, started

    def _started_frame_size(self) -> int:
        if self._filled - self._parsed < FRAME_HEADER_SIZE:
            return FRAME_HEADER_SIZE
        _, size = FRAME_HEADER.unpack_from(self._buffer, self._parsed)
        return FRAME_HEADER_SIZE + int(size)

    def _end(self, reason: str) -> None:
        if self.state is HAConnectionState.SHUTDOWN:
            return
        self.state = after(CLASSIC_RECEIVER, self.state, Step.ENDED)
        self.reason = reason
        self._outgoing.clear()
        self._events.append(MasterGone(reason))


def begins_record(body: memoryview, offset: int) -> bool:
    """Whether `body`, found at `offset` of the log, starts like a record of that place."""
    if len(body) < SIZE_MAGIC.size:
        return False
    size, magic = SIZE_MAGIC.unpack_from(body)
    if size <= 0 or magic not in _RECORD_MAGICS:
        return False
    if len(body) < PLACE_SIZE or size < PLACE_SIZE:
        return True
    (physical_offset,) = struct.unpack_from(">q", body, PHYSICAL_OFFSET_AT)
    return bool(physical_offset == offset)
