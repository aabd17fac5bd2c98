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
