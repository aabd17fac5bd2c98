"""Both languages are whole, and numbers are readable."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from twinlog.console import wording
from twinlog.console.app import operations
from twinlog.observe.health import Code

TEXT = re.compile(r"""\b_\((?:"([^"]*)"|'([^']*)')[,)]""")


def texts_of_templates() -> set[str]:
    directory = Path(str(files("twinlog.console"))) / "templates"
    found = set()
    for path in directory.rglob("*.html"):
        for one, other in TEXT.findall(path.read_text(encoding="utf-8")):
            found.add(one or other)
    return found


def test_every_text_of_the_pages_is_in_the_catalogue() -> None:
    texts = texts_of_templates()
    assert len(texts) > 200
    assert sorted(texts - wording.catalogue().keys()) == []


def test_what_asks_and_what_is_wrong_is_in_the_catalogue() -> None:
    asked = {row.summary for row in operations().rows.values() if row.asks}
    assert sorted((asked | {code.value for code in Code}) - wording.catalogue().keys()) == []


def test_translations_keep_their_values() -> None:
    for english, chinese in wording.catalogue().items():
        assert chinese
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese))


def test_a_text_is_chosen_by_language() -> None:
    assert wording.translate("zh", "Page {page} of {pages}", page=1, pages=2) == "第 1 页，共 2 页"
    assert wording.translate("en", "Page {page} of {pages}", page=1, pages=2) == "Page 1 of 2"
    assert wording.translate("zh", "{braces} of a message") == "{braces} of a message"


@pytest.mark.parametrize(
    ("cookie", "header", "language"),
    [
        (None, "", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de-DE, zh;q=0.5", "zh"),
        ("en", "zh", "en"),
        ("xx", "zh", "zh"),
    ],
)
def test_the_language_is_the_readers(cookie: str | None, header: str, language: str) -> None:
    assert wording.choose_language(cookie, header) == language


def test_numbers() -> None:
    assert wording.show_bytes(1536) == "1.5 KiB"
    assert wording.show_bytes(None) == "–"
    assert wording.show_count(1234567) == "1\u202f234\u202f567"
    assert wording.show_count(1.25) == "1.2"
    assert wording.show_span(250) == "250 ms"
    assert wording.show_span(61_000) == "1 min 1 s"
    assert wording.show_span(90_000_000) == "1 d 1 h"
    assert "1970" in wording.show_time(1)
    assert wording.show_time(0) == "–"
    assert wording.show_time(1 << 62) == "–"


def test_hex() -> None:
    assert wording.hex_dump(b"\x00A<") == "00000000  00 41 3c" + " " * 41 + ".A<"
    assert len(wording.hex_dump(bytes(33)).splitlines()) == 3
