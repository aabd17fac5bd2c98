"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any


class _Timer:
    """A call that is due at a time, until it is cancelled."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback = callback
        self.arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """Both clocks start at `now_ms`; `advance` moves them and runs what became due, in order."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._wall_offset_ms = 0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms + self._wall_offset_ms

    def step_wall(self, duration_ms: int) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._wall_offset_ms += duration_ms

    def monotonic_ms(self) -> int:
        return self._now_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms()

    def advance(self, duration_ms: int) -> None:
        end = self._now_ms + duration_ms
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, int(due))
            if not timer.is_cancelled:
                timer.callback(*timer.arguments)
        self._now_ms = end

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleeping takes the time and no more: nobody has to advance for it."""
        self.advance(int(duration_ms))
        await asyncio.sleep(0)

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> _Timer:
        timer = _Timer(callback, arguments)
        heapq.heappush(self._timers, (self._now_ms + delay_ms, next(self._numbers), timer))
        return timer
