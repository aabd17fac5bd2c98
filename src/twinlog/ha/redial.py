"""When a slave dials again. Pure.

RocketMQ 4.9 redials without a pause after a close, thousands of times per second against a peer
that accepts and closes. Here: at once after a connection that had brought log bytes, then 1, 2, 4,
5 s.
"""

from __future__ import annotations

from typing import Final

DELAYS_MS: Final = (1000, 2000, 4000, 5000)
# In a controlled group: sends wait for a member that has not dialled its new master yet.
GROUP_DELAYS_MS: Final = (20, 50, 100, 100, 200, 500)


class RedialPolicy:
    """Counts attempts in a row that brought nothing."""

    __slots__ = ("_delays_ms", "_failure_count")

    def __init__(self, delays_ms: tuple[int, ...] = DELAYS_MS) -> None:
        self._delays_ms = delays_ms
        self._failure_count = 0

    def next_delay_ms(self, *, brought_data: bool) -> int:
        """The pause before the next attempt, given what the last connection brought."""
        if brought_data:
            self._failure_count = 0
            return 0
        delay_ms = self._delays_ms[min(self._failure_count, len(self._delays_ms) - 1)]
        self._failure_count += 1
        return delay_ms

    def reset(self) -> None:
        """The master's address changed: start over."""
        self._failure_count = 0
