"""Numbers by topic and group over the last minute, hour and day (RocketMQ's BrokerStatsManager).

Counting is two additions on a slotted object; sampling happens on a timer, never per message.
Pure: time is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, ItemsView

from twinlog.remoting.bodies.stats import BrokerStatsData, BrokerStatsItem

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
STATS_NAMES = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    GROUP_GET_LATENCY,
    SNDBCK_PUT_NUMS,
    DLQ_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
)

SAMPLE_INTERVAL_MS = 10_000  # The minute's samples; the hour's and the day's are multiples.
# By `topic@group`.
_OF_A_GROUP = (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    GROUP_GET_LATENCY,
    SNDBCK_PUT_NUMS,
    DLQ_PUT_NUMS,
)
_TICKS_PER_HOUR_SAMPLE = 60  # Every 10 minutes.
_TICKS_PER_DAY_SAMPLE = 360  # Every hour.
_MINUTE_SAMPLES = 7
_HOUR_SAMPLES = 7
_DAY_SAMPLES = 25

_Sample = tuple[int, int, int]  # (time, value, times)


class StatsItem:
    """A total, how often it grew, and samples of both."""

    __slots__ = ("day", "hour", "minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self.minute: deque[_Sample] = deque(maxlen=_MINUTE_SAMPLES)
        self.hour: deque[_Sample] = deque(maxlen=_HOUR_SAMPLES)
        self.day: deque[_Sample] = deque(maxlen=_DAY_SAMPLES)

    def add(self, value: int) -> None:
        self.value += value
        self.times += 1

    def told(self) -> BrokerStatsData:
        return BrokerStatsData(_window(self.day), _window(self.hour), _window(self.minute))

    @property
    def tps(self) -> float:
        """Growth per second over the last minute."""
        return _window(self.minute).tps


def _window(samples: deque[_Sample]) -> BrokerStatsItem:
    if not samples:
        return BrokerStatsItem()
    first, last = samples[0], samples[-1]
    total = last[1] - first[1]
    elapsed = last[0] - first[0]
    times = last[2] - first[2]
    return BrokerStatsItem(
        avgpt=total / times if times > 0 else 0.0,
        sum=total,
        tps=total * 1000.0 / elapsed if elapsed > 0 else 0.0,
    )


class BrokerStatsManager:
    """All items, by statistics name and key."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, StatsItem]] = {name: {} for name in STATS_NAMES}
        self._ticks = 0
        self._deleted_puts = [0, 0]  # Of topics that are no more: totals never go back.

    def put_totals(self) -> tuple[int, int]:
        """Messages and bytes put since the start, over all topics."""
        nums = sum(item.value for item in self._items[TOPIC_PUT_NUMS].values())
        size = sum(item.value for item in self._items[TOPIC_PUT_SIZE].values())
        return nums + self._deleted_puts[0], size + self._deleted_puts[1]

    def count_put(self, topic: str, messages: int, size: int) -> None:
        """Count so many puts outside the send path, with records of so many bytes."""
        nums, sizes = self.item(TOPIC_PUT_NUMS, topic), self.item(TOPIC_PUT_SIZE, topic)
        nums.value += messages
        nums.times += messages
        sizes.value += size
        sizes.times += messages

    def count_get(self, key: str, count: int, size: int) -> None:
        """Count what was handed out; a key is `topic@group`."""
        nums, sizes = self._items[GROUP_GET_NUMS].get(key), self._items[GROUP_GET_SIZE].get(key)
        if nums is None or sizes is None:
            nums, sizes = self.item(GROUP_GET_NUMS, key), self.item(GROUP_GET_SIZE, key)
        nums.value += count  # Once for each pull: without a call for each item.
        nums.times += 1
        sizes.value += size
        sizes.times += 1

    def item(self, name: str, key: str) -> StatsItem:
        """The item, made at its first use."""
        items = self._items[name]
        found = items.get(key)
        if found is None:
            found = items[key] = StatsItem()
        return found

    def items(self, name: str) -> ItemsView[str, StatsItem]:
        return self._items[name].items()

    def values(self, name: str) -> list[tuple[str, int]]:
        """Keys and totals of one kind, in the order in which they came."""
        return [(key, item.value) for key, item in self._items[name].items()]

    def find(self, name: str, key: str) -> StatsItem | None:
        return self._items.get(name, {}).get(key)

    def group_get_tps(self, group: str, topic: str) -> float:
        item = self.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if item is None else item.tps

    def topic_deleted(self, topic: str) -> None:
        for index, name in enumerate((TOPIC_PUT_NUMS, TOPIC_PUT_SIZE)):
            item = self._items[name].pop(topic, None)
            self._deleted_puts[index] += 0 if item is None else item.value
        self._forget(lambda key: key.startswith(topic + "@"))

    def group_deleted(self, group: str) -> None:
        self._forget(lambda key: key.endswith("@" + group))

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for name in _OF_A_GROUP:
            for key in filter(is_gone, list(self._items[name])):
                del self._items[name][key]

    def sample(self, monotonic_ms: int) -> None:
        """Take the samples that are due. Called every SAMPLE_INTERVAL_MS."""
        is_hour = self._ticks % _TICKS_PER_HOUR_SAMPLE == 0
        is_day = self._ticks % _TICKS_PER_DAY_SAMPLE == 0
        self._ticks += 1
        for items in self._items.values():
            for item in items.values():
                reading = (monotonic_ms, item.value, item.times)
                _append(item.minute, reading, SAMPLE_INTERVAL_MS)
                if is_hour:
                    _append(item.hour, reading, SAMPLE_INTERVAL_MS * _TICKS_PER_HOUR_SAMPLE)
                if is_day:
                    _append(item.day, reading, SAMPLE_INTERVAL_MS * _TICKS_PER_DAY_SAMPLE)


def _append(samples: deque[_Sample], reading: _Sample, interval_ms: int) -> None:
    """An item begins at zero one interval before its first sample: what that holds counts too."""
    if not samples:
        samples.append((reading[0] - interval_ms, 0, 0))
    samples.append(reading)
