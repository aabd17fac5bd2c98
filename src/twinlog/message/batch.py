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

from twinlog.runtime.limits import PROPERTIES_SIZE_MAX

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">h")
_MEMBER_SIZE_MIN = _HEAD.size + _PROPERTIES_LENGTH.size


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
        size = _MEMBER_SIZE_MIN + len(member.body) + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, member.flag, len(member.body)))
        parts.append(member.body)
        parts.append(_PROPERTIES_LENGTH.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def decode_batch(data: bytes | memoryview) -> list[BatchMember]:
    """The members of a batch body. Every length is checked before it is used."""
    view = memoryview(data)
    members: list[BatchMember] = []
    position, end = 0, len(view)
    while position < end:
        if end - position < _MEMBER_SIZE_MIN:
            raise BatchError(f"batch member {len(members)}: {end - position} bytes left over")
        size, _, _, flag, body_size = _HEAD.unpack_from(view, position)
        member_end = position + size
        body_start = position + _HEAD.size
        properties_at = body_start + body_size
        if body_size < 0 or member_end > end or properties_at + 2 > member_end:
            raise BatchError(
                f"batch member {len(members)}: sizes {size} and {body_size} do not fit"
            )
        (properties_size,) = _PROPERTIES_LENGTH.unpack_from(view, properties_at)
        if properties_at + 2 + properties_size != member_end or properties_size < 0:
            raise BatchError(f"batch member {len(members)}: properties do not end with the member")
        body = bytes(view[body_start:properties_at])
        members.append(BatchMember(body, bytes(view[properties_at + 2 : member_end]), flag))
        position = member_end
    return members


def merged_properties(member: bytes, request: bytes) -> bytes:
    """What is stored for a member: its own properties unchanged, then those of the request."""
    if not member or member.endswith(b"\x02"):
        return member + request
    return member + b"\x02" + request
