"""Time, as something that is passed in. The only module that reads the clocks of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class TimerHandle(Protocol):
    """What `call_later_ms` returns."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for everything that is decided."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...

    async def sleep_ms(self, duration_ms: float) -> None: ...

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> TimerHandle: ...


class SystemClock:
    """The clocks of this machine, timers of the running loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback, *arguments)
