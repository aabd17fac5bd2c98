"""The clock of one simulated host: virtual time, and a wall clock that may be wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from twinlog.runtime.clock import TimerHandle
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimHost, wake

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Reads the loop's time, as fast as `host.clock_rate` says; `host.wall_offset_ms` moves the
    wall clock only."""

    def __init__(self, loop: SimLoop, host: SimHost) -> None:
        self._loop = loop
        self._host = host

    def now_ms(self) -> int:
        return EPOCH_MS + self._host.wall_offset_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(self._loop.now_s * 1000 * self._host.clock_rate)

    def boot_ms(self) -> int:
        return self.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        # As asyncio.sleep does it, without asking which loop runs.
        delay_s = duration_ms / 1000 / self._host.clock_rate
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        future = self._loop.create_future()
        handle = self._loop.call_later(delay_s, wake, future)
        try:
            await future
        finally:
            handle.cancel()

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> TimerHandle:
        delay_s = delay_ms / 1000 / self._host.clock_rate
        return self._loop.call_later(delay_s, callback, *arguments)
