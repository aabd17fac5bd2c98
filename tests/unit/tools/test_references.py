"""Pages that are written by a program, and the site's hook."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools"


@pytest.mark.parametrize("name", ["error", "mqadmin", "request"])
def test_a_page_is_what_its_program_writes(name: str) -> None:
    tool = runpy.run_path(str(TOOLS / f"{name}_reference.py"))
    stored = tool["PAGE"].read_text(encoding="utf-8")
    assert tool["page"]() == stored, f"run: python tools/{name}_reference.py"


def test_no_verb_of_apache_is_forgotten() -> None:
    from twinlog.cli.mqadmin.verbs import REFUSED, VERBS

    tool = runpy.run_path(str(TOOLS / "mqadmin_reference.py"))
    known = {*VERBS, *REFUSED}
    assert not set(VERBS) & set(REFUSED)
    assert set(tool["VERBS_4_9"]) <= set(VERBS)
    assert set(tool["VERBS_5_3"]) <= known


def test_every_command_describes_itself() -> None:
    page = runpy.run_path(str(TOOLS / "command_reference.py"))["page"]()
    sections = re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]
    assert len(sections) > 100
    for section in sections[2:]:  # After the two lists of shared options.
        title, _, rest = section.partition("\n")
        text = rest.split("```")[2].strip()
        assert len(text) > 10, f"{title} has no help text"
    assert re.findall(r"^\| `[^`]*` \| (?:\[.*)?\|$", page, re.MULTILINE) == []


def hook() -> dict[str, object]:
    """The functions of the hook that need no mkdocs, which `make setup` does not install."""
    tree = ast.parse((TOOLS / "docs_site.py").read_text(encoding="utf-8"))
    pure = {"site_link", "as_page", "loaded_from_elsewhere"}
    kept = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name in pure) or isinstance(node, ast.Assign)
    ]
    names: dict[str, object] = {"re": re, "Path": Path, "__file__": str(TOOLS / "docs_site.py")}
    exec(compile(ast.Module(kept, []), "docs_site.py", "exec"), names)
    return names


def test_links_of_the_readme_lead_into_the_site() -> None:
    as_page = hook()["as_page"]
    assert callable(as_page)
    assert as_page("[a](docs/PAIR.md#two-masters)") == "[a](PAIR.md#two-masters)"
    assert as_page("[a](README.md) [b](CHANGELOG.md)") == "[a](index.md) [b](CHANGELOG.md)"
    assert as_page("[a](docs/decisions/)") == "[a](decisions/0001-twin-dialect.md)"


def test_what_a_page_would_load_from_elsewhere_is_seen() -> None:
    loaded = hook()["loaded_from_elsewhere"]
    assert callable(loaded)
    assert loaded('<script src="https://example.org/a.js"></script>') == [
        "https://example.org/a.js"
    ]
    assert loaded('<link rel="stylesheet" href="//example.org/a.css">') == ["//example.org/a.css"]
    assert loaded("a{background:url(https://example.org/a.png)}") == ["https://example.org/a.png"]
    assert loaded('<a href="https://example.org">x</a><img src="a.png">') == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    # With a title of its own or without.
    assert {page for page in pages if f" {page}\n" not in text} == set()
