"""Digests of the log in ranges of 1 MiB, in files of `store/twinlog/digests/`, one for a segment.

RocketMQ's record has a CRC of the body only; a digest of the range covers headers and properties,
too, and proves that bytes fetched from a replica are the ones that were lost. A range gets its
digest soon after all of it is written and synced, or when it was walked without a fault.

| position | type | field |
|---|---|---|
| 0 | 8 | `TWINDIG1` |
| 8 | i64 | offset of the segment |
| 16 | i64 | size of the segment |
| 24 | i32 | size of a range |
| 28 | i32 | number of digests |
| 32 | 16 each | BLAKE2b of a range, 128 bits; zeros: not known |
| behind | u32 | CRC-32 of all of it |
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
import struct
import zlib
from typing import Final

from twinlog.runtime.disk import Disk, write_atomically
from twinlog.store.log.segment import parse_segment_name, segment_name

_LOG = logging.getLogger("twinlog.store")
RANGE_SIZE: Final = 1 << 20
DIGEST_SIZE: Final = 16
_MAGIC: Final = b"TWINDIG1"
_NONE: Final = bytes(DIGEST_SIZE)  # Of a range that was not sound when its turn came.
_HEAD: Final = struct.Struct(">8sqqii")
_CRC: Final = struct.Struct(">I")


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE).digest()


class RangeDigests:
    """The digests that are known, by segment. Read when they are asked for."""

    def __init__(self, disk: Disk, own_directory: str, segment_size: int) -> None:
        self._disk = disk
        self._own_directory = own_directory
        self._directory = posixpath.join(own_directory, "digests")
        self._segment_size = segment_size
        self._known: dict[int, list[bytes]] = {}
        self._dirty: set[int] = set()

    def of(self, segment_start: int) -> list[bytes]:
        """Of the first ranges of a segment, as many as are known."""
        known = self._known.get(segment_start)
        if known is None:
            known = self._known[segment_start] = self._read(segment_start)
        return known

    def find(self, offset: int) -> bytes | None:
        """Of the range that begins at `offset`."""
        start = offset - offset % self._segment_size
        known, number = self.of(start), (offset - start) // RANGE_SIZE
        digest = known[number] if number < len(known) else _NONE
        return None if digest == _NONE else digest

    def add(self, offset: int, digest: bytes) -> None:
        """The range at `offset` is complete and sound."""
        start = offset - offset % self._segment_size
        known, number = self.of(start), (offset - start) // RANGE_SIZE
        known += [_NONE] * (number + 1 - len(known))
        known[number] = digest
        self._dirty.add(start)

    def forget(self, offset: int) -> None:
        """The range at `offset` is to be another one."""
        start = offset - offset % self._segment_size
        known, number = self.of(start), (offset - start) // RANGE_SIZE
        if number < len(known):
            known[number] = _NONE
            self._dirty.add(start)

    def truncate(self, offset: int) -> None:
        """The log was cut: what was digested behind may be written again."""
        starts = {*self._known, *self._starts_on_disk()}
        for start in starts:
            if start + self._segment_size <= offset:
                continue
            kept = max(0, offset - start) // RANGE_SIZE
            known = self.of(start)
            if len(known) > kept:
                del known[kept:]
                self._dirty.add(start)
        self.save()

    def remove_before(self, offset: int) -> None:
        """Retention took these segments, also what of them is new and not written yet."""
        is_gone = lambda start: start + self._segment_size <= offset  # noqa: E731
        for start in filter(is_gone, [*self._known]):
            del self._known[start]
            self._dirty.discard(start)
        for start in filter(is_gone, self._starts_on_disk()):
            self._disk.unlink(self._path(start))

    def broken_file(self, segment_start: int) -> str:
        """Its path, if there is a file for the segment that does not hold what is known."""
        path, known = self._path(segment_start), self.of(segment_start)
        if not self._disk.exists(path):
            return path if known else ""
        data = self._disk.read_bytes(path)
        return "" if decode_digests(data, segment_start, self._segment_size) == known else path

    def mend_files(self) -> None:
        """What has decayed on the disk since it was read is written again by `save`."""
        for start in [*self._known]:
            if start not in self._dirty and (path := self.broken_file(start)):
                _LOG.warning("digests did not match what was written, written again path=%s", path)
                self._dirty.add(start)

    def save(self) -> None:
        """Write what is new. Raises OSError; nothing is lost then but work."""
        if not self._dirty:
            return
        if not self._disk.exists(self._directory):
            self._disk.make_directories(self._directory)
            self._disk.fsync_directory(self._own_directory)
        for start in sorted(self._dirty):
            write_atomically(self._disk, self._path(start), self._encode(start))
            self._dirty.discard(start)

    def _encode(self, start: int) -> bytes:
        known = self._known[start]
        head = _HEAD.pack(_MAGIC, start, self._segment_size, RANGE_SIZE, len(known))
        data = head + b"".join(known)
        return data + _CRC.pack(zlib.crc32(data))

    def _read(self, start: int) -> list[bytes]:
        path = self._path(start)
        if not self._disk.exists(path):
            return []
        found = decode_digests(self._disk.read_bytes(path), start, self._segment_size)
        if found is None:
            _LOG.warning("digests not readable, computed again path=%s", path)
        return found or []

    def _starts_on_disk(self) -> list[int]:
        names = self._disk.list(self._directory)
        return [start for name in names if (start := parse_segment_name(name)) is not None]

    def _path(self, start: int) -> str:
        return posixpath.join(self._directory, segment_name(start))


def decode_digests(data: bytes, start: int, segment_size: int) -> list[bytes] | None:
    """The digests in a file for this segment; None when it is damaged or another's."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    content, (crc,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    magic, own_start, own_size, range_size, count = _HEAD.unpack_from(content)
    is_own = (magic, own_start, own_size, range_size) == (_MAGIC, start, segment_size, RANGE_SIZE)
    if zlib.crc32(content) != crc or not is_own or len(content) != _HEAD.size + DIGEST_SIZE * count:
        return None
    digests = content[_HEAD.size :]
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]
