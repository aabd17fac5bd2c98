"""Half messages of the last moments, as they were put: most are ended while they are here. Pure.

RocketMQ reads the half message back from its log when its end comes. Who is not here any more,
because of a restart, a check or too many others, is read from the log as well. The compiled end of
a transaction takes what it commits out of `by_offset` and `size` itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from twinlog.message.model import PutMessage

RECENT_SIZE_MAX: Final = 16 << 20  # Of bodies and properties; enough for 15,000 of 1 KiB.
OVERHEAD: Final = 512  # What an entry takes besides, about.


class RecentHalf(msgspec.Struct, gc=False):
    """A half message, where it is and where it is meant to go."""

    message: PutMessage
    topic: str
    queue_id: int
    half_offset: int
    must_wait: bool


class RecentHalves:
    """Half messages by physical offset, the oldest dropped when they are too many."""

    def __init__(self, size_max: int = RECENT_SIZE_MAX) -> None:
        self._size_max = size_max
        self.size = 0
        self.by_offset: dict[int, RecentHalf] = {}

    def __len__(self) -> int:
        return len(self.by_offset)

    def add(self, physical_offset: int, half: RecentHalf) -> None:
        halves, message = self.by_offset, half.message
        if physical_offset in halves:  # An append failed: the next record gets the same place.
            self.take(physical_offset)
        halves[physical_offset] = half
        self.size += len(message.body) + len(message.properties) + OVERHEAD
        while self.size > self._size_max:
            self.take(next(iter(halves)))

    def take(self, physical_offset: int) -> RecentHalf | None:
        """The half message that was put there, which is forgotten; None when it is not here."""
        half = self.by_offset.pop(physical_offset, None)
        if half is not None:
            self.size -= len(half.message.body) + len(half.message.properties) + OVERHEAD
        return half

    def find(self, physical_offset: int) -> RecentHalf | None:
        """The same, which stays."""
        return self.by_offset.get(physical_offset)
