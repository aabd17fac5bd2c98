"""The circumstances of `twinlog demo`: next to itself, as another user, in a terminal, kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]

DEMO = [sys.executable, "-m", "twinlog.cli.main", "demo", "--no-spark", "--seconds", "2"]
NOBODY = 65534
# Another user who owns nothing: may read what root installed, wherever that is, but write nowhere
# except in the directory that he is given.
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
]  # fmt: skip


def start(
    directory: Path, *arguments: str, prefix: list[str] | None = None, home: Path | None = None
) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*(prefix or []), *DEMO, "--json", "--report", str(directory / "report.html"), *arguments],
        env={**os.environ, "TMPDIR": str(directory), "HOME": str(home or directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
    )


def assert_good(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, output + errors
    assert json.loads(output)["is_good"]
    return errors


def test_two_runs_side_by_side_do_not_meet(tmp_path: Path) -> None:
    runs = [start(tmp_path / name) for name in ("one", "two")]
    for process in runs:
        assert_good(process)
    left = {path.name for name in ("one", "two") for path in (tmp_path / name).iterdir()}
    assert left == {"report.html"}


def test_another_user_needs_only_a_directory_of_his_own(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    prefix: list[str] = []
    if os.getuid() == 0:
        os.chown(own, NOBODY, NOBODY)
        prefix = AS_NOBODY
    # A home directory that is not there, as that of a service account.
    assert_good(start(own, prefix=prefix, home=Path("/nonexistent")))
    assert [path.name for path in own.iterdir()] == ["report.html"]
    if prefix:
        assert (own / "report.html").stat().st_uid == NOBODY


def test_keep_leaves_stores_and_logs_and_says_where(tmp_path: Path) -> None:
    errors = assert_good(start(tmp_path / "run", "--keep"))
    kept = Path(errors.strip().splitlines()[-1].removeprefix("kept: "))
    assert kept.parent == tmp_path / "run"
    assert len(list(kept.rglob("commitlog/*"))) >= 2
    assert len(list(kept.rglob("broker.log"))) == 2


def test_in_a_terminal_one_line_lives(tmp_path: Path) -> None:
    child = pexpect.spawn(
        DEMO[0], [*DEMO[1:], "--report", str(tmp_path / "report.html")],
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "200"},
        dimensions=(24, 200), timeout=120, encoding="utf-8",
    )  # fmt: skip
    with child:
        # Frames are written over one another: back to the start of the line, erase, no line feed.
        frame = r"\r\x1b\[Ktraffic +acknowledged +[\d,]+ [^\n]*slave behind [^\n\r]*"
        child.expect(frame)
        child.expect(frame)
        child.expect("SIGKILL of the master")
        child.expect(r"\x1b\[Kno master +acknowledged")
        child.expect("rows archived +none")
        child.expect("VERDICT: nothing acknowledged was lost")
        child.expect(pexpect.EOF)
    assert child.exitstatus == 0
