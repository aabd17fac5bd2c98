"""Writes docs/CONFIGURATION.md out of the declarations of the keys; a test holds the two together.

python tools/config_reference.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from twinlog.runtime.config import BrokerConfig, ControllerConfig, NamesrvConfig, TlsConfig
from twinlog.runtime.config_key import Declaration, Effect, declarations

PAGE = Path(__file__).resolve().parent.parent / "docs" / "CONFIGURATION.md"
HEAD = """\
# Configuration

This page lists every key of the properties files of brokers, name servers and controllers.
`twinlog config explain KEY` explains one key, and `twinlog config lint FILE` checks a file.
This page is written by `python tools/config_reference.py`; to change it, change a declaration in
`src/twinlog/runtime/*_config.py`.

A key is *used*, has *no effect here*, or is *refused*: a value other than its default ends the
start, because ignoring it silently would be dangerous. Keys marked with *Live* may be changed while
the server runs (`twinlog broker config set`, `mqadmin updateBrokerConfig`) and take effect at once;
the others are read when the server starts.
"""
SECTIONS: list[tuple[str, str, type[msgspec.Struct]]] = [
    ("Broker", "`broker.conf`, for `twinlog broker -c`.", BrokerConfig),
    ("Name server", "`namesrv.conf`, for `twinlog namesrv -c`.", NamesrvConfig),
    ("Controller", "`controller.conf`, for `twinlog controller -c`.", ControllerConfig),
    (
        "TLS",
        "Keys of all three servers, in their files or in the file that `tls.config.file` names.",
        TlsConfig,
    ),
]


def page() -> str:
    return "\n".join([HEAD, *(line for section in SECTIONS for line in _section(*section))])


def _section(title: str, intro: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    every = sorted(declarations(struct).values(), key=lambda declared: declared.key.lower())
    yield f"## {title}\n\n{intro}\n"
    columns = ("key", "values", "default", "meaning")
    yield from _table(columns, (_used(d) for d in every if d.says.effect is Effect.USED))
    for effect, heading in ((Effect.REFUSED, "refused"), (Effect.NO_EFFECT, "without effect")):
        rows = [_other(d) for d in every if d.says.effect is effect]
        if rows:
            yield f"### {title}: {heading}\n"
            yield from _table(("key", "default", "what it is", "why"), rows)


def _used(declared: Declaration) -> tuple[str, ...]:
    text = f"{declared.says.text} *Live.*" if declared.says.is_live else declared.says.text
    return _names(declared), declared.values, _default(declared), text


def _other(declared: Declaration) -> tuple[str, ...]:
    return _names(declared), _default(declared), declared.says.text, declared.says.reason


def _names(declared: Declaration) -> str:
    return " or ".join(f"`{name}`" for name in (declared.key, *declared.says.aliases))


def _default(declared: Declaration) -> str:
    if declared.says.default:
        return declared.says.default
    return f"`{declared.default_text}`" if declared.default_text else "not set"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
