"""Things that went wrong once in a controlled group, each brought about on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from twinlog.controller.clocks import WINDOW_MS
from twinlog.runtime.broker_config import BrokerRole, FlushDiskType
from twinlog.testing.swarm.controllers import StrayController
from twinlog.testing.swarm.node import SwarmNode
from twinlog.testing.swarm.sim import Swarm
from twinlog.testing.swarm.world import SwarmWorld, draw_world


class Directed(Swarm):
    """One controller with a file of its own, and nothing happens but `story`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, keeps_trace=True)
        self.world.faults = ("story",)
        self.world.unknown_rate = 0.0
        self.world.role = BrokerRole.SYNC_MASTER
        self.world.duration_s = 60.0
        self.is_told = False

    async def until_over(self) -> None:
        await self.until(lambda: self.is_told, self.world.duration_s)

    async def _do_faults(self) -> None:
        await self.happens(lambda: len(self.checks.members) == len(self.nodes))
        await asyncio.sleep(0.5)
        await self.story()
        self.is_told = True

    async def story(self) -> None:
        raise NotImplementedError

    async def happens(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        """In the same millisecond; a failure of the seed when it does not."""
        deadline_s = self.loop.now_s + within_s
        while not condition():
            if self.loop.now_s > deadline_s:
                self.fail(f"the story has come to an end: {self._facts()}")
                await asyncio.sleep(1e9)
            await asyncio.sleep(0.0005)

    def is_elected(self, *, epoch: int) -> bool:
        return self.checks.record is not None and self.checks.record.master_epoch == epoch

    def roles(self) -> tuple[SwarmNode, SwarmNode]:
        """The master and a slave."""
        master = self.master
        assert master is not None
        return master, next(node for node in self.nodes if node is not master)


def pairs(flush: FlushDiskType, seeds: int) -> list[int]:
    """The first seeds whose world is a pair with one controller."""

    def fits(world: SwarmWorld) -> bool:
        return (world.replicas, world.controllers, world.flush) == (2, 1, flush)

    found = (seed for seed in count() if fits(draw_world(seed)))
    return [next(found) for _ in range(seeds)]


class AdmittedAndKilled(Directed):
    """A replica that lost power is taken back and killed before it hears of it; in the same moment
    its master loses power: the replica, which does not know it, is the one that has everything."""

    async def story(self) -> None:
        master, slave = self.roles()
        number = self.id_of(slave)
        slave.power_loss()
        slave.boot()
        await self.happens(lambda: number not in self.checks.members)
        await self.happens(lambda: number in self.checks.members)
        slave.kill()
        slave.boot()
        master.power_loss()
        master.boot()
        await self.happens(lambda: len(self.checks.leaders) == 2)


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 4))
def test_a_replica_that_was_killed_before_it_heard_of_its_admission_is_not_in_doubt(
    seed: int,
) -> None:
    """It was taken out of the set, and its master, which had lost everything, was elected."""
    run = AdmittedAndKilled(seed)
    run.run()
    assert run.checks.incomplete_count == 0
    assert run.ledger.count("ok") > 10


class SuccessorLosesPower(Directed):
    """The master is killed. Its slave lost power in the same moment, and is elected before anybody
    notices, or is elected and loses power then: what both of them acknowledged is in the log of the
    master, which is not in the set any more when it comes back."""

    is_first_back = True

    async def story(self) -> None:
        master, slave = self.roles()
        if self.seed % 2:
            slave.power_loss()
        master.kill()
        await self.happens(lambda: self.is_elected(epoch=2))
        if not self.seed % 2:
            slave.power_loss()
        for node in (master, slave) if self.is_first_back else (slave, master):
            node.boot()
            await asyncio.sleep(3.0)
        await self.happens(lambda: self.master is not None and self.master.epoch > 2)


@pytest.mark.parametrize("is_first_back", [True, False])
@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 4))
def test_a_killed_master_has_what_its_successor_lost(seed: int, is_first_back: bool) -> None:
    """The successor was elected again with what its disk had: acknowledged messages were lost."""
    run = SuccessorLosesPower(seed)
    run.is_first_back = is_first_back
    run.run()
    assert not [sent.text() for sent in run.ledger.messages if sent.is_excused]


class SetLostByItsController(Directed):
    """The controller takes a set that the master proposed, says so, and is restored from a backup
    of a moment before: nobody has heard of that set, so nobody contradicts it."""

    async def story(self) -> None:
        master, slave = self.roles()
        controller, record = self.controllers[0], self.checks.record
        assert record is not None
        manager = master.broker.replicas
        assert manager is not None
        accepted = manager._accepted
        slave.kill()
        await self.happens(lambda: manager._accepted is not accepted)
        controller.kill()
        controller.restore(controller.backups[-2])
        self.checks.restored()
        self.is_lost = manager.authority.set_epoch == record.sync_state_set_epoch
        controller.boot()
        acknowledged = self.ledger.count("ok")
        await self.happens(lambda: self.ledger.count("ok") > acknowledged, 5.0)


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 4))
def test_a_set_that_was_taken_and_is_lost_is_proposed_again(seed: int) -> None:
    """The master counted a slave that was gone until it came back, and its set never changed."""
    run = SetLostByItsController(seed)
    run.world.delay_s = run.loop.network.delay_s = (0.001, 0.02)
    run.run()
    assert run.is_lost


class NewDiskLeads(Directed):
    """The records that named the topic are expired; a slave gets a new disk, and its master dies
    in the moment in which the slave is in the set."""

    async def story(self) -> None:
        await self.happens(lambda: self.ledger.count("ok") > 0)
        master, slave = self.roles()
        await self.happens(
            lambda: master.broker.store.commit_log.max_offset > 2 * self.world.segment_size, 50.0
        )
        await self.loop.spawn_on(master.host, master.expire())
        self.expired = master.log_start
        lost = self.id_of(slave)
        slave.kill()
        slave.replace_disk()
        slave.boot()
        await self.happens(lambda: self.id_of(slave) in self.checks.members - {lost})
        master.kill()
        await self.happens(lambda: slave.is_master)
        master.boot()


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 2))
def test_a_new_disk_that_leads_at_once_has_the_topics(seed: int) -> None:
    """It was in the set a second after its start and asked for the tables after three."""
    run = NewDiskLeads(seed)
    run.world.segment_size, run.world.body_size_max, run.world.put_pause_s = 8192, 600, 0.1
    run.run()
    assert run.expired


class BusyMachines(Directed):
    """Whoever dials hears the other end before it goes on."""

    async def story(self) -> None:
        await self.happens(lambda: self.ledger.count("ok") > 5)


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 4))
def test_a_slave_whose_master_answers_at_once_is_in_the_route(seed: int) -> None:
    """It was linked before it knew that it had a link, and never told the name servers."""
    run = BusyMachines(seed)
    run.loop.network.late_rate = 1.0
    run.run()


class AdmittedAndAstray(Directed):
    """A master admits its slave and is killed before it hears that this is committed; the slave is
    elected. The master comes back with a file that names a controller of another group."""

    async def story(self) -> None:
        master, slave = self.roles()
        manager, number, own = master.broker.replicas, self.id_of(slave), self.id_of(master)
        assert manager is not None

        def members_it_knows() -> frozenset[int]:
            record = manager._stored.record
            return frozenset() if record is None else record.sync_state_set

        slave.kill()
        await self.happens(lambda: members_it_knows() == {own})
        slave.boot()
        await self.happens(lambda: number in self.checks.members)
        assert members_it_knows() == {own}
        master.kill()
        await self.happens(lambda: slave.is_master)
        stray = self.stray = StrayController(self)
        stray.begin()
        stray.astray.add(master.host)
        master.boot()

        def is_waiting() -> bool:
            core = stray.server.core if stray.is_up else None
            return core is not None and any(group.waiting for group in core.groups.values())

        await self.happens(lambda: master.is_running and (master.is_master or is_waiting()))
        await asyncio.sleep(3.0)
        assert not master.is_master
        stray.astray.clear()
        stray.kill()


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 2))
def test_a_controller_that_knows_nothing_waits_for_a_replica_that_may_have_been_admitted(
    seed: int,
) -> None:
    """All of the last set that the old master knew were there: it led again, beside the other."""
    run = AdmittedAndAstray(seed)
    run.world.has_stray = True
    run.world.delay_s = run.loop.network.delay_s = (0.001, 0.02)
    run.run()


class SlowClocks(Directed):
    """The clocks of both brokers run at half the rate of the controller's, far beyond what leases
    are made for. The master is cut from everybody but its clients."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.role, self.world.put_pause_s = BrokerRole.ASYNC_MASTER, 0.1
        self.world.duration_s = 120.0
        for host in (*(c.host for c in self.controllers), *(node.host for node in self.nodes)):
            host.clock_rate = 0.5 if any(host is node.host for node in self.nodes) else 1.0

    async def story(self) -> None:
        await asyncio.sleep(2.5 * WINDOW_MS / 1000)
        master, slave = self.roles()
        others = (slave.host, *(controller.host for controller in self.controllers))
        for host in others:
            self.loop.network.partition(master.host, host)
        await self.happens(lambda: slave.is_master)
        await asyncio.sleep(4.0)
        for host in others:
            self.loop.network.mend(master.host, host)
        self.is_told = True


@pytest.mark.parametrize("seed", pairs(FlushDiskType.ASYNC_FLUSH, 1))
def test_a_slow_clock_does_not_keep_a_lease_beyond_an_election(seed: int) -> None:
    """It was believed for twice its time: two masters answered early."""
    run = SlowClocks(seed)
    run.run()
    assert run.checks.early_count > 10
    assert run.ledger.count("ok") > 100
