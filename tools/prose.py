"""A check of the prose: spelling by codespell, and the habits that docs/STYLE.md asks to avoid.

It reads the pages, and in the source the docstrings, comments and texts. Code samples and what
stands in backquotes are left out.

python tools/prose.py; `make lint` runs it with tools/tidy.py
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS_MAX = 45
"""Of one sentence. A longer one has to be read twice."""

# (pattern, what to write instead); docs/STYLE.md has examples.
_COUNTED = (
    r"(?:\d[\d,.]*|messages|requests|bytes|times|records|sends|seeds|switches|topics|groups"
    r"|heartbeats|deliveries|MB|MiB|us|ms|line)"
)
_NUMBER = r"(?:\d[\d,.]*|two|three|four|five|six|seven|eight|ten)"
_UNIT = r"(?:MB|MiB|GB|topic|queue|core|group|connection|day|round|row|client|batch|segment|pull)"
HABITS = [
    (rf"\b{_COUNTED} an? (?:second|minute|hour)\b", "per second"),
    (r"\b(?:\d[\d,.]*|bytes|times|us|ms) a (?:message|send|record)\b", "per message"),
    (rf"\b{_NUMBER}(?: \w+s| object)? an? {_UNIT}\b", "per"),
    (
        r"\bone (?:report|object|line|reply|write|call|row) a (?:frame|round|turn|message|read)\b",
        "per",
    ),
    (r"\bin a second\b", "per second, or within a second"),
    (r"\bbeside\b", "besides, next to, or with"),
    (r"\b(?:he|it|master|slave|broker|client|accepted|taken|is|are) besides\b", "also"),
    (r"\bfor so long\b", "for this time"),
    (r"\bha(?:s|ve) not got\b", "does not have, or lacks"),
    (r"\b(?:whereupon|lest)\b", "then, so that not"),
    (r"(?:^|[.!?] )(?-i:Who) [a-z][^.?!]*\.(?=\s|$)", "the replica (broker, client) that"),
    (r"\banew\b", "again, or from the start"),
    (r"\balike\b", "both, or in the same way"),
    (r"\bfor ever\b", "forever, or without limit"),
    (r"\banswers to (?:RocketMQ|Apache)", "corresponds to"),
    (r"\ball the same\b", "anyway, or nevertheless"),
    (r"\bto the letter\b", "literally"),
    (r"\b(?:whilst|thereof|therein|wherein|hereby|amongst|thereby|hence)\b", "a common word"),
    (r"\b(?:utili[sz]e|leverage|in order to|prior to)\b", "use, to, before"),
    (r"\b(?:simply|obviously|of course|easily|basically)\b", "nothing: leave it out"),
    (r"\b(?:seamless|blazing|cutting.edge|world.class|powerful|robust)\b", "a fact"),
]
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in HABITS]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
# The style page shows what to avoid; the others are not English, or are written by a program
# that quotes the names of benchmark rows.
LEFT_OUT = {"docs/STYLE.md", "docs/zh/quick-start.md", "tools/prose.py"}


def blank(match: re.Match[str]) -> str:
    """Nothing to read, but the same lines."""
    return re.sub(r"[^\n]", " ", match.group())


def prose_of_page(text: str) -> str:
    return CODE.sub(blank, text)


def prose_of_source(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment and each string."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, _FSTRING_MIDDLE):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, re.sub(r"`[^`]*`", "", line)


_FSTRING_MIDDLE = getattr(tokenize, "FSTRING_MIDDLE", -1)


def habits(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for number, line in lines:
        for pattern, instead in PATTERNS:
            for match in pattern.finditer(line):
                yield f"{name}:{number}: {match.group()!r}: write {instead}"


def long_sentences(name: str, prose: str) -> Iterator[str]:
    """Paragraphs only: rows of tables and items of lists are read piece by piece."""
    number = 1
    for block in re.split(r"(\n\s*\n)", prose):
        text = block.strip()
        is_code = block.startswith("    ")
        if text and not is_code and text[0] not in "|#<>-*0123456789":
            for sentence in re.split(r"(?<=[.!?:;])\s+", text):
                count = len(sentence.split())
                if count > WORDS_MAX:
                    yield f"{name}:{number}: {count} words in one sentence: {sentence[:60]}..."
        number += block.count("\n")


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def sources() -> list[Path]:
    return sorted(
        [
            *(ROOT / "src").rglob("*.py"),
            *(ROOT / "tools").rglob("*.py"),
            *(ROOT / "conf").rglob("*.py"),
        ]
    )


def problems_of_page(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    if name in LEFT_OUT:
        return []
    prose = prose_of_page(path.read_text(encoding="utf-8"))
    lines = iter(enumerate(prose.splitlines(), 1))
    return [*habits(name, lines), *long_sentences(name, prose)]


def problems_of_source(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    if name in LEFT_OUT:
        return []
    return list(habits(name, prose_of_source(path.read_text(encoding="utf-8"))))


def misspelt() -> list[str]:
    """Words that RocketMQ spells like this are listed in pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
         "SECURITY.md", "docs", "src", "tools", "conf", "tests", "Makefile", "mkdocs.yml"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode not in (0, 64, 65):
        return [done.stderr.strip()]
    return [line for line in done.stdout.splitlines() if line.strip()]


def main() -> int:
    problems = [problem for path in pages() for problem in problems_of_page(path)]
    problems += [problem for path in sources() for problem in problems_of_source(path)]
    problems += misspelt()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"prose: {len(pages())} pages, {len(sources())} sources, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
