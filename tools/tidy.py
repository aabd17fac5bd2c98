"""A check of the source itself: what no linter knows about this project.

Every rule names its reason, so that whoever trips it knows what to do instead.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 700
TEXT_SUFFIXES = {
    ".py", ".md", ".toml", ".txt", ".sh", ".cfg", ".yml", ".yaml", ".go", ".java", ".js", ".conf",
    ".html", ".json", ".pyx", ".pxd", ".pyi", "",
}  # fmt: skip

CODE_SUFFIXES = {".py", ".pyx", ".pxd", ".pyi"}
PACKAGE = ROOT / "src" / "twinlog"
# Private by their spelling only: methods of named tuples, and what the standard library needs.
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_open", "_exit"}
DEFINITION = re.compile(r"^\s*(?:cdef|cpdef|def|class)\b(.*)$", re.MULTILINE)
PRIVATE_NAME = re.compile(r"(?<![\w.])_[A-Za-z]\w*")
# In compiled code: what is before the dot (its end), and the private name behind it.
PRIVATE_USED = re.compile(r"(?<=[\w)\]])\s*\.\s*(_[A-Za-z]\w*)")
OF_SELF = re.compile(r"(?<![\w.])self$")
OF_WHAT_IS_HELD = re.compile(r"(\.\s*\w+|\])$")
TAKEN = re.compile(r"^from twinlog[\w.]* c?import\s*(\([^)]*\)|.*)$", re.MULTILINE)

# (pattern, where it applies, why)
BANNED = [
    (r"\bTODO\b|\bFIXME\b|\bXXX:", "src", "finish it, or write an issue"),
    (r"(?<!\w)except\s*:\s*$", "src", "name what is caught"),
    (r"^\s*(import|from) (mmap|fcntl)\b", "src", "only runtime/disk.py touches files"),
    (r"^\s*import time\b|^\s*from time import", "src", "time comes from runtime/clock.py"),
    (r"^\s*import random\b|^\s*from random import", "src", "an rng is passed in"),
    (r"^\s*(import|from) numpy\b", "src", "numpy belongs to spark: the rest has compiled forms"),
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
FREE_PREFIXES = tuple(f"src/twinlog/{name}/" for name in ("cli", "spark", "testing"))


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
    if path.suffix in CODE_SUFFIXES and len(lines) > LINES_MAX:
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


# Private names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


# Whose name is taken: of `self`, of an object that has a name here, of what an object holds.
OWN, NAMED, HELD = "self", "named", "held"


def private_names(path: Path) -> tuple[set[str], list[tuple[int, str, str]]]:
    """Private names that a module defines, and those that it takes of an object or of a module:
    (line, whose, name)."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return private_names_of_python(ast.parse(text))
    defined = {name for line in DEFINITION.findall(text) for name in PRIVATE_NAME.findall(line)}
    used = [
        (number, whose_in_compiled(line[: match.start()]), match[1])
        for number, line in enumerate(text.splitlines(), 1)
        for match in PRIVATE_USED.finditer(line)
        if "import " not in line  # Modules are called so because they are compiled.
    ]
    for taken in TAKEN.finditer(text):
        number = text.count("\n", 0, taken.start()) + 1
        used += [(number, NAMED, name) for name in PRIVATE_NAME.findall(taken[1])]
    return defined, [use for use in used if is_private(use[2])]


def whose_in_compiled(before: str) -> str:
    """Whose name it is that stands behind `before` and a dot."""
    if OF_SELF.search(before):
        return OWN
    return HELD if OF_WHAT_IS_HELD.search(before) else NAMED


def private_names_of_python(tree: ast.AST) -> tuple[set[str], list[tuple[int, str, str]]]:
    defined: set[str] = set()
    used: list[tuple[int, str, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                used.append((node.lineno, OWN, name))
            case ast.Attribute(value=ast.Attribute() | ast.Subscript(), attr=name):
                used.append((node.lineno, HELD, name))
            case ast.Attribute(attr=name):
                used.append((node.lineno, NAMED, name))
            case ast.ImportFrom(module=str(module)) if module.startswith("twinlog"):
                used += [(node.lineno, NAMED, alias.name) for alias in node.names]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr"),
                args=[ast.Name(id="self"), ast.Constant(value=str(name)), *_],
            ):
                used.append((node.lineno, OWN, name))
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                used.append((node.lineno, HELD, name))
    return defined, [use for use in used if is_private(use[2])]


def check_private_names() -> list[str]:
    """A private name is used in the module that defines it, and never of what an object holds: it
    may be of another class there. Of `self` it may be used in the same package, where classes are
    derived from each other. Mutants and the simulation's own nodes are exempt."""
    modules: dict[Path, tuple[set[str], list[tuple[int, str, str]]]] = {
        path: private_names(path)
        for path in sorted(PACKAGE.rglob("*.p*"))
        if path.suffix in CODE_SUFFIXES - {".pyi"}
    }
    packages: dict[str, set[str]] = {}
    for path, (defined, _) in modules.items():
        packages.setdefault(path.relative_to(PACKAGE).parts[0], set()).update(defined)
    ours = set().union(*packages.values())
    problems = []
    for path, (defined, used) in modules.items():
        package = path.relative_to(PACKAGE).parts[0]
        if package == "testing":
            continue
        # A compiled class is declared in its .pxd.
        own = defined | modules.get(path.with_suffix(".pxd"), (set(), []))[0]
        allowed = {OWN: packages[package], NAMED: own, HELD: set[str]()}
        for number, whose, name in used:
            if name in ours and name not in allowed[whose]:
                place = f"{path.relative_to(ROOT).as_posix()}:{number}"
                problems.append(f"{place}: {name} is private to another module: make it public")
    return problems


# Dead names


def top_level_names(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, name) of a module's constants, functions and classes; a decorator may register."""
    names: list[tuple[int, str]] = []
    for node in tree.body:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if not node.decorator_list:
                names.append((node.lineno, name))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.append((node.lineno, name))
    return [(line, name) for line, name in names if not name.startswith("__")]


def check_dead_names(files: list[Path]) -> list[str]:
    """What a module defines is mentioned a second time, in code or tests; prose does not count."""
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in CODE_SUFFIXES}
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {name} is used nowhere: remove it"
        for path, text in texts.items()
        if path.suffix == ".py" and path.is_relative_to(PACKAGE)
        if not path.is_relative_to(PACKAGE / "cli" / "mqadmin")  # A verb's function has its name.
        for line, name in top_level_names(ast.parse(text))
        if words[name] == 1
    ]


def check_stubs() -> list[str]:
    """mypy sees a compiled module through its stub."""
    return [
        f"{path.relative_to(ROOT).as_posix()}: no .pyi next to it"
        for path in sorted(PACKAGE.rglob("*.pyx"))
        if not path.with_suffix(".pyi").exists()
    ]


def main() -> int:
    files = tracked_files()
    problems = [problem for path in files for problem in check_file(path)]
    problems += check_private_names() + check_dead_names(files) + check_stubs()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"tidy: {len(files)} files, {len(problems)} problems")
    import prose  # Next to this file; it needs codespell, which the check above does not.

    return 1 if prose.main() or problems else 0


if __name__ == "__main__":
    sys.exit(main())
