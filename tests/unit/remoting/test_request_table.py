"""A request code is served with a rule and a limit, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twinlog.remoting.command import Request
from twinlog.remoting.headers.base import TopicHeader
from twinlog.remoting.request_table import ADMIN, NoHeader, RequestTable, Row


def handler(connection: Any, request: Any) -> None: ...


WHOLE: dict[str, Any] = {
    "code": 1, "header": NoHeader, "handler": handler, "access": ADMIN, "body_max": 1,
}  # fmt: skip


@pytest.mark.parametrize("missing", WHOLE)
def test_a_row_without_one_of_its_parts_cannot_be_made(missing: str) -> None:
    with pytest.raises(TypeError):
        Row(**{key: value for key, value in WHOLE.items() if key != missing})


@pytest.mark.parametrize("missing", ["header", "access", "body_max"])
def test_nothing_is_no_part(missing: str) -> None:
    with pytest.raises(TypeError, match="request code 1 has no"):
        Row(**{**WHOLE, missing: None})
    with pytest.raises(TypeError, match="limit"):
        Row(**{**WHOLE, "body_max": 0})


def test_the_type_checker_refuses_it_too(tmp_path: Path) -> None:
    file = tmp_path / "row.py"
    file.write_text(
        "from twinlog.remoting.request_table import ADMIN, NoHeader, Row\n"
        "def handler(connection: object, request: object) -> None: ...\n"
        "Row(1, NoHeader, handler, ADMIN, 1)\n"
        "Row(1, NoHeader, handler, ADMIN)\n"
        "Row(1, NoHeader, handler, body_max=1)\n"
        "Row(1, NoHeader, handler, None, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(file)],
        capture_output=True, text=True,
    )  # fmt: skip
    lines = {line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {"4", "5", "6"}, done.stdout + done.stderr


def test_a_code_has_one_row() -> None:
    with pytest.raises(ValueError, match="two rows"):
        RequestTable([Row(**WHOLE), Row(**WHOLE)])


def test_a_handler_gets_the_header_that_its_rule_was_asked_about() -> None:
    request = Request(1, ext_fields={"topic": "T"})
    header = request.bind_header(TopicHeader)
    assert request.header(TopicHeader) is header
    with pytest.raises(AssertionError, match="allowed as TopicHeader"):
        request.header(NoHeader)


def test_a_header_of_the_wire_cannot_stand_for_one_that_was_read() -> None:
    request = Request(1, ext_fields={"topic": "T"}, read_header={"topic": "forged"})
    assert request.header(TopicHeader).topic == "T"
