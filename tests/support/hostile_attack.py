"""A hostile peer of one server: sends generated requests, and notices what the server makes of it.

Each packet has a connection of its own, from one of many loopback addresses. Requests are written
at once, in pieces or byte by byte; questions of the server are answered with nonsense. A finding
is a request that is not answered, text that is no text answered with success, a traceback or a
contained failure in the log, or the end of the process.
"""

from __future__ import annotations

import itertools
import random
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from support.hostile_cases import Case, crossed
from support.processes import Process
from twinlog.remoting import codec
from twinlog.remoting.command import Request
from twinlog.remoting.errors import RemoteProtocolError
from twinlog.remoting.signing import (
    ACCESS_KEY,
    SIGNATURE,
    AclSigner,
    calculate_signature,
    signed_content,
)

ANSWER_DEADLINE_S = 60.0
MARKER = 9999  # Served by nobody.
FIRST_OPAQUE = 100
VERSION = 407  # That of every generated request.
FINDINGS_MAX = 20
# What a server may not write into its log, whatever it is sent.
SIGNS = ("Traceback", "contained failure", "never retrieved", "never awaited")
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]+ [a-z.]+ ")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LogWatch:
    """What a process wrote that it should not have, since the last look."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._position = process.log.stat().st_size
        self._rest = b""

    def new_signs(self) -> list[str]:
        with self._process.log.open("rb") as stream:
            stream.seek(self._position)
            data = stream.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        texts = (line.decode("utf-8", "replace") for line in lines)
        return [text[:1000] for text in texts if is_sign(text)]


def is_sign(line: str) -> bool:
    """Whether a line of a log tells of an error, or was written by a peer."""
    if _CONTROL.search(line) is not None or _LINE.match(line) is None:
        return not line.startswith("twinlog ")  # What a server says without a time: it is ready.
    return any(sign in line for sign in SIGNS)


@dataclass(slots=True)
class Outcome:
    """What was found, and how much was tried."""

    cases: int = 0
    packets: int = 0
    closed: int = 0
    answered: int = 0
    tried: set[int] = field(default_factory=set)
    slowest: tuple[float, str] = (0.0, "")
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Guise:
    """As whom an attacker comes: over TLS, and with an account or without one."""

    tls: ssl.SSLContext | None = None
    signer: AclSigner | None = None
    is_stranger: bool = False
    """Whoever answers with success has let somebody in."""

    def frame(self, case: Case, opaque: int) -> bytes:
        """What cannot be signed, because it is no text, goes out as it is."""
        if self.signer is not None and isinstance(case.ext, dict):
            ext = {**case.ext, ACCESS_KEY: self.signer.access_key}
            try:
                content = signed_content(ext, case.body, version=VERSION)
            except (TypeError, UnicodeEncodeError, AttributeError):
                return case.frame(opaque)
            ext[SIGNATURE] = calculate_signature(content, self.signer.secret_key)
            case = replace(case, ext=ext)
        return case.frame(opaque)


class Attacker:
    """Attacks one process with the cases of its kind, in order, then with crossings of them."""

    def __init__(
        self,
        name: str,
        process: Process,
        port: int,
        cases: list[Case],
        *,
        seed: object,
        first: int,
        guise: Guise | None = None,
    ) -> None:
        self.guise = guise or Guise()
        self.name = name
        self.process = process
        self.port = port
        self.outcome = Outcome()
        self.cases = cases
        self._seed = seed
        self._next = first
        self._log = LogWatch(process)
        self._kinds: set[str] = set()
        self._addresses = itertools.cycle(range(1, 250 * 8))

    @property
    def next(self) -> int:
        """The number of the first case that was not tried: a later run begins with it."""
        return self._next

    def replace(self, process: Process, port: int) -> None:
        """The server was started again."""
        self._log = LogWatch(process)
        self.process, self.port = process, port

    def run(self, end: float) -> None:
        """Attack until `time.monotonic()` is `end`, or the process or all patience is."""
        self.flood()
        while time.monotonic() < end and self.process.is_alive:
            numbers = random.Random(f"{self._seed} {self._next}")
            self.packet(self._take(numbers), numbers)
            if len(self.outcome.findings) >= FINDINGS_MAX:
                return
        if self.process.is_alive and self.outcome.answered < self.outcome.packets // 4:
            self.found(f"hardly anybody was heard, so nothing was tried: {self.outcome}")

    def _take(self, numbers: random.Random) -> list[Case]:
        count = numbers.choice((1, 4, 16, 32))
        taken = self.cases[self._next : self._next + count]
        self.outcome.tried.update(map(id, taken))
        taken = taken or [crossed(self.cases, numbers) for _ in range(count)]
        self._next += len(taken)
        return taken

    def packet(self, cases: list[Case], numbers: random.Random) -> None:
        """One packet; what is behind a request that costs the connection is sent again."""
        self.outcome.packets += 1
        self.outcome.cases += len(cases)
        sent, began = cases, time.monotonic()
        while cases and self.process.is_alive:
            unanswered = self._exchange(cases, numbers)
            if unanswered is None:
                break
            self.outcome.closed += 1
            cases = unanswered[1:]
        took = time.monotonic() - began
        if took > self.outcome.slowest[0]:
            self.outcome.slowest = took, "; ".join(map(str, sent))
        self.check(sent)

    def flood(self, count: int = 200) -> None:
        """Many connections at once, each with the beginning of a request; then they are gone."""
        begun = Case("begun", MARKER).frame(1)
        peers = []
        try:
            for number in range(count):
                source = (f"127.2.0.{number % 250 + 1}", 0)
                peer = socket.create_connection(("127.0.0.1", self.port), 30, source_address=source)
                peers.append(peer)
                peer.sendall(begun[: number % len(begun)])
        except OSError as error:
            if self.process.is_alive:
                self.found(f"connection {len(peers)} of {count}: {error}")
        finally:
            for peer in peers:
                peer.close()
        self.outcome.cases += len(peers)

    def check(self, sent: list[Case]) -> None:
        """Look at process and log after `sent`."""
        names = "\n    ".join(map(str, sent))
        for line in self._log.new_signs():
            kind = _CHANGING.sub("", line)
            if kind not in self._kinds:
                self._kinds.add(kind)
                self.found(f"{line}\n    after one of:\n    {suspects(line, sent)}")
        if not self.process.is_alive:
            self.found(f"the process ended after one of:\n    {names}\n{self.process.tail(15)}")

    def found(self, text: str) -> None:
        self.outcome.findings.append(f"{self.name}: {text}")

    def _exchange(self, cases: list[Case], numbers: random.Random) -> list[Case] | None:
        """Send and read. None: all was answered; else what was not when the connection ended."""
        number = next(self._addresses)
        try:
            peer = self._connected((f"127.1.{number // 250}.{number % 250 + 1}", 0))
        except OSError:
            return [] if self.process.is_alive else None
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._talk(_Talk(peer), cases, numbers)

    def _connected(self, source: tuple[str, int]) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port), 30, source_address=source)
        if self.guise.tls is None:
            return peer
        with (
            peer
        ):  # Wrapping takes the descriptor over; a refused handshake must not leave it open.
            return self.guise.tls.wrap_socket(peer)

    def _talk(self, talk: _Talk, cases: list[Case], numbers: random.Random) -> list[Case] | None:
        frames = [self.guise.frame(c, FIRST_OPAQUE + index) for index, c in enumerate(cases)]
        waited = {
            FIRST_OPAQUE + index: case for index, case in enumerate(cases) if not case.may_wait
        }
        frames.append(Case("marker", MARKER).frame(FIRST_OPAQUE - 1))
        left = {FIRST_OPAQUE - 1, *waited}
        pieces = pieces_of(b"".join(frames), numbers)
        end = time.monotonic() + ANSWER_DEADLINE_S
        try:
            for answer in talk.answers(pieces, end):
                if answer.is_response:
                    self.outcome.answered += 1
                    left.discard(answer.opaque)
                    self._judge(answer, waited.get(answer.opaque))
                else:
                    talk.say(nonsense(answer, numbers))
                if not left:
                    return None
        except (ConnectionError, RemoteProtocolError):
            pass
        except TimeoutError:
            names = "\n    ".join(str(waited.get(opaque, "marker")) for opaque in sorted(left))
            if self.process.is_alive:
                self.found(f"no answer within {ANSWER_DEADLINE_S:.0f} s:\n    {names}")
            return None
        return [case for opaque, case in waited.items() if opaque in left]

    def _judge(self, answer: Request, case: Case | None) -> None:
        if case is not None and answer.code == 0 and (case.must_fail or self.guise.is_stranger):
            self.found(f"answered with success: {case}")


_CHANGING = re.compile(r"^\S+ \S+ | about=\S*| count=\d+")
_REQUEST = re.compile(r"failure of request (-?\d+)")


def suspects(line: str, sent: list[Case]) -> str:
    """The cases that a line of the log can be about."""
    found = _REQUEST.search(line)
    if found is not None:
        sent = [case for case in sent if str(case.code) == found[1]] or sent
    return "\n    ".join(map(str, sent))


def pieces_of(data: bytes, numbers: random.Random) -> list[bytes]:
    """A packet as it is, in a few pieces, or byte by byte."""
    way = numbers.randrange(4)
    if way == 0 and len(data) <= 3000:
        return [data[index : index + 1] for index in range(len(data))]
    if way == 1:
        cuts = sorted(numbers.randrange(len(data)) for _ in range(3))
        return [data[a:b] for a, b in itertools.pairwise((0, *cuts, len(data))) if a < b]
    return [data]


def nonsense(question: Request, numbers: random.Random) -> bytes:
    """An answer of a client to what the server asked it."""
    body = numbers.choice((
        b"", b"{}", b"\xff" * 100, b"[" * 50000, b'{"messageQueueTable":[1]}',
        b'{"consumeResult":"\\ud800"}', b'{"properties":7,"mqTable":"x"}',
    ))  # fmt: skip
    code = numbers.choice((0, 1, 206, -1, 2**31 - 1))
    remark = numbers.choice((None, "x" * 60000, "\ud800", [1]))
    head = {"flag": 1, "remark": remark}
    return Case("answer", code, {"offset": "²"}, body, head=head).frame(question.opaque)


class _Talk:
    """One connection that reads while it writes: neither end waits for the other forever."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._in = bytearray()
        self._said = bytearray()
        peer.setblocking(False)

    def say(self, data: bytes) -> None:
        self._said += data

    def answers(self, pieces: list[bytes], end: float) -> Iterator[Request]:
        """Every command that comes, while the pieces are written one by one.

        Raises:
            ConnectionError: the server closed. TimeoutError: nothing came until `end`.
        """
        out, waiting = bytearray(), iter(pieces)
        is_more = True
        while True:
            if not out and is_more:
                piece = next(waiting, None)
                is_more = piece is not None
                out += piece or b""
            if not out and not is_more and self._said:
                out, self._said = self._said, bytearray()
            self._turn(out, end)
            yield from self._commands()

    def _turn(self, out: bytearray, end: float) -> None:
        wait_s = end - time.monotonic()
        is_decrypted = isinstance(self._peer, ssl.SSLSocket) and self._peer.pending() > 0
        pause_s = 0.0 if is_decrypted else max(0, min(wait_s, 5))
        readable, writable, _ = select.select(
            [self._peer], [self._peer] if out else [], [], pause_s
        )
        try:
            if readable or is_decrypted:
                self._receive()
            if writable:
                del out[: self._peer.send(out[: 1 << 18])]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # A record of TLS that is not whole yet.
        except ssl.SSLError as error:
            raise ConnectionError(str(error)) from error
        if wait_s <= 0 and not readable:
            raise TimeoutError

    def _receive(self) -> None:
        data = self._peer.recv(1 << 18)
        if not data:
            raise ConnectionError("closed")
        self._in += data

    def _commands(self) -> Iterator[Request]:
        while len(self._in) >= 4:
            size = 4 + struct.unpack_from(">i", self._in)[0]
            if len(self._in) < size:
                return
            frame, self._in = bytes(self._in[:size]), self._in[size:]
            yield codec.decode_command(frame)
