"""SYNC_MASTER with ASYNC_FLUSH: the power of one machine is lost, never that of all.

What was answered SEND_OK is on the slaves then, and comes back from them: nothing is lost, and
nobody is asked.
"""

from __future__ import annotations

import pytest

from twinlog.runtime.broker_config import FlushDiskType
from twinlog.testing.ha_sim import Simulation

GROUPS = 4
SEEDS_A_GROUP = 10


def run(seed: int, *faults: str) -> Simulation:
    simulation = Simulation(seed, dialect="twin", keeps_trace=True)
    simulation.world.flush = FlushDiskType.ASYNC_FLUSH
    simulation.world.faults = faults
    simulation.world.fault_pause_s = 1.0
    simulation.run()
    return simulation


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_a_master_lost_with_its_power_comes_back_from_its_slaves(group: int) -> None:
    first = group * SEEDS_A_GROUP
    runs = [run(seed, "power_master") for seed in range(first, first + SEEDS_A_GROUP)]
    assert sum(r.history.count("ok") for r in runs) > 200
    for simulation in runs:
        if simulation.world.in_sync_replicas > 2:
            continue  # What not all needed slaves had may be given up: it was never answered.
        for slave in simulation.slaves:
            names = slave.disk.list("/store/twinlog")
            assert not any(name.startswith("cut-") for name in names), simulation.seed


@pytest.mark.parametrize("group", range(GROUPS))
def test_also_when_either_is_killed_meanwhile(group: int) -> None:
    first = 1000 + group * SEEDS_A_GROUP
    for seed in range(first, first + SEEDS_A_GROUP):
        run(seed, "power_master", "kill_master", "kill_slave", "partition", "reset")
