"""One real master and four real slaves, twin dialect: each is told apart, a sick one harms none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ha_files import LogFiles, assert_identical, assert_queues_dense, numbers_in
from support.ha_load import SEND_OK, Load, ha_status
from support.ha_pair import Pair
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker

SLAVES = 4


class Group:
    """A SYNC_MASTER that waits for two of its four slaves."""

    def __init__(self, directory: Path) -> None:
        self.pair = Pair(
            directory,
            twinlogHADialect="twin",
            inSyncReplicas=3,
            haSendHeartbeatInterval=500,
            haHousekeepingInterval=3000,
        )
        self.pair.start_master()
        self.slaves = [self._start_slave(number) for number in range(1, SLAVES + 1)]

    @property
    def master(self) -> TwinlogBroker:
        return self.pair.master

    def _start_slave(self, number: int) -> TwinlogBroker:
        return start_twinlog_broker(
            self.pair.directory / f"slave-{number}",
            **{
                "brokerRole": "SLAVE",
                "brokerId": number,
                "haMasterAddress": f"127.0.0.1:{self.master.ha_port}",
                **self.pair.config,
            },
        )

    def replicas(self) -> list[dict[str, Any]]:
        info = ha_status(self.master.address)["haConnectionInfo"]
        return [replica for replica in info if replica["twinlog"]["state"] == "TRANSFER"]

    def wait_in_sync(self, count: int) -> None:
        def are_in_sync() -> bool:
            replicas = self.replicas()
            return len(replicas) == count and all(r["diff"] == 0 for r in replicas)

        wait_until(are_in_sync, f"{count} slaves are in sync")

    def kill(self) -> None:
        for broker in (*self.slaves, self.master):
            broker.kill()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    group.kill()


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_four_slaves_one_killed_one_stopped(group: Group) -> None:
    group.wait_in_sync(SLAVES)
    names = {replica["addr"].rpartition("/")[2] for replica in group.replicas()}
    assert names == {"1", "2", "3", "4"}, "told apart by their ids"
    load = Load(group.master.address)
    load.start()
    wait_until(lambda: load.count() > 500, "500 acknowledged")
    group.slaves[0].kill()
    group.slaves[1].suspend()
    try:
        before = load.count()
        wait_until(lambda: load.count() > before + 500, "two healthy slaves are enough")
        wait_until(lambda: len(group.replicas()) == 2, "the other two count no more")
    finally:
        group.slaves[1].resume()
    group.slaves[0] = group.slaves[0].restart()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "and on")
    load.finish()
    group.wait_in_sync(SLAVES)
    confirmed = {number for number, code in load.acked.items() if code == SEND_OK}
    assert_all_identical(group, confirmed)


def assert_all_identical(group: Group, confirmed: set[int]) -> None:
    for slave in group.slaves:
        assert slave.stop() == 0, slave.tail()
    assert group.master.stop() == 0, group.master.tail()
    master = LogFiles(group.master.store)
    for slave in group.slaves:
        log = LogFiles(slave.store)
        assert_identical(master, log)
        assert (log.start, log.end) == (master.start, master.end)
        assert_queues_dense(log)
        assert numbers_in(log) >= confirmed
