"""TLS on an accepted HA connection: decrypts for the protocol behind it, encrypts what it writes.

The HA port serves TLS, the twin dialect in plain text and the classic one; the first byte says
which. Whoever has found 0x16 puts a TlsFront between the transport and itself.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import Any

from twinlog.runtime.tls_channel import TlsChannel, TlsError

_LOG = logging.getLogger("twinlog.ha")

Bytes = bytes | bytearray | memoryview


class TlsTransport(asyncio.Transport):
    """What the protocol behind the TLS sees as its transport."""

    def __init__(self, front: TlsFront, stream: asyncio.Transport) -> None:
        super().__init__()
        self._front = front
        self._stream = stream

    def write(self, data: Bytes) -> None:
        self._front.encrypt((data,))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self._front.encrypt(pieces)

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def is_closing(self) -> bool:
        return self._stream.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._stream.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._stream.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._front.protocol = protocol


class TlsFront(asyncio.Protocol):
    """Stands where `protocol` stood; a failed handshake is to it a lost connection."""

    def __init__(
        self, stream: asyncio.Transport, context: ssl.SSLContext, protocol: asyncio.Protocol
    ) -> None:
        self.protocol = protocol
        self.transport = TlsTransport(self, stream)
        self.fault = ""
        self._stream = stream
        self._channel = TlsChannel(context)

    def data_received(self, data: bytes) -> None:
        try:
            plain = self._channel.receive(data)
        except TlsError as error:
            self._failed(str(error))
            self._flush()  # The alert that tells the peer why.
            self._stream.close()
            return
        self._flush()
        if plain:
            self.protocol.data_received(plain)
        if self._channel.is_ended and not self._stream.is_closing():
            self.protocol.eof_received()
            self._stream.close()

    def eof_received(self) -> bool:
        if not self._channel.has_handshake:
            # Some loops close without the alert that would say it.
            self._failed("TLS: closed in the handshake; it may not trust this certificate")
        else:
            self.protocol.eof_received()
        return False

    def _failed(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            peer = self._stream.get_extra_info("peername")
            _LOG.warning("HA connection refused address=%s reason=%s", peer, reason)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        fault = ConnectionError(self.fault) if self.fault else None
        self.protocol.connection_lost(fault or error)

    def encrypt(self, pieces: Iterable[Bytes]) -> None:
        for piece in pieces:
            self._channel.encrypt(piece)
        self._flush()

    def _flush(self) -> None:
        if (records := self._channel.outgoing()) and not self._stream.is_closing():
            self._stream.write(records)
