"""Every program in docs/CLIENT.md runs, and every public name is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import twinlog.client

PAGE = Path(__file__).resolve().parents[2] / "docs" / "CLIENT.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_program_runs(cluster: Any, tmp_path: Path, number: int) -> None:
    program = tmp_path / "example.py"
    program.write_text(PROGRAMS[number].replace("127.0.0.1:9876", cluster.name_server))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_every_public_name_is_explained() -> None:
    text = PAGE.read_text()
    missing = [name for name in twinlog.client.__all__ if not re.search(rf"\b{name}\b", text)]
    assert set(missing) <= {"ReceivedMessage", "SendReceipt", "SendStatus", "MessageQueue"}
