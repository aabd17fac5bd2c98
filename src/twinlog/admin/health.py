"""The health of a cluster: facts from all its servers, judged by `observe/health.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from twinlog.admin.brokers import BrokerSummary, list_brokers, name_server_config
from twinlog.admin.client import Admin, Gathered
from twinlog.admin.failover import Controllers, find_controllers, leader
from twinlog.admin.ha import GroupHAStatus, lost_group
from twinlog.admin.ha_groups import ha_status
from twinlog.client.errors import ClientError
from twinlog.controller.group_status import controlled_group
from twinlog.observe.health import Facts, Health, ServerFacts, judge
from twinlog.remoting.bodies.controller import GroupFacts


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Facts, the judgement, and what they were made of."""

    facts: Facts
    health: Health
    brokers: tuple[BrokerSummary, ...]
    groups: tuple[GroupHAStatus, ...]

    @property
    def servers(self) -> tuple[ServerFacts, ...]:
        return self.facts.servers


async def cluster_health(
    admin: Admin, *, cluster: str | None = None, brokers_min: int = 0
) -> ClusterHealth:
    """Ask every name server, every broker that they know, and the controller."""
    name_servers, brokers, groups, (controllers, decided) = await asyncio.gather(
        name_server_config(admin),
        list_brokers(admin, cluster=cluster),
        ha_status(admin, cluster=cluster),
        _ask_controller(admin),
    )
    groups = _with_controller(groups, [g for g in decided if cluster in (None, g.cluster)])
    servers = (
        *_name_servers(name_servers),
        *controllers,
        *(server for group in groups for server in group.servers),
    )
    facts = Facts(
        servers=servers,
        groups=tuple(group.facts for group in groups),
        brokers_min=brokers_min,
    )
    return ClusterHealth(facts, judge(facts), tuple(brokers), tuple(groups))


async def _ask_controller(admin: Admin) -> tuple[list[ServerFacts], list[GroupFacts]]:
    """Controllers, if none of them answers, and the groups that they decide about."""
    addresses = await find_controllers(admin)
    if not addresses:
        return [], []
    try:
        controllers = Controllers(admin, addresses, await leader(admin, addresses))
        return [], await controllers.groups()
    except ClientError as error:
        return [ServerFacts(kind="controller", name=a, error=str(error)) for a in addresses], []


def _with_controller(groups: list[GroupHAStatus], decided: list[GroupFacts]) -> list[GroupHAStatus]:
    """A controller knows who is missing also where nobody is registered any more."""
    by_name = {group.broker_name: group for group in groups}
    for facts in decided:
        group = by_name.get(facts.broker_name) or lost_group(facts.broker_name, None, "", 0)
        seen = controlled_group(facts, [], fixed_master=group.master_address or "")
        by_name[facts.broker_name] = group.with_decided(seen.problem)
    return list(by_name.values())


def _name_servers(answers: Gathered[dict[str, str]]) -> list[ServerFacts]:
    up = [ServerFacts(kind="name server", name=a, address=a) for a in answers.values]
    down = [
        ServerFacts(kind="name server", name=a, address=a, error=str(error))
        for a, error in answers.failures.items()
    ]
    return up + down
