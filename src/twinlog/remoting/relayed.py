"""A request that another broker passes on for its client, handled as if it had come from there.

The frame goes through the same parser, access rules and handlers as any other; the answer, a whole
frame, goes to `answered` instead of a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twinlog.remoting.connection import Connection
from twinlog.remoting.request_table import Handler
from twinlog.remoting.server import RemotingServer, ServerConnection


class _Wire:
    """Looks like a transport to the connection above it."""

    def __init__(self, client: tuple[str, int], answered: Callable[[bytes], None]) -> None:
        self._client = client
        self._answered = answered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._client if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def write(self, data: bytes) -> None:
        self._answered(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self._answered(b"".join(pieces))

    def pause_reading(self) -> None:
        """One frame was given and no more will come."""

    def resume_reading(self) -> None:
        """As above."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """There is no socket."""

    def abort(self) -> None:
        """There is no socket."""


class RelayedConnection(ServerConnection):
    """One frame of a client that is connected to another broker."""

    def __init__(
        self,
        server: RemotingServer,
        handler: Handler,
        client: tuple[str, int],
        answered: Callable[[bytes], None],
    ) -> None:
        super().__init__(server, handler)
        self._is_first_read = False  # The way to the other broker was secured by its own port.
        Connection.connection_made(self, cast(Any, _Wire(client, answered)))
