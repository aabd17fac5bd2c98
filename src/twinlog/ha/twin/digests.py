"""Looking into a log for the search for the last common record.

All of it comes as generators that read at most one megabyte between two steps: whoever runs them
lets the loop do other things in between (`run_steps` is for those who need not).
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import TypeVar

from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.twin.common import Range
from twinlog.message.layout import (
    BLANK_SIZE_MIN,
    MAGIC_AT,
    MAGIC_BLANK,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_AT,
    PLACE_SIZE,
    SIZE_MAGIC,
    STORE_TIMESTAMP_AT,
)
from twinlog.store.errors import StoreError

_CHUNK_SIZE = 1024 * 1024
# Up to and with the store time of a record: what makes it this record.
_HEADER_SIZE = STORE_TIMESTAMP_AT + 8
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in MESSAGE_MAGICS)
_BACK_SIZE = 64 * 1024

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def run_steps(steps: Steps[Result]) -> Result:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result


def digests_of(log: ReplicaLog, spans: list[Range]) -> Steps[list[str]]:
    """SHA-256 of each [start, end), across files. StoreError when the log has not all of it."""
    digests: list[str] = []
    for start, end in spans:
        digest = hashlib.sha256()
        position = start
        while position < end:
            data = log.read(position, min(_CHUNK_SIZE, end - position))
            if not data:
                raise StoreError(f"the log ends at {position}, before {end}")
            digest.update(data)
            position += len(data)
            yield
        digests.append(digest.hexdigest())
    return digests


def first_record(log: ReplicaLog, start: int, end: int) -> Steps[int | None]:
    """Where the first record begins whose header lies in [start, end).

    No walk from the start of the file: a header is known by its magic and by its own offset.
    """
    position = start
    while position + _HEADER_SIZE <= end:
        data = log.read(position, min(_CHUNK_SIZE, end - position))
        if (at := _find_header(data, position)) is not None:
            return at
        is_file_end = (position + len(data)) % log.segment_size == 0
        # A header does not cross the end of a file, but may cross the end of what was read.
        position += len(data) if is_file_end else max(1, len(data) - _HEADER_SIZE + 1)
        yield
    return None


def _find_header(data: bytes, offset: int) -> int | None:
    found = [_find_magic(data, offset, magic) for magic in _MAGICS]
    return min((at for at in found if at is not None), default=None)


def _find_magic(data: bytes, offset: int, magic: bytes) -> int | None:
    at = data.find(magic, MAGIC_AT)
    while at >= 0:
        start = at - MAGIC_AT
        if start + _HEADER_SIZE > len(data):
            return None
        stored_at = data[start + PHYSICAL_OFFSET_AT : start + PLACE_SIZE]
        if int.from_bytes(stored_at, "big") == offset + start:
            return offset + start
        at = data.find(magic, at + 1)
    return None


def record_ends(log: ReplicaLog, start: int, end: int) -> Steps[tuple[int, list[int]]]:
    """A record start at or before `start`, and the ends of the records from it up to `end`.

    The filler at the end of a file counts as a record.
    """
    segment_size = log.segment_size
    position = anchor = yield from _record_before(log, start)
    ends: list[int] = []
    chunk, chunk_start = b"", position
    while position < end:
        at = position - chunk_start
        if at + BLANK_SIZE_MIN > len(chunk):
            yield
            chunk, chunk_start, at = log.read(position, _CHUNK_SIZE), position, 0
            if len(chunk) < BLANK_SIZE_MIN:
                break
        size, magic = SIZE_MAGIC.unpack_from(chunk, at)
        if magic == MAGIC_BLANK:
            size = segment_size - position % segment_size
        if size < BLANK_SIZE_MIN:
            break
        position += size
        if position <= start:
            anchor = position
        elif position <= end:
            ends.append(position)
    return anchor, ends


def _record_before(log: ReplicaLog, offset: int) -> Steps[int]:
    """A record start at or before `offset`, the nearer the better; a file begins with one."""
    file_start = max(offset - offset % log.segment_size, log.min_offset)
    back = _BACK_SIZE
    while offset - back > file_start:
        found = yield from first_record(log, offset - back, offset)
        if found is not None:
            return found
        back *= 4
    return file_start
