"""A check of the source itself: what no linter knows about this project.

Every rule names its reason, so that whoever trips it knows what to do instead.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 700
TEXT_SUFFIXES = {
    ".py", ".md", ".toml", ".txt", ".sh", ".cfg", ".yml", ".yaml", ".go", ".java", ".js", ".conf",
    ".html", ".json", ".pyx", ".pxd", "",
}  # fmt: skip

# (pattern, where it applies, why)
BANNED = [
    (r"\bTODO\b|\bFIXME\b|\bXXX:", "src", "finish it, or write an issue"),
    (r"(?<!\w)except\s*:\s*$", "src", "name what is caught"),
    (r"^\s*(import|from) (mmap|fcntl)\b", "src", "only runtime/disk.py touches files"),
    (r"^\s*import time\b|^\s*from time import", "src", "time comes from runtime/clock.py"),
    (r"^\s*import random\b|^\s*from random import", "src", "an rng is passed in"),
    (r"^\s*(import|from) numpy\b", "src", "numpy belongs to spark: the rest has a compiled twin"),
    (r"asyncio\.create_task\(", "src", "runtime/tasks.py owns background work"),
    (
        r"\.(isdigit|isdecimal|isnumeric)\(",
        "src/twinlog",
        "Python's digits are more than ASCII's: runtime/numbers.py reads numbers",
    ),
    (r"https?://[A-Za-z0-9.:-]+/(simple|packages|maven2|api/v1/crates)", "", "no registry host"),
    (r"(^|[\s\"'=(])/(root|work|home)/[a-z.]", "", "no absolute path of one machine"),
]
EXEMPT = {
    ("runtime/disk.py", "only runtime/disk.py touches files"),
    ("runtime/clock.py", "time comes from runtime/clock.py"),
    ("tools/tidy.py", "no registry host"),
    ("tools/tidy.py", "no absolute path of one machine"),
}
# Composition roots and processes of their own: they may read the clock or draw numbers.
FREE_PREFIXES = tuple(f"src/twinlog/{name}/" for name in ("cli", "spark", "demo", "testing"))


def tracked_files() -> list[Path]:
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / line for line in output.splitlines() if (ROOT / line).is_file()]


def check_file(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    if path.suffix not in TEXT_SUFFIXES or name.startswith("tests/vectors/"):
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
    problems = []
    if path.suffix == ".py" and len(lines) > LINES_MAX:
        problems.append(f"{name}: {len(lines)} lines, above {LINES_MAX}: split it")
    for pattern, where, why in BANNED:
        if where and not name.startswith(where + "/"):
            continue
        if where == "src" and name.startswith(FREE_PREFIXES):
            continue
        if any(name.endswith(suffix) and why == reason for suffix, reason in EXEMPT):
            continue
        expression = re.compile(pattern)
        problems += [
            f"{name}:{number}: {why}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if expression.search(line)
        ]
    return problems


def main() -> int:
    files = tracked_files()
    problems = [problem for path in files for problem in check_file(path)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"tidy: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
