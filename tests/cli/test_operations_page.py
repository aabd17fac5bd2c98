"""The commands of docs/OPERATIONS.md, run in order as a reader would type them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import TWINLOG
from support.doc_blocks import blocks_run_by

DEADLINE_S = 120


def commands() -> list[tuple[str, int]]:
    """Each `$` line of a console block, and the exit code that it should have."""
    blocks = blocks_run_by("tests/cli/test_operations_page.py", "docs/OPERATIONS.md")
    found = []
    for line in "".join(block.text for block in blocks).splitlines():
        assert line.startswith("$ "), line
        command, _, code = line[2:].partition("   # exit ")
        found.append((command, int(code or 0)))
    return found


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    values = {
        **os.environ,
        "PATH": f"{TWINLOG.parent}{os.pathsep}{os.environ['PATH']}",
        "TWINLOG_HOME": str(tmp_path / "cluster"),
        "TWINLOG_CONFIG": str(tmp_path / "contexts.json"),
    }
    yield values
    subprocess.run([TWINLOG, "down"], env=values, capture_output=True, timeout=DEADLINE_S)


@pytest.mark.timeout(300)
def test_the_page_does_what_it_says(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=a\n")
    written = commands()
    assert len(written) > 40
    for command, code in written:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True,
            cwd=tmp_path, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "cluster").exists()
