"""Where the records of all groups are kept: what a controller's shell asks of it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from twinlog.controller.record import GroupRecord


class StoreOutcome(Enum):
    """UNKNOWN: it may be written, now or later; the record must be read again."""

    DONE = "done"
    STALE = "stale"
    UNKNOWN = "unknown"


class RecordStoreError(Exception):
    """The records cannot be read; the text says where and why."""


class RecordStore(Protocol):
    """Compare-and-set by `version`: version n replaces version n-1 and nothing else."""

    async def load_all(self) -> list[GroupRecord]: ...

    async def load(self, group: str) -> GroupRecord | None: ...

    async def commit(self, record: GroupRecord) -> StoreOutcome: ...

    def close(self) -> None: ...
