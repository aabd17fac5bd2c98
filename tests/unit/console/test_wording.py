"""Both languages are whole, and numbers are readable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.console import wording
from twinlog.console.app import operations
from twinlog.observe.health import (
    Code,
    DiskFacts,
    Facts,
    Finding,
    GroupFacts,
    ReplicaFacts,
    RivalFacts,
    ServerFacts,
    SlaveFacts,
    SyncLimits,
    judge,
    missing_slave,
    why_not_in_sync,
)

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


# Sentences that come complete

SAYING = {"Refused", "BadParameters", "Preview", "Done", "done_on"}


def sentences_of_the_console() -> Iterator[tuple[str, str]]:
    """What operations, forms and errors say, with made-up values filled in: where, and the text."""
    for path in sorted(Path(str(files("twinlog.console"))).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(call, "func", None) if isinstance(call, ast.Call) else None
            if not isinstance(name, ast.Name) or name.id not in SAYING:
                continue
            assert isinstance(call, ast.Call)
            if path.name == "lists.py":
                continue  # Where `done_on` puts its sentence together.
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
                for text in _texts(argument):
                    whole = f"{text} on 2 broker(s)" if name.id == "done_on" else text
                    yield f"{path.name}:{call.lineno}", whole


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.List):
        for item in node.elts:
            yield from _texts(item)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else "x1"  # type: ignore[misc]
            for part in node.values
        )


def test_what_the_console_says_is_in_the_catalogue() -> None:
    found = list(sentences_of_the_console())
    assert len(found) > 40
    missing = [pair for pair in found if wording.translate("zh", pair[1]) == pair[1]]
    assert missing == []


def every_finding() -> Iterator[Finding]:
    """One of each kind, out of facts."""
    server = ServerFacts(
        kind="broker", name="a:0", address="h:1", refusal="its disk is full",
        disks=(DiskFacts("/d", 0.8),), unsaved=("topics",), loop_lag_ms=900,
    )  # fmt: skip
    down = ServerFacts(kind="broker", name="a:1", address="h:2", error="no answer")
    slow = why_not_in_sync(10, 9_999, SyncLimits())
    far = why_not_in_sync(1 << 40, 0, SyncLimits())
    unheard = why_not_in_sync(0, 0, SyncLimits(), unheard_ms=9_999, report_ms=400)
    slaves = (
        ReplicaFacts("h:2", is_in_sync=False, reason=unheard),
        ReplicaFacts("h:3", is_in_sync=False, lag_bytes=10, reason=slow),
        ReplicaFacts("h:4", is_in_sync=False, lag_bytes=1 << 40, reason=far),
        ReplicaFacts("h:5", is_in_sync=False, lag_bytes=7),
        ReplicaFacts("h:6", is_slave=False, reason="diverged"),
    )
    ill = SlaveFacts("h:7", damage="a record is damaged", metadata_problems=("has old topics",))
    old = SlaveFacts("h:7", metadata_problems=("has old topics",))
    alone = SlaveFacts("h:7", is_linked=False)
    refused = SlaveFacts("h:7", is_linked=False, link_reason="refused")
    groups = (
        GroupFacts(name="g", master_address="h:1", replicas=slaves, registered_slaves=5,
                   slaves=(ill, old, alone, refused), incomplete="ends at 7",
                   rivals=(RivalFacts(0, "h:1", "h:8"), RivalFacts(1, "h:3", "h:9"))),
        GroupFacts(name="g", master_address="h:1", replicas=(ReplicaFacts("h:3"),),
                   registered_slaves=1, needed_slaves=2,
                   missing=(missing_slave("h:4/2", 1, "closed"), missing_slave("h:4/3", 1, ""),
                            missing_slave("h:4/2", 0, "closed"), missing_slave("h:4", 0, ""))),
        GroupFacts(name="g", master_address="h:1", master_error="no answer"),
        GroupFacts(name="g", master_address=None),
        GroupFacts(name="g", master_address=None, is_controlled=True),
        GroupFacts(name="g", master_address=None, registered_slaves=1, last_seen="at noon"),
        GroupFacts(name="g", master_address="h:1", departed_reason="connection lost"),
        GroupFacts(name="g", master_address="h:1", role="SYNC_MASTER"),
        GroupFacts(name="g", master_address="h:1"),
        GroupFacts(name="g", master_address="h:1", decided="DEGRADED: replica 3 is down"),
    )  # fmt: skip
    full = ServerFacts(kind="broker", name="a:2", refusal="its disk is full", is_slave=True)
    names = ServerFacts(kind="name server", name="n", error="no answer")
    controller = ServerFacts(kind="controller", name="c", error="no answer")
    servers = (server, down, full, names, controller)
    yield from judge(Facts(servers=servers, groups=groups, brokers_min=9)).findings


def test_what_is_wrong_and_what_to_do_is_said_in_chinese() -> None:
    found = list(every_finding())
    assert {finding.code for finding in found} == set(Code)
    for finding in found:
        for text in (finding.text, finding.next_step):
            assert wording.translate("zh", text) != text, text


def test_values_stay_in_a_sentence() -> None:
    text = "slave h:3 has acknowledged nothing for 10 ms while 20 bytes are waiting"
    chinese = wording.translate("zh", f"no longer: {text}")
    assert all(value in chinese for value in ("h:3", "10", "20"))
    assert "acknowledged" not in chinese
    assert wording.translate("zh", "words of somebody else") == "words of somebody else"
    assert wording.translate("en", text) == text


@given(st.text(alphabet="ab {};:.?()", max_size=3_000))
def test_no_text_breaks_a_page_or_takes_long(text: str) -> None:
    for tried in (text, f"slave {text}", f"no longer: {text}", f"DEGRADED: {text}"):
        assert wording.translate("zh", tried) or not tried
