"""Line charts as SVG text: no script, no font, no address outside the page. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 26
LABEL_WIDTH = 140  # On a phone, where letters are larger.
GAP_SECONDS = 3.0  # Points further apart are not joined: nothing was measured between them.

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `tone` is the number of its colour in the page's style sheet."""

    name: str
    points: Sequence[Point]
    tone: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at a moment worth seeing."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical axis: from `lowest`, or from 0, to `highest`. With `lowest` it is logarithmic,
    so that values of very different size can all be read."""

    highest: float
    lowest: float = 0.0

    def share(self, value: float) -> float:
        """How far up the value is, from 0 to 1."""
        if not self.lowest:
            share = value / self.highest
        elif value <= self.lowest:
            share = 0.0
        else:
            share = math.log(value / self.lowest) / math.log(self.highest / self.lowest)
        return min(max(share, 0.0), 1.0)

    def steps(self) -> list[float]:
        if not self.lowest:
            return [self.highest * step / 4 for step in range(5)]
        count = round(math.log10(self.highest / self.lowest))
        return [self.lowest * 10**power for power in range(count + 1)]


def scale_of(series: Sequence[Series], *, is_logarithmic: bool = False) -> Scale:
    values = [y for line in series for _, y in line.points]
    if not is_logarithmic:
        return Scale(_round_up(max(values, default=1.0)))
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return Scale(10.0 ** max(high, low + 1), 10.0**low)


def chart(
    series: Sequence[Series], marks: Sequence[Mark], *, end: float, unit: str, label: str,
    is_logarithmic: bool = False,
) -> str:  # fmt: skip
    """A chart over [0, end) seconds, with axes, marks and a legend. `label` is for the blind."""
    scale = scale_of(series, is_logarithmic=is_logarithmic)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">',
        *_grid(scale, end),
        *_marks(marks, end),
        *(_line(line, scale, end) for line in series),
        "</svg>",
        '<p class="legend">',
        *(f'<span class="t{line.tone}">{html.escape(line.name)}</span>' for line in series),
        f"({html.escape(unit)})</p>",
    ]
    return "\n".join(parts)


def _x(at: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at / end, 0.0), 1.0)


def _y(value: float, scale: Scale) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * scale.share(value)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ...: axes that people can read."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 2, 5, 10):
        if value <= factor * magnitude:
            return factor * magnitude
    return 10 * magnitude


def short_number(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.3g}"


def _grid(scale: Scale, end: float) -> list[str]:
    parts = []
    for value in scale.steps():
        y = _y(value, scale)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
                     f'y2="{y:.1f}"/>')  # fmt: skip
        parts.append(f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                     f"{short_number(value)}</text>")  # fmt: skip
    seconds = max(1, round(end / 6))
    parts += [
        f'<text class="axis" x="{_x(at, end):.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{at} s</text>"
        for at in range(0, int(end) + 1, seconds)
    ]
    return parts


def _marks(marks: Sequence[Mark], end: float) -> list[str]:
    """A label stands to the right of its line, unless the next line or the edge is too near."""
    places = [_x(mark.at, end) for mark in marks]
    rooms = [limit - x for x, limit in zip(places, [*places, WIDTH][1:], strict=True)]
    return [
        _mark(mark.label, x, is_left=room < LABEL_WIDTH)
        for mark, x, room in zip(marks, places, rooms, strict=True)
    ]


def _mark(label: str, x: float, *, is_left: bool) -> str:
    anchor, shift = ("end", -4) if is_left else ("start", 4)
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="mark" x="{x + shift:.1f}" y="{TOP + 10}" text-anchor="{anchor}">'
        f"{html.escape(label)}</text>"
    )


def _line(line: Series, scale: Scale, end: float) -> str:
    return "".join(
        f'<polyline class="t{line.tone}" points="'
        + " ".join(f"{_x(x, end):.1f},{_y(y, scale):.1f}" for x, y in piece)
        + '"/>'
        for piece in pieces(line.points)
    )


def pieces(points: Sequence[Point]) -> list[list[Point]]:
    """The points between two gaps, piece by piece."""
    found: list[list[Point]] = []
    for point in points:
        if not found or point[0] - found[-1][-1][0] > GAP_SECONDS:
            found.append([])
        found[-1].append(point)
    return found
