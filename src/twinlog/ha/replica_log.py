"""What replication needs of a commit log. `store.log.commit_log.CommitLog` is one."""

from __future__ import annotations

from typing import Protocol

from twinlog.runtime.watermark import Watermark


class ReplicaLog(Protocol):
    """A log of bytes in files of one size, addressed by physical offset."""

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    @property
    def segment_size(self) -> int: ...

    def read(self, offset: int, size_max: int) -> bytes:
        """Bytes at `offset`, never across the end of a file or of the log."""
        ...

    def append_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write at the end, now; all of it or an error and nothing counted."""
        ...

    def write_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """As `append_raw`, but nobody is told yet: `announce_raw` follows in the same turn."""
        ...

    def announce_raw(self) -> None:
        """Tell those who follow the log what `write_raw` wrote."""
        ...

    def start_at(self, offset: int) -> None:
        """Begin an empty log at `offset`."""
        ...

    def truncate_to(self, offset: int, *, reason: str) -> None:
        """Cut the log back to `offset`; the cut bytes are moved aside."""
        ...


class ReplicaStore(Protocol):
    """The store around the log: its end as a watermark."""

    @property
    def commit_log(self) -> ReplicaLog: ...

    @property
    def appended(self) -> Watermark: ...

    @property
    def flushed(self) -> Watermark: ...

    @property
    def dispatched(self) -> Watermark: ...

    @property
    def was_clean(self) -> bool:
        """Whether the last process ended with everything on disk."""
        ...

    async def flush(self) -> int:
        """Make all that is appended durable."""
        ...

    def hold_puts(self, reason: str) -> None:
        """A master takes no message until `release_puts`; raw bytes may be appended."""
        ...

    def release_puts(self) -> bool:
        """Take messages again; False while what was appended is not dispatched."""
        ...
