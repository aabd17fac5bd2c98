"""`make bench`: measure, print a table, write JSON and a picture.

Environment: ONLY=append,recovery picks rows, ROUNDS=5 and SCALE=0.1 change how much is measured,
BENCH_DIR is where stores are written (default: the temporary directory), OUT where results go.
QUICK=1 measures a few rows briefly (under 3 minutes) into a file of its own; DOCS=1 renders
docs/BENCHMARKS.md and the README's table too. LIST=1 only lists the rows, with the seconds that
each took the last time.

The JSON is written after every row, and a row replaces its older result in it: a run that was
interrupted is continued with ONLY, and a row that fails costs none of the others.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import client_rows
import clusters
import harness
import kafka_rows
import pair_rows
import picture
import report
import results
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rows import all_rows

QUICK_ROWS = ("store-append-128", *pair_rows.QUICK)
ROW_DEADLINE_S = 600.0
# Logs of pairs that stay up grow by gigabytes, and a broker refuses writes on a nearly full disk.
DISK_FREE_MIN = 15e9

# What rows share, ended before the first row that does not use it (by the start of its name).
SHARED: list[tuple[Callable[[], None], tuple[str, ...]]] = [
    (clusters.PAIRS.stop, ("send", "latency", "pull", "ha", "sync", "delay", "broker")),
    (client_rows.BROKER.stop, ("client",)),
    (kafka_rows.CONTENDERS.stop, ("kafka",)),
]


def release(next_row: str = "") -> None:
    """End the brokers that stay up between rows, but for those that the next row uses."""
    for stop, users in SHARED:
        if not next_row.startswith(users):
            stop()


def is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def main() -> int:
    harness.explain_if_asked(__doc__)
    is_quick = is_set("QUICK")
    rows = harness.wanted(all_rows(), os.environ.get("ONLY", ""))
    if is_quick and not os.environ.get("ONLY"):
        rows = [row for row in rows if row.name in QUICK_ROWS]
    file = results.rows_file(is_quick=is_quick)
    if not rows or is_set("LIST"):
        list_rows(rows or all_rows(), file)
        return 0 if rows else 2
    harness.compile_all()
    facts = harness.facts()
    facts["versions"] |= clusters.versions()
    document = results.load(file, facts)
    names = [row.name for row in rows]
    document = measure(rows, document, lambda found: results.save(found, file), is_quick=is_quick)
    show([row for row in document["rows"] if row["name"] in names])
    picture.draw(document, file.with_suffix(".png"))
    print(f"bench: written to {file} and {file.with_suffix('.png')}")
    code = report.main() if is_set("DOCS") else 0
    failed = [entry for entry in document["failures"] if entry["name"] in names]
    for entry in failed:
        print(f"bench: {entry['name']} failed: {entry['error']}", file=sys.stderr)
    return 1 if failed else code


def list_rows(rows: list[harness.Row], file: Path) -> None:
    """The rows, and how long each took when it was last measured."""
    document = results.read(file)
    took = {row["name"]: row["taken"]["seconds"] for row in document["rows"]}
    for row in rows:
        print(f"{row.name:32} {took.get(row.name, '')}")
    print(f"{len(rows)} rows, {sum(took.get(row.name, 0) for row in rows) / 60:.1f} minutes")


def measure(
    rows: list[harness.Row],
    document: results.Document,
    save: Callable[[results.Document], None],
    *,
    is_quick: bool,
) -> results.Document:
    order = [row.name for row in all_rows()]
    scale = float(os.environ.get("SCALE", "0.2" if is_quick else "1"))
    base = harness.new_directory("twinlog-bench-")

    def make_directory(name: str) -> Path:
        path = base / name
        path.mkdir()
        return path

    try:
        for row in rows:
            rounds = int(os.environ.get("ROUNDS", min(2, row.rounds) if is_quick else row.rounds))
            print(f"bench: {row.title}", file=sys.stderr, flush=True)
            has_room = shutil.disk_usage(base).free > DISK_FREE_MIN
            release(row.name if has_room else "")
            try:
                with harness.deadline(ROW_DEADLINE_S, row.name):
                    result = harness.run_row(row, make_directory, rounds=rounds, scale=scale)
                document = results.with_row(document, result, order)
            except Exception as error:
                traceback.print_exc()
                failure = {"name": row.name, "error": f"{type(error).__name__}: {error}"[:2000]}
                document = results.with_failure(document, failure | harness.moment())
                release()  # Whatever it had started may be broken: the next row starts again.
            save(document)
            for path in base.iterdir():
                shutil.rmtree(path, ignore_errors=True)
    finally:
        release()
        shutil.rmtree(base, ignore_errors=True)
    return document


def show(rows: list[dict]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 180)
    for group in harness.groups(rows):
        head, *lines = harness.table(group)
        shown = Table(title=f"twinlog {group[0]['taken']['commit']}, {group[0]['taken']['at']}")
        for index, name in enumerate(head):
            shown.add_column(name, justify="left" if index < 2 else "right")
        before = ""
        for line in lines:
            shown.add_row("" if line[0] == before else line[0], *map(escape, line[1:]))
            before = line[0]
        console.print(shown)


if __name__ == "__main__":
    harness.end_in_order()
    sys.exit(main())
