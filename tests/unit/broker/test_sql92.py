"""SQL92 filters: types, nulls, precedence, and what may not be compared."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.broker.filter.sql92 import VERDICT_COUNT_MAX, FilterSyntaxError, Sql92Filter
from twinlog.message.properties import decode_properties


def matches(expression: str, **properties: str) -> bool:
    return Sql92Filter(expression).matches(properties)


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a = 3", {"a": "3"}, True),
        ("a = 3", {"a": "+3"}, True),
        ("a = 3", {"a": "3.0"}, False),  # not an int: no value
        ("a <> 3", {"a": "3.5"}, False),  # an error stays an error under NOT
        ("a = 3.5", {"a": "3.5"}, True),
        ("a > 3", {"a": "10"}, True),
        ("3 < a", {"a": "10"}, True),
        ("a > 3", {"a": "3000000000"}, False),  # above 32 bits against a 32-bit literal
        ("a > 3000000000", {"a": "3000000001"}, True),
        ("a = 'x'", {"a": "x"}, True),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),  # two properties: as doubles
        ("a > b", {"a": "x", "b": "9"}, False),
        ("a = TRUE", {"a": "TrUe"}, True),
        ("a = FALSE", {"a": "no"}, True),
        ("TRUE = a", {"a": "true"}, False),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {}, False),
        ("a IS NULL", {"a": "1"}, False),
        ("a is not null", {"a": "1"}, True),
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a BETWEEN 1 AND 3", {"a": "4"}, False),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a NOT BETWEEN 1 AND 3", {}, False),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x', 'y')", {"a": "y"}, False),
        ("a NOT IN ('x', 'y')", {}, False),
        ("a = 1 AND b = 2", {"a": "1", "b": "2"}, True),
        ("a = 1 OR b = 2", {"b": "2"}, True),  # null OR true
        ("a = 1 AND b = 2", {"b": "3"}, False),
        ("NOT (a = 1)", {"a": "2"}, True),
        ("NOT (a = 1)", {}, False),  # NOT null is null
        ("a = 1 OR b = 1 AND c = 1", {"a": "1"}, True),
        ("(a = 1 OR b = 1) AND c = 1", {"a": "1"}, False),
        ("a > -5", {"a": "-4"}, True),
        ("a > -(5)", {"a": "-4"}, True),
        ("a", {"a": "true"}, False),  # a bare property is a string
        ("TRUE", {}, True),
        ("NULL", {}, False),
        ("android = 1 -- a comment", {"android": "1"}, True),
        ("a /* x */ = 1", {"a": "1"}, True),
        ("$a_1 = .5", {"$a_1": "5e-1"}, True),
        ("a = 7L", {"a": "7"}, True),
    ],
)
def test_value_of_expression(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert Sql92Filter(expression).matches(properties) is expected


@pytest.mark.parametrize(
    "expression",
    ["", "a =", "a = NULL", "a > 'x'", "a > TRUE", "3", "'x'", "a BETWEEN 3 AND 1", "a LIKE 'x'",
     "a IN (1)", "1 IN ('x')", "a = 99999999999999999999", "TRUE = 3", "a = 1e999", "a ! b",
     "(" * 100 + "a = 1" + ")" * 100, "NOT " * 100 + "TRUE", "a = '" + "x" * 9000 + "'"],
)  # fmt: skip
def test_illegal_expression_is_refused_with_a_sentence(expression: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        Sql92Filter(expression)
    assert str(caught.value)


def test_position_of_a_syntax_error_is_named() -> None:
    with pytest.raises(FilterSyntaxError, match="line 1, column 7"):
        Sql92Filter("a = 1 b")


@given(st.text(max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(FilterSyntaxError):
        Sql92Filter(text).matches({"a": "1"})


@given(st.text(max_size=10))
def test_no_property_value_raises(value: str) -> None:
    for expression in ("a = 1", "a > 1.5", "a = TRUE", "a > b", "a BETWEEN 1 AND 2"):
        assert matches(expression, a=value, b="1") in (True, False)


STORED = [
    b"a\x016\x02color\x01red", b"color\x01red\x02a\x0160\x02", b"a\x01\x02color\x01red", b"",
    b"a\x011\x02a\x019\x02color\x01red", b"xa\x019\x02color\x01red", b"a\x019\x02color\x01r\x01ed",
    "color\x01größe\x02a\x019".encode(), b"a\x01x\x02color\x01red", b"color\x01\xff\x02a\x019",
]  # fmt: skip


@pytest.mark.parametrize(
    "expression",
    ["a > 5 AND color = 'red'", "a IS NULL", "color IN ('größe', 'r\x01ed')", "TRUE", "b IS NULL"],
)
def test_a_stored_property_string_gives_the_verdict_of_its_decoded_form(expression: str) -> None:
    compiled = Sql92Filter(expression)
    for _ in range(2):
        for stored in STORED:
            expected = compiled.matches(decode_properties(stored))
            assert compiled.matches_properties(stored) is expected, stored


def test_verdicts_that_are_kept_are_bounded() -> None:
    compiled = Sql92Filter("a > 5")
    for number in range(2 * VERDICT_COUNT_MAX):
        assert compiled.matches_properties(b"a\x01%d" % number) is (number > 5)
        assert len(compiled._verdicts) <= VERDICT_COUNT_MAX
