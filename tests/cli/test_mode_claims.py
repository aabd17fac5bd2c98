"""What docs/DEPLOYMENT.md says of each mode when one machine is lost, tried on real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.command_line import LocalTwins, process
from support.processes import wait_until
from twinlog.cli.modes import MODES

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
COUNT = 40
# What is still there of broker-a's messages, and what goes on.
CLAIMS = {
    "single-master": (False, False),
    "2m-noslave": (False, True),
    "2m-2s-async": (None, True),  # The last moments may be lost.
    "2m-2s-sync": (True, True),
    "2m-2s-failover": (True, True),
    "3-replicas": (True, True),
}


def send(twins: LocalTwins, first: int) -> set[str]:
    """Numbers that were acknowledged, one command for each quarter."""
    acknowledged = set()
    for start in range(first, first + COUNT, COUNT // 4):
        lines = [str(number) for number in range(start, start + COUNT // 4)]
        body = "".join(f"{line}\n" for line in lines).encode()
        done = twins.twinlog("topic", "produce", "orders", "--quiet", stdin=body)
        acknowledged |= set(lines) if done.code == 0 else set()
    return acknowledged


def read(twins: LocalTwins) -> set[str]:
    words = ("topic", "consume", "orders", "-o", "start", "-e", "--body")
    return set(twins.twinlog(*words).out.split())


@pytest.mark.parametrize("mode", MODES)
def test_the_page_is_right_about_the_loss_of_a_machine(tmp_path: Path, mode: str) -> None:
    are_there, goes_on = CLAIMS[mode]
    twins = LocalTwins(tmp_path / "twins")
    try:
        twins.up("--mode", mode)
        process("cluster", "health", "--wait", "120s", "-n", twins.namesrv).ok()
        twins.twinlog("topic", "create", "orders").ok()
        before = send(twins, 0)
        assert len(before) == COUNT
        names = [node["name"] for node in twins.nodes]
        assert len([name for name in names if name.startswith("broker-")]) == (
            MODES[mode].groups * MODES[mode].brokers
        )
        os.kill(twins.pid("broker-a-0"), signal.SIGKILL)
        if not goes_on:
            assert send(twins, 1000) == set()
            assert read(twins) == set()
            return
        after = wait_until(lambda: send(twins, 1000), "sends go on", deadline_s=120)
        found = wait_until(lambda: read(twins) if after <= read(twins) else None, "they are read")
        assert are_there in (None, before <= found)
        if mode == "3-replicas":
            status = twins.twinlog("ha", "status")
            assert "2 copies" in status.out
    finally:
        twins.down()
