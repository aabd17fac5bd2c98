"""What an operator can ask while no controller leads."""

from __future__ import annotations

from pathlib import Path

from support.command_line import twinlog
from support.failover_group import running_group


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
