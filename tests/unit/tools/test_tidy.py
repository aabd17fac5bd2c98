"""The checks of private and of dead names find what they are for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import tidy

STORE = """
class Store:
    def __init__(self):
        self._tail = 0
    def grow(self, other):
        other._tail += 1
"""
STUB = "class Lane: ...\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy, "PACKAGE", tmp_path / "twinlog")

    def write(**files: str) -> list[str]:
        for name, text in {"store__log_py": STORE, **files}.items():
            stem, _, suffix = name.rpartition("_")
            path = tmp_path / "twinlog" / f"{stem.replace('__', '/')}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tidy.check_private_names() + tidy.check_stubs()

    return write


def test_a_module_may_use_its_own_names(tree: Any) -> None:
    assert tree() == []


@pytest.mark.parametrize(
    "line",
    [
        "def read(store):\n    return store._tail\n",
        "def read(broker):\n    return broker.store._tail\n",
        "class Lane:\n    def read(self):\n        return self._tail\n",
        "class Lane:\n    def read(self):\n        self._tail = self.log._tail\n",
        "class Lane:\n    def read(self):\n        self._tail = self.logs[0]._tail\n",
    ],
)
def test_names_of_another_package_are_found(tree: Any, line: str) -> None:
    (problem,) = tree(broker__lane_py=line)
    assert "lane.py" in problem
    assert "_tail" in problem


def test_a_name_of_a_neighbour_in_the_package_is_found(tree: Any) -> None:
    (problem,) = tree(store__queue_py="def read(store):\n    return store._tail\n")
    assert "queue.py" in problem


def test_compiled_code_is_read_too(tree: Any) -> None:
    (problem,) = tree(
        broker__lane_pyx="cdef int read(store):\n    return store._tail\n", broker__lane_pyi=STUB
    )
    assert "lane.pyx:2" in problem


@pytest.mark.parametrize(
    "line",
    [
        "cdef int read(self):\n    return self._store._tail\n",
        "cdef int read(self):\n    return self.stores[0]._tail\n",
        "cdef int read(self):\n    return (<Store> self.store)._tail\n",
        "# The log\nfrom twinlog.store.log cimport Store, _tail\n",
        "# The log\nfrom twinlog.store.log cimport (\n    Store,\n    _tail,\n)\n",
    ],
)
def test_compiled_code_takes_nothing_private_of_what_it_holds(tree: Any, line: str) -> None:
    (problem,) = tree(broker__lane_pyx="cdef object _store\n" + line, broker__lane_pyi=STUB)
    assert "_tail is private to another module" in problem


def test_a_private_name_in_a_string_is_found(tree: Any) -> None:
    (problem,) = tree(broker__lane_py='def read(store):\n    return getattr(store, "_tail")\n')
    assert "lane.py:2" in problem


def test_what_a_class_declares_in_its_pxd_is_its_own(tree: Any) -> None:
    declared = "cdef class Lane:\n    cdef int _tail, _end\n"
    code = "cdef class Lane:\n    def read(self, Lane other):\n        return other._tail\n"
    assert tree(broker__lane_pxd=declared, broker__lane_pyx=code, broker__lane_pyi=STUB) == []


def test_a_compiled_module_needs_a_stub(tree: Any) -> None:
    (problem,) = tree(broker__lane_pyx="cdef int size = 0\n")
    assert "no .pyi" in problem


def test_long_compiled_files_are_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    long = tmp_path / "long.pyx"
    long.write_text("cdef int x\n" * 701)
    assert "above 700" in tidy.check_file(long)[0]


def test_a_name_that_nobody_mentions_is_found(tree: Any, tmp_path: Path) -> None:
    tree(
        store__log_py="DEAD = 1\nUSED: int = 2\n@command\ndef registered(): ...\n",
        store__use_py="from twinlog.store.log import USED\n",
    )
    (problem,) = tidy.check_dead_names(list(tmp_path.rglob("*.py")))
    assert problem.endswith("log.py:1: DEAD is used nowhere: remove it")
