"""The health of a cluster: facts from all its servers, judged by `observe/health.py`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from twinlog.admin.brokers import BrokerSummary, list_brokers, name_server_config
from twinlog.admin.client import Admin, Gathered
from twinlog.admin.ha import GroupHAStatus, apache_server, ha_status
from twinlog.observe.health import Facts, Health, ServerFacts, judge


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
    """Ask every name server and every broker that they know."""
    name_servers, brokers, groups = await asyncio.gather(
        name_server_config(admin),
        list_brokers(admin, cluster=cluster),
        ha_status(admin, cluster=cluster),
    )
    known = {server.address: server for group in groups for server in group.servers}
    servers = (
        *_name_servers(name_servers),
        *(_broker(entry, known.get(entry.address)) for entry in brokers),
    )
    facts = Facts(
        servers=servers,
        groups=tuple(group.facts for group in groups),
        brokers_min=brokers_min,
    )
    return ClusterHealth(facts, judge(facts), tuple(brokers), tuple(groups))


def _name_servers(answers: Gathered[dict[str, str]]) -> list[ServerFacts]:
    up = [ServerFacts(kind="name server", name=a, address=a) for a in answers.values]
    down = [
        ServerFacts(kind="name server", name=a, address=a, error=str(error))
        for a, error in answers.failures.items()
    ]
    return up + down


def _broker(entry: BrokerSummary, own: ServerFacts | None) -> ServerFacts:
    name = f"{entry.name}:{entry.broker_id}"
    if entry.error is not None:
        return ServerFacts(kind="broker", name=name, address=entry.address, error=entry.error)
    return own or apache_server(name, entry.address, entry.runtime)
