"""Before and during an upgrade: is the cluster fit for it, and in which order to restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from twinlog.admin.brokers import booted_of, broker_runtime
from twinlog.admin.client import Admin
from twinlog.admin.failover import Controllers, choose_target, find_controllers, leader, metadata
from twinlog.admin.health import cluster_health
from twinlog.admin.integrity import found_by, scrub
from twinlog.client.errors import ClientError
from twinlog.remoting.bodies.controller import GroupFacts
from twinlog.remoting.bodies.route import MASTER_ID

DISK_RATIO_MAX = 0.85
_SWITCH_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RestartStep:
    """One broker, in the order of a rolling restart."""

    broker_name: str
    broker_id: int
    address: str
    version: str = ""
    has_slave: bool = False
    booted: str = ""
    """When its process began, as it says."""

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
    booted = {entry.address: entry.booted for entry in found.brokers}
    obstacles += [
        f"{entry.name}:{entry.broker_id} uses {entry.disk_ratio:.0%} of its disk"
        for entry in found.brokers
        if entry.disk_ratio > DISK_RATIO_MAX
    ]
    for step in order:
        if not step.has_slave:
            notes.append(f"{step.broker_name} has no slave: it does not serve while it restarts")
        obstacles += await _damage(admin, step)
    known = sorted(set(filter(None, versions.values())))  # One that does not answer has none.
    if len(known) > 1:
        notes.append(f"brokers of several versions run: {', '.join(known)}")
    steps = tuple(
        replace(s, version=versions.get(s.address, ""), booted=booted.get(s.address, ""))
        for s in order
    )
    return UpgradeCheck(steps, tuple(obstacles), tuple(notes))


async def is_restarted(admin: Admin, step: RestartStep) -> bool:
    """Whether the process that was there has gone. Nobody answers: it may come back elsewhere."""
    try:
        runtime = await broker_runtime(admin, step.address)
    except ClientError:
        return True
    return not step.booted or booted_of(runtime) != step.booted


async def hand_over(admin: Admin, step: RestartStep) -> int | None:
    """If the broker leads a group with a controller, another replica does from now on: its id.

    Raises:
        ClientError: nobody can take over, or the master has not drained in several attempts.
    """
    addresses = await find_controllers(admin)
    if not addresses or not (await metadata(admin, await leader(admin, addresses))).is_twinlog:
        return None  # A fixed pair, or RocketMQ's controller, which hands nothing over.
    controllers = await Controllers.find(admin)
    groups = [g for g in await controllers.groups() if g.broker_name == step.broker_name]
    for group in groups:
        leading = [r.address for r in group.replicas if r.broker_id == group.master_broker_id]
        if leading == [step.address]:
            return await _switch(controllers, group)
    return None


async def _switch(controllers: Controllers, group: GroupFacts) -> int | None:
    for attempt in range(_SWITCH_ATTEMPTS):
        try:
            return (await controllers.switch(group, choose_target(group))).broker_id
        except ClientError:
            if attempt == _SWITCH_ATTEMPTS - 1:
                raise
            await asyncio.sleep(1)
    raise AssertionError


async def _damage(admin: Admin, step: RestartStep) -> list[str]:
    try:
        status = await scrub(admin, step.address)
    except ClientError:
        return []  # An Apache broker, or one that the health check has named already.
    return [f"{step.broker_name}:{step.broker_id}: {place}" for place in found_by(status)[:3]]
