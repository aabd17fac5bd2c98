"""Commands in the pages that print a file: each is run as it is written, and prints one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from twinlog.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["docs/DEPLOYMENT.md", "docs/MONITORING.md"]
COMMAND = re.compile(r"^(?:\$ )?(twinlog generate [^#>|\n]*)", re.MULTILINE)
COMMANDS = sorted(
    {
        command.strip()
        for page in PAGES
        for command in COMMAND.findall((ROOT / page).read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_prints_a_file(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, command.split()[1:])
    assert done.exit_code == 0, done.output
    assert len(done.output) > 200


def test_the_pages_have_such_commands() -> None:
    assert len(COMMANDS) >= 8
