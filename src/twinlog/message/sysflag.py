"""Bits of the SYSFLAG field. Corresponds to RocketMQ's MessageSysFlag and CompressionType.

| bits | meaning |
|---|---|
| 0 | body is compressed |
| 1 | topic is of filter type MULTI_TAG |
| 2-3 | transaction: none, PREPARED, COMMIT, ROLLBACK |
| 4 | born host is IPv6 |
| 5 | store host is IPv6 |
| 6, 7 | need unwrap, inner batch: 5.x only |
| 8-10 | compression type; 0 means zlib, for records written before the field existed |
"""

from __future__ import annotations

from enum import IntEnum

COMPRESSED_FLAG = 0x1
MULTI_TAGS_FLAG = 0x2
TRANSACTION_NOT_TYPE = 0x0
TRANSACTION_PREPARED_TYPE = 0x4
TRANSACTION_COMMIT_TYPE = 0x8
TRANSACTION_ROLLBACK_TYPE = 0xC
UNQUEUED_FLAG = 0x4  # Set in PREPARED and ROLLBACK, whose records have no queue.
BORNHOST_V6_FLAG = 0x10
STOREHOSTADDRESS_V6_FLAG = 0x20
NEED_UNWRAP_FLAG = 0x40
INNER_BATCH_FLAG = 0x80
HOSTS_V6_MASK = BORNHOST_V6_FLAG | STOREHOSTADDRESS_V6_FLAG
COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_MASK = COMPRESSED_FLAG | COMPRESSION_TYPE_MASK  # What says how to read the body.
_COMPRESSION_TYPE_SHIFT = 8


class CompressionType(IntEnum):
    """RocketMQ's numbers."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def transaction_type(sys_flag: int) -> int:
    """The transaction bits alone."""
    return sys_flag & TRANSACTION_ROLLBACK_TYPE


def is_rollback(sys_flag: int) -> bool:
    """Whether it is the record that a half message was rolled back."""
    return transaction_type(sys_flag) == TRANSACTION_ROLLBACK_TYPE


def with_transaction_type(sys_flag: int, kind: int) -> int:
    """`sys_flag` with its transaction bits replaced."""
    return (sys_flag & ~TRANSACTION_ROLLBACK_TYPE) | kind


def compression_type(sys_flag: int) -> CompressionType:
    """Which codec a compressed body used. Raises ValueError for a number nobody assigned."""
    number = (sys_flag & COMPRESSION_TYPE_MASK) >> _COMPRESSION_TYPE_SHIFT
    return CompressionType(number) if number else CompressionType.ZLIB


def with_compression_type(sys_flag: int, kind: CompressionType) -> int:
    """`sys_flag` marked as compressed by `kind`."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | (kind << _COMPRESSION_TYPE_SHIFT) | COMPRESSED_FLAG
