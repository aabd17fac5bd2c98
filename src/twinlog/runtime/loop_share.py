"""Long work on the loop, in pieces: after each of them others have their turn.

How much there is to do is often up to peers: undecided transactions, held pulls, groups of a
heartbeat. Whoever goes through all of it asks `is_used` after each member.
"""

from __future__ import annotations

from twinlog.runtime.clock import Clock

SHARE_MS = 10  # Of one turn of the loop, for one piece of work.


class LoopShare:
    """One piece of work, and its share of the present turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()

    @property
    def is_used(self) -> bool:
        """Whether the rest should wait for the next turn."""
        return self._clock.monotonic_ms() - self._began_ms >= SHARE_MS

    def renew(self) -> None:
        """A turn begins."""
        self._began_ms = self._clock.monotonic_ms()

    async def rest(self) -> None:
        """Let others have as much time as this had, then go on."""
        await self._clock.sleep_ms(SHARE_MS)
        self.renew()
