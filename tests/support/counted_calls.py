"""For tests that count what a message costs: a peer without a socket, and whose code is ours."""

from __future__ import annotations

import asyncio
import struct
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from twinlog.broker.server import Broker
from twinlog.remoting.server import ServerConnection

BODY = bytes(range(256)) * 4


class CountingTransport(asyncio.Transport):
    """A peer that takes everything; counts writes and replies."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 10911)})
        self.writes = 0
        self.replies = 0
        self._left = 0
        self._wanted = 0
        self._is_answered: asyncio.Future[None] | None = None

    async def answered(self, replies: int) -> None:
        """Until so many replies were written. No spinning: its turns would be counted."""
        self._wanted = replies
        if self.replies < replies:
            self._is_answered = asyncio.get_running_loop().create_future()
            await self._is_answered

    def write(self, data: Any) -> None:
        self.writes += 1
        view = memoryview(data)
        position = self._left  # Of a reply whose body comes in a piece of its own.
        while position < len(view):
            position += 4 + struct.unpack_from(">i", view, position)[0]
            self.replies += 1
        self._left = position - len(view)
        if self._is_answered is not None and self.replies >= self._wanted:
            self._is_answered.set_result(None)
            self._is_answered = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


@cache
def is_ours(code: CodeType) -> bool:
    return "twinlog" in Path(code.co_filename).parts


def connect(broker: Broker) -> tuple[ServerConnection, CountingTransport]:
    transport = CountingTransport()
    return connect_by(broker, transport), transport


def connect_by(broker: Broker, transport: CountingTransport) -> ServerConnection:
    connection = ServerConnection(broker.server, broker.server._handler)
    connection.connection_made(transport)
    return connection
