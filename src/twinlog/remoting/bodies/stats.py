"""Counters of a broker, as it tells them."""

from __future__ import annotations

import msgspec

from twinlog.remoting.bodies.common import Body


class BrokerStatsItem(Body):
    """One window: the sum, per second, and per event."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body):
    """Answer to VIEW_BROKER_STATS_DATA."""

    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)

    @property
    def day_sum(self) -> int:
        """The sum of the longest window that has counted anything."""
        return self.stats_day.sum or self.stats_hour.sum or self.stats_minute.sum
