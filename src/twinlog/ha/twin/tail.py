"""The tail that a master fetches from its slave: only whole, intact records get into the log. Pure.

The slave's bytes come in pieces of any cut. Each record must say the place where it is, add up, and
have the body that its CRC is of, as after a crash; what does not is refused, and with it the rest.
"""

from __future__ import annotations

from twinlog.ha.wire import RemoteProtocolError
from twinlog.message.record import ScanStop, scan


class TailChecker:
    """Turns pieces into runs of whole records. `offset` is where the next one begins."""

    def __init__(self, offset: int, segment_size: int) -> None:
        self.offset = offset
        self._segment_size = segment_size
        self._bytes = b""

    def take(self, body: bytes) -> bytes:
        """The whole records that are there now; may be none. Raises RemoteProtocolError."""
        self._bytes += body
        result = scan(self._bytes, 0, self.offset)
        size = result.position
        if result.stop in (ScanStop.DAMAGED, ScanStop.EMPTY):
            reason = result.reason or "zeros where a record must begin"
            raise RemoteProtocolError(f"the tail is damaged at {self.offset + size}: {reason}")
        file_rest = self._segment_size - self.offset % self._segment_size
        if result.stop is ScanStop.BLANK and len(self._bytes) == file_rest:
            size = file_rest  # What fills the end of a file.
        elif result.stop is ScanStop.INCOMPLETE and size + result.size > file_rest:
            raise RemoteProtocolError(
                f"the tail is damaged at {self.offset + size}: a record of {result.size} bytes"
                " crosses the end of its file"
            )
        whole, self._bytes = self._bytes[:size], self._bytes[size:]
        self.offset += size
        return whole
