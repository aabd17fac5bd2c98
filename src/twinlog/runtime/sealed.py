"""JSON files with a checksum of their own: a flipped bit in a number is not taken for the number.

The checksum is the last member of the object, so that the file stays JSON for people and tools.
"""

from __future__ import annotations

import re
import zlib

_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\s*$')


class BrokenSealError(ValueError):
    """What is in the file is not what was written."""


def sealed(data: bytes) -> bytes:
    """An encoded object that is not empty, with its checksum."""
    assert data.endswith(b"}")
    return data[:-1] + b',"crc":"%08x"}' % zlib.crc32(data)


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
