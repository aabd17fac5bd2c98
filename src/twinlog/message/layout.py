"""Where things are in records, queues, index files and batches: offsets, sizes, magics.

The only home of these numbers. Cython takes them from `_layout.pxd`, which `tools/compile.py` makes
out of this module (so it imports nothing of twinlog), and a test says when that file is stale.

A record of the commit log with IPv4 hosts:

| position | type | field |
|---|---|---|
| 0 | i32 | total size, this field included |
| 4 | i32 | magic: V1, V2 (16-bit topic length) or blank |
| 8 | i32 | body CRC |
| 12 | i32 | queue id |
| 16 | i32 | flag |
| 20 | i64 | queue offset |
| 28 | i64 | physical offset |
| 36 | i32 | system flag |
| 40 | i64 | born timestamp |
| 48 | 8 or 20 | born host |
| 56 | i64 | store timestamp |
| 64 | 8 or 20 | store host |
| 72 | i32 | reconsume times |
| 76 | i64 | prepared transaction offset |
| 84 | i32 + n | body |
| 88+n | i8 or i16 + t | topic |
| 89+n+t | i16 + p | properties |

An IPv6 host moves what follows by 12.
"""

from __future__ import annotations

import struct
from typing import Final

# A record

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MESSAGE_MAGICS: Final = (MAGIC_V1, MAGIC_V2)

HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
HOST_V6_EXTRA: Final = HOST_V6_SIZE - HOST_V4_SIZE

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48
# From here on with IPv4 hosts.
STORE_TIMESTAMP_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_SIZE_AT: Final = 84
HEAD_SIZE: Final = 88  # Up to the body.

BLANK_SIZE_MIN: Final = 8  # Size and magic. Always kept free at the end of a segment.
PLACE_SIZE: Final = SYS_FLAG_AT  # Size to physical offset: what makes it a record of this place.
TOPIC_LENGTH_SIZE: Final = 1  # 2 in V2.
PROPERTIES_LENGTH_SIZE: Final = 2
RECORD_SIZE_MIN: Final = HEAD_SIZE + TOPIC_LENGTH_SIZE + PROPERTIES_LENGTH_SIZE
TOPIC_LENGTH_V2_MAX: Final = 32767
CRC_MASK: Final = 0x7FFFFFFF  # RocketMQ keeps the field positive.

SIZE_MAGIC: Final = struct.Struct(">iI")

# An entry of a consume queue

ENTRY: Final = struct.Struct(">qiq")
ENTRY_SIZE: Final = 20
ENTRY_RECORD_SIZE_AT: Final = 8
ENTRY_TAGS_CODE_AT: Final = 12
PRE_BLANK_SIZE: Final = 0x7FFFFFFF  # In entries before the first of a queue.

# An index file: header, slots, entries

INDEX_HEADER: Final = struct.Struct(">qqqqii")  # Times, offsets (first, last), slots used, entries.
INDEX_HEADER_SIZE: Final = 40
INDEX_COUNT_AT: Final = 36
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")  # Hash, offset, seconds, previous of its slot.
INDEX_ENTRY_SIZE: Final = 20
INDEX_OFFSET_AT: Final = 4
INDEX_SECONDS_AT: Final = 12
INDEX_PREVIOUS_AT: Final = 16
INDEX_SECONDS_MAX: Final = 0x7FFFFFFF

# A member of a batch: size, magic, CRC (both 0 and ignored), flag, body, properties

MEMBER_HEAD: Final = struct.Struct(">iiiii")
MEMBER_FLAG_AT: Final = 12
MEMBER_BODY_SIZE_AT: Final = 16
MEMBER_HEAD_SIZE: Final = 20
MEMBER_SIZE_MIN: Final = MEMBER_HEAD_SIZE + PROPERTIES_LENGTH_SIZE

SECTOR_SIZE: Final = 512  # What a disk writes as a whole.


def head_format(born_host_size: int, store_host_size: int) -> str:
    """All of the head, for `struct`."""
    return f">iIiiiqqiq{born_host_size}sq{store_host_size}siqi"


def middle_format(born_host_size: int, store_host_size: int) -> str:
    """From the system flag up to the size of the body: what the records of a batch share."""
    return f">iq{born_host_size}sq{store_host_size}siq"


def picked(*fields: tuple[int, str]) -> struct.Struct:
    """Only the fields at these places, each with its kind."""
    text, end = ">", 0
    for at, kind in fields:
        text += f"{at - end}x{kind}"
        end = at + struct.calcsize(f">{kind}")
    return struct.Struct(text)
