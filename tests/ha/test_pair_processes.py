"""Two real brokers, classic dialect: a master, a slave, load, and what can happen to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ha_files import assert_identical, assert_queues_dense, numbers_in
from support.ha_load import SEND_OK, Load, ha_status
from support.ha_pair import Pair
from support.processes import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.kill()


def test_slave_follows_and_ends_up_identical(pair: Pair) -> None:
    pair.start()
    load = Load(pair.master.address)
    load.start()
    wait_until(lambda: load.count() > 2000, "2000 messages acknowledged")
    status = ha_status(pair.master.address)
    assert status["master"] is True
    (replica,) = status["haConnectionInfo"]
    assert replica["inSync"] is True
    assert ha_status(pair.slave.address)["haClientRuntimeInfo"]["activated"] is True
    load.finish()
    pair.wait_caught_up()
    master, slave = pair.stop_and_read()
    assert load.count() == len(load.acked)
    assert assert_identical(master, slave) > 400_000
    assert master.end == slave.end
    assert numbers_in(slave) >= {n for n, code in load.acked.items() if code == SEND_OK}
    assert assert_queues_dense(slave) == len(slave.places)
