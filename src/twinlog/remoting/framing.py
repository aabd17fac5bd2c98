"""Cuts a byte stream into frames. Pure: bytes in, frames out, limits checked before anything else.

Corresponds to RocketMQ's NettyDecoder. A frame:

    offset  size  field
    0       4     L, bytes that follow this field: 4 + H + B
    4       1     type of the header: 0 JSON, 1 ROCKETMQ
    5       3     H, size of the header
    8       H     header
    8+H     B     body

A frame that breaks a rule ends the stream: what came before it is still returned, `error` says why,
and nothing is accepted any more.

A long frame is asked about as soon as its header is there (`admit`): a body that nobody wants is
passed over as it comes and never kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from twinlog.remoting.errors import FrameError
from twinlog.runtime.limits import FRAME_SIZE_MAX

HEADER_SIZE_MAX = 256 * 1024  # Properties of 32767 bytes, every one escaped as six, fit.
SERIALIZE_TYPE_MAX = 1
LONG_FRAME = 64 * 1024  # Above it a header is looked at before the body behind it is kept.

Frame = tuple[int, bytes, bytes]  # type of the header, header, body
_OPENING = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_MARK = struct.Struct(">I")


class FrameSplitter:
    """Keeps the incomplete frame between two reads."""

    __slots__ = (
        "_admit",
        "_buffer",
        "_frame_size_max",
        "_header_size_max",
        "_is_asked",
        "_needed",
        "_unwanted",
        "error",
        "is_between_frames",
    )

    def __init__(
        self,
        *,
        frame_size_max: int = FRAME_SIZE_MAX,
        header_size_max: int = HEADER_SIZE_MAX,
        admit: Callable[[int, bytes, int], bool] | None = None,
    ) -> None:
        """`admit` gets type, header and size of the body of a long frame; False: pass it over."""
        self._admit = admit
        self._is_asked = False
        self._unwanted = 0
        self._frame_size_max = frame_size_max
        self._header_size_max = header_size_max
        self._buffer = bytearray()
        self._needed = 0
        self.error: FrameError | None = None
        self.is_between_frames = True
        """Whether the next byte begins a frame. Asked for every read, so it is not a property."""

    @property
    def buffered(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take what was read; return the frames it completes, in order."""
        frames = self._feed(data)
        self.is_between_frames = not self._buffer and not self._unwanted
        return frames

    def _feed(self, data: bytes) -> list[Frame]:
        if self.error is not None:
            return []
        if self._unwanted:
            passed = min(self._unwanted, len(data))
            self._unwanted -= passed
            data = data[passed:]
        buffer = self._buffer
        if not buffer:
            return self._split(data)
        buffer += data
        if len(buffer) < self._needed:
            if self._needed == 8:
                self._check_length(buffer)
            elif not self._is_asked:
                self._ask()
            return []
        self._buffer = bytearray()
        return self._split_buffer(buffer)

    def _split_buffer(self, buffer: bytearray) -> list[Frame]:
        """Cut the frame that took several reads out without a copy of the whole buffer."""
        with memoryview(buffer) as view:
            if self._needed == 8:  # Only now the lengths are known.
                return self._split(bytes(view))
            (mark,) = _MARK.unpack_from(view, 4)
            header_end = 8 + (mark & 0xFFFFFF)
            header, body = bytes(view[8:header_end]), bytes(view[header_end : self._needed])
            rest = bytes(view[self._needed :])
        return [(mark >> 24, header, body), *self._split(rest)]

    def _split(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        unpack = _OPENING.unpack_from
        size_max = self._frame_size_max - 4
        position, end = 0, len(data)
        needed = 8
        while end - position >= 8:
            length, mark = unpack(data, position)
            header_end = position + 8 + (mark & 0xFFFFFF)
            stop = position + 4 + length
            if not 4 <= length <= size_max or mark >= 0x2000000 or header_end > stop:
                self._refuse(length, mark)
                return frames
            if mark & 0xFFFFFF > self._header_size_max:
                self._refuse(length, mark)
                return frames
            if stop > end:
                needed = stop - position
                break
            frames.append((mark >> 24, data[position + 8 : header_end], data[header_end:stop]))
            position = stop
        if position < end:
            self._keep(data[position:], needed)
        return frames

    def _keep(self, rest: bytes, needed: int) -> None:
        self._needed = needed
        self._buffer += rest
        self._is_asked = self._admit is None or 8 < needed <= LONG_FRAME
        if needed == 8:
            self._check_length(rest)
        elif not self._is_asked:
            self._ask()

    def _ask(self) -> None:
        """Once the header of a long frame is there: is its body wanted?"""
        (mark,) = _MARK.unpack_from(self._buffer, 4)
        header_end = 8 + (mark & 0xFFFFFF)
        if len(self._buffer) < header_end:
            return
        self._is_asked = True
        header = bytes(self._buffer[8:header_end])
        if self._admit is not None and not self._admit(
            mark >> 24, header, self._needed - header_end
        ):
            self._unwanted = self._needed - len(self._buffer)
            self._buffer = bytearray()

    def _check_length(self, opening: bytes | bytearray) -> None:
        """Refuse a length as soon as its four bytes are there."""
        if len(opening) >= 4:
            (length,) = _LENGTH.unpack_from(opening)
            if not 4 <= length <= self._frame_size_max - 4:
                self._refuse(length, 0)

    def _refuse(self, length: int, mark: int) -> None:
        header_size, kind = mark & 0xFFFFFF, mark >> 24
        if not 4 <= length <= self._frame_size_max - 4:
            reason = f"frame length {length} not in 4..{self._frame_size_max - 4}"
        elif kind > SERIALIZE_TYPE_MAX:
            reason = f"unknown serialisation type {kind}"
        elif header_size > length - 4:
            reason = f"header length {header_size} beyond the frame's {length - 4} bytes"
        else:
            reason = f"header length {header_size} above the limit {self._header_size_max}"
        self.error = FrameError(reason)
        self._buffer = bytearray()
