"""What verbs print, for scripts: `-o json` makes one object of the same cells and lines.

A line that a `Form` made knows its cells, so that JSON has values and not text cut at columns.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_HEADING = re.compile(r"=+(.*?)=+")
_PAIR = re.compile(r"#?([A-Za-z][\w.()/ -]*?)\s*(?:=  |: |\t)(.*)\Z")


class Line(str):
    """Text for people, and the cells that it was made of."""

    __slots__ = ("cells",)
    cells: tuple[Any, ...]


class Form:
    """The format of the lines of one table, as Apache's printf has it."""

    def __init__(self, text: str) -> None:
        self._format = text.format

    def __call__(self, *cells: Any) -> Line:
        line = Line(self._format(*cells))
        line.cells = cells
        return line


@dataclass(slots=True)
class Document:
    """Everything that one verb has said so far."""

    verb: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _heads: list[str] = field(default_factory=list)
    _place: str = ""

    def add(self, text: str) -> None:
        if isinstance(text, Line):
            self._add_cells(text.cells)
            return
        value = _json_of(text)
        if value is not None:
            self.values["document"] = value
            return
        for line in filter(None, map(str.strip, text.split("\n"))):
            self._add_text(line)

    def _add_cells(self, cells: tuple[Any, ...]) -> None:
        if all(isinstance(cell, str) and cell.startswith("#") for cell in cells):
            self._heads = [cell.removeprefix("#") for cell in cells]
            return
        self.rows.append(dict(zip(self._heads, map(_plain, cells), strict=False)))

    def _add_text(self, line: str) -> None:
        if not line.strip("-"):
            return
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            self._place = heading[1]
            return
        pair = _PAIR.match(line)
        if pair is None:
            self.lines.append(line)
            return
        target = self.values.setdefault(self._place, {}) if self._place else self.values
        target[pair[1]] = pair[2].strip()

    def text(self) -> str:
        """One line; a verb that repeats itself prints one for each round."""
        result: dict[str, Any] = {"verb": self.verb}
        for name in ("rows", "values", "lines"):
            if getattr(self, name):
                result[name] = getattr(self, name)
        return json.dumps(result, ensure_ascii=False)


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return cell.strip()
    return cell if isinstance(cell, int | float | bool) or cell is None else str(cell)


def _json_of(text: str) -> Any:
    """The value of a line that is a JSON document itself; RocketMQ's keys may be bare numbers."""
    if not text.startswith("{"):
        return None
    try:
        return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))
    except ValueError:
        return None
