"""Descriptors: counted before the start, so that nothing runs out later."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from support.command_line import TWINLOG
from support.properties import write_properties
from twinlog.runtime.descriptors import descriptor_limit, shortage


def test_what_a_broker_needs_is_counted() -> None:
    assert shortage(0, 0, 1024) is None
    assert shortage(192, 0, 1024) is None
    reason = shortage(192, 1, 1024)
    assert reason is not None
    assert "may open 1024 files and needs 1025" in reason
    assert "192 of the log, 1 of the index" in reason
    assert "ulimit -n" in reason
    assert descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_broker_under_a_limit_that_is_too_low_does_not_start(tmp_path: Path) -> None:
    file = write_properties(tmp_path / "broker.conf", {"storePathRootDir": tmp_path / "store"})
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, str(TWINLOG), "broker", "-c", str(file)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "may open 200 files and needs" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store" / "commitlog").exists()
