"""Looks at replication all the time and tells whoever watches.

Twice a second while a page is open, every five seconds otherwise, so that the last hour is known
when somebody opens it. Every replica has a deadline: one that is stopped holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from twinlog.admin import failover
from twinlog.admin.client import ClusterInfo
from twinlog.admin.events import cluster_events
from twinlog.admin.replicas import ReplicaFacts, all_replicas, ask_replica
from twinlog.client.errors import ClientError
from twinlog.console.directory import ANSWER_MS, ConsoleAdmin
from twinlog.console.findings import findings
from twinlog.console.replication import (
    HISTORY_MS,
    EventView,
    GroupView,
    Memory,
    Snapshot,
    decided_of,
    group_view,
    journal_event,
    with_controller,
)
from twinlog.console.versions import version_of
from twinlog.controller.group_status import ControlledGroup, controlled_group
from twinlog.remoting.bodies.controller import GroupFacts
from twinlog.runtime.clock import Clock
from twinlog.runtime.tasks import TaskOwner

WATCHED_MS = 500
UNWATCHED_MS = 5_000
CONTROLLERS_MS = 5_000
EVENTS_MAX = 500


class Watcher:
    """The newest snapshot, and a way to wait for the next one."""

    def __init__(
        self, admin: ConsoleAdmin, clock: Clock, name_server: str, tasks: TaskOwner
    ) -> None:
        self._tasks = tasks
        self._admin = admin
        self._clock = clock
        self._name_server = name_server
        self._info = ClusterInfo({}, {})
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._count = 0
        self._controllers: failover.Controllers | None = None
        self._controllers_ms = -CONTROLLERS_MS
        self._control: dict[str, tuple[ControlledGroup, str]] = {}
        self._control_error = ""
        self._heard: list[tuple[str, int, str]] = []  # Group, id and address of slaves.
        self._events: list[dict[str, Any]] = []
        self.journal: list[EventView] = []
        self._watchers = 0
        self.memory = Memory()
        self.snapshot = Snapshot(time_ms=0, groups=[], name_server=name_server, error="")

    def start(self) -> None:
        self._tasks.contained("replication", self._run)

    async def _run(self) -> None:
        while True:
            started_ms = self._clock.monotonic_ms()
            await self.look()
            interval = WATCHED_MS if self._watchers else UNWATCHED_MS
            pause_ms = interval - (self._clock.monotonic_ms() - started_ms)
            self._wanted.clear()
            try:
                async with asyncio.timeout(max(50, pause_ms) / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    @property
    def silent(self) -> frozenset[str]:
        """Addresses that did not answer the last look."""
        return self._admin.silent

    async def look(self) -> Snapshot:
        """Ask everybody once."""
        error = await self._ask_name_server()
        facts, unlisted, _ = await asyncio.gather(
            all_replicas(self._admin, self._info, timeout_ms=ANSWER_MS),
            self._ask_unlisted(),
            self._ask_controller(),
        )
        facts += unlisted
        now_ms = self._clock.now_ms()
        groups = self._groups(facts, now_ms)
        self._admin.silent = frozenset(entry.address for entry in facts if not entry.is_reached)
        self.snapshot = Snapshot(
            time_ms=now_ms, groups=groups, name_server=self._name_server, error=error,
            controller_error=self._control_error,
        )  # fmt: skip
        async with self._changed:
            self._count += 1
            self._changed.notify_all()
        return self.snapshot

    async def _ask_name_server(self) -> str:
        """Empty when it answered. The brokers are known by its last answer otherwise."""
        try:
            self._info = await self._admin.ask_cluster()
        except ClientError as error:
            return str(error)
        return ""

    async def _ask_unlisted(self) -> list[ReplicaFacts]:
        """Replicas that the controller hears and no name server lists, as with a `namesrvAddr` that
        leads elsewhere: without this question nobody would see that such a member of the set
        stands still. One that does not answer either is remembered."""
        listed = {
            address for name in self._info.names()
            for address in self._info.brokers[name].broker_addrs.values()
        }  # fmt: skip
        found = await asyncio.gather(
            *(
                ask_replica(self._admin, *place, timeout_ms=ANSWER_MS)
                for place in self._heard
                if place[2] not in listed
            )
        )
        return [facts for facts in found if facts.is_reached]

    async def _ask_controller(self) -> None:
        """Who decides is looked for now and then; what it decided is asked each time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._controllers_ms > CONTROLLERS_MS:
            self._controllers_ms = now_ms
            self._tasks.job("controllers", self._find_controllers())
            self._tasks.job("events", self._read_events())
        if self._controllers is None:
            return
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                groups = await self._controllers.groups()
        except (ClientError, TimeoutError) as error:
            text = str(error) or f"no answer within {ANSWER_MS / 1000:g} s"
            self._control_error = f"controller {self._controllers.leader}: {text}"
            self._controllers_ms = 0  # Another one may lead now.
            return
        self._control_error = ""
        self._control = {
            g.broker_name: (self._controlled(g), version_of(decided_of(g))) for g in groups
        }
        self._heard = [
            (g.broker_name, replica.broker_id, replica.address)
            for g in groups
            for replica in g.replicas
            if replica.is_alive and replica.broker_id != g.master_broker_id
        ]

    def _controlled(self, group: GroupFacts) -> ControlledGroup:
        events = [event for event in self._events if event.get("group") == group.broker_name]
        return controlled_group(group, events)

    async def _find_controllers(self) -> None:
        try:
            addresses = await failover.find_controllers(self._admin)
            if not addresses:
                self._forget_controllers()
                return
            leading = await failover.leader(self._admin, addresses, timeout_ms=ANSWER_MS)
            self._controllers = failover.Controllers(self._admin, addresses, leading)
        except ClientError as error:
            self._control_error = str(error)

    def _forget_controllers(self) -> None:
        """Nobody names one; while the name server or a broker is silent that proves nothing."""
        if not self._admin.silent and not self._admin.name_server_error:
            self._controllers, self._control, self._control_error = None, {}, ""
            self._heard = []

    async def _read_events(self) -> None:
        """The journals of all servers: they know more, and from before this began to look."""
        since_ms = self._clock.now_ms() - HISTORY_MS
        try:
            found = await cluster_events(self._admin, since_ms=since_ms, limit=EVENTS_MAX)
        except ClientError:
            return
        self._events = found.events
        self.journal = [journal_event(event) for event in found.events]

    def _groups(self, facts: list[ReplicaFacts], now_ms: int) -> list[GroupView]:
        memory = self.memory
        memory.take(facts, now_ms)
        by_group: dict[str, list[ReplicaFacts]] = {}
        for entry in facts:
            by_group.setdefault(entry.group, []).append(memory.last_known(entry))
        names = sorted(by_group.keys() | memory.groups(now_ms))
        return [self._group(name, by_group.get(name, []), now_ms) for name in names]

    def _group(self, name: str, members: list[ReplicaFacts], now_ms: int) -> GroupView:
        broker = self._info.brokers.get(name)
        cluster = broker.cluster if broker is not None else ""
        view = group_view(name, cluster, members, self.memory.gone(name, members, now_ms))
        control = self._control.get(name)
        if control is not None:
            view = with_controller(view, *control)
        view.findings[:] = self.memory.since(name, findings(view, members), now_ms)
        self.memory.watch(view, now_ms)
        return view

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """The newest at once, then each new one, for as long as the caller goes on."""
        self._watchers += 1
        self._wanted.set()
        try:
            seen = self._count
            yield self.snapshot
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._count > seen)  # noqa: B023
                    seen = self._count
                yield self.snapshot
        finally:
            self._watchers -= 1
