"""The check of the prose sees what it should, and lets the rest pass."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "prose.py"))


def found(text: str) -> list[str]:
    prose = TOOL["prose_of_page"](text)
    return [*TOOL["habits"]("page", iter(enumerate(prose.splitlines(), 1)))]


@pytest.mark.parametrize(
    "text",
    [
        "It takes 65,000 messages a second.", "The copy stands beside it.", "It begins anew.",
        "It waits for ever.", "Answers to RocketMQ's HAService.", "It simply works.",
        "The slave has not got it.", "2,000 heartbeats a second reach it.", "one line a second",
    ],
)  # fmt: skip
def test_habits_are_found(text: str) -> None:
    assert len(found(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "It takes 65,000 messages per second.", "Wait for half a second.", "A second broker joins.",
        "The key `beside` is quoted.", "```\nbeside anew alike\n```", "It sends a message.",
    ],
)  # fmt: skip
def test_plain_text_passes(text: str) -> None:
    assert found(text) == []


def test_long_sentences_are_found_in_paragraphs_only() -> None:
    words = "word " * 60
    assert len(list(TOOL["long_sentences"]("page", f"{words}.\n"))) == 1
    assert list(TOOL["long_sentences"]("page", f"| {words} |\n\n    {words}\n")) == []
    assert list(TOOL["long_sentences"]("page", ("word " * 20 + ".\n") * 3)) == []


def test_comments_and_texts_of_a_source_are_read() -> None:
    source = 'beside = 1  # It stands beside it.\nTEXT = "It begins anew."\n'
    lines = TOOL["prose_of_source"](source)
    assert len(list(TOOL["habits"]("module.py", lines))) == 2


def test_the_style_page_has_twenty_pairs() -> None:
    text = (ROOT / "docs" / "STYLE.md").read_text(encoding="utf-8")
    rows = text.split("| before | after |")[1].splitlines()[2:]
    assert len([row for row in rows if row.startswith("| ")]) >= 20
