"""What a heartbeat brings."""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.controller.record import GroupRecord


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat that left at `sent_ms` (boot clock)."""

    sent_ms: int
    record: GroupRecord | None
    lease_ms: int = 0
    is_admitted: bool = False
    hand_over_to: int | None = None
    frozen: str = ""
