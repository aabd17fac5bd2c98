"""The results as pictures: bars of every metric, ratios to the rivals, curves of growing work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_COLUMNS = 3
_COLOURS = ["#2563eb", "#f97316", "#6b7280", "#16a34a"]
# Text stays text and nothing random is written: a picture that did not change has no difference.
pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "twinlog"})


def draw(document: Mapping[str, Any], path: Path) -> None:
    """One small bar chart per metric, a bar for each subject."""
    charts = [
        (row, metric)
        for row in document["rows"]
        for metric in row["metrics"]
        if any(metric["name"] in found for found in row["subjects"].values())
    ]
    if not charts:
        return
    lines = -(-len(charts) // _COLUMNS)
    figure, axes = pyplot.subplots(lines, _COLUMNS, figsize=(15, 2.2 * lines), squeeze=False)
    for axis, (row, metric) in zip(axes.flat, charts, strict=False):
        _draw_chart(axis, row, metric)
    for axis in axes.flat[len(charts) :]:
        axis.axis("off")
    figure.tight_layout()
    # Agg has a limit of 65,536 pixels a side.
    figure.savefig(path, dpi=min(110, int(60_000 / (2.2 * lines))))
    pyplot.close(figure)


def _draw_chart(axis: Any, row: Mapping[str, Any], metric: Mapping[str, str]) -> None:
    names = [name for name, found in row["subjects"].items() if metric["name"] in found]
    for index, name in enumerate(names):
        found = row["subjects"][name][metric["name"]]
        spread = [[found["median"] - found["low"]], [found["high"] - found["median"]]]
        axis.barh(name, found["median"], xerr=spread, color=_COLOURS[index % len(_COLOURS)])
        axis.text(found["median"], index, f" {harness.number_text(found['median'])}", va="bottom")
    better = f", {metric['better']} is better" if metric["better"] else ""
    axis.set_title(f"{row['title']}: {metric['name']} [{metric['unit']}]{better}", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.25)


def draw_ratios(document: Mapping[str, Any], path: Path) -> None:
    """A bar for each row that has a rival: its first metric, twinlog's figure over the rival's."""
    bars = []
    for row in document["rows"]:
        found = ((metric, harness.ratio(row, metric)) for metric in row["metrics"])
        shown = next(((metric, ratio) for metric, ratio in found if ratio is not None), None)
        if shown is not None:
            label = f"{row['title']}: {shown[0]['name']} (vs {row['rival']})"
            bars.append((label, shown[1]))
    figure, axis = pyplot.subplots(figsize=(11, 0.8 + 0.27 * max(1, len(bars))))
    for index, (_, ratio) in enumerate(bars):
        low, high = max(0.0, ratio.median - ratio.low), max(0.0, ratio.high - ratio.median)
        colour = _COLOURS[0] if ratio.median >= 1 else _COLOURS[1]
        axis.barh(index, ratio.median, xerr=[[low], [high]], color=colour, error_kw={"lw": 0.8})
        axis.text(ratio.high * 1.04, index, f"{ratio.median:.2f}x", va="center", fontsize=7)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=7)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.axvline(1, color="black", lw=0.8)
    axis.set_xlabel("twinlog / rival, log scale; right of the line twinlog is better", fontsize=8)
    axis.margins(x=0.15, y=0.01)
    _save(figure, path)


def draw_curve(curve: Mapping[str, Any], path: Path) -> None:
    """One metric over the growing work, on a logarithmic axis."""
    figure, axes = pyplot.subplots(
        1, len(curve["metrics"]), figsize=(4 * len(curve["metrics"]), 3), squeeze=False
    )
    for index, metric in enumerate(curve["metrics"]):
        axis = axes.flat[index]
        points = [(point["x"], point[metric["name"]]) for point in curve["points"]]
        axis.plot(*zip(*points, strict=True), marker="o", color=_COLOURS[index % len(_COLOURS)])
        axis.set_xscale("log")
        axis.set_ylim(bottom=0, top=1.25 * max(value for _, value in points) or 1)
        axis.set_xlabel(curve["axis"], fontsize=8)
        axis.set_title(f"{metric['name']} [{metric['unit']}]", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
    figure.suptitle(curve["title"], fontsize=10)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
