"""Whole numbers out of text that others wrote: the one place that reads them. Pure.

`str.isdigit` calls `²` a digit, which `int` does not take; `int` takes `1_0`, blanks and the digits
of every script, and raises for more than 4,300 digits. Here a number is ASCII digits, at most
`DIGITS_MAX` of them, with a sign where negative numbers are allowed, in a range that the caller
names. What is none is None, or a ValueError that says so.
"""

from __future__ import annotations

import re
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DIGITS_MAX = 20  # 2**63 has 19; with one zero in front it is still a number.

_SIGNED = re.compile(rf"[+-]?[0-9]{{1,{DIGITS_MAX}}}")
_UNSIGNED = re.compile(rf"[0-9]{{1,{DIGITS_MAX}}}")


def number_or_none(text: str | bytes, low: int = 0, high: int = INT64_MAX) -> int | None:
    """The number that `text` is, if it is one from `low` to `high`; a sign if `low` is negative."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if (_SIGNED if low < 0 else _UNSIGNED).fullmatch(text) is None:
        return None
    number = int(text)
    return number if low <= number <= high else None


def number_of(value: Any, low: int = -INT64_MAX - 1, high: int = INT64_MAX) -> int:
    """The number that a JSON value is: a number, or text of one as Java's parser takes it.

    Raises:
        ValueError: it is none, or not from `low` to `high`.
    """
    number: int | None = None
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        number = number_or_none(value, low, high)
    elif isinstance(value, int | float) and low <= value <= high:
        number = int(value)
    if number is None:
        raise ValueError(f"not a number from {low} to {high}: {str(value)[:64]!r}")
    return number


def is_number(text: str, digits_max: int = DIGITS_MAX) -> bool:
    """Whether `text` is digits and nothing else, at most so many."""
    return len(text) <= digits_max and _UNSIGNED.fullmatch(text) is not None
