"""Geometry of the charts: numbers in, attributes of SVG elements out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinlog.console.replication import HISTORY_MS, LagPoint

WIDTH = 600
HEIGHT = 120


@dataclass(frozen=True, slots=True)
class Chart:
    """One line over the last hour: paths, and the value of the upper edge."""

    line: str
    area: str
    top: float
    last: float


def lag_chart(points: Sequence[LagPoint], now_ms: int, attribute: str, floor: float) -> Chart:
    """A step for each five seconds; a gap where nobody looked."""
    values = [(point.time_ms, float(getattr(point, attribute))) for point in points]
    top = _round_up(max([floor, *(value for _, value in values)]))
    begin_ms = now_ms - HISTORY_MS
    parts: list[str] = []
    areas: list[str] = []
    previous_ms = None
    for time_ms, value in values:
        if time_ms < begin_ms:
            continue
        x = WIDTH * (time_ms - begin_ms) / HISTORY_MS
        y = HEIGHT - HEIGHT * value / top
        is_joined = previous_ms is not None and time_ms - previous_ms <= 15_000
        if not is_joined and areas:
            areas.append(f"V{HEIGHT}Z")
        parts.append(f"{'L' if is_joined else 'M'}{x:.1f} {y:.1f}")
        areas.append(f"L{x:.1f} {y:.1f}" if is_joined else f"M{x:.1f} {HEIGHT}L{x:.1f} {y:.1f}")
        previous_ms = time_ms
    if areas:
        areas.append(f"V{HEIGHT}Z")
    last = values[-1][1] if values else 0.0
    return Chart("".join(parts), "".join(areas), top, last)


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten: an axis that does not jump about."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    for factor in (1, 2, 5, 10):
        if factor * power >= value:
            return factor * power
    return 10 * power


def event_places(times_ms: Sequence[int], now_ms: int) -> list[float]:
    """Where events of the last hour stand on the time line."""
    begin_ms = now_ms - HISTORY_MS
    return [WIDTH * (time - begin_ms) / HISTORY_MS for time in times_ms if time >= begin_ms]
