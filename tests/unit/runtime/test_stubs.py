"""The stub of a compiled module says what is in it: names, and parameters in their order."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from twinlog.runtime.compiled import PARTS

pytestmark = pytest.mark.compiled
SOURCE = Path(__file__).resolve().parents[3] / "src"


def declared(tree: ast.Module | ast.ClassDef) -> dict[str, Any]:
    """Functions and classes that a stub declares; of properties the names only."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = declared(node)
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            names = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
            found[node.name] = None if node.decorator_list else names
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
    return found


def compare(what: str, stub: dict[str, Any], built: Any) -> None:
    public = {name for name in vars(built) if not name.startswith("_") and is_own(built, name)}
    assert public == {name for name in stub if not name.startswith("_")}, what
    for name, names in stub.items():
        if isinstance(names, dict):
            compare(f"{what}.{name}", names, getattr(built, name))
        elif names is not None and name != "__init__":
            assert list(inspect.signature(getattr(built, name)).parameters) == names, (
                f"{what}.{name}"
            )


def is_own(built: Any, name: str) -> bool:
    """Not what a module imported."""
    value = getattr(built, name)
    if inspect.ismodule(built):
        is_ours = getattr(value, "__module__", None) == built.__name__
        return is_ours and (inspect.isclass(value) or callable(value))
    return True


@pytest.mark.parametrize("name", PARTS)
def test_a_stub_is_true(name: str) -> None:
    if name.startswith("twinlog.spark"):
        pytest.importorskip("numpy")
    path = (SOURCE / name.replace(".", "/")).with_suffix(".pyi")
    compare(name, declared(ast.parse(path.read_text())), importlib.import_module(name))
