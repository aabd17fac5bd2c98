"""Long work on the loop, in pieces: after each of them others have their turn.

How much there is to do is often up to peers: undecided transactions, held pulls, groups of a
heartbeat. Whoever goes through all of it asks `is_used` after each member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from twinlog.runtime.clock import Clock

SHARE_MS = 10  # Of one turn of the loop, for one piece of work.
# Of the turn that brings a request, for what may turn out to be long: what is short is done in it.
FIRST_SHARE_MS = 2
LONG_SHARE_MS = 5  # At a time, for all that is long; then as much for the others.


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


def is_done_within(steps: Iterator[None], clock: Clock, share_ms: int) -> bool:
    """Go on with work in steps for its share of this turn; whether it came to its end."""
    end_ms = clock.monotonic_ms() + share_ms
    return all(clock.monotonic_ms() < end_ms for _ in steps)


class Rotation:
    """Work in steps of many peers, one after the other, for at most half of the loop's time.

    A hundred peers that ask for much hold up the others no longer than one of them does.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[Iterator[None], Callable[[Exception | None], None]]] = deque()

    def add(self, steps: Iterator[None], ended: Callable[[Exception | None], None]) -> None:
        """From a later turn on; `ended` is told of the end, or of the error that is the end."""
        self._waiting.append((steps, ended))
        if len(self._waiting) == 1:
            self._rest()

    def _rest(self) -> None:
        self._clock.call_later_ms(LONG_SHARE_MS, self._go_on)

    def _go_on(self) -> None:
        steps, ended = self._waiting[0]
        error: Exception | None = None
        try:
            is_done = is_done_within(steps, self._clock, LONG_SHARE_MS)
        except Exception as raised:
            is_done, error = True, raised
        self._waiting.popleft()
        if not is_done:
            self._waiting.append((steps, ended))
        if self._waiting:
            self._rest()
        if is_done:
            ended(error)
