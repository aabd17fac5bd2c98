"""`twinlog ha promote` on a cluster of `twinlog up`: the role stays where it was put."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.command_line import LocalTwins, process
from support.processes import wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[LocalTwins]:
    twins = LocalTwins(tmp_path / "twins")
    twins.up("--sync").ok()
    yield twins
    twins.down()


def node(twins: LocalTwins, name: str) -> dict[str, Any]:
    return next(each for each in twins.nodes if each["name"] == name)


def roles(twins: LocalTwins) -> dict[str, str]:
    rows = process("ps", "--dir", twins.directory).rows
    return {row[0]: row[1] for row in rows if row and row[0].startswith("broker-a")}


def test_a_promoted_slave_is_the_master_also_after_down_and_up(twins: LocalTwins) -> None:
    server = ("-n", twins.address("namesrv"))
    process("topic", "create", "orders", *server).ok()
    process("topic", "produce", "orders", "-q", *server, stdin=b"kept\n").ok()

    group = Path(node(twins, "broker-a-1")["directory"]) / "store" / "twinlog" / "group.json"
    wait_until(
        lambda: group.exists() and b"SYNC_MASTER" in group.read_bytes(), "it knows its master"
    )
    pid = node(twins, "broker-a-0")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or _is_zombie(pid), "the master is gone")

    def is_lost() -> bool:
        return process("ha", "promote", "broker-a", "--dry-run", *server).code == 0

    wait_until(is_lost, "the slave has noticed", interval_s=0.5)
    done = process("ha", "promote", "broker-a", *server, "--yes", "-o", "json").ok().json
    assert done["target"] == twins.address("broker-a-1")
    assert (done["lost_messages"], done["is_safe"]) == (0, True)
    assert roles(twins)["broker-a-1"] == "SYNC_MASTER"
    again = process("ha", "promote", "broker-a", "--to", "0", *server)
    assert (again.code, "already" in again.out) == (0, True)
    process("down", "--dir", twins.directory)
    twins.up("--sync").ok()
    assert roles(twins) == {"broker-a-0": "SLAVE", "broker-a-1": "SYNC_MASTER"}


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
