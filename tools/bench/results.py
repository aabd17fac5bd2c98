"""The results of runs as one JSON document. Pure but for reading and writing the file.

A row that was measured again replaces its older result, so that runs of subsets add up to one
document; each row carries its own date and commit. A row that fails keeps its older result, and
its failure is on record until it succeeds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Document = dict[str, Any]
_MACHINE = ("machine", "cpu", "cpus")  # Figures of different machines are never in one document.

_PATHS = re.compile(r"/(?:root|work|home|tmp)/[^\s'\"]+")


def directory() -> Path:
    """Where results are written and looked for. Not committed: the page that shows them is."""
    return Path(os.environ.get("OUT", str(ROOT / "bench-results")))


def rows_file(*, is_quick: bool = False) -> Path:
    return directory() / ("bench-quick.json" if is_quick else "bench.json")


def curves_file() -> Path:
    return directory() / "scale.json"


def read(path: Path) -> Document:
    """The results of a file; none when there is no file."""
    if path.exists():
        document: Document = json.loads(path.read_text())
        return document
    return {"facts": {}, "rows": [], "failures": [], "curves": []}


def load(path: Path, facts: dict[str, Any]) -> Document:
    """What earlier runs on this machine have left; nothing of another one's."""
    document = read(path)
    if all(document["facts"].get(name) == facts.get(name) for name in _MACHINE):
        return {**document, "facts": facts}
    return {"facts": facts, "rows": [], "failures": []}


def with_row(document: Document, result: dict[str, Any], order: Sequence[str]) -> Document:
    """The document with this result in its place among `order`; rows that are gone are dropped."""
    kept = [row for row in document["rows"] if row["name"] != result["name"]]
    rows = [row for row in (*kept, result) if row["name"] in order]
    failures = [entry for entry in document["failures"] if entry["name"] != result["name"]]
    rows.sort(key=lambda row: order.index(row["name"]))
    return {**document, "rows": rows, "failures": failures}


def with_failure(document: Document, failure: dict[str, Any]) -> Document:
    """On record until the row succeeds. Paths of this machine are not for others to read."""
    failure = {**failure, "error": _PATHS.sub("...", failure["error"])}
    others = [entry for entry in document["failures"] if entry["name"] != failure["name"]]
    return {**document, "failures": [*others, failure]}


def save(document: Document, path: Path) -> None:
    """Written whole and then renamed: a run that is interrupted leaves the results before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.rename(path)
