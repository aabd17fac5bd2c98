"""One broker of a controlled group: `GroupNode` with another configuration and other duties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinlog.broker.server import build_broker
from twinlog.runtime.broker_config import BrokerConfig, BrokerRole
from twinlog.testing.group.node import HA_PORT, LOG_PATH, NAME_LENGTH, SERVICE_PORT, GroupNode
from twinlog.testing.sim_process import SimProcess

if TYPE_CHECKING:
    from twinlog.testing.swarm.sim import Swarm

NAME = "a"


class SwarmNode(GroupNode):
    """`is_master` is what the broker itself believes, now."""

    def __init__(self, sim: Swarm, number: int) -> None:
        super().__init__(sim, f"broker{number}", BrokerRole.SLAVE, number)  # type: ignore[arg-type]
        self.swarm = sim
        self.host.clock_rate = sim.world.rates[number]
        self.checked_to = 0
        """Up to here its confirmed bytes were compared with what was ever confirmed."""
        self.confirmed_to = 0
        """Up to here the set was seen to have what this master confirms."""
        self._expired_to = 0

    @property
    def is_running(self) -> bool:
        return self.is_up and self.host.is_alive

    @property
    def is_master(self) -> bool:
        return self.is_running and self.broker.role.is_master

    @property
    def incarnation(self) -> str:
        """Of the process that runs; empty while none does."""
        replicas = self.broker.replicas if self.is_running else None
        return "" if replicas is None else replicas.incarnation

    @property
    def epoch(self) -> int:
        return self.broker.role.epoch

    def config(self) -> BrokerConfig:
        world = self.swarm.world
        return BrokerConfig(
            enable_controller_mode=True,
            controller_addr=";".join(self.swarm.controller_addresses),
            total_replicas=1 if world.has_stray else world.replicas,
            min_in_sync_replicas=world.least,
            broker_name=NAME,
            broker_role=world.role,
            broker_id=-1,
            namesrv_addr=";".join(self.swarm.namesrv_addresses),
            bind_address=self.host.address,
            listen_port=SERVICE_PORT,
            ha_listen_port=HA_PORT,
            store_path_root_dir="/store",
            mapped_file_size_commit_log=world.segment_size,
            mapped_file_size_consume_queue=2000,
            max_hash_slot_num=50,
            max_index_num=200,
            flush_disk_type=world.flush,
            ha_transfer_batch_size=world.batch_size,
            default_topic_queue_nums=world.queue_count,
            flush_consumer_offset_interval=2000,
            clean_file_forcibly_enable=False,
            twinlog_ha_secret="shared",
        )

    async def _boot(self) -> None:
        sim = self.swarm
        broker = build_broker(
            self.config(), rng=sim.rng, disk=self.disk, clock=self.clock, on_failure=self._failed
        )
        broker.failures.listener = self._contained
        broker.identity._token = sim.token
        assert broker.identity._twin is not None
        broker.identity._twin.new_nonce = sim.token
        assert broker.replicas is not None
        broker.replicas.incarnation = sim.token()
        broker.replicas._token = sim.token
        broker.on_restart = self._asked_to_restart
        broker.on_end = self._asked_to_end
        self.broker = broker
        broker.role.subscribe(self._role_changed)
        broker.ha.confirmed.subscribe(lambda _: sim.checks.confirmed(self))
        await broker.start()
        self.is_up = True
        sim.trace(f"{self.name} up end={broker.store.commit_log.max_offset}")

    def _role_changed(self) -> None:
        role = self.broker.role
        self.swarm.checks.broken()
        self.sim.trace(f"{self.name} is {role.broker_role.value} in epoch {role.epoch}")
        if role.is_master:
            self.swarm.checks.promoted(self)

    def _note_down(self) -> None:
        self.swarm.checks.broken()
        if self.is_up and not self.is_stopping:
            self.swarm.kill_count += 1
        self.is_up = False

    def power_loss(self) -> None:
        SimProcess.power_loss(self)  # What a slave called durable is checked otherwise.
        if not self.swarm.world.is_flushed:
            self.lost_s = self.sim.loop.now_s
        self.checked_to = 0

    def replace_disk(self) -> None:
        self._expired_to = self.expired_to
        super().replace_disk()
        self.checked_to = 0

    @property
    def log_start(self) -> int:
        """The first place of its log: what was before is expired, or was never copied."""
        names = self.disk.names(LOG_PATH)  # Sorted, and of one length: the first is the lowest.
        return next((int(name) for name in names if len(name) == NAME_LENGTH), 0)

    @property
    def expired_to(self) -> int:
        """Up to here retention has taken its log, on this disk or an earlier one."""
        return max(self._expired_to, self.log_start)

    async def expire(self) -> None:
        """Retention takes all but the newest segments, as far as no slave lacks them."""
        config = self.broker.config
        config.twinlog_retention_bytes, before = 1, config.twinlog_retention_bytes
        try:
            count = await self.broker.store.cleaner.clean()
        finally:
            config.twinlog_retention_bytes = before
        self.sim.trace(f"{self.name} has let {count} segments go")

    def log_bytes(self, start: int, end: int, *, durable: bool = False) -> bytes:
        """What is written, or synced; shorter where there is nothing. What is expired counts as
        what it was."""
        parts, size = [], self.swarm.world.segment_size
        expired_end = min(self.log_start, end)
        if start < expired_end:
            parts.append(bytes(self.swarm.checks.truth[start:expired_end]))
            start = expired_end
        while start < end:
            base = start - start % size
            stop = min(end, base + size)
            path = f"{LOG_PATH}/{base:020d}"
            parts.append(self.disk.peek(path, start - base, stop - start, durable=durable))
            start = stop
        return b"".join(parts)

    def facts(self) -> dict[str, Any]:
        """For the text of a failure."""
        if not self.is_running:
            return {"name": self.name, "is": "down"}
        broker = self.broker
        return {
            "name": self.name,
            "is": broker.role.broker_role.value,
            "epoch": broker.role.epoch,
            "end": broker.store.commit_log.max_offset,
            "confirmed": broker.ha.confirmed.value,
            "doubt": broker.ha.is_in_doubt,
        }
