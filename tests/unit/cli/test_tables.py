"""Tables as text: they fit the terminal, and nothing in a cell can break them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.cli.mqadmin import java
from twinlog.cli.output import WIDTH_MIN, Column, Report, Table, fit, render, show_time

COLUMNS = [Column("name"), Column("count", is_right=True), Column("note")]


def rows(*texts: str) -> Report:
    made = [{"name": text, "count": 7, "note": f"about {text}"} for text in texts]
    return Report([Table(COLUMNS, made)])


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.integers(1, 100))
def test_no_line_is_wider_than_the_terminal(names: list[str], width: int) -> None:
    text = render(rows(*names), "table", width=width)
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) == len(names) + 1
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(10, 200))
def test_columns_shrink_only_as_far_as_they_must(widths: list[int], width: int) -> None:
    shrunk = fit(widths, range(len(widths)), width)
    needed = sum(widths) + 2 * (len(widths) - 1)
    used = sum(shrunk) + 2 * (len(shrunk) - 1)
    assert used == min(needed, max(width, used))  # Not narrower than the terminal, when cut.
    assert all(new == old or new >= WIDTH_MIN for new, old in zip(shrunk, widths, strict=True))


def test_numbers_are_whole_and_names_end_in_an_ellipsis() -> None:
    text = render(rows("a-rather-long-name-of-a-topic"), "table", width=30)
    assert text.splitlines()[1] == "a-rather-…      7  about a-ra…"
    assert "a-rather-long-name-of-a-topic" in render(rows("a-rather-long-name-of-a-topic"), "table")


def test_wide_is_as_wide_as_it_is() -> None:
    assert "about " + "x" * 80 in render(rows("x" * 80), "wide", width=40)


def test_a_cell_cannot_steer_the_terminal() -> None:
    text = render(rows("evil\x1b[2J\nname"), "table")
    assert "\x1b" not in text
    assert "evil·[2J·name" in text


@pytest.mark.parametrize("value", [1 << 40, (1 << 40) + 7, 1 << 62, (1 << 63) - 1, 253402300800000])
def test_a_number_that_is_no_time_is_shown_as_it_is(value: int) -> None:
    """Times of messages are what clients send, and what a disk keeps of them."""
    for text in (show_time(value), java.human_time(value), java.second_time(value)):
        assert text == str(value) or text.startswith("2004-")
