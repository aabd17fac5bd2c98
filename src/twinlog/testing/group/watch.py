"""What slaves say on the HA port, read from the wire: what they called durable they must keep.

Parses both dialects by itself (`docs/WIRE.md`), from the side of the slave only.
"""

from __future__ import annotations

import struct

TWIN_MAGIC = b"\xffTwinlog"
_HEADER = struct.Struct(">HHIII")
_ACK = 32


class SlaveWords:
    """One connection of a slave."""

    def __init__(self) -> None:
        self.received = 0
        self.durable = 0
        self.dialect = ""
        self._data = bytearray()

    def say(self, piece: bytes) -> None:
        self._data += piece
        if not self.dialect:
            if len(self._data) < len(TWIN_MAGIC):
                return
            self.dialect = "twin" if self._data.startswith(TWIN_MAGIC) else "classic"
            if self.dialect == "twin":
                del self._data[: len(TWIN_MAGIC)]
        if self.dialect == "twin":
            self._frames()
        else:
            self._reports()

    def _reports(self) -> None:
        while len(self._data) >= 8:
            (self.received,) = struct.unpack_from(">q", self._data)
            del self._data[:8]

    def _frames(self) -> None:
        while len(self._data) >= _HEADER.size:
            kind, _, size, _, _ = _HEADER.unpack_from(self._data)
            if len(self._data) < _HEADER.size + size:
                return
            if kind == _ACK:
                self.received, self.durable = struct.unpack_from(">qq", self._data, _HEADER.size)
            del self._data[: _HEADER.size + size]


class HAWatch:
    """The last words of every slave, by its address."""

    def __init__(self, ha_port: int) -> None:
        self._ha_port = ha_port
        self._connections: dict[tuple[str, int], SlaveWords] = {}
        self.last: dict[str, SlaveWords] = {}
        self.dialects: set[str] = set()

    def said(
        self, local: tuple[str, int], remote: tuple[str, int], piece: bytes
    ) -> SlaveWords | None:
        if remote[1] != self._ha_port:
            return None
        words = self._connections.get(local)
        if words is None:
            words = self._connections[local] = SlaveWords()
            self.last[local[0]] = words
        words.say(piece)
        return words

    def forget(self, address: str) -> None:
        """Another disk or another role: what was said before counts no more."""
        self.last.pop(address, None)
