"""Bodies, compressed as RocketMQ's clients do: zlib, LZ4 frames, Zstandard.

LZ4 and Zstandard are extras; a body in a form that is not installed is an error that says which
package to install. Inflating is bounded: a small body must not become all of the memory.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from types import ModuleType

from twinlog.message.sysflag import COMPRESSED_FLAG, CompressionType, compression_type

INFLATED_SIZE_MAX = 64 * 1024 * 1024  # Sixteen times what a 4.9 broker takes as one body.
_ZSTD_PIECE_SIZE = 256  # At most 64 run-length blocks of 128 KiB each: 8 MiB.
DEFAULT_LEVEL = 5  # `rocketmq.message.compressLevel` of the Java client.


class CompressionError(ValueError):
    """A body cannot be deflated or inflated; the message says why."""


def compress(body: bytes, kind: CompressionType, level: int = DEFAULT_LEVEL) -> bytes:
    """`body` in the compressed form of `kind`."""
    if kind is CompressionType.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionType.LZ4:
        result: bytes = _need_lz4().compress(body, compression_level=level)
    else:
        result = _need_zstd().ZstdCompressor(level=level).compress(body)
    return result


def decompress(body: bytes, kind: CompressionType, *, size_max: int = INFLATED_SIZE_MAX) -> bytes:
    """The inflated form of `body`, at most `size_max` bytes."""
    try:
        if kind is CompressionType.ZLIB:
            result = _inflate_zlib(body, size_max)
        elif kind is CompressionType.LZ4:
            result = _inflate_lz4(body, size_max)
        else:
            result = _inflate_zstd(body, size_max)
    except CompressionError:
        raise
    except (zlib.error, RuntimeError, ValueError, EOFError) as error:
        raise CompressionError(f"body is not {kind.name}: {error}") from error
    if len(result) > size_max:
        raise CompressionError(f"inflated body exceeds {size_max} bytes")
    return result


def inflate_body(body: bytes, sys_flag: int, *, size_max: int = INFLATED_SIZE_MAX) -> bytes:
    """The body as the producer gave it: inflated when the flag says that it is compressed."""
    if not sys_flag & COMPRESSED_FLAG:
        return body
    try:
        kind = compression_type(sys_flag)
    except ValueError as error:
        raise CompressionError(f"unknown compression type in sysFlag {sys_flag:#x}") from error
    return decompress(body, kind, size_max=size_max)


def _inflate_zlib(body: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    result = inflater.decompress(body, size_max + 1)
    if len(result) <= size_max and not inflater.eof:
        raise CompressionError("zlib body ends too early")
    return result


def _inflate_lz4(body: bytes, size_max: int) -> bytes:
    inflater = _need_lz4().LZ4FrameDecompressor()
    result: bytes = inflater.decompress(body, max_length=size_max + 1)
    if len(result) <= size_max and not inflater.eof:
        raise CompressionError("LZ4 body ends too early")
    return result


def _inflate_zstd(body: bytes, size_max: int) -> bytes:
    zstandard = _need_zstd()
    inflater = zstandard.ZstdDecompressor().decompressobj()
    parts, size = [], 0
    try:
        # It has no limit of its own: small pieces bound what one of them can become.
        for start in range(0, len(body), _ZSTD_PIECE_SIZE):
            parts.append(inflater.decompress(body[start : start + _ZSTD_PIECE_SIZE]))
            size += len(parts[-1])
            if size > size_max or inflater.eof:
                break
    except zstandard.ZstdError as error:
        raise CompressionError(f"body is not ZSTD: {error}") from error
    if size <= size_max and not inflater.eof:
        raise CompressionError("Zstandard body ends too early")
    return b"".join(parts)


def _need_lz4() -> ModuleType:
    try:
        return import_module("lz4.frame")
    except ImportError as error:
        raise CompressionError("body is LZ4: install twinlog[lz4]") from error


def _need_zstd() -> ModuleType:
    try:
        return import_module("zstandard")
    except ImportError as error:
        raise CompressionError("body is Zstandard: install twinlog[zstd]") from error
