"""The audit log: gathered, bounded, harmless when it cannot be written."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twinlog.remoting.audit import GATHER_MS, PEERS_MAX, AuditLog
from twinlog.runtime import audit_file
from twinlog.runtime.audit_file import LOGGER


class Clock:
    ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.ms

    def now_ms(self) -> int:
        return self.ms


class Peer:
    def __init__(self, host: str) -> None:
        self.remote_address = (host, 1)
        self.remote_text = f"{host}:1"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [json.loads(record.getMessage()) for record in caplog.records]


def refuse(log: AuditLog, host: str, reason: str = "no", code: int = 10) -> None:
    peer: Any = Peer(host)
    log.refused(peer, code, reason, claimed="who")


def test_a_flood_is_one_line_and_a_count_a_minute(lines: Any) -> None:
    clock: Any = Clock()
    log = AuditLog(clock)
    for _ in range(10_000):
        refuse(log, "10.0.0.1")
    refuse(log, "10.0.0.2")
    log.tick()
    assert [(line["address"], line["code"]) for line in lines()] == [
        ("10.0.0.1:1", 10), ("10.0.0.2:1", 10),
    ]  # fmt: skip
    clock.ms += GATHER_MS
    log.tick()
    (last,) = lines()[2:]
    assert last["count"] == 9_999
    assert last["outcome"] == "refused: no"


def test_a_flood_of_different_reasons_is_bounded(lines: Any) -> None:
    clock: Any = Clock()
    log = AuditLog(clock)
    for number in range(5 * PEERS_MAX):
        refuse(log, "10.0.0.1", f"no topic {number}")
    log.flush()
    assert len(lines()) <= PEERS_MAX + 1
    assert lines()[-1]["count"] == 4 * PEERS_MAX


def test_what_a_peer_says_cannot_forge_a_line(lines: Any) -> None:
    clock: Any = Clock()
    peer: Any = Peer("10.0.0.1")
    AuditLog(clock).changed(peer, 17, 'a"\n{}', "topic=\n" + "x" * 10_000, "done")
    (line,) = lines()
    assert line["account"] == 'a"\n{}'
    assert len(line["resource"]) <= 256


SCRIPT = """
import logging, sys
from twinlog.runtime import audit_file
from twinlog.runtime.audit_file import LOGGER, write_audit_to
audit_file.FILE_SIZE_MAX = int(sys.argv[3])
write_audit_to(sys.argv[1])
for number in range(int(sys.argv[2])):
    logging.getLogger(LOGGER).info("line %d", number)
print("lived")
"""


def write(path: str, count: int = 3, size_max: int = audit_file.FILE_SIZE_MAX) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path, str(count), str(size_max)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "store" / "twinlog" / "audit.log"
    old = os.umask(0)
    try:
        assert write(str(file)) == "lived\n"
    finally:
        os.umask(old)
    assert file.read_text().splitlines() == ["line 0", "line 1", "line 2"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_flood_of_changes_takes_no_more_than_its_files(tmp_path: Path) -> None:
    """Changes are not gathered. The files that are put aside are the owner's alone, too."""
    old = os.umask(0)
    try:
        assert write(str(tmp_path / "audit.log"), 5000, size_max=1000) == "lived\n"
    finally:
        os.umask(old)
    files = list(tmp_path.iterdir())
    assert len(files) == 1 + audit_file.FILE_COUNT_MAX
    assert all(file.stat().st_size <= 1000 for file in files)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_full_disk_is_nobodys_concern(tmp_path: Path) -> None:
    (tmp_path / "twinlog").mkdir()
    (tmp_path / "twinlog" / "audit.log").symlink_to("/dev/full")
    assert write(str(tmp_path / "twinlog" / "audit.log"), 2000) == "lived\n"
    assert write("/proc/no/such/place/audit.log", 10) == "lived\n"
