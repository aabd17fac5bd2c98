"""Whether bytes are the record that an entry of a queue means. Pure; `_gather.pyx` does the same.

The structure (sizes that add up, magic, own offset, queue and number in it) costs little and is
asked of every record that is looked at; the CRC of the body only of those that are handed out.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from twinlog.message.crc import crc32
from twinlog.message.layout import (
    BODY_CRC_AT,
    BODY_SIZE_AT,
    CRC_MASK,
    HEAD_SIZE,
    HOST_V6_EXTRA,
    MAGIC_AT,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    SIZE_AT,
    SYS_FLAG_AT,
    picked,
)
from twinlog.message.names import LMQ_PREFIX
from twinlog.message.record import RecordError, decode_record
from twinlog.message.sysflag import HOSTS_V6_MASK
from twinlog.runtime.disk import FileBytes
from twinlog.runtime.limits import TOPIC_LENGTH_MAX

# More entries than this are not left blank for records that were lost: they would fill the disk.
GAP_ENTRIES_MAX: Final = 10_000_000
_HEAD = picked(
    (SIZE_AT, "i"), (MAGIC_AT, "I"), (QUEUE_ID_AT, "i"), (QUEUE_OFFSET_AT, "q"),
    (PHYSICAL_OFFSET_AT, "q"), (SYS_FLAG_AT, "i"), (BODY_SIZE_AT, "i"),
)  # fmt: skip
_BODY = picked((BODY_CRC_AT, "i"), (SYS_FLAG_AT, "i"), (BODY_SIZE_AT, "i"))
_SIZE: Final = struct.Struct(">i")


class QueuePlace(NamedTuple):
    """The queue that a record must name. Without a topic any will do: LMQ queues share records."""

    topic: bytes | None
    queue_id: int


def queue_place(topic: str, queue_id: int) -> QueuePlace:
    return QueuePlace(None if topic.startswith(LMQ_PREFIX) else topic.encode(), queue_id)


def entry_fault(offset: int, size: int, log_min: int, log_max: int) -> str:
    """What is wrong with an entry that is not blank; empty when a record may be there."""
    if offset < log_min or size < RECORD_SIZE_MIN or offset + size > log_max:
        return f"its queue entry says {size} bytes at {offset}, the log is [{log_min}, {log_max})"
    return ""


def number_max(next_number: int, last_end: int, offset: int) -> int:
    """The highest number that a record at `offset` can have in a queue that goes on with
    `next_number` and whose last record ends at `last_end`: each number between was given to a
    record that lies between. No checksum covers it; one flipped bit makes it higher."""
    room = max(0, offset - max(last_end, 0))
    return next_number + min(room // RECORD_SIZE_MIN, GAP_ENTRIES_MAX)


def structure_fault(
    data: FileBytes,
    start: int,
    size: int,
    offset: int,
    *,
    place: QueuePlace | None = None,
    number: int = -1,
) -> str:
    """What is wrong with the record of `size` bytes at `start`, which is `offset` of the log.

    Empty when nothing is. The body is not looked at.
    """
    if size < RECORD_SIZE_MIN:
        return f"{size} bytes are not a record"
    if len(data) - start < size:
        return f"{len(data) - start} bytes are there, not the {size} of the record"
    own_size, magic, queue_id, queue_offset, own_offset, flags, body_size = _HEAD.unpack_from(
        data, start
    )
    if own_size != size:
        return f"the record says {own_size} bytes, not {size}"
    if magic != MAGIC_V1 or flags & HOSTS_V6_MASK:
        return _slow_fault(data[start : start + size], offset, place, number)
    topic_at = start + HEAD_SIZE + body_size
    if body_size < 0 or topic_at + 3 > start + size:
        return f"body size {body_size} in a record of {size} bytes"
    length = data[topic_at]
    end = topic_at + 3 + length
    if not 0 < length <= TOPIC_LENGTH_MAX or end > start + size:
        return f"topic length {length} in a record of {size} bytes"
    if end + (data[end - 2] << 8 | data[end - 1]) != start + size:
        return f"total size {size} is not that of its parts"
    topic = data[topic_at + 1 : end - 2]
    return _place_fault(own_offset, offset, topic, queue_id, queue_offset, place, number)


def body_fault(data: FileBytes, start: int, size: int) -> str:
    """What is wrong with the body of a record whose structure is right."""
    crc, flags, body_size = _BODY.unpack_from(data, start)
    if flags & HOSTS_V6_MASK:
        try:
            decode_record(data[start : start + size])
        except RecordError as error:
            return str(error)
        return ""
    at = start + HEAD_SIZE
    if body_size and crc32(data[at : at + body_size]) & CRC_MASK != crc:
        return f"body CRC is not {crc:#010x}, as the record says"
    return ""


def is_same_record(mine: bytes, its: bytes) -> bool:
    """Whether `its`, which is sound, is what `mine` was before it decayed: they have the same body
    or the same CRC of it, and of the rest one byte differs at most. Another message of the same
    size has another time, key or CRC."""
    (flags,) = _SIZE.unpack_from(its, SYS_FLAG_AT)
    moved = HOST_V6_EXTRA * (flags & HOSTS_V6_MASK).bit_count()
    (body_size,) = _SIZE.unpack_from(its, BODY_SIZE_AT + moved)
    body = slice(HEAD_SIZE + moved, HEAD_SIZE + moved + body_size)
    crc = slice(BODY_CRC_AT, BODY_CRC_AT + _SIZE.size)
    if len(mine) != len(its) or (mine[body] != its[body] and mine[crc] != its[crc]):
        return False
    pairs = zip(
        mine[: body.start] + mine[body.stop :], its[: body.start] + its[body.stop :], strict=True
    )
    return sum(a != b for a, b in pairs) <= 1


def _slow_fault(record: bytes, offset: int, place: QueuePlace | None, number: int) -> str:
    """A record with IPv6 hosts or a long topic: rare, so it takes the general decoder."""
    try:
        found = decode_record(record, check_crc=False)
    except RecordError as error:
        return str(error)
    return _place_fault(
        found.physical_offset, offset, found.topic.encode(), found.queue_id, found.queue_offset,
        place, number,
    )  # fmt: skip


def _place_fault(
    own_offset: int,
    offset: int,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    place: QueuePlace | None,
    number: int,
) -> str:
    if own_offset != offset:
        return f"the record says offset {own_offset}, it is at {offset}"
    if place is None or place.topic is None:
        return ""
    if topic != place.topic or queue_id != place.queue_id or queue_offset != number:
        name = ascii(topic.decode("utf-8", "replace"))
        return f"the record is number {queue_offset} of {name} {queue_id}, not the one of its entry"
    return ""
