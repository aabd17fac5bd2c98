"""Places in the source that faults are put into, anchored by the name of a definition.

A name is that of a function ("HASender.receive_data"), or of a constant or field ("PERIOD_MS",
"BrokerConfig.broker_role"). In its definition a piece of text that occurs once is replaced, or,
without such a piece, the whole body of the function: code around it may change and move.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


class AnchorError(Exception):
    """The name, or the text within its definition, is not there once."""


def find_definition(tree: ast.Module, name: str) -> ast.stmt:
    """The definition of "Class.method", "function", "CONSTANT" or "Class.field"."""
    scope: ast.AST = tree
    *parents, last = name.split(".")
    for part in parents:
        scope = _only(part, (n for n in _below(scope) if _defines(n, part, _SCOPES)))
    found = _only(name, (n for n in _below(scope) if _defines(n, last, (ast.stmt,))))
    assert isinstance(found, ast.stmt)
    return found


def _below(scope: ast.AST) -> list[ast.AST]:
    """What a scope defines: not what functions and classes within it define for themselves."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(scope):
        found.append(child)
        if not isinstance(child, _SCOPES):
            found += _below(child)
    return found


def _defines(node: ast.AST, name: str, kinds: tuple[type[ast.AST], ...]) -> bool:
    if isinstance(node, _SCOPES):
        return isinstance(node, kinds) and node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    is_assignment = isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node, kinds)
    return is_assignment and any(isinstance(t, ast.Name) and t.id == name for t in targets)


def _only(name: str, found: Iterable[ast.AST]) -> ast.AST:
    nodes = list(found)
    if len(nodes) != 1:
        raise AnchorError(f"{name} is defined {len(nodes)} times")
    return nodes[0]


def with_fault(text: str, name: str, old: str, new: str) -> str:
    """The source with `new` for `old` in the definition of `name`, or for its body."""
    node = find_definition(ast.parse(text), name)
    lines = text.splitlines(keepends=True)
    start, end = node.lineno - 1, node.end_lineno or 0
    if not old:
        assert isinstance(node, _FUNCTIONS)
        start = node.body[0].lineno - 1
        body = textwrap.indent(textwrap.dedent(new), " " * node.body[0].col_offset)
        return "".join([*lines[:start], body + "\n", *lines[end:]])
    part = "".join(lines[start:end])
    if part.count(old) != 1:
        raise AnchorError(f"in {name} its text occurs {part.count(old)} times")
    return "".join([*lines[:start], part.replace(old, new), *lines[end:]])
