"""Brokers that were slow or failed are left alone for a while.

Corresponds to MQFaultStrategy and LatencyFaultToleranceImpl: the table of latencies and pauses is
RocketMQ's. Time comes in; nothing is read from the world.
"""

from __future__ import annotations

from collections.abc import Sequence

LATENCY_MS = (50, 100, 550, 1000, 2000, 3000, 15000)
PAUSE_MS = (0, 0, 30000, 60000, 120000, 180000, 600000)
# A failure counts as this latency. RocketMQ says 30 s, which pauses a restarted broker for ten
# minutes; a failed broker is watched by its connection here, so a short pause is enough.
FAILURE_PAUSE_MS = 2000


class FaultStrategy:
    """Whether a broker is worth trying now. Disabled it says yes to all."""

    __slots__ = ("_available_at", "is_enabled", "latency_ms", "pause_ms")

    def __init__(
        self,
        *,
        is_enabled: bool = False,
        latency_ms: Sequence[int] = LATENCY_MS,
        pause_ms: Sequence[int] = PAUSE_MS,
    ) -> None:
        if len(latency_ms) != len(pause_ms):
            raise ValueError("latency_ms and pause_ms must have the same length")
        self.is_enabled = is_enabled
        self.latency_ms = tuple(latency_ms)
        self.pause_ms = tuple(pause_ms)
        self._available_at: dict[str, int] = {}

    @property
    def has_paused(self) -> bool:
        """Whether any broker is to be left alone: callers skip the question when not."""
        return bool(self._available_at)

    def succeeded(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """An answer came after `latency_ms`."""
        pause = self._pause_for(latency_ms) if self.is_enabled else 0
        if pause:
            self._available_at[broker_name] = now_ms + pause
        elif self._available_at:
            self._available_at.pop(broker_name, None)

    def failed(self, broker_name: str, now_ms: int) -> None:
        """The broker could not be reached. This counts also when latency is not looked at."""
        self._available_at[broker_name] = now_ms + FAILURE_PAUSE_MS

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        until = self._available_at.get(broker_name)
        return until is None or now_ms >= until

    def _pause_for(self, latency_ms: float) -> int:
        for bound, pause in zip(reversed(self.latency_ms), reversed(self.pause_ms), strict=True):
            if latency_ms >= bound:
                return pause
        return 0
