"""Small plots as SVG text: a page that holds them needs no script, no font and no network. Pure."""

from __future__ import annotations

import html
from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM = 560, 220, 64, 34
COLOURS = ("#2364aa", "#d1495b", "#3a7d44", "#edae49", "#7b2d8b", "#33658a")


def compact(value: float) -> str:
    """Write a number in few characters."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _frame(title: str, body: str, top: float) -> str:
    right, low = WIDTH - 12, HEIGHT - BOTTOM
    ticks = "".join(
        f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{compact(top * share)}</text>'
        for share in (0, 0.5, 1)
        for y in [low - share * (low - 24)]
    )
    label = html.escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'<text x="{LEFT}" y="14" class="title">{label}</text>{ticks}{body}</svg>'
    )


def lines(title: str, series: dict[str, Sequence[float]], labels: Sequence[str]) -> str:
    """Draw one line per series over common labels."""
    top = max((max(values, default=0) for values in series.values()), default=0) or 1
    low, count = HEIGHT - BOTTOM, max(2, len(labels))
    step = (WIDTH - 12 - LEFT) / (count - 1)
    parts = []
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{LEFT + i * step:.1f},{low - value / top * (low - 24):.1f}"
            for i, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        name = html.escape(name[:18])
        left = LEFT + 110 * number
        parts.append(f'<text x="{left}" y="{HEIGHT - 4}" fill="{colour}">{name}</text>')
    for at in sorted({0, len(labels) - 1}) if labels else []:
        anchor = "start" if at == 0 else "end"
        x, label = LEFT + at * step, html.escape(labels[at])
        parts.append(f'<text x="{x:.1f}" y="{low + 14}" text-anchor="{anchor}">{label}</text>')
    return _frame(title, "".join(parts), top)


def bars(title: str, values: dict[str, float]) -> str:
    """Draw one bar per name."""
    top = max(values.values(), default=0) or 1
    low = HEIGHT - BOTTOM
    width = (WIDTH - 12 - LEFT) / max(1, len(values))
    parts = []
    for number, (name, value) in enumerate(values.items()):
        x, height = LEFT + number * width, value / top * (low - 24)
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{low - height:.1f}" width="{max(1, width - 2):.1f}" '
            f'height="{height:.1f}" fill="{COLOURS[0]}"><title>{html.escape(name)}: '
            f"{compact(value)}</title></rect>"
        )
        shown = html.escape(name if len(name) * 6 < width else name[: max(1, int(width // 6))])
        parts.append(
            f'<text x="{x + width / 2:.1f}" y="{low + 14}" text-anchor="middle">{shown}</text>'
        )
    return _frame(title, "".join(parts), top)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Make an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: object) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return str(cell)
