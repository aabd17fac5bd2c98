"""How fast bytes go, and how fast they may go. Pure. Corresponds to RocketMQ's FlowMonitor.

The rate is that of the last whole second. The budget is a bucket of one second's worth that fills
as time passes; unlike RocketMQ 5.x it counts bodies, not only headers, so the limit really holds.
"""

from __future__ import annotations

_WINDOW_MS = 1000


class FlowMonitor:
    """Counts transferred bytes of one connection; limits them when `bytes_per_second_max` > 0."""

    __slots__ = (
        "_bytes", "_bytes_last", "_limit", "_tokens", "_tokens_ms", "_window_ms", "is_limited",
        "total",
    )  # fmt: skip

    def __init__(self, now_ms: int, bytes_per_second_max: int = 0) -> None:
        assert bytes_per_second_max >= 0
        self._limit = bytes_per_second_max
        self.is_limited = bytes_per_second_max > 0
        self._window_ms = now_ms
        self._bytes = 0
        self._bytes_last = 0
        self._tokens = float(bytes_per_second_max)
        self._tokens_ms = now_ms
        self.total = 0

    def limit(self, bytes_per_second_max: int, now_ms: int) -> None:
        """Another limit, 0 for none; what was saved up under the old one does not count."""
        if bytes_per_second_max != self._limit:
            self._limit = bytes_per_second_max
            self.is_limited = bytes_per_second_max > 0
            self._tokens = float(bytes_per_second_max)
            self._tokens_ms = now_ms

    def add(self, size: int, now_ms: int) -> None:
        """Count `size` bytes that were transferred now."""
        assert size >= 0
        if now_ms - self._window_ms >= _WINDOW_MS:
            self._roll(now_ms)
        self._bytes += size
        self.total += size
        if self._limit:
            self._refill(now_ms)
            self._tokens -= size

    def rate(self, now_ms: int) -> int:
        """Bytes of the last whole second."""
        if now_ms - self._window_ms >= _WINDOW_MS:
            self._roll(now_ms)
        return self._bytes_last

    def budget(self, now_ms: int) -> int | None:
        """Bytes that may go now; None when there is no limit."""
        if not self._limit:
            return None
        self._refill(now_ms)
        return max(0, int(self._tokens))

    def wait_ms(self, size: int) -> int:
        """How long until the budget is `size` bytes."""
        if not self._limit:
            return 0
        missing = min(size, self._limit) - self._tokens
        return 0 if missing <= 0 else int(missing * 1000 / self._limit) + 1

    def _roll(self, now_ms: int) -> None:
        windows = (now_ms - self._window_ms) // _WINDOW_MS
        self._bytes_last = self._bytes if windows == 1 else 0
        self._bytes = 0
        self._window_ms += windows * _WINDOW_MS

    def _refill(self, now_ms: int) -> None:
        earned = (now_ms - self._tokens_ms) * self._limit / 1000
        self._tokens = min(float(self._limit), self._tokens + earned)
        self._tokens_ms = now_ms
