"""Bodies on their way out: values become bytes, large bytes become smaller ones."""

from __future__ import annotations

from typing import Any

from twinlog.client.errors import ClientError, InvalidMessageError, UsageError
from twinlog.client.serializers import Serializer
from twinlog.message import sysflag
from twinlog.message.compression import compress
from twinlog.message.sysflag import CompressionType

_COMPRESSION = {
    "zlib": CompressionType.ZLIB,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
    None: None,
}


class Bodies:
    """How one producer writes its bodies."""

    def __init__(
        self,
        *,
        compress_over: int | None,
        compression: str | None,
        size_max: int,
        serializer: Serializer | None,
    ) -> None:
        if compression not in _COMPRESSION:
            raise UsageError(f"compression must be zlib, lz4, zstd or None, not {compression!r}")
        self._compression = _COMPRESSION[compression]
        self._compress_over = compress_over if self._compression is not None else None
        self._serializer = serializer
        self.plain_size_max = size_max
        """Bodies up to this size leave as they are."""
        if self._compress_over is not None:
            self.plain_size_max = min(size_max, self._compress_over - 1)

    def of_value(self, value: Any) -> bytes:
        """What the serializer makes of a value."""
        if self._serializer is None:
            raise UsageError(
                "this producer has no serializer: open it with Producer(..., serializer=JSON)"
            )
        try:
            return self._serializer.dumps(value)
        except ClientError:
            raise
        except Exception as error:
            # Whatever a serializer of somebody else raises.
            raise InvalidMessageError(
                f"the value cannot be written by the serializer: {error!r}"
            ) from error

    def compressed(self, body: bytes) -> tuple[int, bytes]:
        """The system flag and the bytes to send for a body."""
        kind = self._compression
        if kind is None or self._compress_over is None or len(body) < self._compress_over:
            return 0, body
        smaller = compress(body, kind)
        if len(smaller) >= len(body):
            return 0, body
        return sysflag.with_compression_type(0, kind), smaller
