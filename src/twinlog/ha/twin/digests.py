"""Digests and record boundaries of a log, for the search for the last common record."""

from __future__ import annotations

import hashlib

from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.twin.common import Range

_CHUNK_SIZE = 1024 * 1024
_MAGIC_BLANK = 0xCBD43194
_RECORD_SIZE_MIN = 8


def digest_of(log: ReplicaLog, span: Range) -> str:
    """SHA-256 of [start, end), across files. Raises StoreError when the log has not all of it."""
    start, end = span
    digest = hashlib.sha256()
    while start < end:
        data = log.read(start, min(_CHUNK_SIZE, end - start))
        assert data
        digest.update(data)
        start += len(data)
    return digest.hexdigest()


def record_ends(log: ReplicaLog, start: int, end: int) -> tuple[int, list[int]]:
    """A record start at or before `start`, and the ends of the records from it up to `end`.

    Walks from the start of the file that holds `start`: a file always begins with a record. The
    filler at the end of a file counts as a record.
    """
    segment_size = log.segment_size
    position = max(start - start % segment_size, log.min_offset)
    anchor = position
    ends: list[int] = []
    chunk, chunk_start = b"", position
    while position < end:
        at = position - chunk_start
        if at + _RECORD_SIZE_MIN > len(chunk):
            chunk, chunk_start, at = log.read(position, _CHUNK_SIZE), position, 0
            if len(chunk) < _RECORD_SIZE_MIN:
                break
        size = int.from_bytes(chunk[at : at + 4], "big")
        if int.from_bytes(chunk[at + 4 : at + 8], "big") == _MAGIC_BLANK:
            size = segment_size - position % segment_size
        if size < _RECORD_SIZE_MIN:
            break
        position += size
        if position <= start:
            anchor = position
        elif position <= end:
            ends.append(position)
    return anchor, ends
