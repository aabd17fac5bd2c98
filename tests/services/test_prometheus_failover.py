"""A failover as a real Prometheus sees it: by reason, how long there was no master, and alerts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.failover_group import running_group
from support.processes import process_group, wait_until
from support.prometheus import FIRES_S, Prometheus
from support.twinlog_servers import http_address

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


def test_a_failover_and_a_group_that_cannot_have_one(tmp_path: Path) -> None:
    with running_group(tmp_path, 2) as group, process_group() as others:
        group.wait_in_sync()
        servers = (group.namesrv, group.controller, *group.brokers)
        prometheus = Prometheus(tmp_path / "prom", [http_address(server) for server in servers])
        others.add(prometheus)
        prometheus.wait_scraped(4)

        def value(expression: str) -> float:
            found = prometheus.query(expression)
            return float(found[0]["value"][1]) if found else 0.0

        # The first election of the group is in the counters, but no change that was seen.
        assert "TwinlogMasterChanged" not in prometheus.firing()
        elections = value("sum(twinlog_failovers_total)")
        lost_s = value("twinlog_group_without_master_seconds_total")
        epoch = value("twinlog_group_epoch")
        assert value("twinlog_group_has_master") == 1

        dead = group.master
        dead.kill()
        prometheus.wait_firing("TwinlogMasterChanged")
        wait_until(
            lambda: value("sum(twinlog_failovers_total)") == elections + 1, "it is counted",
            deadline_s=FIRES_S,
        )  # fmt: skip
        rows = prometheus.query("twinlog_failovers_total")
        assert any("master" in row["metric"]["reason"] for row in rows), rows
        assert {row["metric"]["broker_name"] for row in rows} == {"broker-a"}
        assert value("twinlog_group_epoch") > epoch
        # A controller looks every 50 ms: an election that is quicker than that adds nothing.
        assert 0 <= value("twinlog_group_without_master_seconds_total") - lost_s < FIRES_S
        wait_until(lambda: value("twinlog_group_has_master") == 1, "it leads", deadline_s=FIRES_S)
        prometheus.wait_resolved("TwinlogMasterChanged")
        prometheus.wait_firing("TwinlogGroupDegraded")  # One of two copies is left.

        # The last one goes too: nobody is left to elect, and time without a master adds up.
        last = group.master
        assert last is not dead
        last.kill()
        prometheus.wait_firing("TwinlogGroupWithoutMaster")
        lost_s = value("twinlog_group_without_master_seconds_total")
        wait_until(
            lambda: value("twinlog_group_without_master_seconds_total") > lost_s + 1,
            "the time without a master grows", deadline_s=FIRES_S,
        )  # fmt: skip
        group.restart(last)
        prometheus.wait_resolved("TwinlogGroupWithoutMaster")
        group.restart(dead)
        prometheus.wait_resolved("TwinlogGroupDegraded")
