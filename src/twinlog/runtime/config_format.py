"""Properties files and the small languages inside their values.

A properties file knows comments only at the start of a line. People write them behind a value all
the same; Apache then ignores the value silently or uses it with the comment in it, so it is an
error here that names the comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from javaproperties import unescape

from twinlog.runtime.numbers import INT32_MAX, number_or_none

_DELAY = re.compile(r"([0-9]+)([smhd])")
_DELAY_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TRAILING_COMMENT = re.compile(r"\s#.*$")
_BLANK = " \t\f"
# Up to the first sign or blank that is not escaped; then blanks, one sign, blanks.
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*+)[ \t\f]*+[=:]?[ \t\f]*+", re.DOTALL)
# Of an update by a peer: several times as many as there are keys. Each costs the loop some 5 us.
UPDATED_LINES_MAX = 2000


class ConfigValueError(ValueError):
    """A value that cannot be: which key, and why."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class Entry(NamedTuple):
    """One key of a file, with its line."""

    line: int
    key: str
    value: str


def parse_properties(data: bytes) -> Iterator[Entry]:
    """The keys of a properties file in order. Text is UTF-8, else Latin-1 as Java reads it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    for line, logical in _logical_lines(text):
        found = _KEY.match(logical)
        assert found is not None  # It matches nothing, too.
        # Java keeps blanks at the end of a value; no key of ours means anything by them.
        key, value = unescape(found[1]), unescape(logical[found.end() :]).rstrip()
        if not is_text(key + value):
            raise ValueError(f"line {line}: an escape is half of a surrogate pair")
        yield Entry(line, key, value)


def parse_update(data: bytes) -> dict[str, str]:
    """Keys and values of a peer's `key=value` lines.

    Raises:
        ValueError: they cannot be read, or are more than can be meant.
    """
    if data.count(b"\n") + data.count(b"\r") > UPDATED_LINES_MAX:
        raise ValueError(f"more than {UPDATED_LINES_MAX} lines")
    return {entry.key: entry.value for entry in parse_properties(data)}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, and the number of the first. One pass: of peers too."""
    first, pieces = 1, list[str]()
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        piece = line.lstrip(_BLANK)
        if not pieces:
            first = number
            if not piece or piece[0] in "#!":
                continue
        is_continued = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        pieces.append(piece[:-1] if is_continued else piece)
        if not is_continued:
            if logical := "".join(pieces):
                yield first, logical
            pieces.clear()
    if logical := "".join(pieces):
        yield first, logical


def is_text(value: str) -> bool:
    """Whether `value` can be written: Python's strings can hold halves of surrogate pairs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def trailing_comment(value: str) -> str | None:
    """The part of `value` that was meant as a comment, if there is one."""
    found = _TRAILING_COMMENT.search(" " + value)
    return found.group().strip() if found else None


def parse_delay_levels(text: str) -> dict[int, int]:
    """`1s 5s 1m` to ms by level, from 1. Raises ValueError naming the part that is wrong."""
    levels: dict[int, int] = {}
    for level, part in enumerate(text.split(), 1):
        match = _DELAY.fullmatch(part)
        if match is None:
            raise ValueError(f"level {level} is {part!r}; write a number and s, m, h or d")
        count = number_or_none(match[1], high=INT32_MAX)
        if count is None:
            raise ValueError(f"level {level} is {part[:64]!r}: longer than {INT32_MAX} of a unit")
        levels[level] = count * _DELAY_UNIT_MS[match[2]]
    return levels


def parse_hours(text: str) -> tuple[int, ...]:
    """`04;16` to hours. Raises ValueError naming the part that is wrong."""
    hours = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        hour = number_or_none(part, high=23)
        if hour is None:
            raise ValueError(f"{part!r} is not an hour from 00 to 23")
        hours.append(hour)
    return tuple(hours)


# Where Apache's capitals do not follow from ours.
_SPELLED = {
    "ip1": "IP1",
    "ip2": "IP2",
    "tls": "TLS",
    "ha": "HA",
    "crc": "CRC",
}


def key_of(name: str) -> str:
    """The file's key of an attribute: `broker_ip1` is `brokerIP1`."""
    words = name.split("_")
    return words[0] + "".join(_SPELLED.get(word, word[:1].upper() + word[1:]) for word in words[1:])


def text_of(value: object) -> str:
    """A value as a properties file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def holds_secrets(text: str) -> bool:
    """Whether a properties file has a key whose value only its owner may read."""
    keys = (line.partition("=")[0].strip().lower() for line in text.splitlines())
    return any(key.endswith(("secret", "secretkey", "password")) for key in keys)


def properties_text(config: msgspec.Struct) -> str:
    """All keys and values of a configuration as Apache prints them: `key=value`, sorted.

    Keys without a value are left out, and so is what is not a plain value (TLS, with its
    passwords) or must not be shown (secrets).
    """
    lines = [
        f"{key_of(name)}={text_of(value)}\n"
        for name in config.__struct_fields__
        if (value := getattr(config, name)) is not None
        and not isinstance(value, msgspec.Struct | dict)
        and not name.endswith(("_secret", "_secret_key"))
    ]
    return "".join(sorted(lines))
