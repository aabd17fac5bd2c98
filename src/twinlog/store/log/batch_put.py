"""Members of a batch become ordinary records. Corresponds to RocketMQ's MessageExtBatch encoding.

Made for batches of hundreds of small messages: what members share is packed once, and the bytes of
all records leave as one piece.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from twinlog.message.batch import BatchMember
from twinlog.message.crc import crc32
from twinlog.message.hashing import topic_prefix_hash
from twinlog.message.layout import CRC_MASK, ENTRY, SECTOR_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.once import ONCE_BYTES
from twinlog.message.properties import tags_and_keys, tags_code_of
from twinlog.message.record import (
    PropertiesSizeError,
    RecordError,
    check_zeros,
    shared_head,
    topic_field,
)
from twinlog.message.sysflag import transaction_type
from twinlog.runtime.compiled import load
from twinlog.runtime.limits import (
    BATCH_COUNT_MAX,
    BATCH_KEYS_MAX,
    BATCH_UNUSUAL_MAX,
    PROPERTIES_SIZE_MAX,
    TOPIC_LENGTH_MAX,
)
from twinlog.store.index.index_service import IndexService

_UNIQUE: Final = b"UNIQ_KEY\x01"
_AGAIN: Final = b"\x02UNIQ_KEY\x01"
_TAGS: Final = b"\x02TAGS\x01"
_KEYS: Final = b"\x02KEYS\x01"
_CODES_MAX: Final = 64
_SEPARATOR: Final = 2
_LENGTH: Final = struct.Struct(">h")
_ENTRY_PACK: Final = ENTRY.pack


class EncodedBatch(NamedTuple):
    """The records of a batch, and what queue and index need of them."""

    data: bytes
    offsets: list[int]
    entries: bytes  # Of the consume queue.
    keys: list[tuple[str, ...]]
    ids: str = ""  # Made of the offsets by who needs them.

    @property
    def message_count(self) -> int:
        return len(self.offsets)

    def add_to(self, index: IndexService, topic: str, timestamp: int) -> None:
        index.add_many(topic, self.keys, self.offsets, timestamp)


class EncodedBody(NamedTuple):
    """The same of a batch that was not taken apart. Numbers are 64-bit ones of this machine."""

    data: bytes
    entries: bytes
    message_count: int
    key_hashes: bytearray
    key_offsets: bytearray  # For each hash the offset of its record.
    bare_offset: int  # Of the last record without keys, or -1.
    ids: str  # Message ids, as the answer has them.
    offsets: tuple[int, ...] = ()

    def add_to(self, index: IndexService, topic: str, timestamp: int) -> None:
        times = array("q", (timestamp,)) * (len(self.key_hashes) // 8)
        index.add_hashed(self.key_hashes, self.key_offsets, times, self.bare_offset)


# (queue offset, physical offset, store time) -> the records of a batch.
BatchEncoder = Callable[[int, int, int], EncodedBatch | EncodedBody | None]
# (message with the body of the request, queue offset, physical offset, store time) -> its records,
# or None: let it be taken apart.
BodyEncoder = Callable[[PutMessage, int, int, int], EncodedBody | None]


def body_encoder() -> BodyEncoder | None:
    """The compiled form of `decode_batch` and `encode_members`, where there is one."""
    compiled = load("twinlog.store.log._batch")
    if compiled is None:
        return None
    encode_body = compiled.encode_body

    def encode(
        message: PutMessage, queue_offset: int, physical_offset: int, store_timestamp: int
    ) -> EncodedBody | None:
        tail = message.properties
        if type(message.body) is not bytes or not _is_plain(tail):
            return None
        magic, topic = topic_field(message.topic)
        found = encode_body(
            message.body,
            crc32=crc32,
            mark=ONCE_BYTES,
            tail=tail,
            topic=topic,
            prefix=topic_prefix_hash(message.topic),
            magic=magic,
            middle=shared_head(message, store_timestamp)[1],
            id_prefix=message.store_host.hex().upper().encode(),
            queue_id=message.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            count_max=BATCH_COUNT_MAX,
            keys_max=BATCH_KEYS_MAX,
        )
        return None if found is None else EncodedBody(*found)

    return encode


def unusual_max() -> int:
    """So many messages are taken apart where a compiled form leaves them to Python."""
    return BATCH_COUNT_MAX if body_encoder() is None else BATCH_UNUSUAL_MAX


def _is_plain(tail: bytes) -> bool:
    """Whether what stands behind each member's properties has nothing for queue or index."""
    return not any(name in tail for name in (b"TAGS\x01", b"KEYS\x01", _UNIQUE))


def batch_fault(message: PutMessage, size: int, size_max: int) -> str:
    """Why a batch whose body has `size` bytes is refused, or nothing. RocketMQ's checks; the
    transaction type and the topic are those of the request."""
    if not size:
        return "the batch is empty"
    if transaction_type(message.sys_flag):
        return "a batch cannot be part of a transaction"
    if len(message.topic) > TOPIC_LENGTH_MAX:
        return f"topic of {len(message.topic)} characters, at most {TOPIC_LENGTH_MAX}"
    if size > size_max:
        return f"batch of {size} bytes, maxMessageSize is {size_max}"
    return ""


def encode_members(
    message: PutMessage,
    members: Sequence[BatchMember],
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> EncodedBatch:
    """Records with consecutive numbers from `queue_offset`, contiguous from `physical_offset`.

    A member's own properties are stored unchanged, then those of the request. Raises RecordError
    when both together are too long: Apache stores such a record and loses what is behind it at the
    next recovery.
    """
    magic, topic = topic_field(message.topic)
    pack, middle, fixed_size = shared_head(message, store_timestamp)
    fixed_size += len(topic)
    tail = message.properties
    separated = b"\x02" + tail
    scan = _Properties(tail)
    queue_id = message.queue_id
    middles: dict[int, bytes] = {}
    parts: list[bytes | memoryview] = []
    offsets: list[int] = []
    entries: list[bytes] = []
    all_keys: list[tuple[str, ...]] = []
    key_count = 0
    for member in members:
        body, properties = member.body, member.properties
        end = separated if properties and properties[-1] != _SEPARATOR else tail
        properties_size = len(properties) + len(end)
        if properties_size > SECTOR_SIZE:
            check_zeros(properties)
        topic_and_length = middles.get(properties_size)
        if topic_and_length is None:
            topic_and_length = topic + _length(properties_size)
            middles[properties_size] = topic_and_length
        body_size = len(body)
        size = fixed_size + body_size + properties_size
        crc = crc32(body) & CRC_MASK if body_size else 0
        head = pack(
            size, magic, crc, queue_id, member.flag, queue_offset, physical_offset, middle,
            body_size,
        )  # fmt: skip
        parts += (head, body, topic_and_length, properties, end)
        tags_code, keys = scan(properties, end)
        entries.append(_ENTRY_PACK(physical_offset, size, tags_code))
        all_keys.append(keys)
        key_count += len(keys)
        if key_count > BATCH_KEYS_MAX:
            raise RecordError(f"more than {BATCH_KEYS_MAX} keys in one batch")
        offsets.append(physical_offset)
        queue_offset += 1
        physical_offset += size
    return EncodedBatch(b"".join(parts), offsets, b"".join(entries), all_keys)


def _length(size: int) -> bytes:
    if size > PROPERTIES_SIZE_MAX:
        raise PropertiesSizeError(f"properties of {size} bytes, at most {PROPERTIES_SIZE_MAX}")
    return _LENGTH.pack(size)


class _Properties:
    """Tags code and index keys of members, `tags_and_keys` of the merged string.

    Members mostly begin with their unique id, and often differ in nothing else: what is behind it
    is looked at once for each different text, and without a regular expression.
    """

    __slots__ = ("_codes", "_is_plain_tail")

    def __init__(self, tail: bytes) -> None:
        self._is_plain_tail = _is_plain(tail)
        self._codes: dict[bytes, int] = {}

    def __call__(self, properties: bytes, end: bytes) -> tuple[int, tuple[str, ...]]:
        if self._is_plain_tail and properties.startswith(_UNIQUE):
            stop = properties.find(b"\x02", 9)
            if stop > 9:
                rest = properties[stop:]
                code = self._codes.get(rest)
                if code is not None:
                    return code, (properties[9:stop].decode("utf-8", "replace"),)
                if _AGAIN not in rest:
                    tags, keys = _last(rest, _TAGS), _last(rest, _KEYS)
                    if tags is not None and keys is not None:
                        return self._found(properties[9:stop], rest, tags, keys)
        return tags_and_keys(properties + end)

    def _found(
        self, unique: bytes, rest: bytes, tags: bytes, keys: bytes
    ) -> tuple[int, tuple[str, ...]]:
        tags_code = tags_code_of(tags) if tags else 0
        text = unique.decode("utf-8", "replace")
        if not keys:
            if len(self._codes) < _CODES_MAX:
                self._codes[rest] = tags_code
            return tags_code, (text,)
        words = keys.decode("utf-8", "replace")
        if " " not in words:
            return tags_code, (text, words)
        return tags_code, (text, *filter(None, words.split(" ")))


def _last(data: bytes, marker: bytes) -> bytes | None:
    """The value behind the last `marker`; empty without one, None when it has no value."""
    start = data.rfind(marker)
    if start < 0:
        return b""
    start += 6
    stop = data.find(b"\x02", start)
    return (data[start:] if stop < 0 else data[start:stop]) or None
