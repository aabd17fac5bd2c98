"""A replica that lives and is not heard: the status says whom it follows."""

from __future__ import annotations

from pathlib import Path

from support.command_line import twinlog
from support.failover_group import running_group
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker, start_twinlog_controller


def test_the_status_names_the_controller_that_a_replica_follows(tmp_path: Path) -> None:
    with running_group(tmp_path, 2) as group:
        group.wait_in_sync()
        slave = next(b for b in group.brokers if b is not group.master)
        slave.kill()
        (tmp_path / "other").mkdir()
        other = start_twinlog_controller(tmp_path / "other")
        config = {**slave.config, "controllerAddr": other.address}
        strayed = TwinlogBroker(slave.directory, config)
        group.brokers[group.brokers.index(slave)] = strayed
        words = ("ha", "status", "-n", group.namesrv.address)
        words += ("--controller", group.controller.address)
        said = f"is alive, but follows the controller {other.address}"
        try:
            wait_until(lambda: said in twinlog(*words).out, said, deadline_s=60)
            found = twinlog(*words)
            assert found.code == 10
            assert "is down" not in found.out
        finally:
            other.kill()
