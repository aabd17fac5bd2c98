"""A commit log in memory, for tests of the shells: the contract of ReplicaLog and nothing else."""

from __future__ import annotations

from twinlog.runtime.watermark import Watermark
from twinlog.store.errors import OffsetOutOfRangeError, StoreError


class FakeLog:
    def __init__(self, segment_size: int = 1000, data: bytes = b"", start: int = 0) -> None:
        self.segment_size = segment_size
        self.appended = Watermark("appended", start + len(data))
        self.start = start
        self.data = bytearray(data)
        self.append_sizes: list[int] = []
        self.fails_with: OSError | None = None
        self.cuts: list[tuple[int, str]] = []

    @property
    def min_offset(self) -> int:
        return self.start

    @property
    def max_offset(self) -> int:
        return self.start + len(self.data)

    def read(self, offset: int, size_max: int) -> bytes:
        if not self.start <= offset <= self.max_offset:
            raise OffsetOutOfRangeError(f"{offset}")
        file_end = offset - offset % self.segment_size + self.segment_size
        end = min(offset + size_max, file_end, self.max_offset)
        return bytes(self.data[offset - self.start : end - self.start])

    def append_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.write_raw(offset, data)
        self.announce_raw()

    def announce_raw(self) -> None:
        self.appended.advance(self.max_offset)

    def write_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if self.fails_with:
            raise self.fails_with
        if offset != self.max_offset:
            raise StoreError(f"{offset} is not the end {self.max_offset}")
        self.append_sizes.append(len(data))
        self.data += data

    def put(self, data: bytes) -> int:
        """A master's append."""
        self.data += data
        self.appended.advance(self.max_offset)
        return self.max_offset

    def start_at(self, offset: int) -> None:
        assert not self.data
        self.start = offset
        self.appended.reset(offset, "started")

    def truncate_to(self, offset: int, *, reason: str) -> None:
        self.cuts.append((offset, reason))
        del self.data[offset - self.start :]
        self.appended.reset(offset, reason)


class FakeStore:
    def __init__(self, log: FakeLog) -> None:
        self.commit_log = log
        self.appended = log.appended
        self.flushed = Watermark("flushed", log.max_offset)
        self.dispatched = log.appended
        self.was_clean = True
        self.holds: list[str] = []

    async def flush(self) -> int:
        self.flushed.advance(self.commit_log.max_offset)
        return self.flushed.value

    def hold_puts(self, reason: str) -> None:
        self.holds.append(reason)

    def release_puts(self) -> bool:
        self.holds.append("")
        return True
