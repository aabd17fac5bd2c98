"""What the documents say must be there: links, commands, make targets, test paths."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from support.doc_blocks import PAGES, ROOT, RUN, Block, Rule, blocks_of, not_run, page_id
from twinlog.cli.main import cli

LINK = re.compile(r"\]\(([^)#\s]*)(#[^)]*)?\)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_BLOCK = re.compile(r"^(?:\$ )?(twinlog [a-z].*)", re.MULTILINE)
IN_TEXT = re.compile(r"`(twinlog [a-z][^`\n]*)`")


def anchors(page: Path) -> set[str]:
    """What a link into the page may name: its headings, as they are shown on the web."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor[1:] not in anchors(path)):
            missing.append(target + anchor)
    assert missing == []


NAMED_TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
IS_TEST = re.compile(r"^(async )?def test_|^Test\w+ = |^class Test", re.MULTILINE)


def test_every_guarantee_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")
    assert [name for name in NAMED_TEST.findall(text) if not is_there(*name)] == []
    promises = promises_of(text)
    assert len(promises) > 35
    assert [line for line in promises if not NAMED_TEST.search(line.rsplit(" | ", 1)[-1])] == []


def is_there(path: str, function: str) -> bool:
    """Whether pytest collects it: a function of the module, a file or a folder with tests."""
    place = ROOT / path
    if function:
        found = place.is_file() and place.read_text(encoding="utf-8")
        return bool(found and re.search(rf"^(async )?def {function}\(", found, re.MULTILINE))
    files = place.rglob("test_*.py") if place.is_dir() else [place]
    return any(file.exists() and IS_TEST.search(file.read_text("utf-8")) for file in files)


def promises_of(text: str) -> list[str]:
    """The rows of every table whose last column is what holds them."""
    tables = re.findall(r"^\|[^\n]* held by \|\n\|[-|]+\|\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    return [line for table in tables for line in table.splitlines()]


def test_a_guarantee_that_no_test_holds_is_seen() -> None:
    table = "| promise | held by |\n|---|---|\n| One. | `tests/sim` |\n| Two. | nobody |\n"
    assert [bool(NAMED_TEST.search(line)) for line in promises_of(table)] == [True, False]
    assert is_there("tests/docs/test_docs.py", "test_a_guarantee_that_no_test_holds_is_seen")
    assert not is_there("tests/docs/test_docs.py", "is_there_not")
    assert not is_there("tests/support", "")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    used = set(re.findall(r"`make ([a-z][a-z-]*)|^\$ make ([a-z][a-z-]*)", text, re.MULTILINE))
    assert {name for pair in used for name in pair if name} <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(BLOCK.findall(text))
    for line in IN_BLOCK.findall(blocks) + IN_TEXT.findall(BLOCK.sub("", text)):
        command, _, comment = line.partition(" # ")
        command = command.partition(" | ")[0]
        if not comment.startswith("exit "):  # Shown for its error.
            assert wrong_words(shlex.split(command)[1:]) == [], line


def wrong_words(words: list[str]) -> list[str]:
    """Verbs and options that the program does not know."""
    here: click.Command = cli
    options: set[str] = {"-h", "--help"}
    for number, word in enumerate(words):
        options |= {name for each in here.params for name in (*each.opts, *each.secondary_opts)}
        if word.startswith("-") or not isinstance(here, click.Group):
            break
        inner = here.get_command(click.Context(here), word)
        if inner is None:
            # A group that is a command, too, may be given what follows as its arguments.
            return words[number:] if not here.invoke_without_command else []
        here = inner
    options |= {name for each in here.params for name in (*each.opts, *each.secondary_opts)}
    return [word for word in words if word.startswith("-") and word.split("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_is_run_by_a_test(page: Path) -> None:
    """Block by block; a picture is not run."""
    assert [(block.text, why) for block in blocks_of(page) if (why := not_run(block))] == []
    typed = re.compile(r"^(\$ |twinlog |mqadmin |make [a-z]+$|curl |python )", re.MULTILINE)
    shown = [b.text for b in blocks_of(page) if b.language == "" and typed.search(b.text)]
    assert shown == []
    text = page.read_text(encoding="utf-8")
    assert HIDDEN.findall(text) == []
    assert INDENTED.findall(BLOCK.sub("", text)) == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_extras_are_those_of_the_package(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"twinlog\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    named = {name for each in extras for name in each.split(",")}
    assert named <= set(project["optional-dependencies"])


# Blocks in a form that the rules do not know: indented ones, and those between tildes.
HIDDEN = re.compile(
    r"^(?:[ \t]{4,}(?:\$ |twinlog |mqadmin |make [a-z]+$|curl |python ).*|[ \t]+```.*|[ \t]*~~~.*)",
    re.MULTILINE,
)


# A block by its indentation alone, whatever is in it.
INDENTED = re.compile(r"\n\n(?: {4,}|\t)\S.*")


def test_a_block_that_nothing_runs_is_seen() -> None:
    assert INDENTED.findall("Text.\n\n    pip install x\n") == ["\n\n    pip install x"]
    hidden = "    twinlog ps\n  ```console\n~~~\n"
    assert HIDDEN.findall(hidden) == hidden.splitlines()
    new = Block("docs/STORE.md", "Files", "console", "$ twinlog store verify DIR\n")
    assert not_run(new) == "no test runs it (support/doc_blocks.py)"
    assert not_run(new._replace(page="docs/OPERATIONS.md")) == ""
    assert not_run(new._replace(page="docs/OPERATIONS.md", language="sh"))
    assert not_run(new._replace(page="README.md"))  # In a section that nobody follows.
    picture = new._replace(page="docs/CONCEPTS.md", language="")
    assert not_run(picture)  # A section without a picture.
    assert not_run(picture._replace(section="How a switch works")) == ""


@pytest.mark.parametrize("rule", RUN, ids=lambda rule: f"{rule.page} {rule.test}")
def test_a_rule_still_has_blocks_and_its_test_takes_them(rule: Rule) -> None:
    assert [block for block in blocks_of(ROOT / rule.page) if rule.has(block)] != []
    text = (ROOT / rule.test).read_text(encoding="utf-8")
    takes = ("blocks_run_by(", "Reader(", "SECTION.search(", '"docs" / "CLIENT.md"', '"demo"')
    assert any(way in text for way in takes), f"{rule.test} reads no page"


def test_wrong_verbs_and_options_are_seen() -> None:
    assert wrong_words(["topic", "create", "orders", "-q", "8"]) == []
    assert wrong_words(["topic", "create", "orders", "--queus", "8"]) == ["--queus"]
    assert wrong_words(["topic", "lst"]) == ["lst"]


def test_paths_of_tests_in_the_documents_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`(tests/[\w/.-]+)`", page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page_id(page)}: {path}"


def test_the_readme_is_in_order() -> None:
    """What it is in a few short sentences, a picture, the two commands, then proof."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = text.split("\n```")[0].removeprefix("# twinlog").strip()
    sentences = re.split(r"(?<=[.:]) ", " ".join(opening.split()))
    assert len(opening.split()) < 150, "what it is, for whom, and why better"
    assert [sentence for sentence in sentences if len(sentence.split()) > 25] == []
    picture, commands = text.index("┌"), text.index("$ make demo")
    assert picture < commands < text.index("VERDICT") < text.index("\n## ")
    assert re.findall(r"^\$ (.*?)  ", text, re.MULTILINE)[:2] == ["make demo", "make test"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "What works with what", "Measured", "What is promised", "The first ten minutes",
        "Moving from Apache, and back", "Where to read on",
    ]  # fmt: skip
    last = text.split("## Where to read on")[1].split("Guides by task")[0]
    assert re.findall(r"\]\(docs/(\w+)", last) == [
        "ARCHITECTURE", "GUARANTEES", "OPERATIONS", "CLIENT", "DEPLOYMENT", "SPARK", "WIRE",
        "STORE", "BENCHMARKS", "decisions",
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


def test_the_page_about_layers_names_every_package() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Layers")[1].split("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    )
    packages = {path.parent.name for path in (ROOT / "src" / "twinlog").glob("*/__init__.py")}
    assert named == packages


def test_the_page_about_compiled_parts_names_each_of_them() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "twinlog"
    there = {path.relative_to(package).as_posix() for path in package.rglob("*.pyx")}
    assert set(re.findall(r"`([\w/]+\.pyx)`", text)) == there
