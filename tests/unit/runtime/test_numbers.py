"""Numbers that others wrote: what one is, and that nothing else makes the reader raise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twinlog
from twinlog.runtime.numbers import INT32_MAX, INT64_MAX, is_number, number_of, number_or_none

NOT_NUMBERS = [
    "", " ", "²", "٣", "1_0", " 1", "1 ", "1\n", "+", "-", "--1", "0x10", "1e3", "1.0", "NaN",
    "9" * 21, "9" * 5000, "\ud800", "\0", "一",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_is_no_number(text: str) -> None:
    assert number_or_none(text, -INT64_MAX) is None
    assert not is_number(text, 10_000)
    with pytest.raises(ValueError, match="not a number"):
        number_of(text)


@given(st.integers(-(10**21), 10**21), st.integers(-(10**21), 10**21), st.integers(-5, 10**21))
def test_a_number_within_its_range_is_itself(number: int, one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    wanted = number if low <= number <= high and len(str(abs(number))) <= 20 else None
    if number < 0 <= low:
        wanted = None
    assert number_or_none(str(number), low, high) == wanted
    assert number_or_none(str(number).encode(), low, high) == wanted


@given(st.text() | st.binary())
def test_any_text_gives_a_number_or_none(text: str | bytes) -> None:
    found = number_or_none(text, -INT32_MAX, INT32_MAX)
    assert found is None or -INT32_MAX <= found <= INT32_MAX


def test_a_sign_only_where_negative_numbers_are_allowed() -> None:
    assert number_or_none("+5") is None
    assert number_or_none("-0") is None
    assert number_or_none("+5", -1) == 5


@pytest.mark.parametrize("value", [None, [], {}, float("nan"), float("inf"), 2**63, "9" * 30])
def test_json_values_that_are_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="not a number"):
        number_of(value)


@pytest.mark.parametrize(("value", "number"), [(5, 5), ("5", 5), (5.0, 5), ("-5", -5), (True, 1)])
def test_json_values_that_are_one(value: object, number: int) -> None:
    assert number_of(value) == number


def test_nothing_else_in_the_source_takes_text_for_digits() -> None:
    """`isdigit`, `isdecimal` and `isnumeric` call things digits that are none to `int`."""
    source = Path(twinlog.__file__).parent
    asking = re.compile(r"\bis(digit|decimal|numeric)\(")
    found = [str(path) for path in source.rglob("*.py*") if asking.search(text_of(path))]
    assert found == []


def text_of(path: Path) -> str:
    return path.read_text() if path.suffix in (".py", ".pyx", ".pxd") else ""


READERS = (
    "broker", "client", "controller", "ha", "message", "namesrv", "remoting", "store",
)  # fmt: skip
# What a peer says comes as text or JSON, by name: none of these becomes a number by `int`.
BARE = re.compile(
    r"\bint\((?:\w+\.)*(?:ext|data|item|header|fields|answer)\b(?:\(\))?(?:\[|\.get\()"
)


def test_what_peers_say_becomes_a_number_in_one_place() -> None:
    source = Path(twinlog.__file__).parent
    found = [
        f"{path.relative_to(source)}:{number}"
        for package in READERS
        for path in sorted((source / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BARE.search(line) and "content-length" not in line
    ]
    assert found == []
