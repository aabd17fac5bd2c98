"""The records of a batch in one pass, compiled: `batch_put.py` has the Python form."""

from collections.abc import Callable

def encode_body(
    body: bytes,
    *,
    crc32: Callable[[bytes], int],
    mark: bytes,
    tail: bytes,
    topic: bytes,
    prefix: int,
    magic: int,
    middle: bytes,
    id_prefix: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    count_max: int,
    keys_max: int,
) -> tuple[bytes, bytes, int, bytearray, bytearray, int, str] | None: ...
