"""Texts in two languages and numbers for people.

English is what code, templates and servers say; `catalogue.toml` has the Chinese for each of those
texts. A text with values in it is a format string: a template's is translated before they are
filled in, and in a sentence that comes complete, such as a finding, they are found again.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from twinlog.admin.sizes import size_text

LANGUAGES = {"en": "English", "zh": "中文"}


@functools.cache
def catalogue() -> Mapping[str, str]:
    """English to Chinese."""
    text = importlib.resources.files(__package__).joinpath("catalogue.toml").read_text("utf-8")
    data: dict[str, str] = tomllib.loads(text)
    return data


def translate(language: str, text: str, **values: Any) -> str:
    """A text in a language. Values may be anything: they are not translated."""
    if language != "zh":
        chosen = text
    elif not values:
        return _sentence(text)
    else:
        chosen = catalogue().get(text, text)
    return chosen.format(**values) if values else chosen


_VALUE = re.compile(r"\{(\w+)\}")
# A value is one word, but for some; and some are sentences themselves.
_LOOSE = frozenset({"text", "before_text", "names", "details", "why", "rest"})
_SENTENCES = frozenset({"why", "rest", "text", "event", "state", "state_now"})
_SENTENCE_MAX = 600  # Longer ones are left as they are: they are not ours.


@functools.cache
def _forms() -> list[tuple[re.Pattern[str], str]]:
    """Sentences with values, the most particular first."""
    forms = [pair for pair in catalogue().items() if _VALUE.search(pair[0])]
    forms.sort(key=lambda pair: -len(_VALUE.sub("", pair[0])))
    return [(re.compile(_expression(english), re.DOTALL), chinese) for english, chinese in forms]


def _expression(english: str) -> str:
    parts = _VALUE.split(english)
    for index in range(1, len(parts), 2):
        name = parts[index]
        value = r".+?" if name in _LOOSE else r"\S+?"
        parts[index] = f"(?P<{name}>{value})"
    parts[::2] = [re.escape(part) for part in parts[::2]]
    return "".join(parts)


def _sentence(text: str) -> str:
    """A sentence whose values are filled in already; what nobody translated stays as it is."""
    if text in catalogue():
        return catalogue()[text]
    if len(text) > _SENTENCE_MAX:
        return text
    for form, chinese in _forms():
        if found := form.fullmatch(text):
            values = {
                name: _sentence(value) if name in _SENTENCES else value
                for name, value in found.groupdict().items()
            }
            return chinese.format(**values)
    return text


def translator(language: str) -> Callable[..., str]:
    return functools.partial(translate, language)


def choose_language(cookie: str | None, accepted: str) -> str:
    """The cookie's, else the first of the browser's that there is, else English."""
    if cookie in LANGUAGES:
        return cookie
    for part in accepted.split(","):
        name = part.partition(";")[0].strip().lower()[:2]
        if name in LANGUAGES:
            return name
    return "en"


# Numbers


def show_count(value: int | float | None) -> str:
    """With thin groups of three; a dash for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}".replace(",", "\u202f")
    return f"{int(value):,}".replace(",", "\u202f")


def show_bytes(value: int | float | None) -> str:
    return "–" if value is None else size_text(value)


def show_span(milliseconds: int | float | None) -> str:
    """A duration in at most two units."""
    if milliseconds is None:
        return "–"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86_400:.0f} d {seconds % 86_400 // 3600:.0f} h"


def show_percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.0f} %"


def show_time(milliseconds: int | None) -> Markup:
    """A moment in UTC; the script of the page shows it in the reader's own time zone."""
    if not milliseconds or not 0 < milliseconds < 253_402_300_800_000:
        return Markup("–")
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    shown = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(stamp, shown)


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: offset, hexadecimal, printable characters."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        codes = " ".join(f"{byte:02x}" for byte in part)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {codes:<47}  {shown}")
    return "\n".join(lines)
