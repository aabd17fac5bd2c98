"""Slave side of one twin connection. Bytes and facts in, bytes and events out; no I/O.

    READY      -- HELLO sent, CHALLENGE ---------->  HANDSHAKE  PROOF when there is a secret
    HANDSHAKE  -- PROBE -------------------------->  HANDSHAKE  DigestsWanted
    HANDSHAKE  -- TRUNCATE ----------------------->  HANDSHAKE  TruncateWanted, READY when cut
    HANDSHAKE  -- FETCH -------------------------->  HANDSHAKE  TailWanted, TAIL when read
    HANDSHAKE  -- START -------------------------->  TRANSFER   Started
    TRANSFER   -- DATA at the log's end ---------->  TRANSFER   BodyReceived
    TRANSFER   -- DATA damaged on the way -------->  TRANSFER   RESEND, later frames dropped
    any        -- ERROR, fault, silence, end ----->  SHUTDOWN   Refused, MasterGone

Invariants: bodies come out contiguous, each byte once, and only when their checksum is right; an
acknowledgement says *received* only after `appended` and *durable* only after `flushed`; nothing is
cut unless the policy allows it, and what this replica knows as confirmed under no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, TypeVar

from twinlog.ha.receiver import BodyReceived, MasterGone, ReceiverSettings
from twinlog.ha.states import TWIN, Step, after
from twinlog.ha.twin import wire
from twinlog.ha.twin.common import DigestsWanted
from twinlog.ha.twin.hot_frames import ack_frame, only_data
from twinlog.ha.twin.secrets import is_proof, prove
from twinlog.ha.twin.wire import ErrorCode, Frame, FrameParser, FrameType, Hello
from twinlog.ha.wire import HAConnectionState, LocalProtocolError, RemoteProtocolError
from twinlog.runtime.limits import HA_REPORT_BACKLOG_MAX

# Members that are asked for in hot paths: by their class they cost ten times as much.
_SHUTDOWN: Final = HAConnectionState.SHUTDOWN

_TRANSFER = HAConnectionState.TRANSFER
_Question = TypeVar("_Question", wire.Probe, wire.Truncate, wire.Fetch, wire.Start)

PROBE_SIZE_MAX = 8 * 1024 * 1024  # More than that no master asks for at once.


@dataclass(frozen=True, slots=True)
class SlaveFacts:
    """Who this slave is. `reseed` is `twinlogReseed`: tail, all or manual. In a controlled group
    only the master of `hello.epoch` is followed (R4)."""

    hello: Hello
    secret: str = ""
    reseed: str = "tail"
    heartbeat_interval_ms: int = field(kw_only=True)
    housekeeping_interval_ms: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class TruncateWanted:
    """Cut the log back to `offset`, bytes moved aside: `truncated`."""

    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class TailWanted:
    """The master lost what this log has: read at most `size` bytes at `offset`: `tail_read`."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Started:
    """The master sends from `offset` on; an empty log begins there."""

    offset: int
    store_id: str
    epochs: tuple[wire.EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """One of the two said no. `code` tells what the policy may do about it."""

    code: int
    reason: str
    master_min: int = -1  # first byte of the master's log; -1: this side refused


TwinReceiverEvent = (
    DigestsWanted | TruncateWanted | TailWanted | Started | BodyReceived | Refused | MasterGone
)


@dataclass(slots=True)
class TwinReceiver:
    """Turns the master's frames into log bytes, and what was stored into acknowledgements."""

    BACKLOG_MAX: ClassVar = wire.HEADER_SIZE + wire.PAYLOAD_SIZE_MAX + HA_REPORT_BACKLOG_MAX
    """Unsent bytes at which the master is left: one TAIL at a time, with acknowledgements."""
    tells_why: ClassVar = True

    facts: SlaveFacts
    now_ms: int
    state: HAConnectionState = HAConnectionState.READY
    reason: str = ""
    log_end: int = 0
    flushed_offset: int = 0
    confirmed: int = 0
    master_end: int = 0
    epoch: int = 0
    damaged_count: int = 0
    last_read_ms: int = 0
    _master_epochs: tuple[wire.EpochEntry, ...] = ()
    _parser: FrameParser = field(default_factory=FrameParser)
    _outgoing: list[bytes] = field(default_factory=list)
    _events: list[TwinReceiverEvent] = field(default_factory=list)
    _hello_bytes: bytes = b""
    _expected: int = 0
    _truncating_to: int = -1
    _is_probed: bool = False
    _resend_count: int = 0
    _acked: tuple[int, int] = (-1, -1)
    _last_ack_ms: int = 0

    def __post_init__(self) -> None:
        hello = self.facts.hello
        self.log_end = self._expected = hello.log_end
        self.last_read_ms = self._last_ack_ms = self.now_ms
        self.epoch = hello.epoch
        frame, self._hello_bytes = wire.encode_hello(hello)
        self._outgoing.append(wire.MAGIC + frame)

    # Bytes in.

    def get_buffer(self) -> memoryview:
        return self._parser.get_buffer()

    def buffer_filled(self, size: int, now_ms: int) -> None:
        """`size` bytes were put at the start of `get_buffer()`. Take the events out before more."""
        self._receive_frames(self._parser.buffer_filled(size), now_ms)

    def take_run(self, size: int, now_ms: int) -> tuple[int, memoryview] | None:
        """Instead of `buffer_filled`: the offset and the body to append, when what was put is
        exactly one DATA frame with nothing to be said about it. None: nothing has happened."""
        if self.state is not _TRANSFER:
            return None
        found = only_data(*self._parser.with_more(size))
        if found is None:
            return None
        round_number, offset, confirmed, epoch, body = found
        end = offset + len(body)
        segment_size = self.facts.hello.segment_size
        is_next = offset == self._expected and round_number == self._resend_count & 0xFFFF
        if (
            not is_next
            or epoch != self.epoch
            or end > offset - offset % segment_size + segment_size
        ):
            return None
        self._parser.emptied()
        self.last_read_ms = now_ms
        self._expected = end
        if confirmed > self.confirmed:
            self.confirmed = confirmed
        if end > self.master_end:
            self.master_end = end
        return offset, body

    def receive_data(self, data: bytes | memoryview, now_ms: int) -> None:
        self._receive_frames(self._parser.feed(data), now_ms)

    def _receive_frames(self, frames: Iterator[Frame], now_ms: int) -> None:
        if self.state is _SHUTDOWN:
            raise LocalProtocolError("data after the connection ended")
        self.last_read_ms = now_ms
        try:
            for frame in frames:
                if self.is_ended:
                    return
                self._receive(frame)
        except RemoteProtocolError as error:
            self.refuse(ErrorCode.PROTOCOL, str(error))
        self.check()

    def receive_eof(self) -> None:
        self._end("the master closed the connection")

    # Facts in.

    def digests_computed(self, digests: list[str]) -> None:
        self._is_probed = False
        self._outgoing.append(wire.encode_json(FrameType.DIGESTS, wire.Digests(digests=digests)))

    def tail_read(self, offset: int, body: bytes) -> None:
        """The answer to TailWanted."""
        self._is_probed = False
        self._outgoing.append(wire.encode_tail(offset, body))

    def truncated(self, log_end: int) -> None:
        """The tail is cut and moved aside."""
        assert log_end == self._truncating_to
        self.log_end = self._expected = log_end
        self.flushed_offset = min(self.flushed_offset, log_end)
        self._outgoing.append(wire.encode_json(FrameType.READY, wire.Ready(log_end=log_end)))

    def appended(self, end_offset: int) -> None:
        assert self.log_end <= end_offset <= self._expected, (self.log_end, end_offset)
        self.log_end = end_offset

    def flushed(self, offset: int) -> None:
        """Everything below `offset` is on this slave's disk."""
        self.flushed_offset = max(self.flushed_offset, min(offset, self.log_end))

    def append_failed(self, reason: str) -> None:
        self.refuse(ErrorCode.DISK, reason)

    def configure(self, settings: ReceiverSettings) -> None:
        """Other intervals, from now on."""
        self.facts = replace(
            self.facts,
            heartbeat_interval_ms=wire.twin_heartbeat_ms(settings.heartbeat_interval_ms),
            housekeeping_interval_ms=settings.housekeeping_interval_ms,
        )

    def stop(self, reason: str) -> None:
        """This side ends it."""
        self.refuse(ErrorCode.STOPPING, reason)

    def tick(self, now_ms: int) -> None:
        if self.state is _SHUTDOWN:
            return
        silence_ms = now_ms - self.last_read_ms
        if silence_ms > self.facts.housekeeping_interval_ms:
            self._end(f"housekeeping: nothing from the master for {silence_ms} ms")
        elif now_ms - self._last_ack_ms > self.facts.heartbeat_interval_ms:
            self.repeat_ack()

    def repeat_ack(self) -> None:
        """An idle acknowledgement says the last one again."""
        self._acked = (-1, -1)

    def refuse(self, code: ErrorCode, reason: str) -> None:
        """Tell the master why, and close."""
        if self.state is _SHUTDOWN:
            return
        error = wire.Error(code=code, reason=reason, log_end=self.log_end)
        self._outgoing.append(wire.encode_json(FrameType.ERROR, error))
        self._events.append(Refused(code, reason))
        self._end(reason)

    @property
    def is_ended(self) -> bool:
        return self.state is _SHUTDOWN

    # Results out.

    def events(self) -> list[TwinReceiverEvent]:
        events, self._events = self._events, []
        return events

    def data_to_send(self, now_ms: int) -> bytes:
        """Handshake frames, and one acknowledgement for all that was stored since the last."""
        if self.state is _TRANSFER:
            ack = (self.log_end, min(self.flushed_offset, self.log_end))
            if ack != self._acked:
                self._acked = ack
                self._last_ack_ms = now_ms
                if not self._outgoing:
                    return ack_frame(*ack)
                self._outgoing.append(ack_frame(*ack))
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    @property
    def reported_offset(self) -> int:
        return self.log_end

    @property
    def known_confirmed(self) -> int:
        """What this slave has of that which its master called confirmed."""
        return min(self.confirmed, self.log_end)

    def check(self) -> None:
        assert self.flushed_offset <= self.log_end <= self._expected or self._truncating_to >= 0

    # Frames.

    def _receive(self, frame: Frame) -> None:
        is_repeatable = frame.frame_type == FrameType.DATA and self.state is _TRANSFER
        if not frame.is_intact and not is_repeatable:
            raise RemoteProtocolError("a frame of the master does not match its checksum")
        take = FRAMES[self.state].get(frame.frame_type)
        if take is None:
            raise RemoteProtocolError(_UNEXPECTED[self.state].format(frame.frame_type))
        take(self, frame)

    def _receive_error(self, frame: Frame) -> None:
        error = wire.decode_json(frame.payload, wire.Error)
        self._events.append(Refused(error.code, error.reason, error.log_min))
        self._end(f"the master refused: {error.reason}")

    def _receive_challenge(self, frame: Frame) -> None:
        challenge = wire.decode_json(frame.payload, wire.Challenge)
        hello = self.facts.hello
        if not hello.version_min <= challenge.version <= hello.version:
            self.refuse(ErrorCode.VERSION, f"the master chose version {challenge.version},"
                        f" this slave speaks {hello.version_min}..{hello.version}")  # fmt: skip
            return
        if self.facts.secret:
            expected = prove(self.facts.secret, role="master", nonce=challenge.nonce,
                             peer_nonce=hello.nonce, hello=self._hello_bytes)  # fmt: skip
            if not is_proof(expected, challenge.proof):
                self.refuse(ErrorCode.WRONG_SECRET, "the master's secret is not this slave's")
                return
            proof = prove(self.facts.secret, role="slave", nonce=hello.nonce,
                          peer_nonce=challenge.nonce, hello=self._hello_bytes)  # fmt: skip
            self._outgoing.append(wire.encode_json(FrameType.PROOF, wire.Proof(proof=proof)))
        if hello.epoch and challenge.epoch != hello.epoch:
            self.refuse(ErrorCode.STALE_EPOCH, f"the master is of epoch {challenge.epoch},"
                        f" this replica of {hello.epoch}: the controller is asked")  # fmt: skip
            return
        self._master_epochs = tuple(challenge.epochs)
        self.state = after(TWIN, self.state, Step.MET)

    def _question(self, frame: Frame, kind: type[_Question]) -> _Question:
        """What the master asks; one question at a time."""
        if self._is_probed or 0 <= self._truncating_to < self.log_end:
            raise RemoteProtocolError(f"frame type {frame.frame_type} before the answer")
        question: _Question = wire.decode_json(frame.payload, kind)
        return question

    def _receive_probe(self, frame: Frame) -> None:
        probe = self._question(frame, wire.Probe)
        hello = self.facts.hello
        for start, end in probe.ranges:
            if not hello.log_min <= start < end <= hello.log_end or end - start > PROBE_SIZE_MAX:
                raise RemoteProtocolError(f"probe of [{start}, {end})")
        if not 0 < len(probe.ranges) <= 16:
            raise RemoteProtocolError(f"probe of {len(probe.ranges)} ranges")
        self._is_probed = True
        self._events.append(DigestsWanted(probe.ranges))

    def _receive_truncate(self, frame: Frame) -> None:
        truncate = self._question(frame, wire.Truncate)
        hello = self.facts.hello
        if not hello.log_min < truncate.offset < hello.log_end:
            raise RemoteProtocolError(f"asked to cut to {truncate.offset}")
        if truncate.offset < hello.confirmed and not self._was_decided():
            self.refuse(
                ErrorCode.CONFIRMED_DIFFERS,
                f"{truncate.reason}; this replica knows its log as confirmed up to"
                f" {hello.confirmed}, so nothing is cut: PAIR.md says what to do",
            )
            return
        if self.facts.reseed == "manual":
            is_longer = truncate.code == ErrorCode.OFFSET_OUT_OF_RANGE
            code = ErrorCode.OFFSET_OUT_OF_RANGE if is_longer else ErrorCode.DIVERGED
            self.refuse(code, f"{truncate.reason}; twinlogReseed=manual, so nothing is cut here")
            return
        self._truncating_to = truncate.offset
        self._events.append(TruncateWanted(truncate.offset, truncate.reason))

    def _was_decided(self) -> bool:
        """R9: an epoch that this log has not says that confirmed records may be missing from it: an
        operator's unclean election, or one after all members had lost power."""
        last = self.facts.hello.epochs[-1].epoch if self.facts.hello.epochs else 0
        return any(e.epoch > last and not e.is_clean for e in self._master_epochs)

    def _receive_fetch(self, frame: Frame) -> None:
        fetch = self._question(frame, wire.Fetch)
        hello = self.facts.hello
        is_inside = hello.log_min <= fetch.offset < fetch.offset + fetch.size <= hello.log_end
        if not is_inside or fetch.size > wire.BODY_SIZE_MAX:
            raise RemoteProtocolError(f"asked for {fetch.size} bytes at {fetch.offset}")
        self._is_probed = True
        self._events.append(TailWanted(fetch.offset, fetch.size))

    def _receive_start(self, frame: Frame) -> None:
        start = self._question(frame, wire.Start)
        is_empty = self.facts.hello.log_end == self.facts.hello.log_min
        if not is_empty and start.offset != self.log_end:
            raise RemoteProtocolError(f"started at {start.offset}, this log ends at {self.log_end}")
        if start.offset < 0:
            raise RemoteProtocolError(f"an empty log cannot start at {start.offset}")
        self.log_end = self._expected = start.offset
        if is_empty:
            self.flushed_offset = start.offset  # There is nothing below it to lose.
        self._truncating_to = -1
        self.state = after(TWIN, self.state, Step.JOINED)
        self._parser.payload_size_max = wire.PAYLOAD_SIZE_MAX
        self._events.append(Started(start.offset, start.store_id, tuple(start.epochs)))

    # Transfer.

    def _receive_data(self, frame: Frame) -> None:
        if frame.round_number != self._resend_count & 0xFFFF:
            return  # Sent before the master heard of the damage: it comes again.
        if not frame.is_intact:
            self.damaged_count += 1
            self._resend_count += 1
            self._outgoing.append(wire.encode_resend(self._expected))
            return
        if len(frame.payload) <= wire.DATA_PREFIX.size:
            raise RemoteProtocolError("a DATA frame without data")
        offset, confirmed, epoch = wire.DATA_PREFIX.unpack_from(frame.payload)
        if offset != self._expected:
            raise RemoteProtocolError(f"data at {offset}, this log ends at {self._expected}")
        self._note_epoch(epoch)
        body = frame.payload[wire.DATA_PREFIX.size :]
        segment_size = self.facts.hello.segment_size
        if len(body) > segment_size - offset % segment_size:
            raise RemoteProtocolError(f"data at {offset} crosses the end of a file")
        self.confirmed = max(self.confirmed, confirmed)
        self._expected = offset + len(body)
        self.master_end = max(self.master_end, self._expected)
        self._events.append(BodyReceived(offset, [body], len(body)))

    def _receive_heartbeat(self, frame: Frame) -> None:
        if len(frame.payload) != wire.DATA_PREFIX.size:
            raise RemoteProtocolError("a HEARTBEAT of the wrong size")
        self.master_end, confirmed, epoch = wire.DATA_PREFIX.unpack(frame.payload)
        self._note_epoch(epoch)
        self.confirmed = max(self.confirmed, confirmed)

    def _note_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise RemoteProtocolError(f"epoch {epoch} after {self.epoch}: an older master")
        if epoch > self.epoch and self.facts.hello.epoch:
            raise RemoteProtocolError(f"epoch {epoch} on a connection of epoch {self.epoch}")
        self.epoch = epoch

    def _end(self, reason: str) -> None:
        if self.state is _SHUTDOWN:
            return
        self.state = after(TWIN, self.state, Step.ENDED)
        self.reason = reason
        self._events.append(MasterGone(reason))


# What the master may send in which state: legal by presence.
FRAMES: Final[Mapping[HAConnectionState, Mapping[int, Callable[[TwinReceiver, Frame], None]]]] = {
    HAConnectionState.READY: {
        FrameType.CHALLENGE: TwinReceiver._receive_challenge,
        FrameType.ERROR: TwinReceiver._receive_error,
    },
    HAConnectionState.HANDSHAKE: {
        FrameType.PROBE: TwinReceiver._receive_probe,
        FrameType.TRUNCATE: TwinReceiver._receive_truncate,
        FrameType.FETCH: TwinReceiver._receive_fetch,
        FrameType.START: TwinReceiver._receive_start,
        FrameType.ERROR: TwinReceiver._receive_error,
    },
    HAConnectionState.TRANSFER: {
        FrameType.DATA: TwinReceiver._receive_data,
        FrameType.HEARTBEAT: TwinReceiver._receive_heartbeat,
        FrameType.ERROR: TwinReceiver._receive_error,
    },
}
_UNEXPECTED: Final = {
    HAConnectionState.READY: "expected CHALLENGE, got frame type {}",
    HAConnectionState.HANDSHAKE: "frame type {} in the handshake",
    HAConnectionState.TRANSFER: "frame type {} while transferring",
}
