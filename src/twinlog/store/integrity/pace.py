"""How fast the scrub may go. Pure: what was done goes in, how long to pause comes out."""

from __future__ import annotations

from typing import Final

_WEEK_MS: Final = 7 * 24 * 3_600_000
_LAG_MS: Final = 25  # A loop that is so late has other work.
_SLOWER_MAX: Final = 16.0
_PAUSE_MS_MAX: Final = 60_000.0


class Pace:
    """At most `rate` bytes per second and `cpu` percent of a core, and not faster than needed to
    see the whole store once in `interval_ms`. When the loop is late: slower, up to 16 times."""

    def __init__(self, *, rate: int, cpu: int, interval_ms: int = _WEEK_MS) -> None:
        self._rate = rate
        self._cpu = cpu
        self._interval_ms = interval_ms
        self._slower = 1.0

    def pause_ms(self, size: int, busy_ms: float, store_size: int, *, is_hurried: bool) -> float:
        """Before the next step, after one of `size` bytes that took `busy_ms` of the loop."""
        pause = max(size * 1000 / self._rate, busy_ms * (100 - self._cpu) / self._cpu)
        if not is_hurried:
            pause = max(pause, self._interval_ms * size / max(store_size, 1))
        return min(pause * self._slower, _PAUSE_MS_MAX if not is_hurried else pause * 16)

    def paused(self, asked_ms: float, took_ms: float) -> None:
        """How late the loop came back: under load there is less to spare."""
        if took_ms - asked_ms > _LAG_MS:
            self._slower = min(self._slower * 2, _SLOWER_MAX)
        else:
            self._slower = max(1.0, self._slower * 0.8)
