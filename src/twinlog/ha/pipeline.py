"""How many frames may be on their way to one slave before the next one gathers. Pure.

A frame costs both ends nearly the same whether it carries one send or a hundred. Next door, one at
a time is best: its acknowledgement is back before many sends have come, and those share the next
frame, as in a group commit. Far away that would hold up every send for a round trip. There as many
frames may be under way as the round trip has quarters of a millisecond, so that a send waits for a
fraction of a millisecond, and the frames per second stay as many.

The round trip is the shortest one of the last seconds: a slave that is busy looks far away in most
of them, but not in all.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FRAMES_PER_MS: Final = 4  # Both ends spend about 0.1 ms on a frame and its acknowledgement.
FRAMES_MAX: Final = 64
PERIOD_MS: Final = 5_000  # The shortest round trip of this period and of the one before counts.
_UNKNOWN: Final = 1 << 62


class Pipeline:
    """The frames that one slave has not acknowledged yet."""

    __slots__ = ("_before_ms", "_ends", "_period_ms", "_probe", "_probe_ms", "_shortest_ms",
                 "count_max")  # fmt: skip

    def __init__(self, now_ms: int) -> None:
        self.count_max = 1
        self._ends: deque[int] = deque()
        self._probe = -1  # The end of the frame whose acknowledgement is timed.
        self._probe_ms = 0
        self._shortest_ms = self._before_ms = _UNKNOWN
        self._period_ms = now_ms

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def is_full(self) -> bool:
        """Whether the next frame gathers until an acknowledgement comes."""
        return len(self._ends) >= self.count_max

    def sent(self, end_offset: int, now_ms: int) -> None:
        """A frame up to `end_offset` has left."""
        ends = self._ends
        if len(ends) < FRAMES_MAX:
            ends.append(end_offset)
        else:
            ends[-1] = end_offset  # A long copy: the last one stands for all that follow.
        if self._probe < 0:
            self._probe, self._probe_ms = end_offset, now_ms

    def acked(self, offset: int, now_ms: int) -> None:
        """The slave has all frames up to `offset`."""
        ends = self._ends
        while ends and ends[0] <= offset:
            ends.popleft()
        if 0 <= self._probe <= offset:
            self._probe = -1
            self._note(now_ms - self._probe_ms, now_ms)

    def _note(self, round_trip_ms: int, now_ms: int) -> None:
        if now_ms - self._period_ms >= PERIOD_MS:
            self._before_ms, self._shortest_ms = self._shortest_ms, _UNKNOWN
            self._period_ms = now_ms
        if round_trip_ms < self._shortest_ms:
            self._shortest_ms = round_trip_ms
        shortest_ms = min(self._shortest_ms, self._before_ms)
        self.count_max = max(1, min(FRAMES_PER_MS * shortest_ms, FRAMES_MAX))
