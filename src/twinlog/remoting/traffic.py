"""What each request and each answer changes in a connection, and when a read goes to a lane.

Base of `Connection`. Every send comes through here twice, so there is a compiled form of the class,
which the compiled lanes reach without the interpreter; this one is the reference.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twinlog.remoting.codec import Body
from twinlog.remoting.framing import Frame, FrameSplitter
from twinlog.remoting.limits import RemotingLimits
from twinlog.runtime.compiled import load
from twinlog.runtime.tls_channel import TlsChannel


class Lane(Protocol):
    """Takes requests of one kind in bulk, from the first frame of a read on."""

    @property
    def is_full(self) -> bool:
        """Whether the last read ended because this turn of the loop has enough of them."""

    def read(self, connection: Any, data: bytes, begin: int = 0) -> int:
        """Handle the frames from `begin` on, as far as they are of its kind; how many bytes."""


class TrafficInPython:
    """Requests that were taken and wait for their answers, and answers on their way out."""

    _splitter: FrameSplitter

    def __init__(self, limits: RemotingLimits) -> None:
        self._limits = limits
        self._lanes: tuple[Lane, ...] = ()
        self._transport: asyncio.Transport | None = None
        self._channel: TlsChannel | None = None  # With TLS.
        self._backlog: deque[Frame] = deque()
        self._out: list[Body] = []
        self._is_in_turn = False
        self._is_reading_paused = False
        self._is_elsewhere = False
        self._requests_in_flight = 0
        self._bytes_in_flight = 0
        self._replies = 0
        self.request_count = 0
        self.remote_host = b"\0" * 8
        self.is_closed = False
        self.is_congested = False
        self.was_active = True

    # What the whole connection does.

    def failed(self, what: str, error: Exception) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def _read(self, data: bytes) -> None:
        raise NotImplementedError

    def _read_later(self, data: bytes) -> None:
        raise NotImplementedError

    def _update_reading(self) -> None:
        raise NotImplementedError

    def _queue(self, pieces: Sequence[Body]) -> None:
        raise NotImplementedError

    def _write_secured(self, data: Body) -> None:
        raise NotImplementedError

    # Requests

    def data_received(self, data: bytes) -> None:
        """The lanes take what they know, as often as it comes; the rest is read frame by frame."""
        try:
            begin, number = 0, 0
            while number < len(self._lanes):
                lane = self._lanes[number]
                taken = lane.read(self, data, begin)
                if not taken:
                    number += 1
                    continue
                begin += taken
                if begin == len(data):
                    return
                if lane.is_full:
                    self._read_later(data[begin:])
                    return
                number = 0  # What follows may be of any kind.
            self._read(data[begin:] if begin else data)
        except Exception as error:
            self.failed("reading", error)

    @property
    def is_ready(self) -> bool:
        """Whether a read begins with a frame, and the frame may be handled now."""
        return self._splitter.is_between_frames and not (
            self._backlog or self.is_closed or self.is_congested or self._is_elsewhere
        )

    def count_requests(self, count: int, size: int) -> None:
        """So many requests, with bodies of so many bytes, were taken and wait for their answers."""
        self.was_active = True
        self.request_count += count
        self._requests_in_flight += count
        self._bytes_in_flight += size
        limits = self._limits
        if (
            self._requests_in_flight >= limits.requests_in_flight_max
            or self._bytes_in_flight >= limits.bytes_in_flight_max
        ):
            self._update_reading()

    def count_oneway(self, count: int) -> None:
        """So many requests were taken that nobody waits for."""
        self.was_active = True
        self.request_count += count

    # Answers

    def write_run(self, data: bytes, count: int) -> None:
        """Write the whole frames of `count` answers now, behind what is queued."""
        if self.is_closed or self._transport is None:
            return
        self._replies += count
        if self._out or self._is_in_turn or self._is_reading_paused or self.is_congested:
            self._out.append(data)
            if not self._is_in_turn:
                self.flush()
            return
        self._count_replies()
        self._transport_write(data)
        self.was_active = True

    def write_answer(self, frame: bytes) -> None:
        """Write the whole answer to a request that a lane took just now, behind what is queued."""
        self.request_count += 1
        self.was_active = True
        if self.is_closed or self._transport is None:
            return
        if self._out or self._is_in_turn or self._is_reading_paused or self.is_congested:
            self._queue((frame,))
            if not self._is_in_turn:
                self.flush()
            return
        self._transport_write(frame)

    def _count_replies(self) -> None:
        """Requests answered leave the account; their bytes by the mean, which ends at zero."""
        replies, self._replies = self._replies, 0
        if replies >= self._requests_in_flight:
            self._requests_in_flight = self._bytes_in_flight = 0
            return
        self._bytes_in_flight -= self._bytes_in_flight * replies // self._requests_in_flight
        self._requests_in_flight -= replies

    def _transport_write(self, data: Body) -> None:
        assert self._transport is not None
        if self._channel is None:
            self._transport.write(data)
        else:
            self._write_secured(data)


if TYPE_CHECKING:
    Traffic = TrafficInPython
else:
    _compiled = load("twinlog.remoting._traffic")
    Traffic = TrafficInPython if _compiled is None else _compiled.Traffic
