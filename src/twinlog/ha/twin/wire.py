"""The bytes of the twin dialect. Pure.

    first bytes of a connection, slave to master
      0-7    bytes   magic: ff "Twinlog". As a classic report it would be negative, so no slave of
                     the classic dialect ever sends it

    frame, both directions, a header of 16 bytes and a payload
      0-1    uint16  type
      2-3    uint16  DATA: how many RESENDs the master has followed on this connection, modulo
                     65536; 0 in all other frames
      4-7    uint32  size of the payload
      8-11   uint32  CRC-32 of the payload
      12-15  uint32  CRC-32 of bytes 0-11

    DATA        0-7 int64 offset, 8-15 int64 confirmed, 16-19 uint32 epoch, then log bytes
    HEARTBEAT   0-7 int64 end of the master's log, 8-15 int64 confirmed, 16-19 uint32 epoch
    TAIL        0-7 int64 offset, 8-15 int64 0, 16-19 uint32 0, then bytes of the slave's log
    ACK         0-7 int64 received, 8-15 int64 durable
    RESEND      0-7 int64 offset: the frame there was damaged on the way, send from there again
    the others  JSON, so that a later version adds members without a new layout

A header that does not match its checksum ends the connection: where the next frame begins is no
longer known. A payload that does not match is asked for again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from twinlog.ha.wire import RemoteProtocolError
from twinlog.message.crc import crc32

MAGIC = b"\xffTwinlog"
# 2: HELLO says what the slave knows as confirmed, and FETCH asks for its tail.
# 3: epochs of controlled groups.
VERSION = 3
VERSION_MIN = 1
VERSION_FETCH = 2
VERSION_GROUP = 3
HEARTBEAT_MS_MAX = 2_000
BODY_SIZE_MAX = 1024 * 1024  # One large read, one large write: `cp` speed with little memory.
DATA_PREFIX = struct.Struct(">qqI")
PAYLOAD_SIZE_MAX = BODY_SIZE_MAX + DATA_PREFIX.size
HANDSHAKE_SIZE_MAX = 64 * 1024  # Before the peer has proved who it is, it gets little memory.
HEADER = struct.Struct(">HHIII")
HEADER_SIZE = HEADER.size
_HEADER_CHECKED = struct.Struct(">HHII")
ACK = struct.Struct(">qq")
RESEND = struct.Struct(">q")


class FrameType(IntEnum):
    """Numbers on the wire; never used again for another meaning."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    PROBE = 4
    DIGESTS = 5
    START = 6
    TRUNCATE = 7
    READY = 8
    FETCH = 9
    DATA = 16
    HEARTBEAT = 17
    ACK = 32
    RESEND = 33
    TAIL = 34
    ERROR = 64


class ErrorCode(IntEnum):
    """Why a connection is refused or ended; the reason next to it is a sentence."""

    PROTOCOL = 1
    VERSION = 2
    WRONG_CLUSTER = 3
    WRONG_GROUP = 4
    WRONG_SECRET = 5
    REPLICA_ID_IN_USE = 6
    NOT_A_MASTER = 7
    OTHER_STORE = 8
    NOTHING_COMMON = 9
    OFFSET_OUT_OF_RANGE = 10
    DIVERGED = 11
    DISK = 12
    SEGMENT_SIZE = 13
    STOPPING = 14
    MASTER_EMPTY = 15
    TLS_WANTED = 16
    NO_CREDENTIALS = 17
    STALE_EPOCH = 18
    CONFIRMED_DIFFERS = 19
    NOT_IN_GROUP = 20


class EpochEntry(msgspec.Struct, frozen=True):
    """Who wrote from where: one entry in a fixed pair, one for each election in a group."""

    epoch: int
    start_offset: int
    previous_crc: int = 0
    is_clean: bool = True


def twin_heartbeat_ms(configured_ms: int) -> int:
    """Between two twinlogs at most two seconds: one that hangs is noticed although nobody sends."""
    return min(configured_ms, HEARTBEAT_MS_MAX)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What a slave says first."""

    version: int
    version_min: int
    cluster: str
    group: str
    replica_id: int
    replica_uid: str  # drawn once for a store directory: tells a slave from its impostor
    store_id: str  # of the log's lineage; empty when the slave does not know one yet
    segment_size: int
    log_min: int
    log_end: int
    epochs: list[EpochEntry] = []
    nonce: str = ""
    has_secret: bool = False
    is_durable: bool = False  # its acknowledgements count only once they are on its disk
    wants_last_file_only: bool = False
    confirmed: int = -1  # what it has and knows as confirmed; -1: version 1 does not say
    is_in_doubt: bool = False  # a power loss may have taken what it had acknowledged
    epoch: int = 0  # the newest that it knows; 0 in a fixed pair
    incarnation: str = ""  # drawn when its process started
    is_learner: bool = False
    report_ms: int = 5_000  # how long it may say nothing; RocketMQ's, of one that does not say


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """The master's answer to HELLO: the version to speak, and its proof when there is a secret."""

    version: int
    nonce: str = ""
    proof: str = ""
    epoch: int = 0  # of a controlled group's master
    epochs: list[EpochEntry] = []


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    proof: str


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges [start, end) of the slave's log whose digests the master wants."""

    ranges: list[tuple[int, int]]


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    digests: list[str]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Everything below `offset` is common; what follows comes from there."""

    offset: int
    store_id: str
    epochs: list[EpochEntry] = []


class Truncate(msgspec.Struct, frozen=True, kw_only=True):
    """Only what is below `offset` is common. Cut the rest, by your own policy, and say READY."""

    offset: int
    code: int
    reason: str


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    log_end: int


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """The master lacks what the slave has from `offset` on: send one TAIL of at most `size`."""

    offset: int
    size: int


class Error(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    reason: str
    log_min: int = -1
    log_end: int = -1


def encode_frame(frame_type: FrameType, payload: bytes) -> bytes:
    return encode_header(frame_type, payload) + payload


def encode_json(frame_type: FrameType, value: msgspec.Struct) -> bytes:
    return encode_frame(frame_type, msgspec.json.encode(value))


def encode_hello(hello: Hello) -> tuple[bytes, bytes]:
    """The HELLO frame and the payload that the proofs cover."""
    payload = msgspec.json.encode(hello)
    return encode_frame(FrameType.HELLO, payload), payload


def encode_header(
    frame_type: FrameType, *pieces: bytes | memoryview, round_number: int = 0
) -> bytes:
    """The header of a frame whose payload is `pieces`, one after the other."""
    size = checksum = 0
    for piece in pieces:
        size += len(piece)
        checksum = crc32(piece, checksum)
    start = _HEADER_CHECKED.pack(frame_type, round_number & 0xFFFF, size, checksum)
    return start + crc32(start, 0).to_bytes(4, "big")


def encode_data(
    offset: int, confirmed: int, epoch: int, body: bytes | memoryview, *, round_number: int = 0
) -> list[bytes | memoryview]:
    """Header and prefix in one piece, then the body as it is: nothing is copied."""
    prefix = DATA_PREFIX.pack(offset, confirmed, epoch)
    header = encode_header(FrameType.DATA, prefix, body, round_number=round_number)
    return [header + prefix, body]


def encode_heartbeat(log_end: int, confirmed: int, epoch: int) -> bytes:
    return encode_frame(FrameType.HEARTBEAT, DATA_PREFIX.pack(log_end, confirmed, epoch))


def encode_tail(offset: int, body: bytes) -> bytes:
    return encode_frame(FrameType.TAIL, DATA_PREFIX.pack(offset, 0, 0) + body)


def encode_ack(received: int, durable: int) -> bytes:
    return encode_frame(FrameType.ACK, ACK.pack(received, durable))


def encode_resend(offset: int) -> bytes:
    return encode_frame(FrameType.RESEND, RESEND.pack(offset))


def decode_json(payload: memoryview, kind: type[Any]) -> Any:
    """A handshake message, or RemoteProtocolError: the peer is never believed."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.__name__} cannot be read: {error}") from error


class Frame(NamedTuple):
    """One frame. The payload is a view that is good until more bytes are taken in."""

    frame_type: int
    payload: memoryview
    is_intact: bool
    round_number: int = 0


class FrameParser:
    """Frames out of bytes in any split. The size of a frame is checked before it is waited for."""

    __slots__ = ("_buffer", "_filled", "_parsed", "_view", "payload_size_max")

    def __init__(self, payload_size_max: int = HANDSHAKE_SIZE_MAX) -> None:
        self.payload_size_max = payload_size_max
        self._buffer = bytearray(HEADER_SIZE + payload_size_max)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._parsed = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes may be put; views handed out before end here."""
        wanted = HEADER_SIZE + self.payload_size_max
        if self._filled == 0 and len(self._buffer) >= wanted:
            return self._view
        started = self._filled - self._parsed
        if len(self._buffer) < wanted:
            rest = bytes(self._view[self._parsed : self._filled])
            self._buffer = bytearray(wanted)
            self._view = memoryview(self._buffer)
            self._view[:started] = rest
            self._parsed, self._filled = 0, started
        elif self._parsed:
            # Less than one frame: moving it is cheap compared with reading the next large one.
            self._view[:started] = bytes(self._view[self._parsed : self._filled])
            self._parsed, self._filled = 0, started
        return self._view[self._filled :]

    @property
    def is_between_frames(self) -> bool:
        return self._filled == self._parsed

    def with_more(self, size: int) -> tuple[bytearray, int, int]:
        """The buffer, and from where to where it holds what is not parsed, were `size` bytes more
        in it. Nothing is taken in: `buffer_filled` follows, or `emptied`."""
        return self._buffer, self._parsed, self._filled + size

    def emptied(self) -> None:
        """All that is in the buffer was parsed elsewhere. A view into it stays good, as usual,
        until more bytes are put there."""
        self._filled = self._parsed = 0

    def buffer_filled(self, size: int) -> Iterator[Frame]:
        """The frames that are complete now. Raises RemoteProtocolError when they cannot be.

        Lazy, because the frame that ends the handshake raises the limit for those behind it.
        """
        assert 0 < size <= len(self._buffer) - self._filled
        self._filled += size
        while self._filled - self._parsed >= HEADER_SIZE:
            frame_type, round_number, payload_size, checksum, header_checksum = HEADER.unpack_from(
                self._buffer, self._parsed
            )
            start = self._parsed
            if crc32(self._view[start : start + 12], 0) != header_checksum:
                raise RemoteProtocolError("a frame header does not match its checksum")
            if payload_size > self.payload_size_max:
                raise RemoteProtocolError(
                    f"a frame of {payload_size} bytes, allowed {self.payload_size_max}"
                )
            end = start + HEADER_SIZE + payload_size
            if end > self._filled:
                break
            payload = self._view[start + HEADER_SIZE : end]
            self._parsed = end
            yield Frame(frame_type, payload, crc32(payload, 0) == checksum, round_number)

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """The same for bytes that are elsewhere; payloads are copied so that all stay good."""
        rest = memoryview(data)
        while rest:
            target = self.get_buffer()
            size = min(len(target), len(rest))
            target[:size] = rest[:size]
            for frame in self.buffer_filled(size):
                kind, payload, is_intact, round_number = frame
                yield Frame(kind, memoryview(bytes(payload)), is_intact, round_number)
            rest = rest[size:]
