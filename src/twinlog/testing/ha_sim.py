"""A master and its slaves under faults, on virtual time: production store and replication.

Only disk, clock and transport are replaced. The seed draws a world (sizes, modes, which faults and
how often), then the run has phases: load with faults, healing, catching up, a clean stop, and a
comparison of all files. What must hold:

- I1 A message that was answered SEND_OK is in the master's log, and was in the logs of enough
  slaves at the moment of the answer (twin dialect with SYNC_FLUSH: on their disks).
- I2 What is in a log was sent, byte for byte.
- I7 A slave's log is at every moment a piece of the master's, and in the end the same.
- I13 Consume queues of a slave that has caught up are those of its master.
- L2 Every slave catches up when the faults stop.

Power loss of the master and flipped bits on the link are faults of the twin dialect only. After
the first a classic slave may be ahead, which its dialect cannot tell from being right once the
master has grown past it (spec, section 6); the second it cannot see at all. SEND_OK then means on
the master's disk too, and what was answered so must outlive the power loss.

A fault of the classic dialect only: the master forgets a filler behind which nothing was put yet,
as Apache's does. Its slaves may have it, and must give it up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from twinlog.broker.pair.identity import StoreIdentity
from twinlog.ha.dialect import TWIN, Verdict
from twinlog.ha.service import HAService
from twinlog.ha.settings import HASettings
from twinlog.ha.wire import HAConnectionState
from twinlog.message.layout import BLANK_SIZE_MIN
from twinlog.message.model import PutMessage
from twinlog.runtime.broker_config import BrokerConfig, BrokerRole, FlushDiskType
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.watermark import Outcome
from twinlog.store.message_store import MessageStore
from twinlog.store.status import PutMessageStatus
from twinlog.testing.ha_sim_history import History, Sent
from twinlog.testing.ha_sim_world import STRANGERS, add_classic_faults, add_twin_faults, draw_world
from twinlog.testing.seed_run import SeedFailure, SeedRun
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_process import SimProcess
from twinlog.testing.simdisk import SimDisk

HA_PORT = 10912
CATCH_UP_S = 90.0  # Housekeeping of both ends and the longest pause of a redial, twice.


class SimFailure(SeedFailure):
    """An invariant does not hold."""

    simulation: Simulation


class SimNode(SimProcess):
    """One broker: a host, a disk, a store and its replication."""

    def __init__(self, sim: Simulation, name: str, role: BrokerRole, broker_id: int) -> None:
        super().__init__(sim, name)
        self.sim = sim
        self.role = role
        self.broker_id = broker_id
        self.boot_count = 0
        self.first_start = -1
        """Where the log of this disk begins; unknown while it is empty."""
        self.end_ever = 0
        """The furthest that this log has ever been: what it had, it had."""
        self.durable_ever = 0
        self.lowest_end: int | None = None
        """To where a boot has gone back; None before the second one."""
        self.past: list[tuple[int, int]] = []
        """The same of disks that were replaced."""
        self.forgets_from: int | None = None
        """Where the next boot cuts the log."""
        self.store: MessageStore
        self.ha: HAService
        self.tasks: TaskOwner

    def config(self) -> BrokerConfig:
        world = self.sim.world
        return BrokerConfig(
            broker_role=self.role,
            broker_id=self.broker_id,
            store_path_root_dir="/store",
            mapped_file_size_commit_log=world.segment_size,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=50,
            max_index_num=200,
            flush_disk_type=world.flush,
            ha_listen_port=HA_PORT,
            ha_transfer_batch_size=world.batch_size,
            ha_send_heartbeat_interval=world.heartbeat_ms,
            ha_housekeeping_interval=world.housekeeping_ms,
            ha_slave_fallbehind_max=1 << 20,
            in_sync_replicas=world.in_sync_replicas,
            ha_master_address=self.sim.master_address if self.broker_id else None,
            twinlog_ha_secret="shared",
        )

    def _begins(self) -> None:
        self.boot_count += 1

    async def _boot(self) -> None:
        config = self.config()
        self.tasks = TaskOwner(self.name, self._failed, clock=self.clock)
        self.tasks.failures.listener = self._failed  # What a broker contains is a fault here.
        self.store = MessageStore(config, disk=self.disk, clock=self.clock, delay_levels={})
        await self.store.load()
        await self.store.start(self.tasks)
        if self.forgets_from is not None:
            self.store.commit_log.truncate_to(self.forgets_from, reason="no record follows")
            self.forgets_from = None
        self.ha = self._replication(config)
        self.store.reput.on_damage = self._damaged
        self.store.appended.subscribe(self._log_grew)
        self.store.flushed.subscribe(self._log_flushed)
        self.durable_ever = max(self.durable_ever, self.store.flushed.value)
        self.end_ever = max(self.end_ever, self.store.appended.value)
        if self.boot_count > 1:
            end = self.store.commit_log.max_offset
            self.lowest_end = end if self.lowest_end is None else min(self.lowest_end, end)
        await self.ha.start()
        self.is_up = True
        self.sim.trace(f"{self.name} up end={self.store.commit_log.max_offset}")

    def _replication(self, config: BrokerConfig) -> HAService:
        settings = HASettings.from_config(config)
        if self.sim.dialect == "classic":
            return HAService(settings, self.store, self.clock, self.tasks)
        identity = StoreIdentity(config, self.disk, self.sim.token)
        twin = identity.twin()
        identity.load()
        identity.settle(self.clock.now_ms())
        return HAService(settings, self.store, self.clock, self.tasks, twin=twin, ask_dialect=_twin)

    def _failed(self, name: str, error: BaseException) -> None:
        self.sim.fail(f"{self.name}: task {name} died: {error!r}")

    def _damaged(self, offset: int, reason: str) -> None:
        # No fault of this simulation damages bytes: whatever the dispatcher finds is a bug.
        self.sim.fail(f"{self.name}: damage at {offset}: {reason}")

    def _log_grew(self, end_offset: int) -> None:
        if self.first_start < 0:
            self.first_start = self.store.commit_log.min_offset
        self.end_ever = max(self.end_ever, end_offset)
        if self.broker_id:
            self.sim.check_slave_bytes(self)

    def _log_flushed(self, offset: int) -> None:
        self.durable_ever = max(self.durable_ever, offset)

    def had(self, end_offset: int, *, is_durable: bool) -> bool:
        """Whether this node has ever had the record that ends there, on this disk or an earlier
        one. An empty classic slave is sent the last file only: what is before it never was there.
        """
        end = self.durable_ever if is_durable else self.end_ever
        return any(start < end_offset <= stop for start, stop in self.past) or (
            self.first_start < end_offset <= end
        )

    def replace_disk(self) -> None:
        self.past.append((self.first_start, self.end_ever))
        self.first_start, self.end_ever, self.durable_ever = -1, 0, 0
        self.disk = SimDisk(now_ms=self.clock.now_ms)

    async def stop(self) -> None:
        """A clean stop."""
        await self.ha.stop()
        await self.tasks.stop()
        await self.store.stop()
        self.is_up = False

    @property
    def log_range(self) -> tuple[int, int]:
        log = self.store.commit_log
        return log.min_offset, log.max_offset

    def read(self, start: int, end: int) -> bytes:
        log, parts = self.store.commit_log, []
        while start < end:
            part = log.read(start, end - start)
            assert part
            parts.append(part)
            start += len(part)
        return b"".join(parts)


class Simulation(SeedRun):
    """One seed."""

    failure_type = SimFailure

    def __init__(
        self,
        seed: int,
        *,
        keeps_trace: bool = False,
        without: tuple[str, ...] = (),
        dialect: str = "classic",
        slave_count: int | None = None,
    ) -> None:
        self.dialect = dialect
        self.rng = random.Random(seed)
        self.world = draw_world(self.rng, without)
        add_faults = add_twin_faults if dialect == "twin" else add_classic_faults
        add_faults(self.world, seed, without)
        self.world.slave_count = slave_count or self.world.slave_count
        loop = SimLoop(self.rng.randrange(1 << 62), step_max=2_000_000)
        super().__init__(seed, loop, keeps_trace=keeps_trace)
        self.loop.network.delay_s = self.world.delay_s
        self.loop.network.tiny_pieces = self.world.tiny_pieces
        self.history = History()
        self.fault_counts: dict[str, int] = {}
        self._fault_tasks: list[asyncio.Task[None]] = []
        self._is_load_held = False
        self.master_address = f"10.0.0.1:{HA_PORT}"
        self.master = SimNode(self, "master", BrokerRole.SYNC_MASTER, 0)
        self.slaves = [
            SimNode(self, f"slave{index}", BrokerRole.SLAVE, index)
            for index in range(1, self.world.slave_count + 1)
        ]

    def has_failed(self) -> bool:
        return bool(self.failure)

    def check(self, holds: object, text: str) -> None:
        if not holds:
            self.fail(text)

    # The run.

    async def _main(self) -> None:
        self.trace(repr(self.world))
        self.master.boot()
        for slave in self.slaves:
            slave.boot()
        load = self.loop.create_task(self._load())
        nemesis = self.loop.create_task(self._nemesis())
        await asyncio.sleep(self.world.duration_s)
        for task in (nemesis, *self._fault_tasks):
            task.cancel()
        await self._heal()
        load.cancel()
        ended = await asyncio.gather(load, nemesis, *self._fault_tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
        if not self.has_failed():
            await self._until(self._is_settled, CATCH_UP_S, "slaves catch up (L2)")
        if self.has_failed():
            return
        await asyncio.sleep(self.world.heartbeat_ms / 1000)
        self._check_end()
        for node in (*self.slaves, self.master):
            await self.loop.spawn_on(node.host, node.stop())
        self.trace(
            f"end ok={self.history.count('ok')} unknown={self.history.count('unknown')}"
            f" refused={self.history.count('refused')} bytes={self.loop.network.byte_count}"
        )

    async def _until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        if not await self.until(condition, within_s):
            detail = "; ".join(f"{n.name} {self._state_text(n)}" for n in self._nodes())
            self.fail(f"did not happen within {within_s} s: {what}: {detail}")

    def _nodes(self) -> list[SimNode]:
        return [self.master, *self.slaves]

    def _state_text(self, node: SimNode) -> str:
        if not node.is_up:
            return "down"
        client = node.ha.status().client
        where = f"{node.log_range}"
        return (
            where if client is None else f"{where} {client.state} {client.last_disconnect_reason}"
        )

    # Load.

    async def _load(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.world.put_pause_s))
            if self._is_load_held:
                continue
            if self.master.is_up and not self.master.host.is_paused:
                task = self.loop.spawn_on(self.master.host, self._put_some())
                await asyncio.wait([task], timeout=0.001)

    async def _put_some(self) -> None:
        """Puts of one turn of the loop, as the broker does them."""
        master, history = self.master, self.history
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            number = history.next_number
            history.next_number += 1
            filler = bytes(self.rng.getrandbits(8) for _ in range(8)) * self.world.body_size_max
            size = self.rng.randint(0, self.world.body_size_max)
            sent = Sent(b"%08d:" % number + filler[:size])
            history.messages[number] = sent
            result = master.store.put(PutMessage("topic", number % 3, sent.body))
            if result.status is not PutMessageStatus.PUT_OK:
                sent.status = "refused"
                continue
            sent.end_offset = result.end_offset
            master.store.appended.wait(result.end_offset, 1 << 62, self._appended, sent)

    def _appended(self, sent: Sent, outcome: Outcome, _: str) -> None:
        if outcome is not Outcome.REACHED:
            return
        status, reason = self.master.ha.check_sync(sent.end_offset)
        if status is None:
            self.master.ha.group_transfer.wait(sent.end_offset, self._answered, sent)
        else:
            self.check(reason, "SLAVE_NOT_AVAILABLE without a reason")

    def _answered(self, sent: Sent, outcome: Outcome, reason: str) -> None:
        if outcome is not Outcome.REACHED:
            self.check(reason, f"{outcome} without a reason")
            return
        # I1, at the moment of the answer: enough slaves had it.
        is_durable = self.world.flush is FlushDiskType.SYNC_FLUSH and self.dialect == "twin"
        count = sum(slave.had(sent.end_offset, is_durable=is_durable) for slave in self.slaves)
        needed = self.world.in_sync_replicas - 1
        self.check(
            count >= needed,
            f"SEND_OK for end {sent.end_offset}, but only {count} of {needed} slaves had it",
        )
        if is_durable:
            self.master.store.flushed.wait(sent.end_offset, 1 << 62, self._on_disk, sent)
        else:
            sent.status = "ok"

    def _on_disk(self, sent: Sent, outcome: Outcome, _: str) -> None:
        if outcome is Outcome.REACHED:
            sent.status = "ok"

    # Faults.

    async def _nemesis(self) -> None:
        while self.world.faults:
            await asyncio.sleep(self.rng.uniform(0, 2 * self.world.fault_pause_s))
            fault = self.rng.choice(self.world.faults)
            self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
            self.trace(f"fault {fault}")
            # At the same time as others: what one slave misses another may wrongly make up for.
            self._fault_tasks.append(self.loop.create_task(getattr(self, f"_fault_{fault}")()))

    def _some_slave(self) -> SimNode:
        return self.rng.choice(self.slaves)

    async def _fault_kill_slave(self) -> None:
        await self._restart(self._some_slave(), lambda node: node.kill())

    async def _fault_power_slave(self) -> None:
        await self._restart(self._some_slave(), lambda node: node.power_loss())

    async def _fault_kill_master(self) -> None:
        await self._restart(self.master, lambda node: node.kill())

    async def _fault_forget_filler(self) -> None:
        """Killed when the filler of a file is written and the first record of the next is not."""
        if not self.master.is_up or self._is_load_held:
            return
        self._is_load_held = True
        try:
            filling = self.loop.spawn_on(self.master.host, self._fill_file())
            await asyncio.wait([filling], timeout=self.rng.choice((0.002, 0.01, 0.1)))
            if filling.done() and (start := filling.result()) is not None:
                await self._restart(self.master, lambda node: self._forget_from(node, start))
        finally:
            self._is_load_held = False

    async def _fill_file(self) -> int | None:
        """Where the filler begins, if nothing was put behind it for a moment."""
        store, log = self.master.store, self.master.store.commit_log
        store.write_pending()
        start = log.max_offset
        if start == log.min_offset or start % self.world.segment_size == 0:
            return None
        log.make_room(self.world.segment_size - BLANK_SIZE_MIN)
        store.write_pending()
        end = log.max_offset
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.05)))
        return start if log.max_offset == end else None

    def _forget_from(self, master: SimNode, start: int) -> None:
        master.forgets_from = start
        for slave in self.slaves:
            slave.end_ever = min(slave.end_ever, start)
        master.kill()

    async def _fault_power_master(self) -> None:
        """Its slaves may be ahead of what it finds on its disk, and are cut."""
        disk = self.master.disk
        if not self.master.is_up or self.master.store.flushed.value == 0:
            return
        disk.stall()  # A slow disk: slaves get what it does not have yet.
        try:
            await asyncio.sleep(self.rng.choice((0.0, 0.1, 0.5)))
        finally:
            disk.resume()
        if self.master.disk is disk:
            await self._restart(self.master, lambda node: node.power_loss())

    async def _fault_slow_disk_slave(self) -> None:
        """It receives and cannot sync: it must not say durable."""
        disk = self._some_slave().disk
        disk.stall()
        try:
            await asyncio.sleep(self.rng.choice((0.1, 1.0)))
        finally:
            disk.resume()

    async def _fault_flip_bits(self) -> None:
        self.loop.network.flip_probability = self.rng.choice((0.01, 0.1, 0.3))
        await asyncio.sleep(self.rng.choice((0.1, 1.0)))
        self.loop.network.flip_probability = 0.0

    async def _restart(self, node: SimNode, end: Callable[[SimNode], None]) -> None:
        if not node.host.is_alive:
            return
        end(node)
        await asyncio.sleep(self.rng.choice((0.0, 0.1, 1.0)))
        node.boot_if_down()

    async def _fault_pause_slave(self) -> None:
        await self._pause(self._some_slave())

    async def _fault_pause_master(self) -> None:
        await self._pause(self.master)

    async def _pause(self, node: SimNode) -> None:
        if not node.host.is_alive or node.host.is_paused:
            return
        self.loop.pause(node.host)
        await asyncio.sleep(self.rng.choice((0.2, 2.0, 1.2 * self.world.housekeeping_ms / 1000)))
        node.resume_if_paused()

    async def _fault_partition(self) -> None:
        self.loop.network.partition(self.master.host, self._some_slave().host)
        await asyncio.sleep(self.rng.choice((0.1, 1.0, 1.5 * self.world.housekeeping_ms / 1000)))
        self.loop.network.heal()

    async def _fault_partition_oneway(self) -> None:
        ends = [self.master.host, self._some_slave().host]
        self.rng.shuffle(ends)
        self.loop.network.partition(*ends, one_way=True)
        await asyncio.sleep(self.rng.choice((0.1, 1.0, 1.5 * self.world.housekeeping_ms / 1000)))
        self.loop.network.heal()

    async def _fault_reset(self) -> None:
        self.loop.network.reset_all()

    async def _fault_disk_full_slave(self) -> None:
        slave = self._some_slave()
        slave.disk.quota = max(slave.disk.space("/").used + self.rng.randint(0, 3000), 1)
        await asyncio.sleep(self.rng.choice((0.5, 3.0)))
        slave.disk.quota = 1 << 40

    async def _fault_wall_clock(self) -> None:
        node = self.rng.choice(self._nodes())
        node.host.wall_offset_ms += self.rng.choice((-3_600_000, -500, 500, 3_600_000))

    async def _fault_late_slave(self) -> None:
        """A slave whose disk was replaced: it starts from nothing."""
        slave = self._some_slave()
        if slave.host.is_alive:
            slave.kill()
            slave.replace_disk()
            await asyncio.sleep(self.rng.choice((0.0, 1.0)))
            slave.boot_if_down()

    async def _fault_stranger(self) -> None:
        """Someone who is no slave: garbage, bold claims, silence."""
        if not self.master.is_up:
            return
        words, more = self.rng.choice(STRANGERS)
        network = self.loop.network
        host = network.hosts.get("10.0.0.99") or self.loop.add_host("stranger", "10.0.0.99")
        coroutine = network.connect(asyncio.Protocol, host, "10.0.0.1", HA_PORT)
        done, _ = await asyncio.wait([self.loop.spawn_on(host, coroutine)], timeout=1)
        for task in done:
            if task.exception() is None:
                transport = task.result()[0]
                transport.write(words)
                self.loop.call_later(0.2, transport.write, more)

    async def _heal(self) -> None:
        """The faults stop: everybody is up and reaches everybody."""
        self.trace("heal")
        self.loop.network.heal()
        self.loop.network.flip_probability = 0.0
        for node in self._nodes():
            node.disk.quota = 1 << 40
            node.resume_if_paused()
            node.boot_if_down()
        await asyncio.sleep(1.0)

    def _is_settled(self) -> bool:
        for slave in filter(self._is_stranded, self.slaves):
            slave.kill()
            slave.replace_disk()
            slave.boot_if_down()
        return self._all_caught_up()

    def _is_stranded(self, slave: SimNode) -> bool:
        """Whether a slave says that it needs a person, and is right: its master went back to before
        the place where its log begins, since a full disk had taken what both had."""
        client = slave.ha.status().client if slave.is_up else None
        gone_back_to = self.master.lowest_end
        if client is None or gone_back_to is None or slave.log_range[0] < gone_back_to:
            return False
        return "not one record is common" in client.last_disconnect_reason

    # Checks.

    def _all_caught_up(self) -> bool:
        if not all(node.is_up for node in self._nodes()):
            return False
        end = self.master.store.commit_log.max_offset
        # A link to a master that lost power looks well until the slave says something.
        is_known = len(self.master.ha.acks) == len(self.slaves)
        return is_known and all(
            slave.store.commit_log.max_offset == end
            and slave.store.dispatched.value == end
            and slave.ha.client is not None
            and slave.ha.client.link is not None
            for slave in self.slaves
        )

    def check_slave_bytes(self, slave: SimNode) -> None:
        """I7, at every append of a slave: what is new there is what the master has there."""
        if not self.master.is_up or not slave.is_up or not self._is_connected(slave):
            return
        start, end = slave.log_range
        master_start, master_end = self.master.log_range
        position = max(start, master_start, end - 4 * self.world.batch_size)
        self.check(end <= master_end, f"{slave.name} ends at {end}, its master at {master_end}")
        stop = min(end, master_end)
        if position < stop and slave.read(position, stop) != self.master.read(position, stop):
            self.fail(f"{slave.name} differs from its master in [{position}, {stop}) (I7)")

    def _is_connected(self, slave: SimNode) -> bool:
        """Bytes of a master that went back since may be longer than what it has now."""
        if not {"power_master", "forget_filler"} & set(self.world.faults):
            return True
        for connection in self.master.ha.connections:
            if self.dialect == "classic" and connection.address.startswith(slave.host.address):
                return True
            hello = getattr(connection.core, "hello", None)
            if hello is not None and hello.replica_id == slave.broker_id:
                return connection.core.state is HAConnectionState.TRANSFER
        return False

    def _check_end(self) -> None:
        master_start, master_end = self.master.log_range
        whole = self.master.read(master_start, master_end)
        for slave in self.slaves:
            start, end = slave.log_range
            self.check(end == master_end, f"{slave.name} ends at {end} of {master_end}")
            copy = slave.read(start, end)
            self.check(copy == whole[start - master_start :], f"{slave.name} differs (I7)")
            self._check_queues(slave)
        self._check_messages(whole)
        self._check_status()

    def _check_messages(self, whole: bytes) -> None:
        for number, sent in self.history.messages.items():
            if sent.status == "ok":
                end = sent.end_offset - self.master.log_range[0]
                is_there = sent.body in whole[max(0, end - len(sent.body) - 200) : end]
                self.check(is_there, f"message {number} was answered SEND_OK and is gone (I1)")

    def _check_queues(self, slave: SimNode) -> None:
        start = slave.store.commit_log.min_offset
        for topic, queue_id in self.master.store.queues:
            queue = self.master.store.queue_table.get(topic, queue_id)
            if queue is not None and 0 <= queue.last_physical_end <= start:
                continue  # A classic copy that began with the last file has none of its records.
            mine = slave.store.max_offset_in_queue(topic, queue_id)
            its = self.master.store.max_offset_in_queue(topic, queue_id)
            self.check(mine == its, f"{slave.name} queue {queue_id}: {mine} of {its} (I13)")
            if mine > slave.store.min_offset_in_queue(topic, queue_id):
                self._check_last_message(slave, topic, queue_id, mine - 1)

    def _check_last_message(self, slave: SimNode, topic: str, queue_id: int, offset: int) -> None:
        mine = slave.store.get_message(topic, queue_id, offset, 1).buffers
        its = self.master.store.get_message(topic, queue_id, offset, 1).buffers
        self.check(mine == its and mine, f"{slave.name} serves another message at {offset} (I6)")

    def _check_status(self) -> None:
        """The status says what is."""
        status = self.master.ha.status()
        good = [r for r in status.replicas if r.state == "TRANSFER" and r.lag_bytes == 0]
        self.check(len(good) == len(self.slaves), f"status shows {status.replicas}")
        count = sum(replica.state == "TRANSFER" for replica in status.replicas)
        acks = self.master.ha.acks.replicas
        self.check(len(acks) == count, f"{count} connected, but acks of {acks}")
        for slave in self.slaves:
            self.check(slave.tasks.count < 12, f"{slave.name} has {slave.tasks.count} tasks (I19)")


async def _twin(_: str) -> Verdict:
    return TWIN


def run_seed(
    seed: int,
    *,
    keeps_trace: bool = False,
    without: tuple[str, ...] = (),
    dialect: str = "classic",
    slave_count: int | None = None,
) -> Simulation:
    """Run one seed, perhaps without some faults; SimFailure has the run as `simulation`."""
    simulation = Simulation(
        seed, keeps_trace=keeps_trace, without=without, dialect=dialect, slave_count=slave_count
    )
    simulation.run()
    return simulation
