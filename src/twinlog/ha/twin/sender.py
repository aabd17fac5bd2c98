"""Master side of one twin connection. Bytes and facts in, bytes and events out; no I/O.

    READY      -- HELLO that fits ---------------->  HANDSHAKE  (CHALLENGE, PROOF when secret)
    HANDSHAKE  -- digests agree ------------------>  TRANSFER   SlaveJoined
    HANDSHAKE  -- the slave has another tail ----->  HANDSHAKE  SlaveIsLonger, the owner decides:
                     truncate_slave: TRUNCATE, waits for READY
                     fetch: FETCH and TAIL until this log has it all, TailReceived, then digests
    TRANSFER   -- ACK, RESEND -------------------->  TRANSFER   SlaveAcked
    any        -- refusal, fault, silence, end --->  SHUTDOWN   ConnectionEnded

Invariants: no byte of log leaves before the last common record is known; `durable <= received <=
next_offset <= log end`; at most `window_size` bytes are unacknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Final

from twinlog.ha.epochs import EpochEntry, EpochHistory
from twinlog.ha.sender import ConnectionEnded, Run, SenderSettings, SlaveAcked, SlaveJoined
from twinlog.ha.states import TWIN, Step, after
from twinlog.ha.twin import wire
from twinlog.ha.twin.boundary import last_record_boundary
from twinlog.ha.twin.common import CommonSearch, DigestsWanted
from twinlog.ha.twin.hot_frames import data_head, only_ack
from twinlog.ha.twin.secrets import is_proof, prove
from twinlog.ha.twin.wire import ErrorCode, Frame, FrameParser, FrameType, Hello
from twinlog.ha.wire import HAConnectionState, LocalProtocolError, RemoteProtocolError

# Members that are asked for in hot paths: by their class they cost ten times as much.
_TRANSFER: Final = HAConnectionState.TRANSFER
_SHUTDOWN: Final = HAConnectionState.SHUTDOWN

WINDOW_SIZE = 16 * 1024 * 1024  # Unacknowledged bytes: enough for 2 ms each way at 2 GB/s.


@dataclass(frozen=True, slots=True)
class MasterFacts:
    """Who this master is."""

    cluster: str
    group: str
    store_id: str
    segment_size: int
    secret: str = ""
    epochs: tuple[wire.EpochEntry, ...] = (wire.EpochEntry(0, 0),)
    window_size: int = WINDOW_SIZE
    is_controlled: bool = False
    heartbeat_interval_ms: int = field(kw_only=True)
    housekeeping_interval_ms: int = field(kw_only=True)

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """Someone has said who it is, and proved it. The owner answers with `admit` or `refuse`."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class RecordWanted:
    """Find where the first record in [start, end) begins: `record_found`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BoundariesWanted:
    """Find a record start at or before `start`, and all record ends up to `end`: `boundaries`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SlaveIsLonger:
    """The slave has bytes from `common` on that this log has not. The owner answers with
    `truncate_slave`, `fetch` or `refuse`."""

    common: int


@dataclass(frozen=True, slots=True)
class TailReceived:
    """Bytes of the slave's log, in order: check and append them, then `tail_stored`."""

    offset: int
    body: bytes


TwinSenderEvent = (
    HelloReceived
    | SlaveIsLonger
    | TailReceived
    | DigestsWanted
    | RecordWanted
    | BoundariesWanted
    | SlaveJoined
    | SlaveAcked
    | ConnectionEnded
)


@dataclass(slots=True)
class TwinSender:
    """Decides what one twinlog slave is sent and what its acknowledgements are worth."""

    RUN_SIZE_MAX: ClassVar = wire.BODY_SIZE_MAX
    WRITE_BUFFER_LIMITS: ClassVar = (wire.BODY_SIZE_MAX, 0)
    """How much may wait to be written, and at how much the next run is built."""
    tells_why: ClassVar = True

    facts: MasterFacts
    log_min: int
    log_end: int
    now_ms: int
    nonce: str
    state: HAConnectionState = HAConnectionState.READY
    reason: str = ""
    hello: Hello | None = None
    request_offset: int = -1
    received_offset: int = -1
    durable_offset: int = -1
    next_offset: int = -1
    resend_count: int = 0
    _parser: FrameParser = field(default_factory=FrameParser)
    _magic: bytes = b""
    _hello_bytes: bytes = b""
    _outgoing: list[bytes] = field(default_factory=list)
    _events: list[TwinSenderEvent] = field(default_factory=list)
    _search: CommonSearch | None = None
    _own_digests: list[str] | None = None
    _peer_digests: list[str] | None = None
    _truncate_to: int = -1
    _fetch_next: int = -1
    _has_fetched: bool = False
    _is_hint_wrong: bool = False
    _last_read_ms: int = 0
    _last_write_ms: int = 0
    _is_write_complete: bool = True
    _is_heartbeat_due: bool = False
    is_proved: bool = False
    _epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self._last_read_ms = self._last_write_ms = self.now_ms
        self._epoch = self.facts.epoch  # Of this connection, whatever else of the facts changes.

    # Facts in.

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Bytes of the slave, the magic first, in any split."""
        if self.state is _SHUTDOWN:
            raise LocalProtocolError("data after the connection ended")
        self._last_read_ms = now_ms
        missing = len(wire.MAGIC) - len(self._magic)
        if missing:
            self._magic += data[:missing]
            data = data[missing:]
            if not wire.MAGIC.startswith(self._magic):
                self._end("the connection does not begin with the twin dialect's magic")
                return
        try:
            for frame in self._parser.feed(data) if data else ():
                if self.is_ended:
                    return
                self._receive(frame)
        except RemoteProtocolError as error:
            self.refuse(ErrorCode.PROTOCOL, str(error))
        self.check()

    def take_ack(self, data: bytes, now_ms: int) -> bool:
        """Instead of `receive_data`: whether these bytes are one acknowledgement, as it should be,
        and nothing else; it counts then. False: nothing has happened."""
        if self.state is not _TRANSFER or not self._parser.is_between_frames:
            return False
        received, durable = only_ack(data) or (-1, -1)
        is_possible = self.received_offset <= received <= self.next_offset
        if not is_possible or not self.durable_offset <= durable <= received:
            return False  # Or is none at all.
        self._last_read_ms = now_ms
        self.received_offset, self.durable_offset = received, durable
        return True

    def receive_eof(self) -> None:
        self._end("the slave closed the connection")

    def configure(self, settings: SenderSettings) -> None:
        """Other intervals, from now on."""
        self.facts = replace(
            self.facts,
            heartbeat_interval_ms=wire.twin_heartbeat_ms(settings.heartbeat_interval_ms),
            housekeeping_interval_ms=settings.housekeeping_interval_ms,
        )

    def stop(self, reason: str) -> None:
        """This side ends it."""
        self.refuse(ErrorCode.STOPPING, reason)

    def log_moved(self, log_min: int, log_end: int) -> None:
        self.log_min, self.log_end = log_min, log_end
        if self.state is _TRANSFER and self.next_offset < log_min:
            self.refuse(
                ErrorCode.NOTHING_COMMON,
                f"the slave needs offset {self.next_offset}, the oldest kept is {log_min}",
            )

    def write_blocked(self) -> None:
        self._is_write_complete = False

    def write_completed(self, now_ms: int) -> None:
        self._is_write_complete = True
        self._last_write_ms = now_ms

    def tick(self, now_ms: int) -> None:
        if self.state is _SHUTDOWN:
            return
        silence_ms = now_ms - self._last_read_ms
        if silence_ms > self.facts.housekeeping_interval_ms:
            self._end(f"housekeeping: nothing from the slave for {silence_ms} ms")
        elif not self.is_proved and now_ms - self.now_ms > self.facts.housekeeping_interval_ms:
            # Whoever drips bytes is not silent; a place here is not held for it forever.
            self.refuse(ErrorCode.PROTOCOL, f"no proof within {now_ms - self.now_ms} ms")

    def admit(self) -> None:
        """The owner has no objection to this replica: go on with the search."""
        assert self.is_proved
        if not self.is_ended:
            self._begin_search()

    def _challenge(self) -> None:
        assert self.hello is not None
        proof = ""
        if self.facts.secret:
            proof = prove(self.facts.secret, role="master", nonce=self.nonce,
                          peer_nonce=self.hello.nonce, hello=self._hello_bytes)  # fmt: skip
        challenge = wire.Challenge(
            version=min(self.hello.version, wire.VERSION),
            nonce=self.nonce,
            proof=proof,
            epoch=self.facts.epoch,
            epochs=list(self.facts.epochs) if self.facts.is_controlled else [],
        )
        self._outgoing.append(wire.encode_json(FrameType.CHALLENGE, challenge))
        if not self.facts.secret:
            self._proved()

    def _proved(self) -> None:
        assert self.hello is not None
        self.is_proved = True
        self._events.append(HelloReceived(self.hello))

    def refuse(self, code: ErrorCode, reason: str) -> None:
        """Say why, at both ends, and close."""
        if self.state is _SHUTDOWN:
            return
        error = wire.Error(code=code, reason=reason, log_min=self.log_min, log_end=self.log_end)
        self._outgoing.append(wire.encode_json(FrameType.ERROR, error))
        self._end(reason)

    def digests_computed(self, digests: list[str]) -> None:
        """The answer to DigestsWanted."""
        self._own_digests = digests
        self._compare()

    def record_found(self, start: int | None) -> None:
        """The answer to RecordWanted."""
        assert self._search is not None
        self._search.record_found(start)
        self._ask()

    def boundaries(self, anchor: int, ends: list[int]) -> None:
        """The answer to BoundariesWanted."""
        assert self._search is not None
        self._search.boundaries(anchor, ends)
        self._ask()

    def truncate_slave(self, common: int) -> None:
        """What the slave has beyond is given up."""
        hello = self.hello
        assert hello is not None
        is_longer = common == self.log_end
        what = "is longer than" if is_longer else "differs from"
        truncate = wire.Truncate(
            offset=common,
            code=ErrorCode.OFFSET_OUT_OF_RANGE if is_longer else ErrorCode.DIVERGED,
            reason=f"the slave's log {what} the master's from offset {common} on"
            f" ({hello.log_end - common} bytes)",
        )
        self._truncate_to = common
        self._outgoing.append(wire.encode_json(FrameType.TRUNCATE, truncate))

    def fetch(self, offset: int) -> None:
        """This log ends at `offset`, and is to have what the slave has beyond."""
        assert self.can_fetch
        self._has_fetched = True
        self._parser.payload_size_max = wire.PAYLOAD_SIZE_MAX
        self._fetch_next = offset
        self._fetch_more()

    def tail_stored(self, log_min: int, log_end: int) -> None:
        """What came last is checked; the log has the whole records of it."""
        self.log_min, self.log_end = log_min, log_end
        self._fetch_more()

    @property
    def can_fetch(self) -> bool:
        """Whether this slave can be asked for its tail, and was not yet."""
        hello = self.hello
        return hello is not None and hello.version >= wire.VERSION_FETCH and not self._has_fetched

    @property
    def is_ended(self) -> bool:
        return self.state is _SHUTDOWN

    # Results out.

    def events(self) -> list[TwinSenderEvent]:
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> bytes:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def next_run(self, now_ms: int, size_max: int) -> Run | None:
        """The log bytes to send next; an empty run is a heartbeat. Counts as sent from here."""
        if self.state is not _TRANSFER or not self._is_write_complete:
            return None
        window_rest = self.facts.window_size - (self.next_offset - self.received_offset)
        start, segment_size = self.next_offset, self.facts.segment_size
        file_rest = segment_size - start % segment_size
        size = min(self.log_end - start, file_rest, window_rest, size_max, wire.BODY_SIZE_MAX)
        if size <= 0 and not self._owes_heartbeat(now_ms):
            return None
        size = max(size, 0)
        self._is_heartbeat_due = False
        self._last_write_ms = now_ms
        self.next_offset += size
        self.check()
        return Run(start, size, wire.BODY_SIZE_MAX)

    def _owes_heartbeat(self, now_ms: int) -> bool:
        is_silent = now_ms - self._last_write_ms > self.facts.heartbeat_interval_ms
        return is_silent or self._is_heartbeat_due

    def hurry_heartbeat(self) -> None:
        """The slave should hear from its master before the interval is over."""
        self._is_heartbeat_due = True

    def shortened(self, end: int) -> None:
        """The last run ends at a record boundary instead: the rest comes next time."""
        assert self.received_offset <= end <= self.next_offset
        self.next_offset = end

    def frames(
        self, run: Run, body: bytes | memoryview, confirmed: int
    ) -> list[bytes | memoryview]:
        """The frame of a run, cut at the last whole record where that is possible: the rest comes
        next time. The end of the log is always the end of a record."""
        end = run.offset + run.size
        if run.size and end < self.log_end:
            is_file_end = end % self.facts.segment_size == 0
            whole = last_record_boundary(bytes(body), run.offset, is_file_end=is_file_end)
            if 0 < whole < run.size:
                self.shortened(run.offset + whole)
                body = memoryview(body)[:whole]
        return self.frame(run.offset, body, confirmed)

    def frame(self, offset: int, body: bytes | memoryview, confirmed: int) -> list[
        bytes | memoryview
    ]:  # fmt: skip
        """One frame for bytes of the log at `offset`, without any a heartbeat."""
        if not body:
            return [wire.encode_heartbeat(self.log_end, confirmed, self._epoch)]
        return [data_head(offset, confirmed, self._epoch, body, self.resend_count), body]

    @property
    def is_durable(self) -> bool:
        return self.hello is not None and self.hello.is_durable

    @property
    def ack_offset(self) -> int:
        """What counts as acknowledged: on the slave's disk when that is what it promises."""
        hello = self.hello  # As `is_durable`: asked for each acknowledgement.
        is_durable = hello is not None and hello.is_durable
        return self.durable_offset if is_durable else self.received_offset

    def check(self) -> None:
        if self.state is _TRANSFER:
            assert self.durable_offset <= self.received_offset <= self.next_offset
            assert self.next_offset <= self.log_end, (self.next_offset, self.log_end)

    # Frames.

    def _receive(self, frame: Frame) -> None:
        if not frame.is_intact:
            raise RemoteProtocolError("a frame of the slave does not match its checksum")
        take = FRAMES[self.state].get(frame.frame_type)
        if take is None:
            raise self._unexpected(frame)
        take(self, frame)

    def _unexpected(self, frame: Frame) -> RemoteProtocolError:
        return RemoteProtocolError(_UNEXPECTED[self.state].format(frame.frame_type))

    def _receive_error(self, frame: Frame) -> None:
        error = wire.decode_json(frame.payload, wire.Error)
        self._end(f"the slave refused: {error.reason}")

    def _receive_hello(self, frame: Frame) -> None:
        hello: Hello = wire.decode_json(frame.payload, Hello)
        self.hello = hello
        self._hello_bytes = bytes(frame.payload)
        self.state = after(TWIN, self.state, Step.MET)
        if fault := self._hello_fault(hello):
            self.refuse(*fault)
        else:
            self._challenge()

    def _hello_fault(self, hello: Hello) -> tuple[ErrorCode, str] | None:
        facts = self.facts
        if hello.version < wire.VERSION_MIN or hello.version_min > wire.VERSION:
            return ErrorCode.VERSION, (
                f"the slave speaks versions {hello.version_min}..{hello.version} of the twin"
                f" dialect, this master {wire.VERSION_MIN}..{wire.VERSION}"
            )
        if facts.is_controlled and hello.version < wire.VERSION_GROUP:
            return ErrorCode.VERSION, "a controlled group speaks version 3 of the twin dialect"
        if hello.cluster != facts.cluster:
            return ErrorCode.WRONG_CLUSTER, (
                f"the slave is of cluster {hello.cluster!r}, this master of {facts.cluster!r}"
            )
        if hello.group != facts.group:
            return ErrorCode.WRONG_GROUP, (
                f"the slave is of broker {hello.group!r}, this master of {facts.group!r}"
            )
        if hello.has_secret != bool(facts.secret):
            who = "the master has a secret and the slave none"
            if hello.has_secret:
                who = "the slave has a secret and the master none"
            return ErrorCode.WRONG_SECRET, f"{who}: set twinlogHASecret on both"
        if hello.segment_size != facts.segment_size:
            return ErrorCode.SEGMENT_SIZE, (
                f"mappedFileSizeCommitLog is {hello.segment_size} on the slave and"
                f" {facts.segment_size} on the master; it must be the same"
            )
        if not 0 <= hello.log_min <= hello.log_end or hello.replica_id <= 0:
            return ErrorCode.PROTOCOL, "HELLO with an impossible log range or replica id"
        return None

    def _receive_proof(self, frame: Frame) -> None:
        if self.is_proved:
            raise self._unexpected(frame)
        assert self.hello is not None
        given = wire.decode_json(frame.payload, wire.Proof)
        expected = prove(self.facts.secret, role="slave", nonce=self.hello.nonce,
                         peer_nonce=self.nonce, hello=self._hello_bytes)  # fmt: skip
        if not is_proof(expected, given.proof):
            self.refuse(ErrorCode.WRONG_SECRET, "the slave's secret is not this master's")
            return
        self._proved()

    def _receive_digests(self, frame: Frame) -> None:
        if self._search is None:
            raise self._unexpected(frame)
        digests = wire.decode_json(frame.payload, wire.Digests).digests
        if len(digests) != 1:
            raise RemoteProtocolError(f"asked for one digest, got {len(digests)}")
        self._peer_digests = digests
        self._compare()

    def _receive_ready(self, frame: Frame) -> None:
        if self._truncate_to < 0:
            raise self._unexpected(frame)
        ready = wire.decode_json(frame.payload, wire.Ready)
        if ready.log_end != self._truncate_to:
            raise RemoteProtocolError(
                f"asked to cut to {self._truncate_to}, the slave is at {ready.log_end}"
            )
        self._start(self._truncate_to)

    # The search for the last common record.

    def _begin_search(self) -> None:
        hello = self.hello
        assert hello is not None
        if hello.log_end == hello.log_min:
            last_file = self.log_end - self.log_end % self.facts.segment_size
            self._start(last_file if hello.wants_last_file_only else max(self.log_min, 0))
        elif self.log_end == self.log_min and self._is_own_copy(hello):
            # All of it was lost with the power, and the copy of this very log has it.
            self._events.append(SlaveIsLonger(hello.log_min))
        elif self.log_end == self.log_min:
            # A master that lost its disk must not be the reason why its copies go.
            self.refuse(
                ErrorCode.MASTER_EMPTY,
                f"the master's log is empty and the slave has [{hello.log_min}, {hello.log_end}):"
                " has the master lost its files? OPERATIONS.md says what to do",
            )
        elif hello.store_id and hello.store_id != self.facts.store_id:
            self.refuse(
                ErrorCode.OTHER_STORE,
                f"the slave copies another log (store {hello.store_id}, this is"
                f" {self.facts.store_id})",
            )
        elif hello.log_end <= self.log_min or hello.log_min >= self.log_end:
            self.refuse(
                ErrorCode.NOTHING_COMMON,
                f"the slave has [{hello.log_min}, {hello.log_end}), this master"
                f" [{self.log_min}, {self.log_end}): nothing is common",
            )
        else:
            low, high = max(self.log_min, hello.log_min), min(self.log_end, hello.log_end)
            bound = high if self._is_hint_wrong else self._epoch_bound(hello)
            self._search = CommonSearch(low, bound if low < bound < high else high)
            self._ask()

    def _epoch_bound(self, hello: Hello) -> int:
        """Above it the two logs cannot be equal: epochs say where to look, content decides."""
        theirs = history_of(hello.epochs)
        if not self.facts.is_controlled or theirs is None:
            return self.log_end
        mine = history_of(self.facts.epochs)
        assert mine is not None
        return mine.common_end(self.log_end, theirs, hello.log_end)

    def _is_own_copy(self, hello: Hello) -> bool:
        is_known = hello.store_id == self.facts.store_id and hello.confirmed > hello.log_min
        return is_known and self.can_fetch

    def _ask(self) -> None:
        search = self._search
        assert search is not None
        if search.is_done:
            self._settle(search)
        elif search.wants_record is not None:
            self._events.append(RecordWanted(*search.wants_record))
        elif search.wants_boundaries is not None:
            self._events.append(BoundariesWanted(*search.wants_boundaries))
        else:
            ranges = [search.question()]
            self._own_digests = self._peer_digests = None
            self._outgoing.append(wire.encode_json(FrameType.PROBE, wire.Probe(ranges=ranges)))
            self._events.append(DigestsWanted(ranges))

    def _compare(self) -> None:
        if self._own_digests is None or self._peer_digests is None:
            return
        assert self._search is not None
        is_equal = self._own_digests == self._peer_digests
        self._own_digests = self._peer_digests = None
        self._search.answer(is_equal=is_equal)
        self._ask()

    def _settle(self, search: CommonSearch) -> None:
        hello = self.hello
        assert hello is not None
        self._search = None
        is_bounded = search.high < min(self.log_end, hello.log_end)
        if search.common == search.low and is_bounded and not self._is_hint_wrong:
            self._is_hint_wrong = True  # Epochs said where to look, and nothing was there.
            self._begin_search()
        elif search.common == search.low:
            self.refuse(
                ErrorCode.NOTHING_COMMON,
                f"the logs differ from offset {search.low} on: not one record is common",
            )
        elif search.common < hello.log_end:
            self._events.append(SlaveIsLonger(search.common))
        else:
            self._start(hello.log_end)

    # The slave's tail.

    def _fetch_more(self) -> None:
        hello = self.hello
        assert hello is not None
        rest = hello.log_end - self._fetch_next
        if rest > 0:
            segment_size = self.facts.segment_size
            file_rest = segment_size - self._fetch_next % segment_size
            size = min(rest, file_rest, wire.BODY_SIZE_MAX)
            fetch = wire.Fetch(offset=self._fetch_next, size=size)
            self._outgoing.append(wire.encode_json(FrameType.FETCH, fetch))
            return
        self._fetch_next = -1
        self._begin_search()  # Digests have the last word; half a record at the end is cut.

    def _receive_tail(self, frame: Frame) -> None:
        if self._fetch_next < 0:
            raise self._unexpected(frame)
        size = len(frame.payload) - wire.DATA_PREFIX.size
        if size <= 0:
            raise RemoteProtocolError("a TAIL frame without data")
        offset, _, _ = wire.DATA_PREFIX.unpack_from(frame.payload)
        file_rest = self.facts.segment_size - offset % self.facts.segment_size
        assert self.hello is not None
        if offset != self._fetch_next or size > min(file_rest, self.hello.log_end - offset):
            raise RemoteProtocolError(f"a tail of {size} bytes at {offset}")
        self._fetch_next = offset + size
        self._events.append(TailReceived(offset, bytes(frame.payload[wire.DATA_PREFIX.size :])))

    def _start(self, offset: int) -> None:
        assert self.hello is not None
        self._truncate_to = -1
        start = wire.Start(
            offset=offset, store_id=self.facts.store_id, epochs=list(self.facts.epochs)
        )
        self._outgoing.append(wire.encode_json(FrameType.START, start))
        self.state = after(TWIN, self.state, Step.JOINED)
        self.request_offset = self.next_offset = self.received_offset = offset
        # What it had before counts as durable only once it says so.
        self.durable_offset = 0
        self._events.append(SlaveJoined(offset, offset))

    # Transfer.

    def _receive_resend(self, frame: Frame) -> None:
        if len(frame.payload) != wire.RESEND.size:
            raise self._unexpected(frame)
        (offset,) = wire.RESEND.unpack(frame.payload)
        if not self.received_offset <= offset <= self.next_offset:
            raise RemoteProtocolError(
                f"asked to resend from {offset}, sent is [{self.received_offset},"
                f" {self.next_offset})"
            )
        self.resend_count += 1
        self.next_offset = offset

    def _receive_ack(self, frame: Frame) -> None:
        if len(frame.payload) != wire.ACK.size:
            raise self._unexpected(frame)
        received, durable = wire.ACK.unpack(frame.payload)
        if not self.received_offset <= received <= self.next_offset:
            raise RemoteProtocolError(
                f"acknowledged {received}, sent is [{self.received_offset}, {self.next_offset}]"
            )
        if not self.durable_offset <= durable <= received:
            raise RemoteProtocolError(
                f"durable {durable} is not in [{self.durable_offset}, {received}]"
            )
        self.received_offset, self.durable_offset = received, durable
        self._events.append(SlaveAcked(self.ack_offset))

    def _end(self, reason: str) -> None:
        if self.state is _SHUTDOWN:
            return
        self.state = after(TWIN, self.state, Step.ENDED)
        self.reason = reason
        self._events.append(ConnectionEnded(reason))


# What the slave may send in which state: legal by presence.
FRAMES: Final[Mapping[HAConnectionState, Mapping[int, Callable[[TwinSender, Frame], None]]]] = {
    HAConnectionState.READY: {FrameType.HELLO: TwinSender._receive_hello},
    HAConnectionState.HANDSHAKE: {
        FrameType.PROOF: TwinSender._receive_proof,
        FrameType.DIGESTS: TwinSender._receive_digests,
        FrameType.READY: TwinSender._receive_ready,
        FrameType.TAIL: TwinSender._receive_tail,
        FrameType.ERROR: TwinSender._receive_error,
    },
    HAConnectionState.TRANSFER: {
        FrameType.ACK: TwinSender._receive_ack,
        FrameType.RESEND: TwinSender._receive_resend,
        FrameType.ERROR: TwinSender._receive_error,
    },
}
_UNEXPECTED: Final = {
    HAConnectionState.READY: "expected HELLO, got frame type {}",
    HAConnectionState.HANDSHAKE: "frame type {} in the handshake",
    HAConnectionState.TRANSFER: "frame type {} while transferring",
}


def history_of(epochs: Sequence[wire.EpochEntry]) -> EpochHistory | None:
    """The epochs of a peer; None when they are not in order."""
    for earlier, later in pairwise(epochs):
        if not (earlier.epoch < later.epoch and earlier.start_offset < later.start_offset):
            return None
    return EpochHistory(
        EpochEntry(e.epoch, e.start_offset, e.previous_crc, e.is_clean) for e in epochs
    )
