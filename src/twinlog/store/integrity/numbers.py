"""Whether the records of each queue are numbered as they lie in the log. Pure.

A record's number in its queue has no checksum. A start refuses to build queues with one that cannot
be right; `twinlog store verify` names it, and `give-up` gives it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from twinlog.message.layout import ENTRY
from twinlog.store.integrity.record_check import number_max
from twinlog.store.integrity.walk import Run


class WrongNumber(NamedTuple):
    """A record whose number is higher than any that it can have."""

    offset: int
    size: int
    reason: str


class Numbers:
    """Follows all queues along the log, piece by piece."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}  # Next number, end of the last.

    def wrong(self, runs: list[Run]) -> Iterator[WrongNumber]:
        """Among the next records of the log."""
        for run in runs:
            key, count = (run.topic, run.queue_id), len(run.entries) // ENTRY.size
            offset, size, _ = ENTRY.unpack_from(run.entries)
            last_offset, last_size, _ = ENTRY.unpack_from(run.entries, ENTRY.size * (count - 1))
            number = run.first_number
            known = self._ends.get(key)
            if known is not None and number > number_max(*known, offset):
                queue = f"queue {run.topic}-{run.queue_id}"
                reason = f"it says that it is number {number} of {queue}, which ends at {known[0]}"
                yield WrongNumber(offset, size, reason)
                number = known[0]
            self._ends[key] = (number + count, last_offset + last_size)
