"""What docs/BENCHMARKS.md shows, read back as results: it is the memory of a fresh clone. Pure.

Figures have the digits that the page has, and a row keeps the ratios that were shown, since the
rounds that they came from are not there. Rendering what was read gives the same page again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import harness

_ROW = re.compile(
    r"^Row `(?P<name>[^`]+)`, (?P<at>\S+), commit (?P<commit>\S+), (?P<rounds>\d+) rounds?, "
    r"(?P<seconds>\d+) s, load average before (?P<load>[0-9.]+)(?:, scale (?P<scale>[0-9.]+))?\.$",
    re.MULTILINE,
)
_CURVE = re.compile(r"^!\[.*\]\(scale-(?P<name>[a-z-]+)\.svg\)$", re.MULTILINE)
_TAKEN = re.compile(r"^(?P<at>\S+), commit (?P<commit>\S+)\.$", re.MULTILINE)
_SPREAD = re.compile(r"(?P<median>[0-9.,e+-]+)x?(?: \((?P<low>\S+) \.\. (?P<high>\S+)\))?")


def rows(page: str, known: Sequence[harness.Row]) -> list[dict[str, Any]]:
    """The results of the rows that a page shows, as far as they are `known`."""
    by_name = {row.name: row for row in known}
    found = []
    for section in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        taken = _ROW.search(section)
        if taken is not None and taken["name"] in by_name:
            found.append(_row(section, taken, by_name[taken["name"]]))
    return found


def _row(section: str, taken: re.Match[str], known: harness.Row) -> dict[str, Any]:
    head, *lines = _table(section)
    subjects = [name for name in head[1:] if name != "ratio"]
    result: dict[str, Any] = {
        "name": known.name,
        "title": section.partition("\n")[0].removeprefix("## "),
        "text": section.partition("\n")[2].partition("\n| ")[0].strip(),
        "taken": {
            "at": taken["at"],
            "commit": taken["commit"],
            "rounds": int(taken["rounds"]),
            "seconds": float(taken["seconds"]),
            "load_before": float(taken["load"]),
            "scale": float(taken["scale"] or 1),
        },
        "metrics": [],
        "rival": known.rival or next(iter(subjects[1:]), ""),
        "subjects": {name: {} for name in subjects},
        "samples": {name: [] for name in subjects},
        "ratios": {},
    }
    better = {metric.name: metric.better for metric in known.metrics}
    for line in lines:
        name, _, unit = line[0].removesuffix("]").partition(" [")
        result["metrics"].append({"name": name, "unit": unit, "better": better.get(name, "")})
        for subject, cell in zip(subjects, line[1:], strict=False):
            if cell:
                result["subjects"][subject][name] = _spread(cell)
        if len(line) > len(subjects) + 1 and line[-1]:
            result["ratios"][name] = _spread(line[-1])
    return result


def curves(page: str) -> list[dict[str, Any]]:
    """The curves that a page shows."""
    found = []
    for section in re.split(r"^(?=##)", page, flags=re.MULTILINE):
        curve = _CURVE.search(section)
        if curve is None:
            continue
        (axis, *heads), *lines = _table(section)
        metrics = [head.removesuffix("]").partition(" [") for head in heads]
        taken = _TAKEN.search(section)
        assert taken is not None
        found.append({
            "name": curve["name"],
            "title": section.partition("\n")[0].removeprefix("### "),
            "axis": axis,
            "metrics": [{"name": name, "unit": unit} for name, _, unit in metrics],
            "points": [
                {"x": float(x), **{m[0]: _number(v) for m, v in zip(metrics, values, strict=True)}}
                for x, *values in lines
            ],
            "taken": taken.groupdict(),
        })  # fmt: skip
    return found


def _table(section: str) -> list[list[str]]:
    """The cells of the first table, without the line under its head."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def _spread(cell: str) -> Mapping[str, Any]:
    match = _SPREAD.fullmatch(cell)
    assert match is not None, cell
    median = _number(match["median"])
    low, high = (_number(match[name]) if match[name] else median for name in ("low", "high"))
    return {"median": median, "low": low, "high": high, "text": cell}


def _number(text: str) -> float:
    return float(text.replace(",", ""))
