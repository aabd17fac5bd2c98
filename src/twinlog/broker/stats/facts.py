"""What a broker knows of itself that its health is judged by. Read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.ha.status import HAStatus
from twinlog.observe.health import (
    DiskFacts,
    Facts,
    GroupFacts,
    ReplicaFacts,
    RivalFacts,
    ServerFacts,
    SlaveFacts,
    missing_slave,
)
from twinlog.remoting.bodies.route import MASTER_ID

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class BrokerFacts:
    """Collects facts of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop_lag_ms: Callable[[], int] = lambda: 0

    def measure_loop(self, measure: Callable[[], int]) -> None:
        """`measure` says how long the longest recent pause of the loop was."""
        self._loop_lag_ms = measure

    def all(self) -> Facts:
        """For the broker's own judgement."""
        return Facts(servers=(self.server(),), groups=(self.group(self._broker.ha.status()),))

    def server(self) -> ServerFacts:
        broker = self._broker
        config = broker.config
        return ServerFacts(
            kind="broker",
            name=f"{config.broker_name}:{self._broker.role.broker_id}",
            address=broker.address,
            refusal=self._refusal(),
            is_slave=not broker.role.is_master,
            disks=self.disks(),
            unsaved=tuple(f"{name}: {why}" for name, why in broker.saves.problems.items()),
            loop_lag_ms=self._loop_lag_ms(),
        )

    def _refusal(self) -> str:
        """A slave takes no sends by design; what its disk refuses is told anyway."""
        store = self._broker.store
        if self._broker.role.is_master:
            return store.refusal_reason
        return store.commit_log.broken_reason or store.running_flags.reason

    def disks(self) -> tuple[DiskFacts, ...]:
        config, disk = self._broker.config, self._broker.disk
        paths = dict.fromkeys((*config.commit_log_paths, config.store_path_root_dir))
        return tuple(
            DiskFacts(
                path,
                disk.space(path).ratio,
                clean_ratio=config.disk_max_used_ratio,
                refuse_ratio=config.disk_space_warning_level_ratio / 100,
            )
            for path in paths
        )

    def group(self, status: HAStatus) -> GroupFacts:
        """The group as this broker sees it: a slave knows only itself."""
        config = self._broker.config
        if not status.is_master:
            return GroupFacts(
                name=config.broker_name,
                master_address=status.client.master_address if status.client else None,
                replicas=(ReplicaFacts(self._broker.address),),
                slaves=(self._slave(status),),
                is_controlled=config.enable_controller_mode,
            )
        return master_facts(config.broker_name, self._broker.address, status, self._rivals())

    def _slave(self, status: HAStatus) -> SlaveFacts:
        prefix = "metadataProblem "
        problems = tuple(
            f"does not take the master's {key.removeprefix(prefix)}: {reason}"
            for key, reason in self._broker.pair.status().items()
            if key.startswith(prefix)
        )
        client = status.client
        return SlaveFacts(
            self._broker.address,
            is_linked=client is not None and client.state == "TRANSFER",
            link_reason=client.last_disconnect_reason if client is not None else "",
            damage=client.damage if client is not None else "",
            metadata_problems=problems,
        )

    def _rivals(self) -> tuple[RivalFacts, ...]:
        own = self._broker.address
        return tuple(
            RivalFacts(MASTER_ID, own, rival.address)
            for rival in self._broker.registration.rivals()
        )


def master_facts(
    name: str, address: str, status: HAStatus, rivals: tuple[RivalFacts, ...] = ()
) -> GroupFacts:
    """A group as its master sees it. `admin/ha.py` makes the same of the body of request 907."""
    left = [departed.reason for departed in status.departed if departed.was_slave]
    return GroupFacts(
        name=name,
        master_address=address,
        role=status.role,
        replicas=tuple(
            ReplicaFacts(r.address, r.is_slave, r.is_in_sync, r.lag_bytes, r.reason)
            for r in status.replicas
        ),
        needed_slaves=status.needed_slaves,
        departed_reason=left[-1] if left else None,
        missing=tuple(missing_slave(d.address, d.until_ms, d.reason) for d in status.missing),
        rivals=rivals,
        incomplete=status.incomplete,
    )
