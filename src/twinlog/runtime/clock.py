"""Time, as something that is passed in. The only module that reads the clocks of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

# Linux has a clock that counts while the machine sleeps; elsewhere the monotonic one must do.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class TimerHandle(Protocol):
    """What `call_later_ms` returns."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for everything that is decided."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    def boot_ms(self) -> int:
        """Monotonic time that counts while the machine sleeps: for leases."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None: ...

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> TimerHandle: ...


STEP_MS_MIN = 60_000  # What a wall clock may gain without being taken for set ahead.
STEP_LASTS_MS = 3_600_000


class SteadyWall:
    """Wall time for what is deleted or given up by its age.

    A wall clock that is ahead for a moment must not make everything old at once: a step forward
    counts when it has lasted for an hour. A step back counts at once, it only keeps things longer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()
        self._ahead_since_ms: int | None = None

    def now_ms(self) -> int:
        wall_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        expected_ms = self._wall_ms + monotonic_ms - self._monotonic_ms
        if wall_ms > expected_ms + STEP_MS_MIN:
            if self._ahead_since_ms is None:
                self._ahead_since_ms = monotonic_ms
            if monotonic_ms - self._ahead_since_ms < STEP_LASTS_MS:
                return expected_ms
        self._wall_ms, self._monotonic_ms = wall_ms, monotonic_ms
        self._ahead_since_ms = None
        return wall_ms


class RunningTime:
    """Time in which this process could have heard others: nobody is silent because it stood still
    itself (SIGSTOP, a machine that sleeps or has no turn for it).

    It must be read more often than every `step_ms_max`; what a step has beyond that is left out.
    So it never runs ahead of the clock: who waits by it waits long enough.
    """

    def __init__(self, read_ms: Callable[[], int], step_ms_max: int) -> None:
        self._read_ms = read_ms
        self._step_ms_max = step_ms_max
        self._seen_ms = read_ms()
        self._left_out_ms = 0
        self._resumed_ms: int | None = None

    def now_ms(self) -> int:
        seen_ms, self._seen_ms = self._seen_ms, self._read_ms()
        beyond_ms = self._seen_ms - seen_ms - self._step_ms_max
        if beyond_ms > 0:
            self._left_out_ms += beyond_ms
            self._resumed_ms = self._seen_ms
        return self._seen_ms - self._left_out_ms

    def has_resumed(self, within_ms: int) -> bool:
        """Whether it went on just now, after it had stood still."""
        self.now_ms()
        return self._resumed_ms is not None and self._seen_ms - self._resumed_ms < within_ms


class SystemClock:
    """The clocks of this machine, timers of the running loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback, *arguments)
