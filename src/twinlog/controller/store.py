"""Where the records of all groups are kept, and who may write them: what a controller's shell asks.

One controller leads at a time: with a file whoever holds its lock, with etcd whoever holds the
lease.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from twinlog.controller.record import GroupRecord


class StoreOutcome(Enum):
    """UNKNOWN: it may be written, now or later; the record must be read again."""

    DONE = "done"
    STALE = "stale"
    UNKNOWN = "unknown"


class RecordStoreError(Exception):
    """The records cannot be read; the text says where and why."""


class Leader(msgspec.Struct, frozen=True):
    """The controller that decides."""

    id: str
    address: str


class RecordStore(Protocol):
    """Compare-and-set by `version`: version n replaces version n-1 and nothing else."""

    me: Leader
    """Who this controller is; set before it leads."""

    @property
    def leader(self) -> Leader | None:
        """Who leads, as far as is known."""
        ...

    @property
    def problem(self) -> str:
        """Why nobody is known to lead, in words."""
        ...

    @property
    def is_leading(self) -> bool: ...

    async def lead(self) -> list[GroupRecord]:
        """Wait until this controller leads; the records it begins with."""
        ...

    async def led(self) -> str:
        """Wait until it leads no more; the reason."""
        ...

    async def load(self, group: str) -> GroupRecord | None: ...

    async def commit(self, record: GroupRecord) -> StoreOutcome: ...

    async def close(self) -> None: ...
