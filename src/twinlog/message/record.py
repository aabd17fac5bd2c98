"""The record of the commit log, to bytes and back. Corresponds to MessageExtEncoder and
CommitLog.checkMessageAndReturnSize.

The places of its fields are in `layout.py`. The flag bits 4 and 5 follow from the hosts, whatever
the caller says. Encoding is one pack and one join; the topic with its length is cached.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from twinlog.message.crc import crc32
from twinlog.message.layout import (
    BLANK_SIZE_MIN,
    BODY_CRC_AT,
    BODY_SIZE_AT,
    CRC_MASK,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    SECTOR_SIZE,
    SIZE_AT,
    SIZE_MAGIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_V2_MAX,
    head_format,
    middle_format,
    picked,
)
from twinlog.message.model import PutMessage, Record
from twinlog.message.sysflag import BORNHOST_V6_FLAG, HOSTS_V6_MASK, STOREHOSTADDRESS_V6_FLAG
from twinlog.runtime.limits import PROPERTIES_SIZE_MAX, TOPIC_LENGTH_MAX

if TYPE_CHECKING:
    from twinlog.runtime.disk import FileBytes

_ZERO_SECTOR = bytes(SECTOR_SIZE)
_MISSING = "a sector of it was never written"
_CUT_SHORT = "its end was never received"
_V6_FLAGS = {
    (HOST_V4_SIZE, HOST_V4_SIZE): 0,
    (HOST_V6_SIZE, HOST_V4_SIZE): BORNHOST_V6_FLAG,
    (HOST_V4_SIZE, HOST_V6_SIZE): STOREHOSTADDRESS_V6_FLAG,
    (HOST_V6_SIZE, HOST_V6_SIZE): HOSTS_V6_MASK,
}
# Without body, topic and properties; without hosts as well.
_V4_SIZE = HEAD_SIZE + PROPERTIES_LENGTH_SIZE
_HOSTLESS_SIZE = _V4_SIZE - 2 * HOST_V4_SIZE
_HEADS = {flags: struct.Struct(head_format(*sizes)) for sizes, flags in _V6_FLAGS.items()}
_SHARED_HEADS = {
    flags: struct.Struct(f">iIiiiqq{struct.calcsize(middle_format(*sizes))}si")
    for sizes, flags in _V6_FLAGS.items()
}
_PACK_V4 = _HEADS[0].pack
# What a scan needs of an IPv4 head: size, magic, CRC, queue, offsets, flag, store time, body size.
_SCAN_HEAD = picked(
    (SIZE_AT, "i"), (MAGIC_AT, "I"), (BODY_CRC_AT, "i"), (QUEUE_ID_AT, "i"), (QUEUE_OFFSET_AT, "q"),
    (PHYSICAL_OFFSET_AT, "q"), (SYS_FLAG_AT, "i"), (STORE_TIMESTAMP_AT, "q"), (BODY_SIZE_AT, "i"),
)  # fmt: skip
# What leads to the properties: magic, flag, body size, the last of a record with IPv4 hosts.
_PLACES = picked((MAGIC_AT, "I"), (SYS_FLAG_AT, "i"), (BODY_SIZE_AT, "i")).unpack_from
_FLAG = struct.Struct(">i")
_U16 = struct.Struct(">H")
_LENGTH = struct.Struct(">h")
_I32 = struct.Struct(">i")
_LENGTHS = tuple(_LENGTH.pack(size) for size in range(1024))  # Of almost all property strings.


class RecordError(ValueError):
    """Bytes that are no whole record, or a message that cannot become one."""


class TopicLengthError(RecordError):
    """The topic is empty or longer than its length field can say."""


class PropertiesSizeError(RecordError):
    """The properties are longer than their length field can say."""


@lru_cache(maxsize=65536)
def topic_field(topic: str) -> tuple[int, bytes]:
    """Magic and the topic field: V1 as long as the topic fits its signed length byte."""
    data = topic.encode()
    if not data:
        raise TopicLengthError("the topic is empty")
    if len(data) <= TOPIC_LENGTH_MAX:
        return MAGIC_V1, bytes((len(data),)) + data
    if len(data) <= TOPIC_LENGTH_V2_MAX:
        return MAGIC_V2, _U16.pack(len(data)) + data
    raise TopicLengthError(f"topic of {len(data)} bytes, at most {TOPIC_LENGTH_V2_MAX}")


def encoded_size(message: PutMessage) -> int:
    """The size that `encode_record` will give: asked before the place of the record is known."""
    return (
        _HOSTLESS_SIZE
        + len(message.born_host) + len(message.store_host)
        + len(message.body) + len(topic_field(message.topic)[1]) + len(message.properties)
    )  # fmt: skip


def encode_record(
    message: PutMessage, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """The record of `message` at the place and time that the store chose."""
    body = message.body
    properties = message.properties
    born_host = message.born_host
    store_host = message.store_host
    magic, topic = topic_field(message.topic)
    body_size = len(body)
    properties_size = len(properties)
    if properties_size < 1024:
        length = _LENGTHS[properties_size]
    elif properties_size <= PROPERTIES_SIZE_MAX:
        length = _LENGTH.pack(properties_size)
    else:
        raise PropertiesSizeError(
            f"properties of {properties_size} bytes, at most {PROPERTIES_SIZE_MAX}"
        )
    if properties_size > SECTOR_SIZE:
        check_zeros(properties)
    sys_flag = message.sys_flag
    if len(born_host) == HOST_V4_SIZE and len(store_host) == HOST_V4_SIZE:
        pack = _PACK_V4
        size = _V4_SIZE + body_size + len(topic) + properties_size
        sys_flag &= ~HOSTS_V6_MASK
    else:
        flags = _V6_FLAGS[len(born_host), len(store_host)]
        pack = _HEADS[flags].pack
        hosts_size = len(born_host) + len(store_host)
        size = _HOSTLESS_SIZE + hosts_size + body_size + len(topic) + properties_size
        sys_flag = sys_flag & ~HOSTS_V6_MASK | flags
    head = pack(
        size, magic, crc32(body) & CRC_MASK if body_size else 0, message.queue_id, message.flag,
        queue_offset, physical_offset, sys_flag, message.born_timestamp, born_host,
        store_timestamp, store_host, message.reconsume_times,
        message.prepared_transaction_offset, body_size,
    )  # fmt: skip
    return b"".join((head, body, topic, length, properties))


def check_zeros(properties: bytes) -> None:
    """Refuse a property string in which a whole sector may be zero.

    After a power cut it could not be told from one that was never written, and the log would be cut
    there: better not to take such a message than to lose it, and those behind it, later.
    """
    if _ZERO_SECTOR in properties:
        raise RecordError(f"properties with {SECTOR_SIZE} zero bytes in a row")


def shared_head(
    message: PutMessage, store_timestamp: int
) -> tuple[Callable[..., bytes], bytes, int]:
    """The head of records that differ in body, flag and place only, as those of a batch.

    Returns a function (size, magic, crc, queue id, flag, queue offset, physical offset, shared
    bytes, body size) -> head, the shared bytes, and the size of a record without body, topic field
    and properties.
    """
    born_host, store_host = message.born_host, message.store_host
    flags = _V6_FLAGS[len(born_host), len(store_host)]
    middle = struct.pack(
        middle_format(len(born_host), len(store_host)), message.sys_flag & ~HOSTS_V6_MASK | flags,
        message.born_timestamp, born_host, store_timestamp, store_host, message.reconsume_times,
        message.prepared_transaction_offset,
    )  # fmt: skip
    head = _SHARED_HEADS[flags]
    return head.pack, middle, head.size + _LENGTH.size


def blank_record(size: int) -> bytes:
    """The 8 bytes that close a segment with `size` bytes left, themselves included."""
    if size < BLANK_SIZE_MIN:
        raise RecordError(f"a blank record needs {BLANK_SIZE_MIN} bytes, {size} are left")
    return SIZE_MAGIC.pack(size, MAGIC_BLANK)


def decode_record(buffer: bytes | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
    """The record that starts at `offset` of `buffer`. Raises RecordError naming what is wrong."""
    view = memoryview(buffer)
    available = len(view) - offset
    if available < RECORD_SIZE_MIN:
        raise RecordError(f"{available} bytes are not a record, it has at least {RECORD_SIZE_MIN}")
    total_size, magic = SIZE_MAGIC.unpack_from(view, offset)
    if magic not in MESSAGE_MAGICS:
        raise RecordError(f"magic {magic:#010x} is not that of a message")
    if total_size < RECORD_SIZE_MIN or total_size > available:
        raise RecordError(f"total size {total_size}, {available} bytes are there")
    (sys_flag,) = _FLAG.unpack_from(view, offset + SYS_FLAG_AT)
    head = _HEADS[sys_flag & HOSTS_V6_MASK]
    if head.size > total_size:
        raise RecordError(f"total size {total_size} is less than the head of {head.size}")
    values = head.unpack_from(view, offset)
    body_size = values[14]
    end = offset + total_size
    body_at = offset + head.size
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 3 > end:
        raise RecordError(f"body size {body_size} in a record of {total_size} bytes")
    body = bytes(view[body_at:topic_at])
    topic, properties_at = _decode_topic(view, topic_at, end, magic)
    if properties_at + 2 > end:
        raise RecordError(f"topic runs past the end of a record of {total_size} bytes")
    (properties_size,) = _LENGTH.unpack_from(view, properties_at)
    if properties_size < 0 or properties_at + 2 + properties_size != end:
        raise RecordError(
            f"total size {total_size} is not that of its parts, properties size {properties_size}"
        )
    if check_crc and body and crc32(body) & CRC_MASK != values[2]:
        raise RecordError(f"body CRC is not {values[2]:#010x}, as the record says")
    properties = bytes(view[properties_at + 2 : end])
    # The head unpacks in the order of the fields of Record.
    return Record(*values[:14], body, topic, properties)  # type: ignore[call-arg]


def properties_at(data: FileBytes, start: int, end: int) -> bytes:
    """The property string of the whole, valid record [start, end), without decoding the rest."""
    magic, sys_flag, body_size = _PLACES(data, start)
    if sys_flag & HOSTS_V6_MASK:
        body_at = start + _HEADS[sys_flag & HOSTS_V6_MASK].size
        (body_size,) = _I32.unpack_from(data, body_at - 4)
        topic_at = body_at + body_size
    else:
        topic_at = start + HEAD_SIZE + body_size
    if magic == MAGIC_V1:
        return data[topic_at + 3 + data[topic_at] : end]
    (topic_size,) = _U16.unpack_from(data, topic_at)
    return data[topic_at + 4 + topic_size : end]


def _decode_topic(view: memoryview, position: int, end: int, magic: int) -> tuple[str, int]:
    """Topic and the position behind it; may lie past `end`, which the caller checks."""
    if magic == MAGIC_V1:
        size, start = view[position], position + 1
    else:
        size, start = _U16.unpack_from(view, position)[0], position + 2
    if size == 0 or size > (TOPIC_LENGTH_MAX if magic == MAGIC_V1 else TOPIC_LENGTH_V2_MAX):
        raise RecordError(f"topic length {size}")
    return topic_text(bytes(view[start : min(start + size, end)])), start + size


@lru_cache(maxsize=65536)
def topic_text(data: bytes) -> str:
    """The topic of a record; kept, because few topics have many records."""
    return data.decode("utf-8", "replace")


class ScanStop(Enum):
    """Why a scan ended."""

    COUNT = "count"  # As many as were asked for.
    END = "end"  # Nothing is left, or less than a size and a magic.
    INCOMPLETE = "incomplete"  # A record begins here and ends beyond the bytes at hand.
    BLANK = "blank"  # The end of the segment.
    EMPTY = "empty"  # Zeros: nothing was written here.
    DAMAGED = "damaged"  # No record can begin like this.


# (physical offset, size, queue id, queue offset, system flag, store timestamp, topic, properties):
# a plain tuple, because recovery makes a million of them.
ScanEntry: TypeAlias = tuple[int, int, int, int, int, int, str, bytes]


class ScanResult(NamedTuple):
    """The whole records that were found, and what comes after them."""

    entries: list[ScanEntry]
    position: int  # In the buffer: behind the last whole record.
    stop: ScanStop
    reason: str
    size: int  # What the size field at `position` says: of a blank or incomplete record, else 0.


def scan(
    buffer: bytes,
    position: int,
    physical_offset: int,
    *,
    check_crc: bool = True,
    file_position: int | None = None,
    is_copy: bool = False,
    count_max: int = 1 << 62,
) -> ScanResult:
    """Find the whole records from `position` on, which is `physical_offset` of the log.

    Each must have a message's magic, sizes that add up, the physical offset where it is and, with
    `check_crc`, a body as it was. The last check but one is what Apache leaves out: a record that
    was valid elsewhere or before a truncation is not one of this log.

    With `file_position`, where the buffer begins in its file, topic and properties, which no CRC
    covers, must not miss a sector either: after a power cut what was not written is zero. A copy's
    last record may end anywhere (`is_copy`): its master sends bytes, not records.
    """
    view = memoryview(buffer)
    end = len(view)
    shift = physical_offset - position
    entries: list[ScanEntry] = []
    unpack, append = _SCAN_HEAD.unpack_from, entries.append
    while end - position >= RECORD_SIZE_MIN and len(entries) < count_max:
        size, magic, crc, queue_id, queue_offset, own_offset, sys_flag, stored_at, body_size = (
            unpack(view, position)
        )
        record_end = position + size
        if magic != MAGIC_V1 or sys_flag & HOSTS_V6_MASK or size < RECORD_SIZE_MIN:
            if magic not in MESSAGE_MAGICS or size < RECORD_SIZE_MIN or record_end > end:
                break
            try:
                entry = _scan_slow(view, position, check_crc)
                topic_at = record_end - len(entry[7]) - len(entry[6].encode()) - 4
                if file_position is not None and _misses_sector(
                    buffer, topic_at, _zeros_from(record_end, entry[7]), file_position
                ):
                    raise RecordError(_MISSING)
                if (
                    is_copy
                    and file_position is not None
                    and _is_cut_short(view, record_end if entry[7] else record_end - 2, record_end)
                ):
                    raise RecordError(_CUT_SHORT)
            except RecordError as error:
                return ScanResult(entries, position, ScanStop.DAMAGED, str(error), 0)
        else:
            if record_end > end:
                break
            topic_at = position + HEAD_SIZE + body_size
            if body_size < 0 or topic_at + 3 > record_end:
                reason = f"body size {body_size} in a record of {size} bytes"
                return ScanResult(entries, position, ScanStop.DAMAGED, reason, 0)
            properties_at = topic_at + 3 + buffer[topic_at]
            if (
                not 0 < buffer[topic_at] <= TOPIC_LENGTH_MAX
                or properties_at > record_end
                or properties_at + (buffer[properties_at - 2] << 8 | buffer[properties_at - 1])
                != record_end
            ):
                reason = f"total size {size} is not that of its parts"
                return ScanResult(entries, position, ScanStop.DAMAGED, reason, 0)
            if (
                check_crc
                and body_size
                and crc32(view[position + HEAD_SIZE : topic_at]) & CRC_MASK != crc
            ):
                reason = f"body CRC is not {crc:#010x}, as the record says"
                return ScanResult(entries, position, ScanStop.DAMAGED, reason, 0)
            if (
                file_position is not None
                # A sector that is missing reaches into the properties, if there are any.
                and (properties_at == record_end or buffer.find(0, properties_at, record_end) >= 0)
                and _misses_sector(
                    buffer,
                    topic_at,
                    _zeros_from(record_end, properties_at < record_end),
                    file_position,
                )
            ):
                return ScanResult(entries, position, ScanStop.DAMAGED, _MISSING, 0)
            if (
                is_copy
                and file_position is not None
                and _is_cut_short(
                    view, record_end if properties_at < record_end else record_end - 2, record_end
                )
            ):
                return ScanResult(entries, position, ScanStop.DAMAGED, _CUT_SHORT, 0)
            entry = (
                own_offset, size, queue_id, queue_offset, sys_flag, stored_at,
                topic_text(buffer[topic_at + 1 : properties_at - 2]),
                buffer[properties_at:record_end],
            )  # fmt: skip
        if entry[0] != position + shift:
            reason = f"record says offset {entry[0]}, it is at {position + shift}"
            return ScanResult(entries, position, ScanStop.DAMAGED, reason, 0)
        append(entry)
        position = record_end
    if len(entries) >= count_max:
        return ScanResult(entries, position, ScanStop.COUNT, "", 0)
    stop, reason, size = _scan_stop(view, position, end)
    return ScanResult(entries, position, stop, reason, size)


def _zeros_from(record_end: int, has_properties: object) -> int:
    """Where zeros are right: a length of 0 for no properties, wherever a sector begins."""
    return record_end if has_properties else record_end - 2


def _misses_sector(buffer: bytes, topic_at: int, end: int, file_position: int) -> bool:
    """Whether a sector that begins behind `topic_at` has only zeros up to the end of the record.

    For records whose sizes and CRC are right: the sector of the topic's length is there, then.
    """
    first = -(-(topic_at + file_position) // SECTOR_SIZE) * SECTOR_SIZE - file_position
    return first < end and any(
        not any(buffer[sector : min(sector + SECTOR_SIZE, end)])
        for sector in range(first, end, SECTOR_SIZE)
    )


def _is_cut_short(view: memoryview, text_end: int, record_end: int) -> bool:
    """Whether topic or properties, which end at `text_end`, stop with a zero and nothing follows.

    A client may end a property so, but then the master has the record, and the copy asks again.
    """
    return view[text_end - 1] == 0 and not any(view[record_end : record_end + SIZE_MAGIC.size])


def _scan_slow(view: memoryview, position: int, check_crc: bool) -> ScanEntry:
    """A record with IPv6 hosts or a long topic: rare, so it takes the general decoder."""
    record = decode_record(view, position, check_crc=check_crc)
    return (
        record.physical_offset, record.total_size, record.queue_id, record.queue_offset,
        record.sys_flag, record.store_timestamp, record.topic, record.properties,
    )  # fmt: skip


def _scan_stop(view: memoryview, position: int, end: int) -> tuple[ScanStop, str, int]:
    """What is at `position`, where no whole record begins or the scan was told to stop."""
    if end - position < SIZE_MAGIC.size:
        return ScanStop.END, "", 0
    size, magic = SIZE_MAGIC.unpack_from(view, position)
    if magic == MAGIC_BLANK and size >= BLANK_SIZE_MIN:
        return ScanStop.BLANK, "", size
    if size == 0 and magic == 0:
        return ScanStop.EMPTY, "", 0
    if magic not in MESSAGE_MAGICS:
        return ScanStop.DAMAGED, f"magic {magic:#010x} is not that of a message", 0
    if size < RECORD_SIZE_MIN:
        return ScanStop.DAMAGED, f"total size {size} is less than {RECORD_SIZE_MIN}", 0
    return ScanStop.INCOMPLETE, f"record of {size} bytes, {end - position} are there", size
