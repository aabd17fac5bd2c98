"""Half messages of the last moments, as they were put: most are ended while they are here. Pure.

RocketMQ reads the half message back from its log when its end comes. Who is not here any more,
because of a restart, a check or too many others, is read from the log as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from twinlog.message.model import PutMessage

RECENT_SIZE_MAX: Final = 16 << 20  # Of bodies and properties; enough for 15,000 of 1 KiB.
_OVERHEAD: Final = 512  # What an entry takes besides, about.


class RecentHalf(NamedTuple):
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
        self._size = 0
        self._halves: dict[int, RecentHalf] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, physical_offset: int, half: RecentHalf) -> None:
        # Where an append failed the next record gets the same place.
        self.take(physical_offset)
        self._halves[physical_offset] = half
        self._size += _size_of(half)
        while self._size > self._size_max:
            self.take(next(iter(self._halves)))

    def take(self, physical_offset: int) -> RecentHalf | None:
        """The half message that was put there, which is forgotten; None when it is not here."""
        half = self._halves.pop(physical_offset, None)
        if half is not None:
            self._size -= _size_of(half)
        return half

    def find(self, physical_offset: int) -> RecentHalf | None:
        """The same, which stays."""
        return self._halves.get(physical_offset)


def _size_of(half: RecentHalf) -> int:
    return len(half.message.body) + len(half.message.properties) + _OVERHEAD
