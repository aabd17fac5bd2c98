"""One broker of a group: a host, a disk, a role, and the processes that come and go on it."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinlog.broker.put.idempotence import ProducerTable
from twinlog.broker.server import Broker, build_broker
from twinlog.runtime.broker_config import BrokerConfig, BrokerRole, HADialect, Reseed
from twinlog.runtime.disk import write_atomically
from twinlog.testing.group.ledger import Sent
from twinlog.testing.group.records import LogImage, queue_entries
from twinlog.testing.sim_process import SimProcess
from twinlog.testing.simdisk import SimDisk

if TYPE_CHECKING:
    from twinlog.testing.group.sim import GroupSimulation

SERVICE_PORT = 10911
HA_PORT = 10912
LOG_PATH = "/store/commitlog"
QUEUE_PATH = "/store/consumequeue"
CONFIG_PATH = "/conf/broker.conf"
NAME_LENGTH = 20  # Of a file that is named after its first offset.
BODY_AT = 88  # Of a record whose addresses have four bytes.


class GroupNode(SimProcess):
    """`is_held`: an operator has stopped it, nobody else starts it."""

    def __init__(self, sim: GroupSimulation, name: str, role: BrokerRole, broker_id: int) -> None:
        super().__init__(sim, name)
        self.sim = sim
        self.role = role
        self.broker_id = broker_id
        self.address = f"{self.host.address}:{SERVICE_PORT}"
        self.is_held = False
        self.is_stopping = False
        self.lost_s = -1.0
        """When the disk last lost something."""
        self._paused_at_s: float | None = None
        self.broker: Broker

    @property
    def ha_address(self) -> str:
        return f"{self.host.address}:{HA_PORT}"

    @property
    def is_classic(self) -> bool:
        """Whether it is told to speak the classic dialect as a slave."""
        world = self.sim.world
        return world.dialect == "classic" or self.name == f"node{world.classic_slave}"

    @property
    def is_master(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    # Life.

    def config(self) -> BrokerConfig:
        world = self.sim.world
        dialect = HADialect.AUTO
        if self.is_classic:
            dialect = HADialect.CLASSIC
        elif world.dialect == "twin" and world.is_fixed:
            dialect = HADialect.TWIN
        fixed = self.sim.master.ha_address if world.is_fixed and not self.is_master else None
        return BrokerConfig(
            broker_name="a",
            broker_role=self.role,
            broker_id=0 if self.is_master else self.broker_id,
            namesrv_addr=self.sim.namesrv_address if world.has_namesrv else None,
            bind_address=self.host.address,
            listen_port=SERVICE_PORT,
            ha_listen_port=HA_PORT,
            ha_master_address=fixed,
            store_path_root_dir="/store",
            mapped_file_size_commit_log=world.segment_size,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=50,
            max_index_num=200,
            flush_disk_type=world.flush,
            sync_flush_timeout=world.flush_timeout_ms,
            slave_timeout=world.slave_timeout_ms,
            ha_transfer_batch_size=world.batch_size,
            ha_send_heartbeat_interval=1000,
            ha_housekeeping_interval=4000,
            ha_slave_fallbehind_max=world.fall_behind_max,
            in_sync_replicas=world.in_sync_replicas,
            default_topic_queue_nums=world.queue_count,
            register_name_server_period=10_000,
            flush_consumer_offset_interval=2000,
            clean_resource_interval=2000,
            file_reserved_time=0,
            twinlog_ha_dialect=dialect,
            twinlog_reseed=Reseed(world.reseed),
            twinlog_ha_secret="shared" if world.has_secret else "",
            twinlog_ha_classic_peers=",".join(self.sim.addresses()),
        )

    def _begins(self) -> None:
        self.is_stopping = False
        self.sim.trace(f"{self.name} boots as {self.role}")
        if not self.disk.exists(CONFIG_PATH):
            self.disk.make_directories(posixpath.dirname(CONFIG_PATH))
            write_atomically(self.disk, CONFIG_PATH, b"")

    async def _boot(self) -> None:
        broker = build_broker(
            self.config(),
            rng=self.sim.rng,
            disk=self.disk,
            clock=self.clock,
            on_failure=self._failed,
            config_path=CONFIG_PATH,
        )
        broker.failures.listener = self._contained
        broker.identity._token = self.sim.token
        assert broker.identity._twin is not None
        broker.identity._twin.new_nonce = self.sim.token
        broker.once.table = ProducerTable(runs_max=self.sim.world.runs_max)
        broker.on_restart = self._asked_to_restart
        broker.on_end = self._asked_to_end
        self.broker = broker
        await broker.start()
        self.is_up = True
        if self.is_master and self.sim.world.restarts_consumers:
            self.sim.consumer.restart()
        self.sim.trace(f"{self.name} up end={broker.store.commit_log.max_offset}")

    def boot_if_down(self) -> None:
        if not self.is_held:
            super().boot_if_down()

    def _failed(self, name: str, error: BaseException) -> None:
        if "No space left" in str(error):
            self.sim.trace(f"{self.name}: task {name} died: {error}")
            self.sim.loop.call_soon(self._end_process, context=self.sim.loop.bare_context)
        else:
            self.sim.fail(f"{self.name}: task {name} died: {error!r}")

    def _contained(self, what: str, error: BaseException) -> None:
        """What a broker survives is a fault here, but for a full disk."""
        if "No space left" not in str(error):
            self.sim.fail(f"{self.name}: {what} failed: {error!r}")

    def _end_process(self) -> None:
        if self.host.is_alive:
            self.kill()
            self.sim.loop.call_later(1.0, self.boot_if_down)

    def _asked_to_restart(self, reason: str) -> None:
        self.sim.trace(f"{self.name} restarts: {reason}")
        context = self.sim.loop.bare_context
        self.sim.loop.call_soon(self._restart_soon, context=context)

    def _asked_to_end(self, reason: str) -> None:
        # Nobody starts a second master in these worlds.
        self.sim.fail(f"{self.name} ends itself: {reason}")

    def _restart_soon(self) -> None:
        if self.host.is_alive and self.is_up:
            self.kill()
            self.sim.loop.call_later(0.1, self.boot_if_down)

    def pause(self) -> None:
        """SIGSTOP."""
        self._paused_at_s = self.sim.loop.now_s
        self.sim.loop.pause(self.host)

    def resume_if_paused(self) -> None:
        is_paused = self.host.is_alive and self.host.is_paused
        super().resume_if_paused()
        if is_paused:
            self._note_pause()

    def _note_pause(self) -> None:
        if self.is_master and self._paused_at_s is not None:
            self.sim.master_paused_s.append((self._paused_at_s, self.sim.loop.now_s))
        self._paused_at_s = None

    def power_loss(self) -> None:
        before, words = self.image(), self.sim.watch.last.get(self.host.address)
        super().power_loss()
        self.lost_s = self.sim.loop.now_s
        if words is not None and not self.is_master:
            after = self.image()
            start = max(before.start, after.start)
            if before.read(start, words.durable) != after.read(start, words.durable):
                self.sim.fail(f"{self.name} called {words.durable} durable and lost it")

    def _note_down(self) -> None:
        super()._note_down()
        self._note_pause()
        if self.is_master:
            self.sim.master_down_s.append(self.sim.loop.now_s)

    async def stop(self) -> bool:
        """SIGTERM; whether it ended by itself within 10 s."""
        if not (self.is_up and self.host.is_alive) or self.is_stopping:
            return False
        self.is_stopping = True
        self.sim.trace(f"{self.name} stops")
        self.resume_if_paused()
        incarnation = self.host.incarnation
        task = self.sim.loop.spawn_on(self.host, self.broker.stop())
        await asyncio.wait([task], timeout=10)
        if self.host.incarnation != incarnation:
            return False  # Somebody killed it meanwhile.
        is_clean = task.done() and task.exception() is None
        if task.done() and (error := task.exception()) is not None:
            self.sim.trace(f"{self.name} did not stop well: {error!r}")
        self.kill()
        return is_clean

    def replace_disk(self) -> None:
        """A new machine under the old name: nothing that it had counts any more."""
        self.sim.trace(f"{self.name} has a new disk")
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.lost_s = self.sim.loop.now_s
        self.sim.watch.forget(self.host.address)

    # What is on the disk, whoever runs or not.

    def image(self, *, durable: bool = False) -> LogImage:
        files = {
            int(name): self.disk.peek(f"{LOG_PATH}/{name}", 0, 1 << 40, durable=durable)
            for name in self.disk.names(LOG_PATH, durable=durable)
            if len(name) == NAME_LENGTH
        }
        return LogImage(files, self.sim.world.segment_size)

    def holds(self, sent: Sent, *, durable: bool = False) -> bool:
        if sent.offset < 0:
            return any(record.body == sent.body for record in self.image(durable=durable).records)
        base = sent.offset - sent.offset % self.sim.world.segment_size
        start = sent.offset - base + BODY_AT
        path = f"{LOG_PATH}/{base:020d}"
        return self.disk.peek(path, start, len(sent.body), durable=durable) == sent.body

    def place_of(self, sent: Sent) -> int:
        """Where it is in this log; -1 if it is not."""
        records = self.image().records
        return next((record.offset for record in records if record.body == sent.body), -1)

    def keeps(self, messages: list[Sent]) -> set[int]:
        """The numbers of those in its log, which ends before the first record that is not whole:
        what a power loss left behind that place recovery cuts off."""
        bodies = {record.body for record in self.image().records}
        return {sent.number for sent in messages if sent.body in bodies}

    def holds_or_began_later(self, sent: Sent, *, durable: bool) -> bool:
        """Retention, or a copy that began with a later file: both count as having it."""
        return self.holds(sent, durable=durable) or self.began_later(sent)

    def began_later(self, sent: Sent) -> bool:
        names = [int(name) for name in self.disk.names(LOG_PATH) if len(name) == NAME_LENGTH]
        return sent.offset < min(names, default=0)

    def queues(self) -> Iterator[tuple[str, int, dict[int, tuple[int, int]]]]:
        """(topic, queue, entries) of every consume queue."""
        for topic in self.disk.names(QUEUE_PATH):
            for queue in self.disk.names(f"{QUEUE_PATH}/{topic}"):
                path = f"{QUEUE_PATH}/{topic}/{queue}"
                files = {
                    int(name): self.disk.peek(f"{path}/{name}", 0, 1 << 40)
                    for name in self.disk.names(path)
                    if len(name) == NAME_LENGTH
                }
                yield topic, int(queue), queue_entries(files)
