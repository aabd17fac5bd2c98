"""Properties files as Java reads them, in one pass."""

from __future__ import annotations

import io
import random

import javaproperties
import pytest

from twinlog.runtime.config_format import UPDATED_LINES_MAX, parse_properties, parse_update

PIECES = ("a", "b", "=", ":", " ", "\t", "\\", "\n", "\r", "\r\n", "#", "!", "\f", "\\u0041", "é")


def expected(text: str) -> object:
    """By a reader that follows Java's, and takes the square of a long line."""
    found, line = [], 1
    try:
        for element in javaproperties.parse(io.StringIO(text, newline=None)):
            if isinstance(element, javaproperties.KeyValue):
                found.append((line, element.key, element.value.rstrip()))
            line += max(1, element.source.count("\n"))
    except ValueError:
        return "refused"
    return found


def test_generated_texts_are_read_as_by_java() -> None:
    numbers = random.Random(1)
    for _ in range(5_000):
        text = "".join(numbers.choice(PIECES) for _ in range(numbers.randint(0, 25)))
        try:
            found: object = [tuple(entry) for entry in parse_properties(text.encode())]
        except ValueError:
            found = "refused"
        assert found == expected(text), repr(text)


def test_an_update_of_thousands_of_lines_is_refused() -> None:
    assert parse_update(b"a=1\n" * UPDATED_LINES_MAX) == {"a": "1"}
    with pytest.raises(ValueError, match="more than 2000 lines"):
        parse_update(b"a=1\n" * (UPDATED_LINES_MAX + 1))
