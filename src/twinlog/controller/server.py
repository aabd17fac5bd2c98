"""A controller as one object: the pure core, its store, its port, its journal. Wiring only.

Corresponds to RocketMQ 5's ControllerManager. Runs alone (`twinlog controller`) or inside a name
server. Requests and timers become events of the core; its effects are carried out in order. One
writer writes all commits, so their outcomes come back in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twinlog.controller import events
from twinlog.controller.core import Controller, Event
from twinlog.controller.events import Effect, Timing
from twinlog.controller.file_store import FileRecordStore
from twinlog.controller.operators import EVENTS_MAX
from twinlog.controller.processor import ControllerProcessor, connection_number
from twinlog.controller.record import GroupRecord
from twinlog.controller.store import RecordStore, StoreOutcome
from twinlog.remoting import fastjson
from twinlog.remoting.acl import RELOAD_INTERVAL_MS
from twinlog.remoting.acl_file import rule_files
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.addresses import join_address
from twinlog.remoting.audit import AuditLog, Door
from twinlog.remoting.bodies.controller import SyncStateSet
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import CommandError, RemotingError
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.limits import DEFAULT_LIMITS
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.addresses import is_wildcard, local_address
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.config import ConfigError, update_config
from twinlog.runtime.config_format import parse_properties
from twinlog.runtime.config_key import fixed_reason, live_keys
from twinlog.runtime.controller_config import ControllerConfig
from twinlog.runtime.disk import Disk, PosixDisk
from twinlog.runtime.event_journal import EventJournal
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.tls import client_tls, server_tls

_LOG = logging.getLogger("twinlog.controller")
TICK_MS = 50  # How late a decision by time is at most; a group costs a microsecond a tick.
RELOAD_PAUSE_MS = 200
IDLE_MS_MAX = 30_000


class ControllerServer:
    """Listens, decides, writes. `core` is None while another controller leads."""

    def __init__(
        self, config: ControllerConfig, *, disk: Disk, clock: Clock, tasks: TaskOwner
    ) -> None:
        self.config = config
        self.core: Controller | None = None
        self.port = 0
        self.journal = EventJournal(disk, config.controller_store_path)
        self._clock = clock
        self._tasks = tasks
        self.failures = tasks.failures
        self._store: RecordStore = FileRecordStore(disk, config.controller_store_path)
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
        self._recent: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._writes: asyncio.Queue[GroupRecord | str] = asyncio.Queue()

    # Life

    async def start(self) -> None:
        """Read the records and open the port.

        Raises:
            RecordStoreError: the records cannot be read, or belong to a running controller.
            AclConfigError: aclEnable=true and its rules are missing or damaged.
            OSError: the port cannot be opened.
        """
        if self._guard is not None:
            self._guard.files.load()
        records = await self._store.load_all()
        self._recent.extend(self.journal.read())
        timing = Timing(lease_ms=self.config.twinlog_lease_ms)
        self.core = Controller(records, self.now_ms, timing)
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
        # Vital: decisions follow from state in memory, which is not to be trusted after an error.
        self._tasks.vital("write-records", self._keep_writing)
        self._tasks.vital("tick", self._keep_ticking)
        if self._guard is not None:
            files = self._guard.files
            self._tasks.round("acl-reload", lambda: RELOAD_INTERVAL_MS, files.reload_if_changed)
        self._write_event("controller-started", {"groups": sorted(self.core.groups)})

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
        self.core = None
        await self._tasks.stop()
        if self._remoting is not None:
            await self._remoting.close()
        if self._client is not None:
            await self._client.close()
        self.journal.close()
        self._store.close()

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
        return self._clock.boot_ms()

    # Events and effects

    def handle(self, event: Event) -> None:
        if self.core is None:
            return
        for effect in self.core.handle(self.now_ms, event):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case events.Commit():
                self._writes.put_nowait(effect.record)
            case events.Reload():
                self._writes.put_nowait(effect.group)
            case events.Reply():
                if effect.token is not None:
                    effect.token(effect)
            case events.Hint():
                self._hint(effect)
            case events.Happened():
                self._write_event(effect.kind, {"group": effect.group, **effect.details})

    async def _keep_writing(self) -> None:
        """Commits and reads in the order in which the core asked for them."""
        while True:
            item = await self._writes.get()
            if isinstance(item, str):
                self.handle(events.Loaded(item, await self._load(item)))
                continue
            outcome = await self._store.commit(item)
            if outcome is StoreOutcome.DONE:
                self.handle(events.CommitDone(item.group, item.version))
            else:
                self.handle(events.CommitUnknown(item.group, item.version))
            self._flush()

    async def _load(self, group: str) -> GroupRecord | None:
        while True:
            try:
                return await self._store.load(group)
            except OSError as error:
                _LOG.warning("record not read group=%s error=%s", group, error)
                await self._clock.sleep_ms(RELOAD_PAUSE_MS)

    async def _keep_ticking(self) -> None:
        while True:
            await self._clock.sleep_ms(TICK_MS)
            self.handle(events.Tick())
            self._audit.tick()
            self._flush()

    def _flush(self) -> None:
        if self._remoting is not None:
            self._remoting.flush()

    def _write_event(self, kind: str, details: dict[str, Any]) -> None:
        _LOG.info("%s %s", kind, " ".join(f"{key}={value}" for key, value in details.items()))
        time_ms = self._clock.now_ms()
        self.journal.write(time_ms, kind, **details)
        self._recent.append({"time": time_ms, "event": kind, **details})

    def recent_events(self) -> list[dict[str, Any]]:
        return list(self._recent)

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
        config = self.config
        return headers.ControllerMetadataResponseHeader(
            group=config.controller_d_leger_group,
            controller_leader_id=config.controller_d_leger_self_id,
            controller_leader_address=self.known_address,
            is_leader=self.core is not None,
            peers=config.controller_d_leger_peers
            or f"{config.controller_d_leger_self_id}-{self.known_address}",
            twinlog="1",
        )

    def config_text(self) -> str:
        return self.config.to_properties()

    def update_config(self, text: str) -> None:
        """Only keys that are declared as live: all of them or none."""
        try:
            changes = {entry.key: entry.value for entry in parse_properties(text.encode())}
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


def build_controller(
    config: ControllerConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    on_failure: Callable[[str, BaseException], None] | None = None,
) -> ControllerServer:
    """A controller, ready to be started."""
    return ControllerServer(
        config,
        disk=disk or PosixDisk(),
        clock=clock or SystemClock(),
        tasks=TaskOwner("controller", on_failure, clock=clock),
    )
