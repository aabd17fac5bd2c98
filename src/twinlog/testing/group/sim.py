"""One seed of a group: whole brokers, a name server and clients, on virtual time.

Only disk, clock and transport are replaced; clients and judge speak for themselves. Phases: load
under faults and operations, healing, catching up, draining, a stop (or, where everything answered
is on disks, a power cut of everything), and the verdict from the disks. What must hold:

- I1 What was answered SEND_OK was on as many disks as the mode says at that moment, and is there
  at its place after everything that the mode survives; what a slave called durable it keeps.
- I2 to I6 Nothing else is there: no strangers, nothing refused, nothing twice; one record for each
  queue offset.
- I7 Logs of the group are the same; I13 so are all entries of all queues.
- I12 No group starts again, no committed offset beyond its queue, none behind the promoted log.
- L2 Everybody catches up when the faults stop; L3 consumers are given all; topics have routes.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from twinlog.namesrv.server import build_namesrv
from twinlog.runtime.broker_config import BrokerRole
from twinlog.runtime.config import NamesrvConfig
from twinlog.testing.group.corners import Corners
from twinlog.testing.group.faults import Faults
from twinlog.testing.group.judge import Judge
from twinlog.testing.group.ledger import Ledger, Sent
from twinlog.testing.group.load import (
    GROUP,
    MAX_OFFSET,
    QUERY_OFFSET,
    TOPIC,
    Consumer,
    OnceProducer,
    Producer,
)
from twinlog.testing.group.node import BODY_AT, HA_PORT, SERVICE_PORT, GroupNode
from twinlog.testing.group.operations import has_route
from twinlog.testing.group.records import Found
from twinlog.testing.group.rpc import Impostor, Rpc
from twinlog.testing.group.watch import HAWatch
from twinlog.testing.group.world import draw_world
from twinlog.testing.seed_run import SeedFailure, SeedRun
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_network import SimTransport
from twinlog.testing.sim_steps import SimHost
from twinlog.testing.simdisk import SimDisk

NAMESRV_PORT = 9876
IMPOSTOR_PORT = 1
CATCH_UP_S = 60.0
ROUTE_S = 25.0  # Two periods of registration.
OFFSET_SAVE_S = 3.0
GET_ROUTE = 105


class GroupFailure(SeedFailure):
    """Something does not hold; `simulation` has the trace."""

    simulation: GroupSimulation


class GroupSimulation(SeedRun):
    """One seed."""

    failure_type = GroupFailure

    def __init__(
        self,
        seed: int,
        *,
        dialect: str = "twin",
        keeps_trace: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        self.world = world = draw_world(seed, dialect, without)
        self.rng = random.Random(f"run {dialect} {seed}")
        loop = SimLoop(self.rng.randrange(1 << 62), step_max=3_000_000)
        super().__init__(seed, loop, keeps_trace=keeps_trace)
        network = self.loop.network
        network.delay_s = world.delay_s
        network.tiny_pieces = world.tiny_pieces
        network.dial_rule = self._dial_rule
        network.on_write = self._someone_wrote
        self.ledger = Ledger()
        self.watch = HAWatch(HA_PORT)
        self.fault_counts: dict[str, int] = {}
        self.topics: list[str] = []
        self.is_wiped = False
        """The master was started with an empty disk, and nobody has noticed yet."""
        self.are_producers_silent = False
        """Idempotent producers wait with what they do not know."""
        self.is_consumer_silent = False
        self.one_at_a_time = asyncio.Lock()
        self._switched_s = -1.0
        self.master_down_s: list[float] = []
        self.master_paused_s: list[tuple[float, float]] = []
        self.promoted: list[tuple[int, int]] = []
        """Where the log of each promoted copy began and ended then."""
        self._background: list[asyncio.Task[Any]] = []
        self.nodes = [GroupNode(self, "node1", world.role, 0)] + [
            GroupNode(self, f"node{n + 1}", BrokerRole.SLAVE, n)
            for n in range(1, world.slave_count + 1)
        ]
        self._namesrv_host = self.loop.add_host("namesrv")
        self._client_host = self.loop.add_host("clients")
        network.listen(Impostor, self._client_host, IMPOSTOR_PORT)
        self.namesrv_address = f"{self._namesrv_host.address}:{NAMESRV_PORT}"
        self.operator, self.second_operator = self._new_rpc(), self._new_rpc()
        self.consumer = Consumer(self, self._new_rpc())
        self._once = [
            OnceProducer(self, self._new_rpc(), f"p{n}", n % world.queue_count) for n in range(2)
        ]
        self._faults, self._operations = Faults(self), Corners(self)

    def _new_rpc(self) -> Rpc:
        return Rpc(self.loop, self._client_host)

    @property
    def master(self) -> GroupNode:
        return next(node for node in self.nodes if node.is_master)

    @property
    def slaves(self) -> list[GroupNode]:
        return [node for node in self.nodes if not node.is_master]

    def addresses(self) -> list[str]:
        return [node.host.address for node in self.nodes]

    # What others tell.

    def answered_ok(self, sent: Sent, ext: dict[str, str]) -> None:
        """I1, by the disks: enough nodes have it now, or have lost something since."""
        self._note_place(sent, ext)
        self.trace(f"{sent.text()} SEND_OK")
        world = self.world
        holders = [
            node
            for node in self.nodes
            if node.lost_s >= sent.sent_s
            or node.holds_or_began_later(
                sent, durable=world.is_flushed and (world.is_durable_ack or node.is_master)
            )
        ]
        needed = world.in_sync_replicas if world.is_sync else 1
        # A repeat of what retention took from the master: a copy that begins again never gets it.
        if len(holders) < needed and not self.master.began_later(sent):
            names = [node.name for node in holders]
            self.fail(f"{sent.text()} was answered SEND_OK, {needed} must have it, {names} do (I1)")
        if sent.status != "ok":
            sent.status, sent.ok_s = "ok", self.loop.now_s
            # The answer may have been on its way when the power went.
            sent.is_excused = not world.is_sync and not self.master.keeps([sent])

    def _note_place(self, sent: Sent, ext: dict[str, str]) -> None:
        """Where it says that the message is; a repeat may have forgotten, and may not differ."""
        queue_offset = int(ext.get("queueOffset", -1))
        if queue_offset < 0 or len(ext.get("msgId", "")) != 32:
            return
        place = int(ext["msgId"][16:], 16)
        if place == 0 and queue_offset > 0:
            return
        if sent.status == "ok" and not sent.is_excused and sent.offset not in (-1, place):
            self.fail(f"{sent.text()} was answered again as at {place} (I6)")
        sent.offset = place

    def delivered(self, record: Found) -> None:
        if record.topic == TOPIC and record.body not in self.ledger.by_body:
            self.fail(f"a consumer was given {record.body[:20]!r}, which nobody sent (I2)")

    def power_loss(self, node: GroupNode) -> None:
        node.power_loss()
        if not self.world.is_flushed and node.is_master:
            self.excuse_all_but(node)

    def excuse_all_but(self, master: GroupNode) -> None:
        """An asynchronous master promises only what it has; a copy may have less."""
        if not self.world.is_sync:
            promised = list(self.ledger.promised())
            kept = master.keeps(promised)
            for sent in promised:
                sent.is_excused = sent.number not in kept

    def master_was_lost(self) -> None:
        self._switched_s = self.loop.now_s

    def is_saved(self, first_s: float) -> bool:
        """Whether a group that first committed then must be known still: no other broker took
        over since, and the one it told had the time to save it."""
        down_s = next((s for s in self.master_down_s if s >= first_s), first_s + OFFSET_SAVE_S)
        stood_s = sum(
            max(0.0, min(end_s, down_s) - max(begin_s, first_s))
            for begin_s, end_s in self.master_paused_s
        )
        return first_s > self._switched_s and down_s - first_s - stood_s >= OFFSET_SAVE_S

    def copies_are_whole(self) -> bool:
        """Without the master nothing promised would be lost."""
        if not self.world.is_sync:
            return True
        return all(any(s.holds(sent) for s in self.slaves) for sent in self.ledger.promised())

    def check_kept(self, when: str) -> None:
        """I1 while everything runs: each promise is in the log of somebody."""
        start = max(node.image().start for node in self.nodes)
        for sent in self.ledger.promised():
            if sent.offset >= start and not any(node.holds(sent) for node in self.nodes):
                self.fail(f"{sent.text()} was answered SEND_OK and nobody has it {when} (I1)")
                return

    def check_has_all(self, promoted: GroupNode) -> None:
        """I1: whoever takes over has all that was promised."""
        start = promoted.image().start
        for sent in self.ledger.promised():
            if sent.offset >= start and not promoted.holds(sent):
                self.fail(f"{promoted.name} was promoted without {sent.text()}, SEND_OK (I1)")
                return

    # The world.

    def _dial_rule(self, source: SimHost, address: str, port: int) -> tuple[float, str, int]:
        """The dialect question is asked at the service port, of broker by broker."""
        is_question = port == SERVICE_PORT and source.address in self.addresses()
        question = self.world.question
        if not is_question or question == "fine" or self.loop.now_s > self.world.duration_s:
            return 0.0, address, port
        if question == "wrong" and self.rng.random() < 0.7:
            return 0.0, self._client_host.address, IMPOSTOR_PORT
        if question == "failing":
            return -1.0, address, port
        return self.rng.choice((0.0, 2.0, 5.0)), address, port

    def _someone_wrote(self, transport: SimTransport, piece: bytes) -> None:
        local, remote = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        words = self.watch.said(local, remote, piece)
        if words is not None and words.dialect == "classic" and self.world.has_secret:
            self.fail(f"{local[0]} has a secret and speaks the dialect that has none")

    async def _start_namesrv(self) -> None:
        clock = SimClock(self.loop, self._namesrv_host)
        config = NamesrvConfig(bind_address=self._namesrv_host.address, listen_port=NAMESRV_PORT)
        await build_namesrv(config, disk=SimDisk(now_ms=clock.now_ms), clock=clock).start()

    # Waiting.

    async def until_up(self, node: GroupNode) -> None:
        def is_up() -> bool:
            node.resume_if_paused()
            node.boot_if_down()
            return node.is_up

        if not await self.until(is_up, 15.0) and not self.failure:
            self.fail(f"{node.name} does not start")

    def is_in_sync(self) -> bool:
        if not all(node.is_up and not node.is_stopping for node in self.nodes):
            return False
        end = self.master.broker.store.commit_log.max_offset
        return all(
            slave.broker.store.commit_log.max_offset == end
            and slave.broker.store.dispatched.value == end
            and slave.broker.ha.client is not None
            and slave.broker.ha.client.link is not None
            for slave in self.slaves
        )

    async def in_sync_within(self, within_s: float) -> bool:
        return await self.until(self.is_in_sync, within_s)

    # The run.

    async def _main(self) -> None:
        self.trace(repr(self.world))
        if self.world.has_namesrv:
            await self.loop.spawn_on(self._namesrv_host, self._start_namesrv())
        for node in self.nodes:
            node.boot()
        if self.world.begins_apart:
            await self._operations.begin_apart()
            self._note("switch_apart")
            self._background.append(self._spawn(self._operate("switch_apart")))
        plain = self._spawn(Producer(self, self._new_rpc()).run())
        once = [self._spawn(producer.run()) for producer in self._once]
        consuming = self._spawn(self.consumer.run())
        nemesis = [self._spawn(self._do_faults()), self._spawn(self._do_operations())]
        await self.until(lambda: False, self.world.duration_s)
        await self._end_tasks(nemesis)
        async with self.one_at_a_time:
            await self._end_tasks([task for task in self._background if not task.done()])
        if not self.failure:
            await self._heal()
        await self._end_tasks([plain])
        if not self.failure:
            await self._come_to_rest(once, consuming)
        if not self.failure:
            await self._verdict()

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        return self.loop.create_task(coroutine)

    async def _end_tasks(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _do_faults(self) -> None:
        while self.world.faults:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.world.fault_pause_s))
            fault = self.rng.choice(self.world.faults)
            self._note(fault)
            self._background.append(self._spawn(getattr(self._faults, fault)()))

    async def _do_operations(self) -> None:
        while self.world.operations and not self.failure:
            await asyncio.sleep(self.rng.uniform(0.5, 3.0))
            operation = self.rng.choice(self.world.operations)
            self._note(operation)
            self._background.append(self._spawn(self._operate(operation)))
            await asyncio.wait([self._background[-1]])

    async def _operate(self, operation: str) -> None:
        async with self.one_at_a_time:
            # To its end: an operator does not leave in the middle.
            await asyncio.shield(self._spawn(getattr(self._operations, operation)()))

    def _note(self, name: str) -> None:
        self.fault_counts[name] = self.fault_counts.get(name, 0) + 1
        self.trace(f"fault {name}")

    async def _heal(self) -> None:
        self.trace("heal")
        self.loop.network.heal()
        for transport in tuple(self.loop.network.transports):
            port = transport.get_extra_info("sockname")[1]
            if transport.host is self._client_host and port == SERVICE_PORT:
                transport.abort()  # The impostor, who was taken for a broker.
        for node in self.nodes:
            node.disk.quota = 1 << 40
            node.disk.resume()
            node.is_held = False
            node.resume_if_paused()
            node.boot_if_down()
        for node in self.nodes:
            await self.until_up(node)
        await self._replace_hopeless()

    async def _replace_hopeless(self) -> None:
        """A slave that has nothing in common with its master is given a new disk, as it asks for:
        its log ends before the master's begins, or the master lost all that it had ever had. If it
        has something promised that the master lost, it takes the master's place instead."""
        await asyncio.sleep(1.0)
        its = self.master.image()
        for slave in self.slaves:
            mine = slave.image()
            start = max(mine.start, its.start)
            is_other = mine.read(start, start + BODY_AT) != its.read(start, start + BODY_AT)
            if mine.end <= its.start or (is_other and not self._is_needed(slave)):
                slave.kill()
                slave.replace_disk()
                slave.boot()
            elif is_other and mine.start >= its.end:
                await self._operations.replace_master()
                return

    def _is_needed(self, slave: GroupNode) -> bool:
        """Whether it has something promised that nobody else has."""
        others = [node for node in self.nodes if node is not slave]
        return any(
            slave.holds(sent) and not any(node.holds(sent) for node in others)
            for sent in self.ledger.promised()
        )

    def lacks_copies(self, place: int) -> bool:
        """Whether too few slaves have this place of the log or will get it: their logs begin behind
        it, or it has expired (-1)."""
        begins = [slave.image().start for slave in self.slaves]
        having = sum(begin <= place for begin in begins)
        return place < 0 or having < self.world.in_sync_replicas - 1

    async def _come_to_rest(self, once: list[asyncio.Task[Any]], consuming: Any) -> None:
        for producer in self._once:
            producer.is_ending = True
        if not await self.until(lambda: all(task.done() for task in once), CATCH_UP_S):
            self.fail(f"idempotent sends do not end: {self._states()} (L1)")
        await self._end_tasks(once)
        if not await self.in_sync_within(CATCH_UP_S):
            self.fail(f"slaves do not catch up: {self._states()} (L2)")
        await self._end_tasks([consuming])
        if not self.failure:
            await self._drain()
            await self._check_offsets()
            await self._check_routes()

    def _states(self) -> str:
        parts = []
        for node in self.nodes:
            image = node.image()
            text = f"{node.name} {'up' if node.is_up else 'down'} [{image.start}, {image.end})"
            client = node.broker.ha.status().client if node.is_up else None
            if client is not None:
                text += f" {client.state} {client.damage or client.last_disconnect_reason}"
            parts.append(text)
        return "; ".join(parts)

    async def _drain(self) -> None:
        at_end = 0
        deadline_s = self.loop.now_s + CATCH_UP_S
        while at_end < 3 and self.loop.now_s < deadline_s:
            at_end = at_end + 1 if await self.consumer.turn() else 0
            await asyncio.sleep(0.02)
        if at_end < 3:
            self.fail("the consumer does not come to the end (L3)")

    async def _check_offsets(self) -> None:
        for queue_id in range(self.world.queue_count):
            queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
            told = await self.operator.call(self.master.address, QUERY_OFFSET, queue)
            end = await self.operator.call(self.master.address, MAX_OFFSET, queue)
            if told.code == 0 and int(told.ext["offset"]) > int(end.ext["offset"]):
                self.fail(f"queue {queue_id}: committed {told.ext} of {end.ext} (I12)")

    async def _check_routes(self) -> None:
        deadline_s = self.loop.now_s + ROUTE_S
        for name in self.topics:
            while True:
                answer = await self.operator.call(self.namesrv_address, GET_ROUTE, {"topic": name})
                if answer.code == 0 and has_route(answer.body):
                    break
                if self.loop.now_s > deadline_s:
                    self.fail(f"topic {name} was created and has no route ({answer.code})")
                    return
                await asyncio.sleep(0.5)

    async def _verdict(self) -> None:
        judge = Judge(self)
        await asyncio.sleep(2.5)  # Every queue is on its way to the disk.
        judge.logs()
        judge.queues()
        judge.consumer()
        if self.world.is_durable_ack and self.rng.random() < 0.5:
            for node in self.nodes:
                node.power_loss()
        else:
            for node in (*self.slaves, self.master):
                await node.stop()
        judge.logs()
        self.trace(f"end ok={self.ledger.count('ok')} repeats={self.ledger.repeat_count}")
        # Whatever differs between two runs of a seed differs here, also when no line above does.
        self.trace(f"steps={self.loop.step_count} bytes={self.loop.network.byte_count}")


def run_group_seed(
    seed: int,
    *,
    dialect: str = "twin",
    keeps_trace: bool = False,
    without: tuple[str, ...] = (),
) -> GroupSimulation:
    """Run one seed, perhaps without some faults."""
    simulation = GroupSimulation(seed, dialect=dialect, keeps_trace=keeps_trace, without=without)
    simulation.run()
    return simulation
