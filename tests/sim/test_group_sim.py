"""Whole brokers under faults and operators on virtual time; `make sim WORLD=group` runs more."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from twinlog.testing.group.sim import GroupFailure, GroupSimulation, run_group_seed
from twinlog.testing.group.world import CORNER_SEEDS, CORNERS, DIALECTS, FAULTS

# Mixed is no dialect of its own: who speaks which is found out there.
SEED_COUNTS = {"classic": 200, "twin": 200, "mixed": 80}
GROUPS = 8
_DIGEST = (
    "from twinlog.testing.group.sim import run_group_seed\n"
    "print(run_group_seed({seed}, dialect={dialect!r}).digest)"
)


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_seeds_hold(dialect: str, group: int) -> None:
    counts: Counter[str] = Counter()
    count = SEED_COUNTS[dialect]
    for seed in range(group * count // GROUPS, (group + 1) * count // GROUPS):
        run = run_group_seed(seed, dialect=dialect)
        counts.update(run.fault_counts)
    assert len(counts) >= len(FAULTS) // 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_corners_that_chance_seldom_finds_hold(dialect: str) -> None:
    """`tools/noticed.json` names the seeds of those that notice a fault nobody else does."""
    counts: Counter[str] = Counter()
    for seed in CORNER_SEEDS[:12]:
        counts.update(run_group_seed(seed, dialect=dialect).fault_counts)
    assert counts.keys() >= set(CORNERS[dialect])


@pytest.mark.parametrize(
    ("dialect", "seed"), [("classic", 5), ("twin", 213), ("twin", 350), ("mixed", 5)]
)
def test_the_same_seed_is_the_same_run_alone_and_after_another(dialect: str, seed: int) -> None:
    run_group_seed(seed + 1, dialect=dialect)  # Whatever that leaves in this process.
    here = run_group_seed(seed, dialect=dialect, keeps_trace=True).digest
    result = subprocess.run(
        [sys.executable, "-c", _DIGEST.format(seed=seed, dialect=dialect)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == here, result.stderr


def test_a_failure_names_its_seed_and_has_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinlog.testing.group.judge.TOPIC", "another")
    monkeypatch.setattr("twinlog.testing.group.records.MESSAGE_MAGIC", 1)
    with pytest.raises(GroupFailure, match="seed 7: ") as caught:
        run_group_seed(7, keeps_trace=True)
    assert any("FAILURE" in line for line in caught.value.simulation.lines)


class FirstLink(GroupSimulation):
    """A group that has just been started; what its slave knows of it as soon as it is linked."""

    async def _main(self) -> None:
        await self.loop.spawn_on(self._namesrv_host, self._start_namesrv())
        for node in self.nodes:
            node.boot()
        slave = self.nodes[1]
        await self.until(lambda: slave.is_up and slave.broker.ha.is_linked, 10.0)
        self.linked_s = self.loop.now_s
        await self.until(lambda: slave.broker.succession.memory.master_role != "", 10.0)
        self.memory = slave.broker.succession.memory


@pytest.mark.parametrize("seed", range(3))
def test_a_slave_knows_its_group_as_soon_as_it_is_linked(seed: int) -> None:
    simulation = FirstLink(seed)
    simulation.world.is_fixed, simulation.world.has_namesrv = False, True
    simulation.run()
    assert simulation.memory.master_role == simulation.world.role.value
    assert simulation.loop.now_s - simulation.linked_s < 0.2, "one question and its answer"


class FullWhileItLinks(GroupSimulation):
    """A slave's disk is full when it hears of a promotion, and has room again soon after."""

    async def _main(self) -> None:
        await self.loop.spawn_on(self._namesrv_host, self._start_namesrv())
        for node in self.nodes:
            node.boot()
        master, slave = self.nodes[:2]
        await self.until(lambda: slave.is_up and slave.broker.ha.is_linked, 10.0)
        await asyncio.sleep(1.0)
        slave.disk.quota = 0
        master.broker.identity.promotion = 77
        slave.broker.succession.linked()
        assert await self.until(lambda: slave.broker.identity.promotion == 77, 10.0)
        slave.disk.quota = 1 << 40
        await asyncio.sleep(6.0)
        slave.kill()
        self.kept = json.loads(slave.disk.read_bytes("/store/twinlog/identity.json"))["promotion"]


def test_what_a_full_disk_did_not_take_is_saved_when_it_has_room() -> None:
    """Otherwise it forgets whom it has followed, and a start as the master is refused."""
    simulation = FullWhileItLinks(3)
    simulation.world.is_fixed, simulation.world.has_namesrv = False, True
    simulation.run()
    assert simulation.kept == 77
