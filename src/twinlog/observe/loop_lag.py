"""How late the event loop is: a timer that asks to be called every 100 ms, and looks at when it is.

While the loop is busy with one thing it answers nobody. The histogram says how often and for how
long, `recent_max_ms` the worst of the last minute, for the judgement of health.
"""

from __future__ import annotations

from collections import deque

from twinlog.observe.histogram import Histogram
from twinlog.runtime.clock import Clock, TimerHandle

INTERVAL_MS = 100
_SLOTS = 12  # Of five seconds each.
_SLOT_MS = 5_000


class LoopLag:
    """Measures while it is started."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram()
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._due_ms = 0
        self._slots: deque[tuple[int, int]] = deque(maxlen=_SLOTS)

    def start(self) -> None:
        self._due_ms = self._clock.monotonic_ms() + INTERVAL_MS
        self._timer = self._clock.call_later_ms(INTERVAL_MS, self._called)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _called(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self.note(now_ms, max(0, now_ms - self._due_ms))
        self._due_ms = now_ms + INTERVAL_MS
        self._timer = self._clock.call_later_ms(INTERVAL_MS, self._called)

    def note(self, now_ms: int, late_ms: int) -> None:
        self.histogram.observe(late_ms)
        slot = now_ms // _SLOT_MS
        if self._slots and self._slots[-1][0] == slot:
            late_ms = max(late_ms, self._slots.pop()[1])
        self._slots.append((slot, late_ms))

    def recent_max_ms(self) -> int:
        """The worst of the last minute."""
        oldest = self._clock.monotonic_ms() // _SLOT_MS - _SLOTS
        return max((late for slot, late in self._slots if slot > oldest), default=0)
