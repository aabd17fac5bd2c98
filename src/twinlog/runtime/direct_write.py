"""Bytes that must leave now: past the loop's write queue, straight into the socket.

A loop sends at the end of its turn what was written during it, so that many small writes become
one. Where another process waits for these bytes, the rest of the turn is time in which both could
work: a frame of a synchronous master is on its way before the master does its own bookkeeping.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

# Larger ones are a stream, which the transport sends as well; only what is small is waited for.
DIRECT_SIZE_MAX: Final = 64 * 1024

Piece = bytes | memoryview


class DirectWriter:
    """Writes to the socket under a transport, as long as the transport itself holds nothing back.

    Not for a transport that changes the bytes (TLS). The caller makes sure that it is not closing:
    its descriptor may be another file's by then.
    """

    __slots__ = ("_fd", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        socket = transport.get_extra_info("socket")
        self._fd: int = socket.fileno() if socket is not None else -1

    def writelines(self, pieces: Sequence[Piece]) -> None:
        """Send `pieces` in order; what the socket does not take now goes through the transport."""
        size = 0
        for piece in pieces:
            size += len(piece)
        transport = self._transport
        if self._fd < 0 or size > DIRECT_SIZE_MAX or transport.get_write_buffer_size():
            transport.writelines(pieces)
            return
        try:
            sent = os.writev(self._fd, pieces)
        except OSError:
            sent = 0  # Full, or broken: the transport finds out which.
        if sent < size:
            transport.write(b"".join(pieces)[sent:])
