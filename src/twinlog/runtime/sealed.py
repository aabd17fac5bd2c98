"""JSON files with a checksum of their own: a flipped bit in a number is not taken for the number.

The checksum is the last member of the object, so that the file stays JSON for people and tools.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_SEAL = re.compile(rb',?"crc":"([0-9a-f]{8})"\}\s*$')
_EMPTY = b"{}"


class BrokenSealError(ValueError):
    """What is in the file is not what was written."""


def encode_saved(value: Any) -> bytes:
    """A struct or a table, as a file keeps it."""
    return sealed(msgspec.json.encode(value))


def decode_saved(data: bytes, kind: type[_T]) -> _T:
    """What `encode_saved` was given, or JSON of an older release.

    Raises:
        BrokenSealError: the file is damaged, or holds something else. One error for all: a flipped
            bit makes other numbers, no JSON, or no text (`UnicodeDecodeError`), as it comes.
    """
    try:
        return msgspec.json.decode(unsealed(data), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenSealError(str(error)) from error


def sealed(data: bytes) -> bytes:
    """An encoded object, with its checksum."""
    assert data.endswith(b"}")
    comma = b"" if data == _EMPTY else b","
    return data[:-1] + comma + b'"crc":"%08x"}' % zlib.crc32(data)


def unsealed(data: bytes) -> bytes:
    """What `sealed` was given. An older file has no checksum, and is as it is.

    Raises:
        BrokenSealError: the checksum is that of something else.
    """
    seal = _SEAL.search(data)
    if seal is None:
        return data
    content = data[: seal.start()] + b"}"
    if zlib.crc32(content) != int(seal[1], 16):
        raise BrokenSealError("its checksum does not match its content")
    return content
