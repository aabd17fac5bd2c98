"""Brokers that are away: a name server's journal remembers those that its route has no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from twinlog.client.errors import BrokerError, NotANameServerError
from twinlog.client.net.answers import body_as
from twinlog.client.net.instance import ClientInstance
from twinlog.remoting.bodies.controller import UNREGISTERED, Events
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.runtime.event_journal import event_time

ROUTE_EVENTS = ("broker-registered", "broker-moved", "master-changed", "broker-left")


async def absent_brokers(client: ClientInstance, recent_ms: int) -> dict[str, str]:
    """Ask which brokers have left the route, and why; see `away_brokers`."""
    events = await route_events(client)
    return away_brokers(events, await client.cluster_brokers(), recent_ms)


async def route_events(client: ClientInstance) -> list[dict[str, Any]]:
    """Ask who came into the route and who left it; Apache's name servers do not know.

    They do not answer at all. Ours answer one request after the other, so one that answers what
    it was asked afterwards will not answer this any more.
    """
    server = client.name_servers.in_order()[0]
    asked = asyncio.create_task(
        client.ask_name_servers(RequestCode.TWINLOG_EVENTS, EventsRequestHeader(), action="events")
    )
    try:
        await asyncio.sleep(0)  # it is on its way
        await client.cluster_brokers()
        await asyncio.sleep(0)  # what came in the same packet is told in this turn
        if not asked.done() and client.name_servers.in_order()[0] == server:
            return []
        return body_as(await asked, Events).events
    except (BrokerError, NotANameServerError):
        return []
    finally:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


def away_brokers(
    events: Iterable[dict[str, Any]], living: Collection[str], recent_ms: int
) -> dict[str, str]:
    """Return the brokers that a name server had in its route and has no longer, and why.

    One that said goodbye long ago is not missed. `events` are the oldest first, the newest of all
    tells the time: clocks of other machines do not count.
    """
    last: dict[str, dict[str, Any]] = {}
    now = 0
    for event in events:
        now = max(now, event_time(event))
        if event.get("event") in ROUTE_EVENTS and isinstance(event.get("group"), str):
            last[event["group"]] = event
    found = {}
    for name in sorted(last.keys() - set(living)):
        reason = str(last[name].get("reason") or "it has not registered again")
        if reason != UNREGISTERED or now - event_time(last[name]) < recent_ms:
            found[name] = reason
    return found
