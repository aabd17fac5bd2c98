"""The frames of which a transfer consists: DATA to the slave, ACK back, one of each for a send.

A read nearly always has one whole frame and nothing else. These functions make such a frame, or
take it apart; whatever is not exactly that is None, and left to `wire.FrameParser`. Each has a
compiled form, which is used where it was built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twinlog.ha.twin import wire
from twinlog.message.crc import crc32
from twinlog.runtime.compiled import load

# Round, offset, confirmed, epoch, body. The body is a view into the buffer.
DataFrame = tuple[int, int, int, int, memoryview]
_BODY_AT: Final = wire.HEADER_SIZE + wire.DATA_PREFIX.size
_ACK_SIZE: Final = wire.HEADER_SIZE + wire.ACK.size


def data_head_in_python(
    offset: int, confirmed: int, epoch: int, body: bytes | memoryview, round_number: int
) -> bytes:
    """What stands before `body` in its frame."""
    return bytes(wire.encode_data(offset, confirmed, epoch, body, round_number=round_number)[0])


def only_data_in_python(buffer: bytearray, start: int, end: int) -> DataFrame | None:
    """The DATA frame that [start, end) of the buffer is, intact and with a body."""
    if end - start <= _BODY_AT:
        return None
    kind, round_number, size, checksum, header_checksum = wire.HEADER.unpack_from(buffer, start)
    view = memoryview(buffer)[start:end]
    is_whole = kind == wire.FrameType.DATA and size == end - start - wire.HEADER_SIZE
    if not is_whole or crc32(view[:12]) != header_checksum:
        return None
    if crc32(view[wire.HEADER_SIZE :]) != checksum:
        return None
    offset, confirmed, epoch = wire.DATA_PREFIX.unpack_from(view, wire.HEADER_SIZE)
    return round_number, offset, confirmed, epoch, view[_BODY_AT:]


def only_ack_in_python(data: bytes) -> tuple[int, int] | None:
    """(received, durable) of the ACK frame that `data` is."""
    if len(data) != _ACK_SIZE:
        return None
    kind, _, size, checksum, header_checksum = wire.HEADER.unpack_from(data)
    if kind != wire.FrameType.ACK or size != wire.ACK.size:
        return None
    if crc32(data[:12]) != header_checksum or crc32(data[wire.HEADER_SIZE :]) != checksum:
        return None
    received, durable = wire.ACK.unpack_from(data, wire.HEADER_SIZE)
    return received, durable


_compiled: Any = load("twinlog.ha.twin._hot_frames")
data_head: Callable[[int, int, int, bytes | memoryview, int], bytes] = data_head_in_python
ack_frame: Callable[[int, int], bytes] = wire.encode_ack
only_data: Callable[[bytearray, int, int], DataFrame | None] = only_data_in_python
only_ack: Callable[[bytes], tuple[int, int] | None] = only_ack_in_python
if _compiled is not None:
    data_head, ack_frame = _compiled.data_head, _compiled.ack_frame
    only_data, only_ack = _compiled.only_data, _compiled.only_ack
