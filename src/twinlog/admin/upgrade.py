"""Before and during an upgrade: is the cluster fit for it, and in which order to restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from twinlog.admin.client import Admin
from twinlog.admin.health import cluster_health
from twinlog.admin.integrity import scrub
from twinlog.client.errors import ClientError
from twinlog.remoting.bodies.route import MASTER_ID

DISK_RATIO_MAX = 0.85


@dataclass(frozen=True, slots=True)
class RestartStep:
    """One broker, in the order of a rolling restart."""

    broker_name: str
    broker_id: int
    address: str
    version: str = ""
    has_slave: bool = False

    @property
    def role(self) -> str:
        return "master" if self.broker_id == MASTER_ID else "slave"


@dataclass(frozen=True, slots=True)
class UpgradeCheck:
    """The order, and what speaks against beginning."""

    steps: tuple[RestartStep, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_fit(self) -> bool:
        return not self.obstacles


async def restart_order(admin: Admin, *, cluster: str | None = None) -> tuple[RestartStep, ...]:
    """Slaves first, then the masters, one group behind the other: a master is restarted when its
    slaves run what it will run."""
    info = await admin.cluster()
    steps = [
        RestartStep(name, broker_id, address, has_slave=len(info.brokers[name].broker_addrs) > 1)
        for name in info.names(cluster)
        for broker_id, address in info.brokers[name].broker_addrs.items()
    ]
    return tuple(
        sorted(steps, key=lambda s: (s.broker_id == MASTER_ID, s.broker_name, s.broker_id))
    )


async def upgrade_check(admin: Admin, *, cluster: str | None = None) -> UpgradeCheck:
    """Healthy, in sync, nothing damaged, room on the disks; else what to mend first."""
    found, order = await asyncio.gather(
        cluster_health(admin, cluster=cluster), restart_order(admin, cluster=cluster)
    )
    obstacles = list(found.health.problems)
    notes = []
    versions = {entry.address: entry.version for entry in found.brokers}
    obstacles += [
        f"{entry.name}:{entry.broker_id} uses {entry.disk_ratio:.0%} of its disk"
        for entry in found.brokers
        if entry.disk_ratio > DISK_RATIO_MAX
    ]
    for step in order:
        if not step.has_slave:
            notes.append(f"{step.broker_name} has no slave: it does not serve while it restarts")
        obstacles += await _damage(admin, step)
    if len(set(versions.values())) > 1:
        notes.append(
            f"brokers of several versions run: {', '.join(sorted(set(versions.values())))}"
        )
    steps = tuple(
        RestartStep(s.broker_name, s.broker_id, s.address, versions.get(s.address, ""), s.has_slave)
        for s in order
    )
    return UpgradeCheck(steps, tuple(obstacles), tuple(notes))


async def _damage(admin: Admin, step: RestartStep) -> list[str]:
    try:
        status = await scrub(admin, step.address)
    except ClientError:
        return []  # An Apache broker, or one that the health check has named already.
    return [f"{step.broker_name}:{step.broker_id}: {place}" for place in status["places"][:3]]
