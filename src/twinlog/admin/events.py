"""Events of a cluster: the journals of brokers, controllers and name servers, merged by time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from twinlog.admin.client import Admin, gather
from twinlog.admin.failover import find_controllers
from twinlog.client.errors import ClientError, RequestCodeNotSupportedError
from twinlog.remoting.bodies.controller import Events
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.runtime.event_journal import event_time


@dataclass(frozen=True, slots=True)
class ClusterEvents:
    """Oldest first, each with the address that told it; and who did not answer."""

    events: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, ClientError] = field(default_factory=dict)


async def cluster_events(
    admin: Admin,
    name: str | None = None,
    *,
    since_ms: int | None = None,
    limit: int | None = None,
    controller: str | None = None,
) -> ClusterEvents:
    """What changed in group `name`, or in all; `controller` names controllers instead of those that
    servers know. Apache's servers keep no journal."""
    header = EventsRequestHeader(name, since_ms, limit)

    async def ask(address: str) -> list[dict[str, Any]]:
        try:
            answer = await admin.ask(address, RequestCode.TWINLOG_EVENTS, header, action="events")
        except RequestCodeNotSupportedError:
            return []
        found = msgspec.json.decode(answer.body, type=Events).events
        return [{**event, "from": address} for event in found]

    found = await gather(await _journals(admin, name, controller), ask)
    merged = [event for events in found.values.values() for event in events]
    merged.sort(key=event_time)
    return ClusterEvents(merged if limit is None else merged[-limit:], found.failures)


async def _journals(admin: Admin, name: str | None, controller: str | None) -> list[str]:
    brokers = (await admin.cluster()).brokers
    replicas = [
        address
        for broker_name, broker in brokers.items()
        if name in (None, broker_name)
        for address in broker.broker_addrs.values()
    ]
    servers = admin.instance.name_servers.addresses
    controllers = await find_controllers(admin, controller)
    return list(dict.fromkeys([*replicas, *controllers, *servers]))
