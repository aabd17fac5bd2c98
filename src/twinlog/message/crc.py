"""CRC-32 of a message body, as RocketMQ stores it: IEEE, masked to 31 bits, 0 for no body.

isal uses carry-less multiplication and is about 20 times as fast as an unoptimised zlib; the
result is the same, so zlib is the fall-back where isal has no wheel.
"""

from __future__ import annotations

from typing_extensions import Buffer

from twinlog.message.layout import CRC_MASK

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32


crc32 = _crc32


def body_crc(body: Buffer) -> int:
    """The BODYCRC field of `body`."""
    crc: int = _crc32(body)
    return crc & CRC_MASK
