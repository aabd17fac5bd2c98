"""The body of a batch request: one member after the other. MessageDecoder.encodeMessages.

| type | field |
|---|---|
| i32 | size of the member, this field included |
| i32 | magic, 0, ignored |
| i32 | body CRC, 0, ignored |
| i32 | flag |
| i32 + n | body |
| i16 + p | properties |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from twinlog.message.layout import MEMBER_HEAD, MEMBER_HEAD_SIZE, MEMBER_SIZE_MIN
from twinlog.runtime.limits import BATCH_COUNT_MAX, PROPERTIES_SIZE_MAX

_PROPERTIES_LENGTH = struct.Struct(">h")


class BatchError(ValueError):
    """A batch body that does not add up."""


class BatchMember(msgspec.Struct, gc=False):
    """One message of a batch. Topic, queue and times are those of the request around it."""

    body: bytes | memoryview
    properties: bytes = b""
    flag: int = 0


def encode_batch(members: Iterable[BatchMember]) -> bytes:
    """The body of a batch request."""
    parts: list[bytes | memoryview] = []
    for member in members:
        properties = member.properties
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise BatchError(
                f"properties of {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX}"
            )
        size = MEMBER_SIZE_MIN + len(member.body) + len(properties)
        parts.append(MEMBER_HEAD.pack(size, 0, 0, member.flag, len(member.body)))
        parts.append(member.body)
        parts.append(_PROPERTIES_LENGTH.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def batch_size(members: Iterable[BatchMember]) -> int:
    """How many bytes `encode_batch` makes of them."""
    return sum([MEMBER_SIZE_MIN + len(one.body) + len(one.properties) for one in members])


def decode_batch(data: bytes | memoryview, count_max: int = BATCH_COUNT_MAX) -> list[BatchMember]:
    """The members of a batch body. Every length is checked before it is used."""
    data = bytes(data)  # No copy of what is bytes already.
    members: list[BatchMember] = []
    append, unpack = members.append, MEMBER_HEAD.unpack_from
    position, end = 0, len(data)
    while position < end:
        if len(members) >= count_max:
            of_text = f"; {BATCH_COUNT_MAX} where all properties are text"
            is_less = count_max < BATCH_COUNT_MAX
            raise BatchError(f"more than {count_max} messages{of_text if is_less else ''}")
        if end - position < MEMBER_SIZE_MIN:
            raise BatchError(f"batch member {len(members)}: {end - position} bytes left over")
        size, _, _, flag, body_size = unpack(data, position)
        body_at = position + MEMBER_HEAD_SIZE
        position += size
        properties_at = body_at + body_size + 2
        if body_size < 0 or position > end or properties_at > position:
            raise BatchError(
                f"batch member {len(members)}: sizes {size} and {body_size} do not fit"
            )
        if (data[properties_at - 2] << 8 | data[properties_at - 1]) != position - properties_at:
            raise BatchError(f"batch member {len(members)}: properties do not end with the member")
        append(BatchMember(data[body_at : properties_at - 2], data[properties_at:position], flag))
    return members
