"""What the documents say must be there: links, commands, make targets, test paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinlog.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [match.group(1) for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    missing = [
        target
        for target in targets
        if "://" not in target and not (page.parent / target).resolve().exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    used = set(re.findall(r"`make ([a-z][a-z-]*)|^\$ make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {name for pair in used for name in pair if name} <= targets
    commands = set(re.findall(r"^\$ twinlog ([a-z][a-z-]*)", text, re.MULTILINE))
    assert commands <= set(COMMANDS)


def test_paths_of_tests_in_the_documents_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`(tests/[\w/.-]+)`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page_id(page)}: {path}"


def test_the_readme_is_in_order() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = text.split("\n```")[0].removeprefix("# twinlog").strip()
    assert opening.count(". ") == 2, "what it is, in three sentences"
    assert re.findall(r"^\$ (.*?)  ", text, re.MULTILINE)[:2] == ["make demo", "make test"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "What works with what", "Measured", "What is promised", "The first ten minutes",
        "Moving from Apache, and back", "Where to read on",
    ]  # fmt: skip
    last = text.split("## Where to read on")[1].split("Beside them")[0]
    assert re.findall(r"\]\(docs/(\w+)", last) == [
        "ARCHITECTURE", "GUARANTEES", "OPERATIONS", "CLIENT", "SPARK", "WIRE", "STORE",
        "BENCHMARKS", "decisions",
    ]  # fmt: skip


def test_rows_of_the_readme_name_the_tests_that_back_them() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## What works with what")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 9
    for row in rows:
        assert re.search(r"`tests/[\w/.]+`", row.split("|")[-2]), row
    named = set(re.findall(r"`tests/interop/(test_\w+\.py)`", table))
    described = (ROOT / "docs" / "INTEROP.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "tests" / "interop").glob("test_*.py")}
    assert named <= there
    assert {name for name in there if name not in described} == set()
