"""`make bench`: measure, print a table, write JSON and a picture.

Environment: ONLY=append,recovery picks rows, ROUNDS=5 and SCALE=0.1 change how much is measured,
BENCH_DIR is where stores are written (default: the temporary directory), OUT where results go.
QUICK=1 measures a few rows briefly (under 3 minutes); DOCS=1 renders docs/BENCHMARKS.md too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import client_rows
import clusters
import harness
import pair_rows
import picture
import report
import spark_rows
import store_rows
from rich.console import Console
from rich.markup import escape
from rich.table import Table

QUICK_ROWS = ("store-append-128", *pair_rows.QUICK)


def all_rows() -> list[harness.Row]:
    """Every row there is. A module of rows is added here, a rival as a subject in its rows."""
    return [*store_rows.ROWS, *pair_rows.ROWS, *client_rows.ROWS, *spark_rows.ROWS]


def main() -> int:
    is_quick = os.environ.get("QUICK", "") not in ("", "0")
    rows = harness.wanted(all_rows(), os.environ.get("ONLY", ""))
    if is_quick and not os.environ.get("ONLY"):
        rows = [row for row in rows if row.name in QUICK_ROWS]
    if not rows:
        names = ", ".join(row.name for row in all_rows())
        print(
            f"bench: ONLY={os.environ['ONLY']} matches no row; there are {names}", file=sys.stderr
        )
        return 2
    scale = float(os.environ.get("SCALE", "0.2" if is_quick else "1"))
    out = Path(os.environ.get("OUT", str(harness.ROOT / "bench-results")))
    base = Path(tempfile.mkdtemp(prefix="twinlog-bench-", dir=os.environ.get("BENCH_DIR")))

    def make_directory(name: str) -> Path:
        path = base / name
        path.mkdir()
        return path

    facts = harness.facts() | {"scale": scale, "versions": clusters.versions()}
    document = {"facts": facts, "rows": []}
    try:
        for row in rows:
            rounds = int(os.environ.get("ROUNDS", min(2, row.rounds) if is_quick else row.rounds))
            print(f"bench: {row.title}", file=sys.stderr, flush=True)
            document["rows"].append(
                harness.run_row(row, make_directory, rounds=rounds, scale=scale)
            )
            for path in base.iterdir():
                shutil.rmtree(path, ignore_errors=True)
    finally:
        clusters.PAIRS.stop()
        client_rows.BROKER.stop()
        shutil.rmtree(base, ignore_errors=True)
    show(document)
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    picture.draw(document, out / "bench.png")
    print(f"bench: written to {out / 'bench.json'} and {out / 'bench.png'}")
    if os.environ.get("DOCS", "") not in ("", "0"):
        report.write_docs(document)
    return 0


def show(document: dict) -> None:
    facts = document["facts"]
    head, *lines = harness.table(document["rows"])
    shown = Table(
        title=f"twinlog {facts['commit']}, {facts['cpus']} CPUs, Python {facts['python']}"
    )
    for index, name in enumerate(head):
        shown.add_column(name, justify="left" if index < 2 else "right")
    before = ""
    for line in lines:
        shown.add_row("" if line[0] == before else line[0], *map(escape, line[1:]))
        before = line[0]
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


if __name__ == "__main__":
    sys.exit(main())
