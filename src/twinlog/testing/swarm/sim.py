"""One seed of a controlled group: whole brokers, controllers, name servers, clients of two kinds.

Only disk, clock and transport are replaced. Two phases: under faults everything in `checks.py` must
hold at every step; then all is healed, and the group must take a send within ten seconds, come to
one log, and have given consumers everything. In the end `history_check` reads what clients saw.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from twinlog.controller.etcd_client import bytes64
from twinlog.controller.record import GroupRecord
from twinlog.namesrv.server import build_namesrv
from twinlog.runtime.config import NamesrvConfig
from twinlog.testing import history_check
from twinlog.testing.group.ledger import Ledger
from twinlog.testing.group.load import TOPIC
from twinlog.testing.group.node import BODY_AT, HA_PORT
from twinlog.testing.group.rpc import Rpc
from twinlog.testing.group.sim import NAMESRV_PORT
from twinlog.testing.group.watch import HAWatch
from twinlog.testing.history_check import History, Outcome, Send
from twinlog.testing.seed_run import SeedFailure, SeedRun
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.sim_etcd import SimEtcd
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimHost
from twinlog.testing.simdisk import SimDisk
from twinlog.testing.swarm.checks import Checks
from twinlog.testing.swarm.clients import Router, SwarmConsumer, SwarmProducer, SwarmRepeater
from twinlog.testing.swarm.controllers import ControllerNode, StrayController
from twinlog.testing.swarm.lockers import Locker
from twinlog.testing.swarm.node import SwarmNode
from twinlog.testing.swarm.wider import SwarmWider
from twinlog.testing.swarm.world import draw_world

SERVE_S = 10.0
WHOLE_S = 90.0  # Admission waits up to a minute for a replica that fell again and again.
SAMPLE_S = 0.1
ROUTE_S = 15.0
OUTCOMES = {"ok": Outcome.OK, "refused": Outcome.REFUSED, "unknown": Outcome.UNKNOWN}


class SwarmFailure(SeedFailure):
    """Something does not hold; `simulation` has the trace."""

    simulation: Swarm


class Swarm(SeedRun):
    """One seed."""

    failure_type = SwarmFailure

    def __init__(
        self, seed: int, *, keeps_trace: bool = False, without: tuple[str, ...] = ()
    ) -> None:
        self.world = world = draw_world(seed, without)
        self.rng = random.Random(f"run swarm {seed}")
        loop = SimLoop(self.rng.randrange(1 << 62), step_max=5_000_000)
        super().__init__(seed, loop, keeps_trace=keeps_trace)
        self.loop.network.delay_s = world.delay_s
        self.loop.network.tiny_pieces = world.tiny_pieces
        self.checks = Checks(self)
        self.loop.network.on_write = self.checks.wrote
        self.ledger = Ledger()
        self.places: dict[int, int] = {}
        self.history = History()
        self.watch = HAWatch(HA_PORT)
        self.fault_counts: Counter[str] = Counter()
        self.is_hostile = True
        self.served_after_s = 0.0
        self.kill_count = 0
        """Processes of brokers that ended without being asked to, power losses included."""
        self._calm: tuple[float, Callable[[], bool]] = (0.0, lambda: True)
        self._faults_under_way: list[asyncio.Task[Any]] = []
        self.nodes = [SwarmNode(self, n + 1) for n in range(world.replicas)]
        self._ids_from: GroupRecord | None = None
        self._ids: dict[str, int] = {}
        self._nodes_by_address = {node.host.address: node for node in self.nodes}
        self.etcd = self._new_etcd() if world.controllers > 1 else None
        self.controllers = [ControllerNode(self, n + 1) for n in range(world.controllers)]
        self.namesrv_hosts = [self.loop.add_host(f"namesrv{n + 1}") for n in range(world.namesrvs)]
        self._client_host = self.loop.add_host("clients")
        self.client_address = self._client_host.address
        self.operator = self._new_rpc()
        self.consumer = SwarmConsumer(self, self._new_rpc())
        self.lockers = [
            Locker(self, self._new_rpc(), f"member{n}", is_stale=n == 2) for n in (1, 2, 3)
        ]
        self._faults = SwarmWider(self)
        self.stray = StrayController(self) if world.has_stray else None

    def _new_etcd(self) -> SimEtcd:
        host = self.loop.add_host("etcd")
        host.clock_rate = self.world.rates[0]
        etcd = SimEtcd(self.loop, host, self.rng)
        etcd.unknown_rate = self.world.unknown_rate
        etcd.on_put = self._put_in_etcd
        return etcd

    def _put_in_etcd(self, key: str, value: str) -> None:
        if b"/groups/" in bytes64(key):
            self.checks.written(msgspec.json.decode(bytes64(value), type=GroupRecord))

    def _new_rpc(self) -> Rpc:
        return Rpc(self.loop, self._client_host, timeout_s=4.0)

    @property
    def namesrv_addresses(self) -> list[str]:
        return [f"{host.address}:{NAMESRV_PORT}" for host in self.namesrv_hosts]

    @property
    def controller_addresses(self) -> list[str]:
        return [controller.address for controller in self.controllers]

    @property
    def master(self) -> SwarmNode | None:
        """Of those who believe that they are, the newest."""
        return max((n for n in self.nodes if n.is_master), key=lambda n: n.epoch, default=None)

    def node_at(self, address: str) -> SwarmNode | None:
        return self._nodes_by_address.get(address)

    def id_of(self, node: SwarmNode) -> int:
        """The id that the controller gave it; 0 before."""
        record = self.checks.record
        if record is None:
            return 0
        if record is not self._ids_from:
            self._ids_from, self._ids = record, {}
            for number, replica in record.replicas.items():
                self._ids[replica.address] = max(number, self._ids.get(replica.address, 0))
        return self._ids.get(node.address, 0)

    def node_of(self, broker_id: int) -> SwarmNode | None:
        """None for an id whose disk is gone."""
        return next((node for node in self.nodes if self.id_of(node) == broker_id), None)

    def calm(self, within_s: float, is_over: Callable[[], bool]) -> None:
        """No fault begins until then."""
        self._calm = (self.loop.now_s + within_s, is_over)

    def _is_calm(self) -> bool:
        until_s, is_over = self._calm
        return self.loop.now_s < until_s and not is_over()

    # The world.

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"the simulation itself failed: {error!r}")

    async def start_namesrv(self, host: SimHost) -> None:
        self.loop.revive(host)
        clock = SimClock(self.loop, host)
        config = NamesrvConfig(bind_address=host.address, listen_port=NAMESRV_PORT)
        server = build_namesrv(config, disk=SimDisk(now_ms=clock.now_ms), clock=clock)
        await self.loop.spawn_on(host, server.start())

    # The run.

    async def _main(self) -> None:
        self.trace(repr(self.world))
        for host in self.namesrv_hosts:
            await self.start_namesrv(host)
        if self.etcd is not None:
            self.etcd.boot()
        for controller in self.controllers:
            controller.boot()
        for node in self.nodes:
            node.boot()
        load = [
            self.spawn(SwarmProducer(self, self._new_rpc(), is_stale=is_stale).run())
            for is_stale in (False, True)
        ]
        if self.world.least > 1:
            load.append(self.spawn(SwarmRepeater(self, self._new_rpc()).run()))
        load += [self.spawn(locker.run()) for locker in self.lockers]
        consuming = self.spawn(self.consumer.run())
        sampling = self.spawn(self._sample())
        nemesis = self.spawn(self._do_faults())
        await self.until_over()
        nemesis.cancel()
        for task in self._faults_under_way:
            task.cancel()
        if not self.failure:
            await self._heal()
        await asyncio.sleep(1.0)
        for task in load:
            task.cancel()
        if not self.failure:
            await self._come_to_rest()
        consuming.cancel()
        if not self.failure:
            await self._drain()
            await self._come_to_rest()  # What consumers committed is in the log, too.
        sampling.cancel()
        if not self.failure:
            self._verdict()

    async def until_over(self) -> None:
        """The first phase ends."""
        await self.until(lambda: False, self.world.duration_s)

    async def _sample(self) -> None:
        while not self.failure:
            self.checks.sample()
            await asyncio.sleep(SAMPLE_S)

    async def _do_faults(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.5, 3.5))
        while self.world.faults and not self.failure:
            await self.until(lambda: not self._is_calm(), 60.0)
            fault = self.rng.choice(self.world.faults)
            self.fault_counts[fault] += 1
            self.trace(f"fault {fault}")
            self._faults_under_way.append(self.spawn(getattr(self._faults, fault)()))
            await asyncio.sleep(self.rng.uniform(0, 2 * self.world.fault_pause_s))

    async def _heal(self) -> None:
        self.trace("heal")
        self.is_hostile = False
        self.loop.network.heal()
        self.loop.network.loss_rate = 0.0
        self.loop.network.delay_s = self.world.delay_s
        if self.etcd is not None:
            self._heal_etcd(self.etcd)
        if self.stray is not None:
            self._end_stray(self.stray)
        for controller in self.controllers:
            controller.resume_if_paused()
            controller.boot_if_down()
        for host in self.namesrv_hosts:
            if not host.is_alive:
                await self.start_namesrv(host)
        for node in self.nodes:
            node.disk.quota = 1 << 40
            node.disk.resume()
            node.resume_if_paused()
            if node.is_stopping and node.host.is_alive:
                node.kill()
            node.boot_if_down()
        if self.checks.was_restored:
            await asyncio.sleep(5.0)  # For the operator, and for leases that must end first.
        healed_s = self.loop.now_s
        before = self.ledger.count("ok")
        # Where one replica is not enough, another one has to be admitted first.
        within_s = SERVE_S if self.world.least == 1 else WHOLE_S
        is_served = await self.until(lambda: self.ledger.count("ok") > before, within_s)
        if not is_served and not self.failure:
            self.fail(f"no send is answered within {within_s} s after healing: {self._facts()}")
        self.served_after_s = self.loop.now_s - healed_s

    def _end_stray(self, stray: StrayController) -> None:
        """Whoever asks it is told that it is gone, and dials where the others do."""
        stray.astray.clear()
        stray.kill()

    def _heal_etcd(self, etcd: SimEtcd) -> None:
        etcd.unknown_rate = 0.0
        etcd.boot_if_down()
        self.loop.resume(etcd.host)

    def _facts(self) -> str:
        record = self.checks.record
        head = "no record"
        if record is not None:
            members = sorted(record.sync_state_set)
            head = f"epoch {record.master_epoch} of {record.master_broker_id}, set {members}"
        return f"{head}; {[node.facts() for node in self.nodes]}"

    def _is_whole(self) -> bool:
        master, record = self.master, self.checks.record
        if master is None or record is None or not all(node.is_running for node in self.nodes):
            return False
        end = master.broker.store.commit_log.max_offset
        return len(record.sync_state_set) == len(self.nodes) and all(
            node.broker.store.commit_log.max_offset == end
            and node.broker.store.dispatched.value == end
            and node.broker.ha.confirmed.value == end
            for node in self.nodes
        )

    async def _replace_hopeless(self) -> None:
        """A replica whose log has nothing in common with its master's asks for a new disk: all
        that the group had was lost with one power cut, before anybody else was in the set."""
        await asyncio.sleep(2.0)
        master = self.master
        for node in self.nodes:
            if master is None or node is master or not node.is_running:
                continue
            start = max(node.log_start, master.log_start)
            mine, its = (
                node.log_bytes(start, start + BODY_AT),
                master.log_bytes(start, start + BODY_AT),
            )
            if self.checks.incomplete_count and mine[:4] != bytes(4) and mine != its:
                node.kill()
                node.replace_disk()
                node.boot()

    async def _come_to_rest(self) -> None:
        if self.checks.incomplete_count:
            await self._replace_hopeless()
        await self._until_whole()
        for address in self.namesrv_addresses:
            await self._judge_route(address)
        await self._until_whole()

    async def _until_whole(self) -> None:
        if not await self.until(self._is_whole, WHOLE_S) and not self.failure:
            self.fail(f"the group is not whole again: {self._facts()}")

    async def _judge_route(self, address: str) -> None:
        """Clients find every member."""
        deadline_s = self.loop.now_s + ROUTE_S
        here = {node.address for node in self.nodes}
        while not self.failure:
            router = Router(self, self.operator)
            await router.ask(address)
            listed = set(router.addresses.values())
            if listed == here:
                return
            if self.loop.now_s > deadline_s:
                self.fail(f"{address} lists {listed} for {ROUTE_S} s: {self._facts()}")
            await asyncio.sleep(0.2)

    async def _drain(self) -> None:
        at_end = 0
        deadline_s = self.loop.now_s + 30
        while at_end < 3 and self.loop.now_s < deadline_s:
            at_end = at_end + 1 if await self.consumer.turn() else 0
            await asyncio.sleep(0.02)
        if at_end < 3:
            self.fail("the consumer does not come to the end")

    def _verdict(self) -> None:
        self.checks.sample()
        master = self.master
        assert master is not None
        image = master.image()
        final: dict[int, dict[int, bytes]] = {n: {} for n in range(self.world.queue_count)}
        for record in image.records:
            if record.topic == TOPIC:
                final[record.queue_id][record.queue_offset] = record.body
        excused = {
            sent.body
            for sent in self.ledger.messages
            if sent.is_excused or sent.offset < image.start
        }
        for sent in self.ledger.messages:
            outcome, place = OUTCOMES[sent.status], self.places.get(sent.number, -1)
            self.history.sends.append(Send(sent.body, sent.queue_id, outcome, place))
        is_drained = not self.checks.incomplete_count
        expired = {sent.body for sent in self.ledger.messages if self.checks.was_expired(sent)}
        anomalies = history_check.check(
            self.history, final, excused, is_drained=is_drained, expired=expired
        )
        for anomaly in anomalies[:3]:
            self.fail(f"{anomaly.kind}: {anomaly.text}")
        if len(self.checks.truth) != image.end:
            self.fail(f"confirmed {len(self.checks.truth)} bytes, the log has {image.end}")
        self.trace(f"end ok={self.ledger.count('ok')} elections={self.checks.election_count}")


def run_swarm_seed(seed: int, *, keeps_trace: bool = False, without: tuple[str, ...] = ()) -> Swarm:
    """Run one seed, perhaps without some faults."""
    simulation = Swarm(seed, keeps_trace=keeps_trace, without=without)
    simulation.run()
    return simulation
