"""Whole stretches of a queue, by pulls on a socket of their own: the quick way of `network`.

The client's connection keeps an answer as an object and copies it several times on its way to the
decoder, which costs more than decoding it. Here a few pulls are under way on a blocking socket, and
what they bring is received where it is decoded. Only the ordinary answer is known: records, all
readable, one after the other. At anything else, an error or a time-out included, a stretch ends
early and the socket is closed; `network` goes on from there with all its care and patience.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.addresses import split_address
from twinlog.remoting.codec import decode_header, encode_command
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.framing import HEADER_SIZE_MAX
from twinlog.runtime.limits import FRAME_SIZE_MAX
from twinlog.spark.decode.records import LogSlice, chain
from twinlog.spark.decode.vector import I64, U8

IN_FLIGHT = 8
WIDTH_FIRST, WIDTH_MOST = 64, 1024  # Offsets asked for at once; no broker of ours gives more.
FULL_BEFORE_MORE = 16  # So many answers in a row bring all before more is asked for at once.
OPENING = struct.Struct(">iI")
TIMEVAL = struct.Struct("ll")


class _UnusualError(Exception):
    """An answer that is left to the careful way."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records of the offsets [low, high). The bytes are those of the next stretch later."""

    low: int
    high: int
    log: LogSlice
    starts: I64


@dataclass(slots=True)
class _Asked:
    """A pull under way; `body` once its answer had to be taken before its turn."""

    opaque: int
    low: int
    high: int
    body: bytes | None = None


@dataclass(slots=True)
class Width:
    """How many offsets to ask for at once: as many as answers turn out to bring."""

    now: int = WIDTH_FIRST
    full: int = 0  # Answers in a row that brought all.
    is_known: bool = False  # Whether one did not.

    def brought(self, asked: int, given: int) -> None:
        """Note what an answer brought of what it was asked for."""
        if given < asked:
            self.now, self.full, self.is_known = max(1, min(self.now, given)), 0, True
            return
        self.full += asked >= self.now
        if not self.is_known and self.full:
            self.now, self.full = min(WIDTH_MOST, 2 * self.now), 0
        elif self.full >= FULL_BEFORE_MORE:
            self.now, self.full = min(WIDTH_MOST, self.now + max(1, self.now // 8)), 0


class BulkConnection:
    """One socket to one broker."""

    def __init__(
        self, address: str, tls: ssl.SSLContext | None, server_name: str | None, timeout_ms: int
    ) -> None:
        """Dial.

        Raises:
            OSError: nobody answers.
        """
        host, port = split_address(address)
        self.address = address
        plain = socket.create_connection((host, port), timeout_ms / 1000)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket = (
                tls.wrap_socket(plain, server_hostname=server_name or host) if tls else plain
            )
            # The kernel's time-out, not Python's: that would wake this process for every packet.
            self.socket.settimeout(None)
            seconds, rest = divmod(timeout_ms, 1000)
            limit = TIMEVAL.pack(seconds, rest * 1000)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.socket.setsockopt(socket.SOL_SOCKET, option, limit)
        except BaseException:
            plain.close()
            raise
        self.flags = 0 if tls else socket.MSG_WAITALL
        self.opening = memoryview(bytearray(OPENING.size))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def fill(self, view: memoryview) -> None:
        """Receive as many bytes as there is room for."""
        while len(view):
            count = self.socket.recv_into(view, len(view), self.flags)
            if not count:
                raise ConnectionResetError(f"{self.address} closed the connection")
            view = view[count:]

    def header(self) -> tuple[Any, int]:
        """Receive an answer up to its body; return it and the size of the body."""
        self.fill(self.opening)
        length, mark = OPENING.unpack(self.opening)
        size = mark & 0xFFFFFF
        if not size + 4 <= length <= FRAME_SIZE_MAX - 4 or size > HEADER_SIZE_MAX:
            raise _UnusualError(f"the frame has {length} bytes and a header of {size}")
        header = bytearray(size)
        self.fill(memoryview(header))
        return decode_header(mark >> 24, bytes(header)), length - 4 - size

    def close(self) -> None:
        self.socket.close()


class PullFrames:
    """Requests for stretches of one queue. They differ in three numbers, so what stands around
    those is encoded once, except where requests are signed."""

    def __init__(
        self, queue: MessageQueue, address: str, prepare: Callable[[str, RemotingCommand], None]
    ) -> None:
        self._queue, self._address, self._prepare = queue, address, prepare
        self._pieces: list[bytes] | None = None
        plain, prepared = self._command(0, 0, 0), self._command(0, 0, 0)
        prepare(address, prepared)
        if encode_command(plain) == encode_command(prepared):
            self._pieces = self._split(encode_command(plain)[OPENING.size :])

    def _split(self, header: bytes) -> list[bytes] | None:
        """Cut a header at its numbers, which are 0: a quote within a text is never alone."""
        pieces = []
        for name in (b'"queueOffset":"', b'"maxMsgNums":"', b'"opaque":'):
            piece, found, header = header.partition(name + b"0")
            if not found:
                return None
            pieces.append(piece + name)
        return [*pieces, header]

    def _command(self, low: int, count: int, opaque: int) -> RemotingCommand:
        command = calls.pull_command(
            self._queue, low, group=TOOLS_GROUP, count_max=count, suspend_ms=0,
            subscription=None, posts_subscription=True, commit_offset=None,
        )  # fmt: skip
        command.opaque = opaque
        return command

    def frame(self, low: int, count: int, opaque: int) -> bytes:
        """Return the request for `count` offsets from `low` on."""
        if self._pieces is None:
            command = self._command(low, count, opaque)
            self._prepare(self._address, command)
            return encode_command(command)
        before, after_low, after_count, after = self._pieces
        header = b"%b%d%b%d%b%d%b" % (before, low, after_low, count, after_count, opaque, after)
        return OPENING.pack(len(header) + 4, len(header)) + header


class BulkReader:
    """Reads stretches of queues through one connection; done with it at the first surprise."""

    def __init__(
        self,
        connection: BulkConnection,
        prepare: Callable[[str, RemotingCommand], None],
        *,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        """`prepare` signs requests; a stretch has about `rows_max` rows and `bytes_max` bytes."""
        self.connection, self.prepare = connection, prepare
        self.rows_max, self.bytes_max = rows_max, bytes_max
        self.width = Width()
        self.is_over = False
        self._opaque = 0
        self._frames: PullFrames | None = None
        self._asked: deque[_Asked] = deque()
        self._room: U8 = np.empty(bytes_max, np.uint8)
        self._used = 0

    def stretches(self, queue: MessageQueue, low: int, high: int) -> Iterator[Stretch]:
        """Yield the records from `low` on, in order, up to `high` or to the first surprise."""
        self._frames = PullFrames(queue, self.connection.address, self.prepare)
        try:
            for stretch in self._stretches(low, high):
                yield stretch
                if self.is_over:
                    return
        finally:
            if self._asked or self.is_over:
                self.close()

    def _stretches(self, low: int, high: int) -> Iterator[Stretch]:
        begin = at = low
        starts: list[I64] = []
        rows = 0
        while at < high and not self.is_over:
            try:
                begin = self._ask(begin, high)
                asked = self._asked[0]
                size = self._head(asked)
                is_full = self._used + size > len(self._room) or rows >= self.rows_max
            except (OSError, RemotingError, _UnusualError):
                self.is_over, is_full = True, True
            if is_full and rows:
                yield self._stretch(at - rows, at, starts)
                starts, rows, self._used = [], 0, 0
            if self.is_over:
                return
            try:
                found = self._body(asked, size)
                self._rest(asked, len(found))
            except (OSError, RemotingError, _UnusualError):
                self.is_over = True
                continue
            starts.append(found)
            rows += len(found)
            at += len(found)
        if rows:
            yield self._stretch(at - rows, at, starts)
        self._used = 0

    def _stretch(self, low: int, high: int, starts: list[I64]) -> Stretch:
        log = LogSlice.over(self._room[: self._used], 0)
        return Stretch(low, high, log, np.concatenate(starts))

    def _ask(self, begin: int, high: int) -> int:
        """Keep pulls from `begin` on under way, several in one write; return where they end."""
        if len(self._asked) > IN_FLIGHT // 2:
            return begin
        frames = []
        while begin < high and len(self._asked) < IN_FLIGHT:
            end = min(begin + self.width.now, high)
            asked, frame = self._pull(begin, end)
            self._asked.append(asked)
            frames.append(frame)
            begin = end
        if frames:
            self.connection.send(b"".join(frames))
        return begin

    def _pull(self, low: int, high: int) -> tuple[_Asked, bytes]:
        """Make the request for [low, high)."""
        assert self._frames is not None
        self._opaque += 1
        frame = self._frames.frame(low, high - low, self._opaque)
        return _Asked(self._opaque, low, high), frame

    def _head(self, asked: _Asked) -> int:
        """Receive the header of the next answer; return the size of its body."""
        if asked.body is not None:
            return len(asked.body)
        answer, size = self.connection.header()
        if answer.opaque != asked.opaque or answer.code != ResponseCode.SUCCESS or not size:
            raise _UnusualError(f"the answer has code {answer.code} and {size} bytes")
        return size

    def _body(self, asked: _Asked, size: int) -> I64:
        """Receive the body of the next answer behind what is there; return where records begin."""
        first, end = self._used, self._used + size
        if end > len(self._room):
            assert not first
            self._room = np.empty(end, np.uint8)
        room = self._room.data[first:end]
        if asked.body is None:
            self.connection.fill(room)
        else:
            room[:] = asked.body
        self._asked.popleft()
        starts = chain(LogSlice.over(self._room, 0), first, end)
        if not len(starts) or len(starts) > asked.high - asked.low:
            raise _UnusualError(f"the answer has {len(starts)} records")
        last = int(starts[-1])
        if last + int.from_bytes(self._room[last : last + 4].tobytes(), "big") != end:
            raise _UnusualError("there are bytes after the last record")
        self._used = end
        return starts

    def _rest(self, asked: _Asked, given: int) -> None:
        """Ask for what an answer did not bring; those under way behind it are taken before."""
        self.width.brought(asked.high - asked.low, given)
        if asked.low + given >= asked.high:
            return
        rest, frame = self._pull(asked.low + given, asked.high)
        self.connection.send(frame)
        for later in self._asked:
            if later.body is None:
                body = bytearray(self._head(later))
                self.connection.fill(memoryview(body))
                later.body = bytes(body)
        self._asked.appendleft(rest)

    def close(self) -> None:
        """Close the socket; what was asked for is nobody's any more."""
        self.is_over = True
        self._asked.clear()
        self.connection.close()
