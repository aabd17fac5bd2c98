"""The journal of a name server: who came into the route, who left it and why.

Written next to the audit log, in the form that brokers and controllers use, so that
`twinlog events` merges all of them by time. `route_changes` is pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from twinlog.namesrv.routes import RouteInfoManager
from twinlog.observe.changes import Event, Snapshot, changes
from twinlog.remoting.bodies.controller import Events
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.codes import ResponseCode, refused_by_reason
from twinlog.remoting.command import Request
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk
from twinlog.runtime.event_journal import EventJournal, RecentEvents
from twinlog.runtime.failures import Failures

_REASON_MAX = 300
_LEFT_MAX = 1_000
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """The route at one moment."""

    brokers: dict[Place, str] = field(default_factory=dict)
    """Address of each broker by name and id."""
    kept_out: Mapping[str, tuple[Place, str]] = field(default_factory=dict)
    """Addresses whose place another one has: the place, and who has it."""
    server: Snapshot = field(default_factory=Snapshot)


def route_changes(
    before: RouteSnapshot, after: RouteSnapshot, why: Mapping[str, str]
) -> Iterator[Event]:
    """What to write; `why` says for addresses how they left."""
    for place in sorted(before.brokers.keys() - after.brokers.keys()):
        address = before.brokers[place]
        yield "broker-left", {**_about(place, address), "reason": why.get(address, "")}
    for place, address in after.brokers.items():
        was = before.brokers.get(place)
        if was is None:
            yield "broker-registered", _about(place, address)
        elif was != address:
            kind = "master-changed" if place[1] == MASTER_ID else "broker-moved"
            yield kind, {**_about(place, address), "from": was, "reason": why.get(was, "")}
    for address, (place, holder) in after.kept_out.items():
        if address not in before.kept_out:
            yield "broker-kept-out", {**_about(place, address), "holder": holder}
    yield from changes(before.server, after.server)


def _about(place: Place, address: str) -> dict[str, Any]:
    return {"group": place[0], "brokerId": place[1], "broker": address}


class NamesrvWatch:
    """The journal `twinlog/events` next to the table of values."""

    def __init__(
        self, routes: RouteInfoManager, disk: Disk, clock: Clock, kv_config_path: str
    ) -> None:
        directory = posixpath.join(posixpath.dirname(kv_config_path), "twinlog")
        self._routes = routes
        self._clock = clock
        self.events = RecentEvents(EventJournal(disk, directory))
        self._last = RouteSnapshot()
        self._why: dict[str, str] = {}
        # Set by the server: its settings by key, and tables that cannot be saved.
        self.settings: Callable[[], Mapping[str, str]] = dict
        self.unsaved: Callable[[], Mapping[str, str]] = dict
        self.failures: Failures | None = None
        self.address: Callable[[], str] = lambda: ""

    def came(self, place: Place, address: str) -> None:
        """Told when it happens: who comes and leaves between two looks is missed, too."""
        if place not in self._last.brokers and not self.events.is_closed:
            self._write("broker-registered", **_about(place, address))
            self._last.brokers[place] = address

    def left(self, address: str, reason: str) -> None:
        """Told when it happens; the next look finds the place empty, or taken."""
        if len(self._why) >= _LEFT_MAX:
            self._why.clear()
        self._why[address] = reason[:_REASON_MAX]

    def started(self) -> None:
        self.events.load()
        self._write("name-server-started")
        self._last = RouteSnapshot(server=Snapshot(settings=self.settings()))
        self.tick()

    def tick(self) -> None:
        if self.events.is_closed:
            return
        before, self._last = self._last, self._snapshot()
        for kind, details in route_changes(before, self._last, self._why):
            self._write(kind, **details)
        self._why.clear()

    def stopping(self) -> None:
        self.tick()
        self._write("name-server-stopping")
        self.events.close()

    def answer(self, connection: ServerConnection, request: Request) -> None:
        """Request 10023."""
        header = request.header(EventsRequestHeader)
        if self._why:  # Whoever knows the route of this moment asks who is missing in it.
            self.tick()
        found = self.events.select(header.broker_name, header.since, header.limit)
        if header.broker_name:  # What is about this server says nothing about a group.
            found = [event for event in found if event.get("group")]
        connection.reply(request, ResponseCode.SUCCESS, body=msgspec.json.encode(Events(found)))

    def _write(self, kind: str, **details: Any) -> None:
        self.events.write(self._clock.now_ms(), kind, nameServer=self.address(), **details)

    def _snapshot(self) -> RouteSnapshot:
        table = self._routes.cluster_info().broker_addr_table
        brokers = {
            (name, broker_id): address
            for name, data in table.items()
            for broker_id, address in data.broker_addrs.items()
        }
        rivals = {
            rival.address: ((rival.broker_name, rival.broker_id), rival.holder)
            for rival in self._routes.rivals()
        }
        return RouteSnapshot(brokers, rivals, self._server())

    def _server(self) -> Snapshot:
        failures = self.failures
        if failures is None:
            return Snapshot()
        return Snapshot(
            contained={f.what: (f.count, f.last_error) for f in failures.table.values()},
            refused=refused_by_reason(failures.refusals),
            settings=self.settings(),
            unsaved=self.unsaved(),
        )
