"""The level of a disk in the journal of events."""

from __future__ import annotations

import pytest

from twinlog.broker.stats.watch import disk_level
from twinlog.observe.health import DiskFacts


@pytest.mark.parametrize(
    ("ratios", "levels"),
    [
        ((0.5, 0.75, 0.9, 0.91), ("ok", "cleaning", "cleaning", "full")),
        ((0.749, 0.751, 0.749, 0.751), ("ok", "cleaning", "cleaning", "cleaning")),
        ((0.751, 0.739), ("cleaning", "ok")),
        ((0.901, 0.899, 0.901, 0.889), ("full", "full", "full", "cleaning")),
        ((0.95, 0.745, 0.3), ("full", "cleaning", "ok")),
    ],
)
def test_a_disk_that_hovers_at_a_level_stays_there(
    ratios: tuple[float, ...], levels: tuple[str, ...]
) -> None:
    level: str | None = None
    seen = []
    for ratio in ratios:
        level = disk_level(DiskFacts("/s", ratio), level)
        seen.append(level)
    assert tuple(seen) == levels
