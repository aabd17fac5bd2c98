"""Run rows of a benchmark: subjects in turn, several rounds, medians with their spread.

A row is one question ("how fast are 128-byte records appended?"). Its subjects answer it: twinlog,
and a rival when there is one. Each answer is a set of metrics. Subjects alternate within a round,
so that a machine that gets slower meets all of them.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Metric:
    """One number of a row. `better` is "higher", "lower" or "" for a plain fact."""

    name: str
    unit: str
    better: str = ""


@dataclass(frozen=True)
class Context:
    """What a subject needs: a directory that is empty, and how much of the work to do."""

    directory: Path
    scale: float
    state: dict[str, Any] = field(default_factory=dict)  # Kept between the rounds of one subject.


Subject = Callable[[Context], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """A question, its metrics and who answers it."""

    name: str
    title: str
    metrics: Sequence[Metric]
    subjects: dict[str, Subject]
    rounds: int = 3
    cleanup: Callable[[Context], None] | None = None


def wanted(rows: Sequence[Row], only: str) -> list[Row]:
    """Rows whose name contains one of the comma-separated parts of `only`; all when it is empty."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    return [row for row in rows if not parts or any(part in row.name for part in parts)]


def run_row(row: Row, make_directory: Callable[[str], Path], *, rounds: int, scale: float) -> dict:
    """All samples of a row, and per metric the median, the lowest and the highest."""
    contexts = {
        subject: Context(make_directory(f"{row.name}-{subject}"), scale) for subject in row.subjects
    }
    samples: dict[str, list[dict[str, float]]] = {subject: [] for subject in row.subjects}
    try:
        for number in range(rounds):
            for subject, answer in row.subjects.items():
                samples[subject].append(dict(answer(contexts[subject])))
                print(f"  {row.name} {subject} {number + 1}/{rounds}", file=sys.stderr, flush=True)
    finally:
        if row.cleanup is not None:
            for context in contexts.values():
                row.cleanup(context)
    return {
        "name": row.name,
        "title": row.title,
        "metrics": [metric.__dict__ for metric in row.metrics],
        "subjects": {subject: summary(row, samples[subject]) for subject in row.subjects},
        "samples": samples,
    }


def summary(row: Row, samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    result = {}
    for metric in row.metrics:
        values = [sample[metric.name] for sample in samples if metric.name in sample]
        if values:
            result[metric.name] = {
                "median": statistics.median(values),
                "low": min(values),
                "high": max(values),
            }
    return result


def facts() -> dict[str, Any]:
    """Where and of what the figures were taken."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "commit": commit,
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def number_text(value: float) -> str:
    """Three significant digits, thousands marked."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One line per row and metric: title, metric, a column for each subject, the ratio."""
    subjects = subject_names(results)
    lines = [["row", "metric", *subjects, *(["ratio"] if len(subjects) > 1 else [])]]
    for result in results:
        for metric in result["metrics"]:
            cells = [_cell(result, subject, metric) for subject in subjects]
            lines.append([result["title"], f"{metric['name']} [{metric['unit']}]", *cells])
            if len(subjects) > 1:
                lines[-1].append(_ratio(result, metric))
    return lines


def subject_names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for result in results:
        names.update(dict.fromkeys(result["subjects"]))
    return list(names)


def _cell(result: Mapping[str, Any], subject: str, metric: Mapping[str, str]) -> str:
    found = result["subjects"].get(subject, {}).get(metric["name"])
    if found is None:
        return ""
    text = number_text(found["median"])
    if found["low"] == found["high"]:
        return text
    return f"{text} ({number_text(found['low'])} .. {number_text(found['high'])})"


def _ratio(result: Mapping[str, Any], metric: Mapping[str, str]) -> str:
    """The row's first subject against its second, above 1 when it is better."""
    values = [
        found.get(metric["name"], {}).get("median")
        for found in list(result["subjects"].values())[:2]
    ]
    if len(values) < 2 or None in values or not all(values) or not metric["better"]:
        return ""
    ratio = values[0] / values[1] if metric["better"] == "higher" else values[1] / values[0]
    return f"{ratio:.2f}x"
