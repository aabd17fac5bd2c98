"""Which keys of a configuration the code reads: by its source, and while it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import twinlog

SOURCE = Path(twinlog.__file__).parent
# What belongs to a server; log lines and the HTTP port are set up for each of them.
PLACES = {
    "broker": ("broker", "store", "ha", "observe", "cli/broker.py", "runtime/log_config.py"),
    "namesrv": ("namesrv", "observe", "cli/namesrv.py", "runtime/log_config.py"),
    "controller": ("controller", "observe", "cli/controller.py", "runtime/log_config.py"),
    "tls": ("runtime/tls.py",),
}
HOLDERS = {"config", "_config", "settings"}  # What the code calls a configuration.
# It prints the values of keys, as `-p` and request 26 do: that is no effect.
PRINTS = SOURCE / "broker" / "stats" / "runtime_info.py"


def keys_read(role: str, struct: type[msgspec.Struct]) -> set[str]:
    """Attributes of `struct` that the code of a server reads, through its properties too."""
    found = {name for file in _files(role) for name in _reads(file)}
    derived = _properties(struct)
    waiting = list(found | {"__post_init__"})
    while waiting:
        more = derived.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found & set(struct.__struct_fields__)


def _files(role: str) -> Iterator[Path]:
    for place in PLACES[role]:
        path = SOURCE / place
        files = [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.pyx")]
        yield from (file for file in files if file != PRINTS)


def _reads(file: Path) -> Iterator[str]:
    text = file.read_text()
    if file.suffix == ".pyx":
        yield from re.findall(r"\b_?config\.(\w+)", text)
        return
    tree = ast.parse(text)
    for node in _outside_of_checks(tree) if file.parent.name == "runtime" else ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            holder = node.value
            name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if name in HOLDERS:
                yield node.attr


def _outside_of_checks(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything but functions that only judge values: to be checked is not to be used."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.FunctionDef) and child.name.startswith("_check_")):
            yield child
            yield from _outside_of_checks(child)


def _properties(struct: type[msgspec.Struct]) -> dict[str, set[str]]:
    """What each property, and the making of the struct, reads of it."""
    found: dict[str, set[str]] = {}
    names = {base.__name__ for base in struct.__mro__}
    for file in (SOURCE / "runtime").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                found |= {
                    function.name: {
                        part.attr
                        for part in ast.walk(function)
                        if isinstance(part, ast.Attribute)
                        and isinstance(part.value, ast.Name)
                        and part.value.id == "self"
                        and isinstance(part.ctx, ast.Load)
                    }
                    for function in node.body
                    if isinstance(function, ast.FunctionDef)
                    and function.name not in ("check", "to_properties")
                    and not function.name.startswith("_check_")
                }
    return found


def recording(struct: type[Any], seen: set[str]) -> type[Any]:
    """A struct like `struct` that notes in `seen` each attribute that is read."""

    class Recording(struct):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            seen.add(name)
            return super().__getattribute__(name)

    return Recording
