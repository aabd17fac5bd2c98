"""TLS inside one connection, as bytes in and bytes out. For the service ports and the HA port.

The port serves TLS and plain text; which of them a peer speaks shows in its first byte, and by then
asyncio's own TLS cannot be put in front any more. So the connection runs the handshake itself over
`ssl.MemoryBIO`, on any event loop.
"""

from __future__ import annotations

import contextlib
import ssl

HANDSHAKE_RECORD = 0x16  # As the first byte of a plain frame it would mean 369 MB.
NOT_OFFERED = bytes.fromhex("15030100020228")  # The alert handshake_failure, before any handshake.
_READ_SIZE = 256 * 1024


class TlsError(Exception):
    """The handshake failed or a record is broken."""


class TlsChannel:
    """Server side of TLS on one connection. `outgoing` is what must be written after each call."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_handshake = False
        self._waiting: list[bytes] = []
        self.is_ended = False  # The peer has said that it will send nothing more.

    def receive(self, data: bytes) -> bytes:
        """Plain bytes of what was read; empty while the handshake goes on."""
        self._incoming.write(data)
        try:
            if not self.has_handshake:
                self._object.do_handshake()
                self.has_handshake = True
                waiting, self._waiting = self._waiting, []
                for plain in waiting:
                    self._object.write(plain)
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise TlsError(f"TLS: {_reason_of(error)}") from None

    def _read_all(self) -> bytes:
        pieces = []
        while True:
            try:
                piece = self._object.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.is_ended = True
                break
            pieces.append(piece)
        return b"".join(pieces)

    def encrypt(self, data: bytes | bytearray | memoryview) -> None:
        """Take plain bytes; before the handshake is done they wait for it."""
        if not self.has_handshake:
            self._waiting.append(bytes(data))
            return
        self._object.write(data)

    def end(self) -> None:
        """Say the last word: a peer that closes waits for it before it lets its socket go."""
        with contextlib.suppress(ssl.SSLError):  # It may have gone without listening to ours.
            self._object.unwrap()

    def outgoing(self) -> bytes:
        """Records to be written to the transport now."""
        return self._outgoing.read()


def _reason_of(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    # "CERTIFICATE_VERIFY_FAILED" alone does not say what is wrong with it.
    detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
    return f"{reason}: {detail}" if detail else reason
