"""The results as a picture: one small bar chart per metric, a bar for each subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_COLUMNS = 3
_COLOURS = ["#2563eb", "#f97316", "#6b7280", "#16a34a"]


def draw(document: dict[str, Any], path: Path) -> None:
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
    facts = document["facts"]
    figure.suptitle(f"twinlog {facts['commit']} on {facts['cpus']} CPUs, {facts['taken_at'][:10]}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_chart(axis: Any, row: dict[str, Any], metric: dict[str, str]) -> None:
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
