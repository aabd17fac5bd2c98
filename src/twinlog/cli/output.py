"""What commands print: tables for people, JSON and YAML for scripts, names for pipes.

A command returns a `Report`; this module alone knows how it looks. Values in rows are numbers and
text as a script wants them (`lag_bytes`, `last_update_ms`); a column says how people see them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from twinlog.admin.sizes import size_text

OUTPUTS = ("table", "wide", "json", "yaml", "name")
Row = dict[str, Any]
GAP = "  "
WIDTH_MIN = 6  # A name of fewer letters is no name.
_BOLD, _RED, _GREEN, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"


def show_text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def show_time(value: Any) -> str:
    """Milliseconds since 1970 in the time zone of the machine. A number that is no time, as a
    client may send it or a flipped bit make it, is shown as it is."""
    if not value or value < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(value / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(value)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{value % 1000:03d}"


def counted(count: int, one: str, several: str = "") -> str:
    """`1 place`, `2 places`."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def show_bytes(value: Any) -> str:
    return "-" if value is None else size_text(value)


def show_seconds(value: Any) -> str:
    """Milliseconds as seconds."""
    return "-" if value is None else f"{value / 1000:.1f} s"


def show_percent(value: Any) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key in rows and its title; `is_wide` ones appear with -o wide only."""

    key: str
    title: str = ""
    show: Callable[[Any], str] = show_text
    is_right: bool = False
    is_wide: bool = False

    @property
    def head(self) -> str:
        return self.title or self.key.upper().replace("_", " ")


@dataclass(slots=True)
class Table:
    """Rows of one kind."""

    columns: Sequence[Column]
    rows: list[Row]  # Without columns they are for scripts alone.
    name: str = ""
    empty: str = ""  # Said instead of a table without rows.
    name_key: str = ""  # What `-o name` prints; the first column unless given.


@dataclass(slots=True)
class Report:
    """The answer of a command.

    Without `fields` and with one table, JSON is an array of rows; else an object. `missing` says
    what could not be asked: it goes to standard error, and the exit code is 10.
    """

    tables: list[Table] = field(default_factory=list)
    fields: Row = field(default_factory=dict)
    sentence: str = ""
    is_healthy: bool = True
    missing: list[str] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)  # Below the sentence, for people.
    notes: list[str] = field(default_factory=list)

    @property
    def data(self) -> Any:
        if not self.fields and not self.sentence and len(self.tables) == 1:
            return self.tables[0].rows
        result: Row = dict(self.fields)
        if self.sentence:
            result = {"healthy": self.is_healthy, "sentence": self.sentence, **result}
        for table in self.tables:
            result[table.name or "rows"] = table.rows
        return result


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None when it is none."""
    try:
        # Not COLUMNS: it does not know of a resize. A terminal that says 0 does not know either.
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def uses_color(stream: Any = None) -> bool:
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR")


def render(
    report: Report,
    output: str,
    *,
    color: bool = False,
    compact: bool = False,
    width: int | None = None,
) -> str:
    """The text for standard output, with its line end; may be empty.

    Tables fit into `width` columns; wide ones are as wide as they are.
    """
    if output == "json":
        import json

        text = json.dumps(report.data, ensure_ascii=False, indent=None if compact else 2)
        return text + "\n"
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(report.data, sort_keys=False, allow_unicode=True)
        return f"---\n{text}" if compact else text
    if output == "name":
        return "".join(f"{name}\n" for name in _names(report))
    is_wide = output == "wide"
    return _text(report, color=color, is_wide=is_wide, width=None if is_wide else width)


def _names(report: Report) -> list[str]:
    for table in report.tables:
        if table.columns:  # Others are data for programs only.
            key = table.name_key or table.columns[0].key
            return list(dict.fromkeys(str(row[key]) for row in table.rows))
    return [str(value) for value in list(report.fields.values())[:1]]


def _text(report: Report, *, color: bool, is_wide: bool, width: int | None) -> str:
    parts = []
    if report.sentence:
        lines = [_sentence(report, color), *report.explanation]
        parts.append("".join(f"{line}\n" for line in lines))
    if report.fields:
        parts.append(_fields(report.fields))
    for table in report.tables:
        if table.rows and table.columns:
            title = f"{table.name}:\n" if len(report.tables) > 1 and table.name else ""
            parts.append(title + _table(table, color=color, is_wide=is_wide, width=width))
        elif table.empty:
            parts.append(table.empty + "\n")
    if report.notes:
        parts.append("".join(f"{note}\n" for note in report.notes))
    return "\n".join(parts) if len(parts) > 1 else "".join(parts)


def _sentence(report: Report, color: bool) -> str:
    if not color:
        return report.sentence
    return f"{_GREEN if report.is_healthy else _RED}{report.sentence}{_PLAIN}"


def _fields(values: Row) -> str:
    width = max(len(key) for key in values) + 1
    lines = []
    for key, value in values.items():
        text = show_time(value) if key.endswith("_ms") else show_text(value)
        lines.append(f"{key.removesuffix('_ms').replace('_', ' '):<{width}} {text}\n")
    return "".join(lines)


def _table(table: Table, *, color: bool, is_wide: bool, width: int | None) -> str:
    columns = [column for column in table.columns if is_wide or not column.is_wide]
    cells = [[one_line(column.show(row.get(column.key))) for column in columns]
             for row in table.rows]  # fmt: skip
    heads = [column.head for column in columns]
    widths = [max(map(width_of, column)) for column in zip(heads, *cells, strict=True)]
    if width is not None:
        may_shrink = [index for index, column in enumerate(columns) if not column.is_right]
        widths = fit(widths, may_shrink, width)
    lines = [cut(_line(row, columns, widths), width) for row in (heads, *cells)]
    if color:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    return "".join(f"{line}\n" for line in lines)


def one_line(text: str) -> str:
    """Text from elsewhere must not break a table or steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)


def fit(widths: Sequence[int], may_shrink: Sequence[int], width: int) -> list[int]:
    """Widths whose sum fits. Text gives way, the widest column first; numbers keep theirs."""
    result = list(widths)
    excess = sum(result) + len(GAP) * (len(result) - 1) - width
    while excess > 0:
        widest = max(may_shrink, key=result.__getitem__, default=None)
        if widest is None or result[widest] <= WIDTH_MIN:
            break
        result[widest] -= 1
        excess -= 1
    return result


def cut(text: str, width: int | None) -> str:
    """At most `width` columns; an ellipsis says that there was more."""
    if width is None or width_of(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while width_of(kept) > max(0, width - 1):
        kept = kept[:-1]
    return kept + "…" * (width > 0)


def width_of(text: str) -> int:
    """Columns of a terminal: Chinese characters take two, accents of their own none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(character) else 1 + (east_asian_width(character) in "WF")
        for character in text
    )


def padded(text: str, width: int, *, is_right: bool = False) -> str:
    """The text cut or filled up to exactly so many columns."""
    text = cut(text, width)
    blanks = " " * (width - width_of(text))
    return blanks + text if is_right else text + blanks


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    filled = (
        padded(cell, width, is_right=column.is_right)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    )
    return GAP.join(filled).rstrip()
