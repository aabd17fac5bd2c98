"""The names of a simulated disk, and what is in each directory without a walk over all of them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from twinlog.testing.siminode import SimInode

Entry = SimInode | None
DIRECTORY: Entry = None


@lru_cache(maxsize=1 << 14)
def name_of(path: str) -> str:
    """The one name of a path; a seed asks for the same few hundred again and again."""
    name = posixpath.normpath(path)
    return "" if name == "." else name


@lru_cache(maxsize=1 << 14)
def parent_of(name: str) -> str:
    return posixpath.dirname(name)


class NameTree(dict[str, Entry]):
    """Full names of files and directories; change it by `set` and `remove` only."""

    def __init__(self, entries: Iterable[tuple[str, Entry]] = (("", None), ("/", None))) -> None:
        super().__init__(entries)
        self._inside: dict[str, dict[str, None]] = {}
        self._listed: dict[str, list[str]] = {}
        for name in self:
            self._list(name)

    def set(self, name: str, entry: Entry) -> None:
        if name not in self:
            self._list(name)
        self[name] = entry

    def remove(self, name: str) -> None:
        if name in self:
            del self[name]
            parent = parent_of(name)
            self._inside[parent].pop(name, None)
            self._listed.pop(parent, None)

    def _list(self, name: str) -> None:
        if name not in ("", "/"):
            parent = parent_of(name)
            self._inside.setdefault(parent, {})[name] = None
            self._listed.pop(parent, None)

    def names(self, directory: str) -> Sequence[str]:
        """What is in it, sorted, without the directory."""
        listed = self._listed.get(directory)
        if listed is None:
            inside = self._inside.get(directory, ())
            listed = self._listed[directory] = sorted(map(posixpath.basename, inside))
        return listed

    def below(self, name: str) -> Sequence[str]:
        """It, and all that is in it."""
        if name in self and self[name] is not DIRECTORY:
            return [name]
        return [other for other in self if other == name or other.startswith(name + "/")]

    def copy(self) -> NameTree:
        return NameTree(self.items())

    def without_orphans(self) -> NameTree:
        """A name whose directory did not survive cannot be reached: it is gone too."""
        kept: dict[str, Any] = {}
        for name in sorted(self):
            parent = parent_of(name)
            if name in ("", "/") or (parent in kept and kept[parent] is DIRECTORY):
                kept[name] = self[name]
        return NameTree(kept.items())
