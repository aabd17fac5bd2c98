"""A name server as one object: answers to NamesrvController. Wiring only.

With `enableControllerInNamesrv` a controller runs in the same process, on a port of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from twinlog.controller.metrics import ControllerMetrics
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.namesrv.config_update import ConfigUpdater
from twinlog.namesrv.kv_config import KVConfigManager
from twinlog.namesrv.metrics import NamesrvMetrics
from twinlog.namesrv.processor import NamesrvProcessor
from twinlog.namesrv.routes import RouteInfoManager
from twinlog.namesrv.watch import NamesrvWatch
from twinlog.observe.collect import Source, Sources
from twinlog.observe.health import Facts, ServerFacts
from twinlog.observe.observer import Observed
from twinlog.remoting.acl import RELOAD_INTERVAL_MS
from twinlog.remoting.acl_file import rule_files
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.addresses import join_address
from twinlog.remoting.codes import refusal_labels
from twinlog.remoting.command import Request
from twinlog.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.config import NamesrvConfig
from twinlog.runtime.config_key import declarations
from twinlog.runtime.disk import Disk, PosixDisk
from twinlog.runtime.saving import SaveService
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.tls import server_tls

_LOG = logging.getLogger("twinlog.namesrv")
_SCAN_MS = 500  # A third of a heartbeat late at most; Apache looks every 10 s.


class Namesrv:
    """Listens, answers, forgets the dead."""

    def __init__(
        self,
        config: NamesrvConfig,
        *,
        disk: Disk,
        clock: Clock,
        limits: RemotingLimits,
        controller: ControllerServer | None = None,
    ) -> None:
        self.config = config
        self.controller = controller
        self.routes = RouteInfoManager()
        self.kv = KVConfigManager(disk, config.kv_config_path)
        self._clock = clock
        self.tasks = TaskOwner("namesrv", clock=clock)
        self.failures = self.tasks.failures
        self._limits = limits
        self.guard: AccessGuard | None = None
        if config.acl_enable:
            self.guard = AccessGuard(rule_files(disk, config.rocketmq_home))
        self.watch = NamesrvWatch(self.routes, disk, clock, config.kv_config_path)
        self.watch.address = lambda: self.address
        self.watch.failures = self.failures
        self.watch.settings = self._live_settings
        self.watch.unsaved = lambda: self._saves.problems
        updater = ConfigUpdater(config, disk)
        self.processor = NamesrvProcessor(
            config=config,
            routes=self.routes,
            kv=self.kv,
            updater=updater,
            clock=clock,
            guard=self.guard,
            failures=self.failures,
            controller_address=self._controller_address,
            watch=self.watch,
        )
        self._saves = SaveService(clock, [self.kv.saver, updater.saver])
        self._remoting: RemotingServer | None = None
        self.port = 0

    async def start(self) -> None:
        """Load what is stored and open the port.

        Raises:
            KVConfigError: kvConfig.json cannot be read.
            AclConfigError: aclEnable=true and its rules are missing or damaged.
            RecordStoreError: the controller's records cannot be read, or are in use.
            OSError: a port cannot be opened.
        """
        if self.guard is not None:
            self.guard.files.load()
        self.kv.load()
        self._saves.start(self.tasks)
        self._remoting = RemotingServer(
            self._handle,
            clock=self._clock,
            limits=self._limits,
            tls=server_tls(self.config.tls),
            name="namesrv",
            failures=self.tasks.failures,
        )
        self._remoting.body_max = self.processor.table.body_max
        self._remoting.on_refused = self.processor.audit.refused
        self.port = await self._remoting.listen(self.config.bind_address, self.config.listen_port)
        self.tasks.round("scan", lambda: _SCAN_MS, self._scan)
        if self.guard is not None:
            self.tasks.round("acl-reload", lambda: RELOAD_INTERVAL_MS, self._reload)
        if self.controller is not None:
            await self.controller.start()

    @property
    def address(self) -> str:
        return join_address(self.config.bind_address, self.port)

    @property
    def ready_line(self) -> str:
        inside = "" if self.controller is None else f" controller={self.controller.address}"
        return f"twinlog namesrv ready listen={self.address}{inside}"

    def _controller_address(self) -> str:
        return "" if self.controller is None else self.controller.known_address

    def observed(self) -> Observed:
        """For whoever makes this name server visible."""
        sources: list[Source] = [NamesrvMetrics(self.routes)]
        if self.controller is not None:
            sources.append(ControllerMetrics(self.controller))
        return Observed(
            facts=self._facts,
            metrics=Sources(sources),
            labels=lambda: {"node_type": "nameserver", "node_id": self.address},
            connections=lambda: {
                "service": 0 if self._remoting is None else len(self._remoting.connections)
            },
            refusal_labels=refusal_labels,
            watch=self.watch,
        )

    def _live_settings(self) -> dict[str, str]:
        declared = declarations(type(self.config)).values()
        return {d.key: str(getattr(self.config, d.name)) for d in declared if d.says.is_live}

    def _facts(self) -> Facts:
        unsaved = tuple(f"{name}: {why}" for name, why in self._saves.problems.items())
        server = ServerFacts(
            kind="name server", name=self.address, address=self.address, unsaved=unsaved
        )
        decided = () if self.controller is None else self.controller.decided()
        return Facts(servers=(server,), decided=decided)

    async def stop(self) -> None:
        if self.controller is not None:
            await self.controller.stop()
        await self.tasks.stop()
        if self._remoting is not None:
            await self._remoting.close()
            self._remoting = None
        await self._saves.save_all()
        self.processor.audit.flush()

    def reload(self) -> None:
        """SIGHUP: read certificates and access rules again. What cannot be read stays as it was."""
        self.failures.contain("reload of certificates", self._reload_tls)
        if self.guard is not None:
            self.failures.contain("reload of access rules", self.guard.files.load)
        if self.controller is not None:
            self.controller.reload()

    def _reload_tls(self) -> None:
        if self._remoting is not None:
            self._remoting.tls = server_tls(self.config.tls)

    def _handle(self, connection: ServerConnection, request: Request) -> None:
        if "is_watched" not in connection.attributes:
            connection.attributes["is_watched"] = True
            connection.on_close(self.processor.connection_lost)
        self.processor.handle(connection, request)

    def _scan(self) -> None:
        self.processor.expire()
        self.processor.audit.tick()

    def _reload(self) -> None:
        assert self.guard is not None
        self.guard.files.reload_if_changed()


def build_namesrv(
    config: NamesrvConfig,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    on_failure: Callable[[str, BaseException], None] | None = None,
) -> Namesrv:
    """A name server, ready to be started. `on_failure` is told when the controller inside cannot
    go on: routes would still be answered, but nobody would elect a master."""
    disk, clock = disk or PosixDisk(), clock or SystemClock()
    limits = replace(
        DEFAULT_LIMITS,
        idle_ms_max=config.server_channel_max_idle_time_seconds * 1000 or 2**62,
        backlog=config.server_socket_backlog,
        connections_per_address_max=config.twinlog_connections_per_address,
        requests_per_address_max=config.twinlog_requests_per_address,
        bytes_per_address_max=config.twinlog_bytes_in_flight_per_address,
    )
    controller = None
    if config.enable_controller_in_namesrv:
        controller = build_controller(
            config.controller, disk=disk, clock=clock, on_failure=on_failure
        )
    return Namesrv(config, disk=disk, clock=clock, limits=limits, controller=controller)
