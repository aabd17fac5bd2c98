"""What can go wrong in the store.

    StoreError
    +-- StoreLockedError      another process uses the directory
    +-- StoreLayoutError      files that do not fit the configuration or each other
    +-- StoreDamagedError     bytes that were known to be durable are not a valid log
    +-- StoreBrokenError      a write or a sync failed; only a restart helps
    +-- OffsetOutOfRangeError an offset that the log does not hold
    +-- RecordDamagedError    one record is not as it was written; it is not handed out

Each message says what was wrong and what to do. A refused put is a status, not an exception.
"""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was asked."""


class StoreLockedError(StoreError):
    """Another process holds the lock of the store directory."""


class StoreLayoutError(StoreError):
    """Files do not fit the configuration or each other; nothing was changed."""


class StoreDamagedError(StoreError):
    """Records that had been flushed cannot be read; nothing behind them is served."""

    def __init__(self, message: str, *, path: str, physical_offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.physical_offset = physical_offset


class StoreBrokenError(StoreError):
    """The disk refused a write or a sync: what is durable is unknown until a restart."""


class OffsetOutOfRangeError(StoreError):
    """The log does not hold this offset."""


class RecordDamagedError(StoreError):
    """A record is not as it was written. With `is_retried` a replica may give a good one soon."""

    def __init__(self, message: str, *, is_retried: bool) -> None:
        super().__init__(message)
        self.is_retried = is_retried
