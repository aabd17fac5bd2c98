"""The replication checklist: each item, its test, whether it passes, and the mutant that it finds.

`--check` runs every test on the code as it is, and again on a copy of the source with a small fault
in it, where it must fail; then it writes docs/HA-CHECKLIST.md. An item whose test does not
notice its mutant is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anchors import with_fault
from ha_checklist_items import ITEMS, Item

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "HA-CHECKLIST.md"


def find_tests() -> dict[int, list[str]]:
    """item -> test ids, by the number in the name."""
    tests: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.name == "test_story.py":
            continue  # The whole story takes minutes; its items have shorter tests too.
        for name in re.findall(r"def (test_item_\d+\w*)\(", path.read_text()):
            for number in re.findall(r"_(\d{3})(?=_)", name):
                tests.setdefault(int(number), []).append(f"{path.relative_to(ROOT)}::{name}")
    return tests


def run(tests: list[str], source: Path | None) -> bool:
    """Whether the tests pass, on `source` instead of the repository's when it is given."""
    environment = {**os.environ}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", "60", *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if result.returncode not in (0, 1):
        raise SystemExit(f"{tests}: pytest ended with {result.returncode}\n{result.stdout[-2000:]}")
    return result.returncode == 0


def notices_mutant(item: Item, tests: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        shutil.copytree(ROOT / "src" / "twinlog", source / "twinlog")
        path = source / "twinlog" / item.file
        path.write_text(with_fault(path.read_text(), item.name, item.old, item.new))
        return not run(tests, source)


def check(item: Item, tests: list[str]) -> tuple[Item, str]:
    """What the table says; the tests were seen to pass on the code as it is."""
    return item, "passes" if notices_mutant(item, tests) else "passes, MUTANT SURVIVES"


def row_texts(results: dict[int, str], tests: dict[int, list[str]]) -> dict[int, str]:
    """The rows of the items that were checked now."""
    rows = {}
    for item in ITEMS:
        if item.number not in results:
            continue
        names = "<br>".join(f"`{test.split('::')[1]}`" for test in tests.get(item.number, []))
        mark = " **D**" if item.is_departure else ""
        mutant = f"`{item.file}`: {item.fault}"
        cells = (f"{item.number}{mark}", item.statement, names, results[item.number], mutant)
        rows[item.number] = f"| {' | '.join(cells)} |"
    return rows


def rows_so_far() -> dict[int, str]:
    """The rows of items that were checked before, as they stand in the page."""
    lines = TARGET.read_text().splitlines() if TARGET.exists() else []
    found = ((re.match(r"\| (\d+)[ |]", line), line) for line in lines)
    known = {item.number for item in ITEMS}
    return {int(match[1]): line for match, line in found if match and int(match[1]) in known}


def table(rows: dict[int, str]) -> str:
    lines = [
        "# Replication checklist",
        "",
        "This page is written by `tools/ha_checklist.py --check`. Each item is a statement about",
        "RocketMQ's replication. Each test passed on the unchanged code, and failed when",
        "the fault in its row was put into the code. **D** marks an intended difference from",
        "RocketMQ 4.9.7; the test says why.",
        "",
        "| item | statement | test | result | fault that makes the test fail |",
        "|---|---|---|---|---|",
        *(rows[number] for number in sorted(rows)),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="run everything and write the table")
    parser.add_argument("--only", type=int, nargs="*", help="these items; the others' rows stay")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    tests = find_tests()
    items = [item for item in ITEMS if not options.only or item.number in options.only]
    missing = [item.number for item in ITEMS if item.number not in tests]
    if missing or not options.check:
        print(f"{len(ITEMS)} items, without a test: {missing}")
        return 1 if missing else 0
    if not run([test for item in items for test in tests[item.number]], None):
        print("tests fail on the code as it is: run them first")
        return 1
    results: dict[int, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for item, result in pool.map(lambda i: check(i, tests[i.number]), items):
            results[item.number] = result
            print(f"{item.number:3d} {result:24s} {item.fault}", flush=True)
    bad = [number for number, result in results.items() if result != "passes"]
    TARGET.write_text(table(rows_so_far() | row_texts(results, tests)))
    print(f"{len(results)} items checked, not as they should be: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
