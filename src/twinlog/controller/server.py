"""A controller as one object: the pure core, its store, its port, its journal. Wiring only.

Of several controllers one leads: it has a core. The others answer who that is (1005) and refuse the
rest with 2007. A leader whose time is over by its own clock has no core any more, whatever it was
doing.

Corresponds to RocketMQ 5's ControllerManager. Runs alone (`twinlog controller`) or inside a name
server. Requests and timers become events of the core; its effects are carried out in order. One
writer writes all commits, so their outcomes come back in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from twinlog.controller import events
from twinlog.controller.core import Controller, Event
from twinlog.controller.etcd_store import EtcdRecordStore
from twinlog.controller.events import Effect, Timing
from twinlog.controller.facts import group_facts
from twinlog.controller.file_store import FileRecordStore
from twinlog.controller.group_status import problem_of
from twinlog.controller.metrics import ControllerMetrics, FailoverCounts
from twinlog.controller.processor import ControllerProcessor, connection_number
from twinlog.controller.record import GroupRecord
from twinlog.controller.store import Leader, RecordStore, RecordStoreError, StoreOutcome
from twinlog.observe.health import DecidedFacts, Facts, ServerFacts
from twinlog.observe.observer import Observed
from twinlog.remoting import fastjson
from twinlog.remoting.acl import RELOAD_INTERVAL_MS
from twinlog.remoting.acl_file import rule_files
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.addresses import join_address
from twinlog.remoting.audit import AuditLog, Door
from twinlog.remoting.bodies.controller import SyncStateSet
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode, refusal_labels
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import CommandError, RemotingError
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.limits import DEFAULT_LIMITS
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.addresses import is_wildcard, local_address
from twinlog.runtime.clock import Clock, RunningTime, SystemClock
from twinlog.runtime.config import ConfigError, update_config
from twinlog.runtime.config_format import parse_update
from twinlog.runtime.config_key import fixed_reason, live_keys
from twinlog.runtime.controller_config import ControllerConfig
from twinlog.runtime.disk import Disk, PosixDisk
from twinlog.runtime.event_journal import EventJournal, RecentEvents
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.tls import client_tls, server_tls

_LOG = logging.getLogger("twinlog.controller")
TICK_MS = 50  # How late a decision by time is at most; a group costs a microsecond a tick.
WRITE_PAUSE_MS = 200
IDLE_MS_MAX = 30_000
STEP_MS_MAX = 500  # A controller that had no turn for longer has not heard its brokers meanwhile.


@dataclass(slots=True)
class _Unsaved:
    """How many writes, and reads after them, failed in a row while this controller led."""

    count: int = 0
    term: int = 0

    def add(self, term: int) -> None:
        self.count = self.count + 1 if term == self.term else 1
        self.term = term


class ControllerServer:
    """Listens, decides while it leads, writes."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        disk: Disk,
        clock: Clock,
        tasks: TaskOwner,
        store: RecordStore | None = None,
    ) -> None:
        self.config = config
        self._core: Controller | None = None
        self._term = 0  # Grows with each change of who leads: what was begun before does not count.
        self.port = 0
        self.counts = FailoverCounts()
        self.events = RecentEvents(EventJournal(disk, config.controller_store_path))
        self._clock = clock
        self._time = RunningTime(clock.boot_ms, STEP_MS_MAX)
        self._tasks = tasks
        self.failures = tasks.failures
        self._store = store or make_store(config, disk, clock)
        self._guard: AccessGuard | None = None
        if config.acl_enable:
            self._guard = AccessGuard(rule_files(disk, config.rocketmq_home))
        self._processor = ControllerProcessor(self)
        self._audit = AuditLog(clock)
        door = Door(self._guard, self._audit)
        self._answers: dict[int, tuple[Callable[..., None], int]] = {
            row.code: (door.handler(row), row.body_max) for row in self._processor.table
        }
        self._remoting: RemotingServer | None = None
        self._client: RemotingClient | None = None
        self._writes: asyncio.Queue[tuple[int, GroupRecord | str]] = asyncio.Queue()
        self._unsaved = _Unsaved()

    # Life

    async def start(self) -> None:
        """Open the port, and read the records if they are this controller's alone.

        Raises:
            RecordStoreError: the records cannot be read, or belong to a running controller.
            AclConfigError: aclEnable=true and its rules are missing or damaged.
            OSError: the port cannot be opened.
        """
        if self._guard is not None:
            self._guard.files.load()
        self.events.load()
        self._client = RemotingClient(
            clock=self._clock, tls=self._client_tls(), tasks=self._tasks, name="controller"
        )
        self._remoting = RemotingServer(
            self._answer,
            clock=self._clock,
            limits=replace(DEFAULT_LIMITS, idle_ms_max=IDLE_MS_MAX),
            tls=server_tls(self.config.tls),
            name="controller",
            failures=self.failures,
        )
        self._remoting.body_max = self._processor.table.body_max
        self._remoting.on_refused = self._audit.refused
        self.port = await self._remoting.listen(self.config.bind_address, self.config.service_port)
        self._store.me = Leader(self.config.controller_d_leger_self_id, self.known_address)
        where = self.config.twinlog_controller_etcd or self.config.controller_store_path
        self._write_event("controller-started", {"records": where})
        if isinstance(self._store, FileRecordStore):
            self._begin(await self._store.lead())
        # Vital: decisions follow from state in memory, which is not to be trusted after an error.
        self._tasks.vital("lead", self._keep_leading)
        self._tasks.vital("write-records", self._keep_writing)
        self._tasks.vital("tick", self._keep_ticking)
        if self._guard is not None:
            files = self._guard.files
            self._tasks.round("acl-reload", lambda: RELOAD_INTERVAL_MS, files.reload_if_changed)

    @property
    def core(self) -> Controller | None:
        """None while another controller leads, or this one cannot know that it does."""
        return self._core if self._store.is_leading else None

    async def _keep_leading(self) -> None:
        while True:
            if self._core is None:
                self._begin(await self._store.lead())
            reason = await self._store.led()
            self._core = None
            self._term += 1
            self._write_event("leads-no-more", {"reason": reason})

    def _begin(self, records: list[GroupRecord]) -> None:
        timing = Timing(lease_ms=self.config.twinlog_lease_ms)
        self._term += 1
        self._core = Controller(records, self.now_ms, timing)
        self._write_event("leads", {"groups": sorted(self._core.groups)})

    def reload(self) -> None:
        """SIGHUP: read certificates and access rules again. What cannot be read stays as it was."""
        self.failures.contain("reload of certificates", self._reload_tls)
        if self._guard is not None:
            self.failures.contain("reload of access rules", self._guard.files.load)

    def _reload_tls(self) -> None:
        if self._remoting is not None and self._client is not None:
            self._remoting.tls = server_tls(self.config.tls)
            self._client.reload_tls(self._client_tls())

    def _client_tls(self) -> ssl.SSLContext | None:
        return client_tls(self.config.tls, use_tls=self.config.use_tls)

    async def stop(self) -> None:
        """Nothing is decided any more; brokers go on by what they know."""
        self._core = None
        await self._tasks.stop()
        if self._remoting is not None:
            await self._remoting.close()
        if self._client is not None:
            await self._client.close()
        self.events.close()
        await self._store.close()

    @property
    def address(self) -> str:
        """Where it listens."""
        return join_address(self.config.bind_address, self.port)

    @property
    def known_address(self) -> str:
        """What brokers and operators are told to ask."""
        if self.config.own_peer:
            return self.config.own_peer
        host = self.config.bind_address
        return join_address(local_address() if is_wildcard(host) else host, self.port)

    @property
    def ready_line(self) -> str:
        return f"twinlog controller ready listen={self.address}"

    @property
    def now_ms(self) -> int:
        """What decisions go by: silence and leases end too late rather than too early."""
        return self._time.now_ms()

    def observed(self) -> Observed:
        """For whoever makes this controller visible."""
        return Observed(
            facts=lambda: Facts(servers=(self._facts(),), decided=self.decided()),
            metrics=ControllerMetrics(self),
            labels=lambda: {"node_type": "controller", "node_id": self.known_address},
            connections=lambda: {
                "service": 0 if self._remoting is None else len(self._remoting.connections)
            },
            refusal_labels=refusal_labels,
        )

    def decided(self) -> tuple[DecidedFacts, ...]:
        """Its groups and what is wrong with them, while it is the one that decides."""
        groups = () if self.core is None else self.core.groups.values()
        now_ms = self.now_ms
        return tuple(
            DecidedFacts(group.record.group, problem_of(group_facts(group, now_ms)))
            for group in groups
        )

    def _facts(self) -> ServerFacts:
        unsaved = ("the records of its groups, so it decides nothing",)
        return ServerFacts(
            kind="controller",
            name=self.address,
            address=self.address,
            unsaved=unsaved if self._is_failing(self._term) else (),
        )

    # Events and effects

    def handle(self, event: Event) -> None:
        core = self.core
        if core is None:
            return
        for effect in core.handle(self.now_ms, event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case events.Commit():
                self._writes.put_nowait((self._term, effect.record))
            case events.Reload():
                self._writes.put_nowait((self._term, effect.group))
            case events.Reply():
                if effect.token is not None:
                    effect.token(effect)
            case events.Hint():
                self._hint(effect)
            case events.Happened():
                self._write_event(effect.kind, {"group": effect.group, **effect.details})

    async def _keep_writing(self) -> None:
        """Commits and reads in the order in which the core asked for them.

        What failed twice is tried again after a pause, so that a full disk, or a directory that is
        gone, takes no turn from the heartbeats.
        """
        while True:
            term, item = await self._writes.get()
            if self._is_failing(term):
                await self._clock.sleep_ms(WRITE_PAUSE_MS)
            event = None if term != self._term else await self._written(term, item)
            # A lease that ends by our clock may be prolonged after all: what became of a write
            # must not be forgotten meanwhile, or the group waits without limit.
            while self.core is None and term == self._term:
                await self._clock.sleep_ms(WRITE_PAUSE_MS)
            if event is None or term != self._term:
                continue
            self.handle(event)
            self._flush()
            is_known = isinstance(event, events.Loaded) and self._writes.empty()
            if is_known or isinstance(event, events.CommitDone):
                self._unsaved.count = 0

    def _is_failing(self, term: int) -> bool:
        return self._unsaved.count > 1 and self._unsaved.term == term

    async def _written(self, term: int, item: GroupRecord | str) -> Event | None:
        """What became of it; None when this controller leads no more before that is known."""
        if isinstance(item, GroupRecord):
            outcome = await self._store.commit(item)
            if outcome is StoreOutcome.DONE:
                return events.CommitDone(item.group, item.version)
            self._unsaved.add(term)
            return events.CommitUnknown(item.group, item.version)
        while term == self._term:
            try:
                return events.Loaded(item, await self._store.load(item))
            except (OSError, RecordStoreError) as error:
                _LOG.warning("record not read group=%s error=%s", item, error)
                self._unsaved.add(term)
                await self._clock.sleep_ms(WRITE_PAUSE_MS)
        return None

    async def _keep_ticking(self) -> None:
        while True:
            await self._clock.sleep_ms(TICK_MS)
            self.handle(events.Tick())
            if self.core is None:
                self.counts.pause()
            else:
                self.counts.look(self.now_ms, self.core.groups.values())
            self._audit.tick()
            self._flush()

    def _flush(self) -> None:
        if self._remoting is not None:
            self._remoting.flush()

    def _write_event(self, kind: str, details: dict[str, Any]) -> None:
        self.counts.happened(kind, str(details.get("group", "")), str(details.get("reason", "")))
        _LOG.info("%s %s", kind, " ".join(f"{key}={value}" for key, value in details.items()))
        self.events.write(self._clock.now_ms(), kind, **details)

    def _hint(self, hint: events.Hint) -> None:
        """Tell a broker to ask; it asks every 400 ms anyway, so nobody waits for this."""
        group = None if self.core is None else self.core.groups.get(hint.group)
        replica = None if group is None else group.record.replicas.get(hint.broker_id)
        if group is None or replica is None or not replica.address:
            return
        if not self.config.notify_broker_role_changed or self._client is None:
            return
        record = group.record
        master = record.replicas.get(record.master_broker_id or 0)
        header = headers.NotifyBrokerRoleChangedRequestHeader(
            master_address=None if master is None else master.address,
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.sync_state_set_epoch,
            master_broker_id=record.master_broker_id,
        )
        body = SyncStateSet(sorted(record.sync_state_set), record.sync_state_set_epoch)
        command = RemotingCommand.request(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, fastjson.dumps(body), is_oneway=True
        )
        self._tasks.job("hint", self._send_hint(replica.address, command), about=replica.address)

    async def _send_hint(self, address: str, command: RemotingCommand) -> None:
        assert self._client is not None
        try:
            await self._client.oneway(address, command)
        except RemotingError as error:
            _LOG.debug("hint not sent address=%s error=%s", address, error)

    # Requests

    def _answer(self, connection: ServerConnection, request: Request) -> None:
        row = self._answers.get(request.code)
        if row is None:
            remark = f" request type {request.code} not supported"
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            connection.reply(request, code, remark=remark)
            return
        if request.code == RequestCode.BROKER_HEARTBEAT:
            self._watch(connection)
        handler, body_max = row
        if len(request.body) > body_max:
            raise CommandError(f"the body of request {request.code} is longer than {body_max}")
        handler(connection, request)

    def _watch(self, connection: ServerConnection) -> None:
        """The end of a broker's connection is news at once, not after a missing heartbeat."""
        if "is_watched" not in connection.attributes:
            connection.attributes["is_watched"] = True
            connection.on_close(self._connection_closed)

    def _connection_closed(self, connection: ServerConnection) -> None:
        self.handle(events.ConnectionClosed(connection_number(connection)))

    # What the processor asks besides

    def metadata(self) -> headers.ControllerMetadataResponseHeader:
        """Who leads, as far as this controller knows."""
        config, is_leader = self.config, self.core is not None
        leader = self._store.leader if is_leader or not self._store.is_leading else None
        return headers.ControllerMetadataResponseHeader(
            group=config.controller_d_leger_group,
            controller_leader_id="" if leader is None else leader.id,
            controller_leader_address="" if leader is None else leader.address,
            is_leader=is_leader,
            peers=config.controller_d_leger_peers
            or f"{config.controller_d_leger_self_id}-{self.known_address}",
            twinlog="1",
        )

    @property
    def why_nobody_leads(self) -> str:
        return self._store.problem

    def config_text(self) -> str:
        return self.config.to_properties()

    def update_config(self, text: str) -> None:
        """Only keys that are declared as live: all of them or none."""
        try:
            changes = parse_update(text.encode())
        except ValueError as error:
            raise CommandError(f"the configuration cannot be read: {error}") from error
        fixed = sorted(changes.keys() - live_keys(ControllerConfig))
        if fixed:
            remark = "; ".join(fixed_reason(ControllerConfig, "controller", key) for key in fixed)
            raise CommandError(remark, ResponseCode.NO_PERMISSION)
        try:
            update_config(self.config, changes)
        except ConfigError as error:
            raise CommandError(str(error)) from None


def make_store(config: ControllerConfig, disk: Disk, clock: Clock) -> RecordStore:
    if config.etcd_addresses:
        return EtcdRecordStore(config.etcd_addresses, config.controller_d_leger_group, clock)
    return FileRecordStore(disk, config.controller_store_path)


def build_controller(
    config: ControllerConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    on_failure: Callable[[str, BaseException], None] | None = None,
    store: RecordStore | None = None,
) -> ControllerServer:
    """A controller, ready to be started."""
    return ControllerServer(
        config,
        disk=disk or PosixDisk(),
        clock=clock or SystemClock(),
        tasks=TaskOwner("controller", on_failure, clock=clock),
        store=store,
    )
