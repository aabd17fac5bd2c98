"""Totals and rates of puts and gets for `brokerStatus` (RocketMQ's StoreStatsService).

Pure: plain integers that the send and pull paths add to, sampled once a second.
"""

from __future__ import annotations

from collections import deque

from twinlog.observe.histogram import Histogram

_WINDOWS_S = (10, 60, 600)
_SAMPLES_MAX = 601
_BUCKETS = (
    (0, "[<=0ms]"),
    (10, "[0~10ms]"),
    (50, "[10~50ms]"),
    (100, "[50~100ms]"),
    (200, "[100~200ms]"),
    (500, "[200~500ms]"),
    (1000, "[500ms~1s]"),
    (2000, "[1~2s]"),
    (3000, "[2~3s]"),
    (4000, "[3~4s]"),
    (5000, "[4~5s]"),
    (10000, "[5~10s]"),
    (None, "[10s~]"),
)


class StoreStats:
    """Counters of one broker since its start, and their rates."""

    def __init__(self, boot_ms: int) -> None:
        self.boot_ms = boot_ms
        self.put_times = 0
        self.put_size = 0
        self.put_failed_times = 0
        self.get_found_times = 0
        self.get_miss_times = 0
        self.get_transferred = 0
        self.put_time_max_ms = 0
        self.get_time_max_ms = 0
        self.put_histogram = Histogram()
        self.not_ok: dict[str, int] = {}
        """Puts that were answered with another status than PUT_OK, by its name."""
        self._distribution = [0] * len(_BUCKETS)
        # (time, puts, found, missed, transferred), once a second.
        self._samples: deque[tuple[int, int, int, int, int]] = deque(maxlen=_SAMPLES_MAX)
        self._mornings: list[tuple[int, int]] = [(0, 0), (0, 0)]  # (puts, gets): yesterday, today.

    def put_done(self, count: int, elapsed_ms: int) -> None:
        """`count` puts took `elapsed_ms` each. Called once per released batch."""
        if elapsed_ms > self.put_time_max_ms:
            self.put_time_max_ms = elapsed_ms
        self.put_histogram.observe(elapsed_ms, count)
        for index, (limit, _) in enumerate(_BUCKETS):
            if limit is None or elapsed_ms <= limit:
                self._distribution[index] += count
                return

    def sample(self, monotonic_ms: int) -> None:
        self._samples.append(
            (
                monotonic_ms,
                self.put_times,
                self.get_found_times,
                self.get_miss_times,
                self.get_transferred,
            )
        )

    def midnight(self) -> None:
        """Note the totals at the start of a day."""
        self._mornings = [self._mornings[1], (self.put_times, self.get_transferred)]

    def table(self, now_ms: int) -> dict[str, str]:
        """What `brokerStatus` prints of it."""
        yesterday, today = self._mornings
        return {
            "bootTimestamp": str(self.boot_ms),
            "runtime": _runtime_text(now_ms - self.boot_ms),
            "putMessageEntireTimeMax": str(self.put_time_max_ms),
            "putMessageTimesTotal": str(self.put_times),
            "putMessageFailedTimes": str(self.put_failed_times),
            "putMessageSizeTotal": str(self.put_size),
            "putMessageDistributeTime": self._distribution_text(),
            "putMessageAverageSize": str(self.put_size / max(1, self.put_times)),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": str(self.get_time_max_ms),
            "putTps": self._rates(1),
            "getFoundTps": self._rates(2),
            "getMissTps": self._rates(3),
            "getTotalTps": self._total_rates(),
            "getTransferedTps": self._rates(4),
            "putLatency99": f"{self._percentile(0.99):.2f}",
            "putLatency999": f"{self._percentile(0.999):.2f}",
            "msgPutTotalYesterdayMorning": str(yesterday[0]),
            "msgPutTotalTodayMorning": str(today[0]),
            "msgPutTotalTodayNow": str(self.put_times),
            "msgGetTotalYesterdayMorning": str(yesterday[1]),
            "msgGetTotalTodayMorning": str(today[1]),
            "msgGetTotalTodayNow": str(self.get_transferred),
        }

    def _rates(self, column: int) -> str:
        """Rates over 10, 60 and 600 s; a window that is not full yet is empty text."""
        texts = []
        for window in _WINDOWS_S:
            rate = self._rate(window, column)
            texts.append("" if rate is None else str(rate))
        return " ".join(texts)

    def _total_rates(self) -> str:
        rates = [
            (self._rate(window, 2) or 0.0) + (self._rate(window, 3) or 0.0) for window in _WINDOWS_S
        ]
        return " ".join(str(rate) for rate in rates)

    def _rate(self, window_s: int, column: int) -> float | None:
        if len(self._samples) <= window_s:
            return None
        last, first = self._samples[-1], self._samples[-window_s - 1]
        elapsed = last[0] - first[0]
        return (last[column] - first[column]) / elapsed * 1000 if elapsed > 0 else 0.0

    def _distribution_text(self) -> str:
        pairs = zip(_BUCKETS, self._distribution, strict=True)
        return "".join(f"{name}:{count} " for (_, name), count in pairs)

    def _percentile(self, share: float) -> float:
        """Upper edge of the bucket that holds the percentile; 0 without puts."""
        total = sum(self._distribution)
        seen = 0
        for (limit, _), count in zip(_BUCKETS, self._distribution, strict=True):
            seen += count
            if total and seen >= total * share:
                return float(limit if limit is not None else self.put_time_max_ms)
        return 0.0


def _runtime_text(elapsed_ms: int) -> str:
    seconds = elapsed_ms // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, "
        f"{seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
    )
