"""Every block of the documents, and the test that runs it.

A block is run by the test that `RUN` names, or compared by it with what a program prints, or it is
a picture. Tests that run single blocks take them from here, so that a block which
moves or is added is run or noticed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*.md")])
_PART = re.compile(r"^#+ (?P<title>.*)$|^```(?P<language>.*)\n(?P<text>(?s:.*?))^```", re.MULTILINE)


class Block(NamedTuple):
    page: str
    section: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Commands, one each: without comments, and with a continued line as one."""
        whole = self.text.replace("\\\n", " ")
        return [re.sub(r"\s+# .*", "", line) for line in whole.splitlines() if line.strip()]


class Rule(NamedTuple):
    """Blocks of a page, of these languages and in these sections (all when there is none)."""

    page: str
    languages: str
    test: str
    sections: tuple[str, ...] = ()

    def has(self, block: Block) -> bool:
        is_there = not self.sections or block.section.startswith(self.sections)
        return self.page == block.page and block.language in self.languages.split() and is_there


READ = "console python properties yaml"  # What support/page_reader.py types or saves.
RUN = [
    Rule("README.md", "console", "tests/cli/test_demo.py", ("twinlog",)),  # `make demo`
    Rule("README.md", "console python", "tests/docs/test_readme_followed.py",
         ("The first ten minutes",)),
    Rule("README.md", "text", "tests/docs/test_shown_output.py"),
    Rule("CONTRIBUTING.md", "text", "tests/docs/test_shown_output.py"),
    Rule("docs/GROUPS.md", "text", "tests/docs/test_shown_output.py"),
    Rule("examples/README.md", "sh", "tests/cli/test_examples.py"),
    Rule("docs/CLIENT.md", "python", "tests/client/test_documentation.py"),
    Rule("docs/CONSOLE.md", "text", "tests/console/test_command.py", ("Starting it",)),
    Rule("docs/CONSOLE.md", "text", "tests/console/test_api.py", ("The HTTP API",)),
    Rule("docs/OPERATIONS.md", "console", "tests/cli/test_operations_page.py"),
    Rule("docs/OPERATIONS.md", "sh", "tests/cli/test_shell_comforts.py", ("In the shell",)),
    Rule("docs/OPERATIONS.md", "sh", "tests/cli/test_accounts.py", ("Accounts",)),
    Rule("docs/OPERATIONS.md", "sh", "tests/cli/test_check_and_bundle.py",
         ("Monitoring plugins",)),
    Rule("docs/SPARK.md", "bash python", "tests/spark/test_recipes.py"),
    Rule("docs/WIRE.md", "json", "tests/unit/remoting/test_codec.py"),
    *(Rule(f"docs/{name}.md", READ, "tests/cli/test_pages_followed.py")
      for name in ("GROUPS", "MONITORING", "DEPLOYMENT")),
    *(Rule(f"docs/guides/{path.name}", READ, "tests/packaging/test_guides.py")
      for path in sorted((ROOT / "docs" / "guides").glob("*.md"))),
    Rule("docs/zh/quick-start.md", READ, "tests/packaging/test_guides.py"),
]  # fmt: skip
# Pictures, by page and section. Nothing in them is typed, and no program printed them.
PICTURES = {
    ("README.md", "twinlog"),
    ("docs/ARCHITECTURE.md", "The picture"),
    ("docs/ARCHITECTURE.md", "A log and its watermarks"),
    ("docs/CONCEPTS.md", "A log, and positions in it"),
    ("docs/CONCEPTS.md", "How a master streams its log"),
    ("docs/CONCEPTS.md", "How a synchronous send waits"),
    ("docs/CONCEPTS.md", "How a switch works"),
    ("docs/FAILOVER.md", "Failover"),
}
PROFILES = "docs/BENCHMARKS.md"  # Lines of a profiler, rendered from tools/bench/remarks.toml.


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path) -> list[Block]:
    section, found = "", []
    for part in _PART.finditer(path.read_text(encoding="utf-8")):
        if part["title"] is not None:
            section = part["title"]
        else:
            found.append(Block(page_id(path), section, part["language"].strip(), part["text"]))
    return found


def blocks_run_by(test: str, page: str) -> list[Block]:
    """The blocks of `page` that the file `test` has to run."""
    rules = [rule for rule in RUN if (rule.test, rule.page) == (test, page)]
    found = [b for b in blocks_of(ROOT / page) if any(rule.has(b) for rule in rules)]
    assert found, f"{page} has no block for {test}"
    return found


def not_run(block: Block) -> str:
    """Why nothing runs the block; empty when a test does, or when there is nothing to run."""
    tests = [rule.test for rule in RUN if rule.has(block)]
    if len(tests) > 1:
        return f"two tests: {tests}"
    if tests:
        return "" if (ROOT / tests[0]).exists() else f"there is no {tests[0]}"
    is_listed = (block.page, block.section) in PICTURES or block.page == PROFILES
    is_shown = is_listed and block.language == ""
    return "" if is_shown else "no test runs it (support/doc_blocks.py)"
