"""What an operator can ask while no controller leads, or a broker hangs."""

from __future__ import annotations

import time
from pathlib import Path

from support.command_line import twinlog
from support.failover_group import running_group
from twinlog.cli.exit_codes import UNHEALTHY


def test_events_are_shown_while_no_controller_leads(tmp_path: Path) -> None:
    """It is when one looks at them: each broker has a journal of its own."""
    with running_group(tmp_path, 2) as group:
        group.wait_in_sync()
        group.controller.kill()
        found = twinlog(
            "ha", "events", "-n", group.namesrv.address,
            "--controller", group.controller.address, "-o", "json",
        )  # fmt: skip
        told = {row["from"] for row in found.ok().json}
        assert {broker.address for broker in group.brokers} <= told
        assert group.controller.address in found.err
        assert len(found.err.splitlines()) == 1


def test_the_status_does_not_wait_long_for_a_broker_that_hangs(tmp_path: Path) -> None:
    """One looks at it when something is wrong. A broker that is stopped takes connections."""
    with running_group(tmp_path, 2) as group:
        group.wait_in_sync()
        hung = next(broker for broker in group.brokers if broker is not group.master)
        hung.suspend()
        started = time.monotonic()
        found = twinlog(
            "ha", "status", "--timeout", "60s", "-n", group.namesrv.address,
            "--controller", group.controller.address,
        )  # fmt: skip
        taken_s = time.monotonic() - started
        hung.resume()
    assert found.code == UNHEALTHY
    assert f"at {hung.address} does not answer" in found.out
    assert taken_s < 30, "it is given two seconds"
