"""What the rows should reach, and where they do not: the reason. Read from remarks.toml; pure.

An aim is a line such as `rate >= 1.5x` (ratio to the rival, above 1 is better for every metric)
or `anonymous <= 150` (our median itself).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import harness

REMARKS = Path(__file__).with_name("remarks.toml")
_AIM = re.compile(r"(\w+) (>=|<=) ([0-9.]+)(x?)")


@dataclass(frozen=True)
class Verdict:
    """One aim of one row, held against what was measured."""

    row: str
    aim: str
    seen: str
    is_met: bool


def read(path: Path = REMARKS) -> dict[str, Any]:
    """Aims by pattern of row names, and remarks by row name."""
    with path.open("rb") as stream:
        return tomllib.load(stream)


def verdicts(row: Mapping[str, Any], remarks: Mapping[str, Any]) -> list[Verdict]:
    aims: dict[str, None] = {}
    for pattern, lines in remarks.get("aims", {}).items():
        if fnmatch(row["name"], pattern):
            aims.update(dict.fromkeys(lines))
    found = (_verdict(row, aim) for aim in aims)
    return [verdict for verdict in found if verdict is not None]


def _verdict(row: Mapping[str, Any], aim: str) -> Verdict | None:
    match = _AIM.fullmatch(aim)
    if match is None:
        raise ValueError(f"{REMARKS.name}: {aim!r} is not like 'rate >= 1.5x' or 'p99 <= 5'")
    name, relation, bound, is_ratio = match.groups()
    metric = next((metric for metric in row["metrics"] if metric["name"] == name), None)
    if metric is None:
        raise ValueError(f"{REMARKS.name}: {aim!r}: row {row['name']} has no metric {name}")
    if is_ratio:
        ratio = harness.ratio(row, metric)
        seen = None if ratio is None else ratio.median
    else:
        first = next(iter(row["subjects"].values()))
        seen = first.get(name, {}).get("median")
    if seen is None:
        return None
    is_met = seen >= float(bound) if relation == ">=" else seen <= float(bound)
    text = f"{seen:.2f}x" if is_ratio else f"{harness.number_text(seen)} {metric['unit']}"
    return Verdict(row["name"], aim, text, is_met)
