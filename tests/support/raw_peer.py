"""A remoting peer made of a plain socket: it sends what it is told, broken or not."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Self

from twinlog.remoting import codec
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.framing import FrameSplitter
from twinlog.remoting.limits import CLIENT_LIMITS

DEADLINE_S = 30.0
UNKNOWN_CODE = 9999  # Answered with code 3 by every server: a question without side effects.


class RawPeer:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.name = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_answer(self) -> Request:
        (length,) = struct.unpack(">i", self._read(4))
        # As a client reads it: the answer to a large batch has a long header.
        splitter = FrameSplitter(header_size_max=CLIENT_LIMITS.header_size_max)
        (frame,) = splitter.feed(struct.pack(">i", length) + self._read(length))
        return codec.decode_header(*frame)

    def ask(self, code: int = UNKNOWN_CODE, header: Mapping[str, object] | None = None) -> Request:
        self.send(request(code, header))
        return self.read_answer()

    def wait_closed(self) -> bytes:
        """Read until the server closes; return what came before."""
        rest = self._buffer
        try:
            while data := self.socket.recv(65536):
                rest += data
        except ConnectionError:
            return rest
        return rest

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close so that the server sees a reset, not an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.socket.recv(262144)
            if not data:
                raise ConnectionError(f"closed with {len(self._buffer)} of {size} bytes read")
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(
    code: int = UNKNOWN_CODE,
    header: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
) -> bytes:
    command = RemotingCommand.request(code, header, body)
    command.opaque = opaque
    return codec.encode_command(command)


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    opening = struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header))
    return opening + header + body
