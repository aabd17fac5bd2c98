"""The broker as a whole: built, started, stopped (RocketMQ's BrokerController).

`build_broker` is the only place that knows all parts; each gets what it needs through its
constructor. `handlers.py` is the only place that says which handler answers which request code.

Start: store (lock, recovery), tables, replication, delayed delivery, ports, registration. Stop:
the other way round, so that nobody is sent here any more when the ports close, and what was
answered is on disk before the process ends.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from twinlog.broker.build import build_services, build_store, build_tables
from twinlog.broker.delay.schedule import ScheduleMessageService
from twinlog.broker.descriptors import check_descriptors
from twinlog.broker.dispatch import Dispatch
from twinlog.broker.filter.consumer_filter import ConsumerFilterManager
from twinlog.broker.filter.sql92 import load_parser
from twinlog.broker.group.relay import Relay
from twinlog.broker.group.replicas import ReplicasManager
from twinlog.broker.group.stored import lead_without_controller
from twinlog.broker.handlers import serve_requests
from twinlog.broker.pair.confirmed_file import PUBLISH_INTERVAL_MS, ConfirmedFile
from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.replica_ranges import ReplicaRanges
from twinlog.broker.pair.reseed import ask_for_reseed, reseed_if_asked
from twinlog.broker.pair.service import PairService
from twinlog.broker.pair.shorter_log import ShorterLog
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.pair.step_back import StepBack
from twinlog.broker.pair.succession import NotTheMasterError, Succession
from twinlog.broker.processors.pull import PullMessageProcessor
from twinlog.broker.pull.hold import CHECK_INTERVAL_MS, PullRequestHold
from twinlog.broker.put.once_service import SWEEP_INTERVAL_MS, IdempotentSends
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.rng import Rng
from twinlog.broker.role import Role
from twinlog.broker.routes.registration import Registration
from twinlog.broker.stats.broker_stats import (
    BROKER_PUT_NUMS,
    SAMPLE_INTERVAL_MS,
    BrokerStatsManager,
)
from twinlog.broker.stats.facts import BrokerFacts
from twinlog.broker.stats.metrics import observed_broker
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.broker.stats.watch import BrokerWatch
from twinlog.broker.tables.clients import CLIENT_SCAN_INTERVAL_MS, ConsumerManager, ProducerManager
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.creation_quota import CreationQuota
from twinlog.broker.tables.rebalance_lock import RebalanceLockManager
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.table_check import TableCheck
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.broker.transaction.service import TransactionalMessageService
from twinlog.ha.service import HAService
from twinlog.ha.settings import HASettings
from twinlog.observe.observer import Observed
from twinlog.remoting.acl import RELOAD_INTERVAL_MS
from twinlog.remoting.acl_file import rule_files
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.addresses import join_address
from twinlog.remoting.audit import AuditLog
from twinlog.remoting.bodies.common import MessageQueue
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import Request
from twinlog.remoting.limits import DEFAULT_LIMITS
from twinlog.remoting.request_table import Handler
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.compiled import code_tier
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk, PosixDisk
from twinlog.runtime.saving import SaveService
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.tls import client_tls, server_tls
from twinlog.runtime.turn import Turn
from twinlog.store.integrity.format import check_format, write_format
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.message_store import MEMORY_UNKNOWN, MessageStore
from twinlog.store.recovery.recover import RecoveryReport

_LOG = logging.getLogger("twinlog.broker")

_LOCK_SWEEP_MS = 60_000
_NEVER_MS = 2**62
_STATS_SAMPLE_MS = 1_000
_FILTER_SAVE_MS = 10_000
# What name servers are told, and what the template of new topics is made of.
_REGISTERED = frozenset({"broker_permission", "compressed_register", "force_register"})
_TEMPLATE = frozenset({"auto_create_topic_enable", "default_topic_queue_nums"})
_AUDIT_TICK_MS = 5_000


class Broker:
    """One broker. Attributes are its parts; `build_broker` wires them."""

    config: BrokerConfig
    store: MessageStore
    table_check: TableCheck
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    producers: ProducerManager
    consumers: ConsumerManager
    locks: RebalanceLockManager[MessageQueue]
    filters: ConsumerFilterManager
    stats: BrokerStatsManager
    store_stats: StoreStats
    schedule: ScheduleMessageService
    transactions: TransactionalMessageService
    replies: PutReplies
    registration: Registration
    pulls: PullMessageProcessor
    pair: PairService
    identity: StoreIdentity
    succession: Succession
    step_back: StepBack
    skip_guard: SkipGuard
    shorter_log: ShorterLog
    ha: HAService
    once: IdempotentSends
    scrubber: Scrubber
    replica_ranges: ReplicaRanges
    confirmed_file: ConfirmedFile
    saves: SaveService
    replicas: ReplicasManager | None = None  # In a controlled group.
    relay: Relay | None = None

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        tasks: TaskOwner,
        client: RemotingClient,
    ) -> None:
        self.config = config
        self.role = Role(config)
        self.disk = disk
        self.clock = clock
        self.tasks = tasks
        self.client = client
        self.turn = Turn()
        self.guard: AccessGuard | None = None
        self.audit = AuditLog(clock)
        self.creations = CreationQuota(
            clock, config.twinlog_creations_per_address, self.audit.refused
        )
        self.requests = Dispatch(self.audit, self.creations)
        self.failures = tasks.failures
        self.server = self._remoting_server(self.requests.handle, "broker")
        self.vip_server = self._remoting_server(self.requests.handle_vip, "broker-vip")
        self.server.on_refused = self.vip_server.on_refused = self.audit.refused
        self.facts = BrokerFacts(self)
        self.watch = BrokerWatch(self)
        self.recovery: RecoveryReport | None = None
        self.listen_port = config.listen_port
        # Asked for when the process must start again; the command that runs it sets this.
        self.on_restart: Callable[[str], None] = lambda reason: None
        # Asked for when the process must end, with the reason; set as above.
        self.on_end: Callable[[str], None] = lambda reason: None
        self._day = 0
        self._is_stopped = False

    @property
    def address(self) -> str:
        return join_address(self.config.broker_ip1, self.config.listen_port)

    @property
    def ha_address(self) -> str:
        """Where other replicas dial this one."""
        return join_address(self.config.broker_ip2, self.config.ha_listen_port)

    @property
    def ready_line(self) -> str:
        config = self.config
        return (
            f"twinlog broker ready name={config.broker_name} "
            f"listen={join_address(config.bind_address, config.listen_port)} "
            f"ha={join_address(config.bind_address, config.ha_listen_port)} "
            f"role={'CONTROLLED' if self.role.is_controlled else config.broker_role.value} "
            f"code={code_tier()}"
        )

    @property
    def hold(self) -> PullRequestHold:
        return self.pulls.hold

    def is_surely_master(self) -> bool:
        """A fixed master, or one that nobody can have replaced for longer than its lease."""
        group = self.ha.group
        authority = None if group is None else group.authority
        return authority is None or authority.may_answer_early(self.clock.boot_ms())

    def observed(self) -> Observed:
        return observed_broker(self)

    # Requests

    def _remoting_server(self, handler: Handler, name: str) -> RemotingServer:
        config = self.config
        limits = replace(
            DEFAULT_LIMITS,
            idle_ms_max=config.server_channel_max_idle_time_seconds * 1000 or _NEVER_MS,
            backlog=config.server_socket_backlog,
            connections_per_address_max=config.twinlog_connections_per_address,
            requests_per_address_max=config.twinlog_requests_per_address,
            bytes_per_address_max=config.twinlog_bytes_in_flight_per_address,
        )
        tls = server_tls(config.tls)
        return RemotingServer(
            handler, clock=self.clock, limits=limits, tls=tls, name=name, failures=self.failures,
            turn=self.turn,
        )  # fmt: skip

    def redispatch(self, connection: ServerConnection, request: Request) -> None:
        """Answer a request that was held back, outside of the turn that brought it."""
        connection.handle_again(self.requests.handle, request)

    # Life

    def reseed_all(self, reason: str) -> None:
        """Nothing of this slave's log is the master's: start again with an empty store."""
        root = self.config.store_path_root_dir
        ask_for_reseed(self.disk, root, self.clock.now_ms(), reason)
        self.on_restart(reason)

    def reload(self) -> None:
        """SIGHUP: read certificates and access rules again. What cannot be read stays as it was."""
        self.failures.contain("reload of certificates", self._reload_tls)
        if self.guard is not None:
            self.failures.contain("reload of access rules", self.guard.files.load)

    def _reload_tls(self) -> None:
        config = self.config
        tls, client = server_tls(config.tls), client_tls(config.tls, use_tls=config.use_tls)
        self.ha.reload_tls(HASettings.from_config(config))
        self.server.tls = self.vip_server.tls = tls
        self.client.reload_tls(client)

    async def start(self) -> None:
        """Load, recover and serve.

        Raises StoreError, ConfigFileError, AclConfigError or OSError that say why not.
        """
        if self.guard is not None:
            self.guard.files.load()
        is_granted = await self._load()
        await self._start_store()
        self._take_up(is_granted=is_granted)
        try:
            await self._start_ports()
        except OSError:
            # Another process has the port: leave the store as clean as it was found.
            await self.stop()
            raise
        self._serve()
        _LOG.info("broker started name=%s address=%s", self.config.broker_name, self.address)

    async def _load(self) -> bool:
        """The log, recovered, who this broker is, and its tables. Whether it was promoted while it
        was not running."""
        config = self.config
        check_descriptors(self.disk, config)
        check_format(self.disk, config.store_path_root_dir)
        reseed_if_asked(self.disk, config.store_path_root_dir, config.commit_log_paths)
        self.disk.make_directories(posixpath.join(config.store_path_root_dir, "config"))
        self.once.load()
        was_copy = self.role.is_controlled or self.identity.was_copy()
        self.recovery = await self.store.load(was_copy=was_copy)
        await self.once.recovered(self.recovery)
        self.identity.load()
        is_granted = self.identity.is_granted  # Until it is settled below.
        if self.replicas is None:
            await self._check_role()
        else:
            self.replicas.load()
            self.identity.settle(self.clock.now_ms())
        self.confirmed_file.load(self.store.commit_log.max_offset)
        for table in (self.topics, self.groups, self.offsets, self.filters, self.schedule):
            table.load()
        self.table_check.loaded(was_clean=self.recovery.was_clean)
        return is_granted

    async def _start_store(self) -> None:
        """From here on the store changes: puts, flushes, scrubs, saves."""
        assert self.recovery is not None
        await self.store.start(self.tasks)
        write_format(self.disk, self.config.store_path_root_dir)
        self.scrubber.start(self.tasks, has_point=self.recovery.has_point)
        self.saves.start(self.tasks)
        if self.config.enable_property_filter:
            self.tasks.job("load-filter-parser", self.disk.run(load_parser))
        else:
            self.filters.want_parser = self._begin_to_load_parser

    def _take_up(self, *, is_granted: bool) -> None:
        """What the log says beyond its records: what is confirmed, tables that were lost, offsets
        of the metadata. A master that lacks something takes no sends until it has it."""
        if self.replicas is not None:
            self.ha.prepare()
            self._show_confirmed()
        self._recover_tables()
        self.pair.load(was_master=self.identity.has_led)
        self.ha.prepare(is_log_accepted=is_granted)  # In a controlled group it is by now.
        if self.role.is_master:
            self.ha.when_complete(self._log_is_complete)
        self.store.add_dispatch_listener(self._queues_moved)
        self.pair.close_gate()

    def _serve(self) -> None:
        """Ports are open: deliver what is due, register, and take one's place in the group."""
        if self.role.is_master:
            self.ha.when_complete(self._start_deliveries)
        self._start_timers()
        self.registration.start(self.tasks)
        if self.replicas is not None:
            self.pair.start_group()
            self.replicas.start()
        else:
            self._start_fixed()
        self.tasks.contained("find-replicas", self.replica_ranges.look)

    def _begin_to_load_parser(self) -> None:
        self.filters.want_parser = lambda: None
        self.tasks.job("load-filter-parser", self.disk.run(load_parser))

    def _start_fixed(self) -> None:
        """In a pair whose roles the files say."""
        self.pair.start(self.registration.addresses)
        if self.role.is_master:
            self.tasks.contained("tell-predecessor", self.succession.tell_predecessor)
        else:
            self.tasks.contained("learn-group", self.succession.learn)

    def _recover_tables(self) -> None:
        """Tables whose files were lost: the log may say what they held."""
        for name in sorted(self.table_check.doubtful):
            if count := self.pair.reader.recover(name):
                self.table_check.recovered(name, count)

    def _show_confirmed(self) -> None:
        """In a controlled group: of a recovered log consumers see what is known as confirmed."""
        self.ha.begin_confirmed(self.pair.reader.epochs)
        self.store.set_dispatch_limit(self.ha.confirmed)
        self.store.hide_unconfirmed()

    async def _check_role(self) -> None:
        """A master that was replaced must not serve, nor a copy that would lose messages."""
        self.succession.load()
        try:
            await self.succession.check_start(self.registration.addresses)
        except NotTheMasterError as error:
            await self.store.stop()  # As clean as it was found.
            self.succession.refused(error)
            raise
        if self.role.is_master:
            lead_without_controller(self.disk, self.config.store_path_root_dir)
        self.identity.settle(self.clock.now_ms())

    def _log_is_complete(self) -> None:
        """On a master, before the first send: it has what was confirmed, or never lacked it."""
        self.pair.complete(was_master=self.identity.has_led)
        assert self.recovery is not None
        # A power cut may take whole records, and leave nothing to cut. A kill takes nothing.
        is_doubtful = self.ha.began_in_doubt or self.recovery.cut_bytes > 0
        self.shorter_log.began(
            was_master=self.identity.has_led,
            is_promotion=self.identity.is_taking_over,
            is_doubtful=is_doubtful,
        )

    def tail_came(self, was_own_cut: bool) -> None:
        """On a master that serves already: it has fetched what a slave had more of its log."""
        if self.pair.tail_came():
            self.shorter_log.tail_came(was_own_cut=was_own_cut)

    def _start_deliveries(self) -> None:
        """They look into the log for what was delivered already: it must be complete."""
        assert self.recovery is not None
        # A slave that became the master has offsets a moment older than its log, as after a
        # crash: what was delivered already is recognised.
        is_doubtful = (
            not (self.recovery.was_clean and self.identity.has_led)
            or "delayOffset.json" in self.table_check.doubtful
        )
        self.schedule.start(after_crash=is_doubtful)
        self.transactions.start(after_crash=is_doubtful)

    def queues_were_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The log was cut back, of a slave to its master's, of a master to a confirmed one."""
        self.pair.queues_cut(ends)
        if self.role.is_master:
            self.shorter_log.cut()

    async def _start_ports(self) -> None:
        config = self.config
        await self.server.listen(config.bind_address, config.listen_port)
        await self.vip_server.listen(config.bind_address, config.vip_listen_port)
        config.ha_listen_port = await self.ha.start()

    async def stop(self) -> None:
        """Clean stop: unregistered, flushed, checkpoint written, `abort` removed."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self.replicas is not None:
            await self.replicas.resign()
        await self.registration.unregister_all()
        self.schedule.stop()
        self.transactions.stop()
        self.hold.stop()
        self.hold.release_all()
        self.pair.flush()
        self.store.write_pending()
        # What is answered from now on no slave might have.
        self.store.close_for_puts("the broker is stopping")
        await self.ha.drain()
        self.confirmed_file.close()
        self.replies.stop()
        self.turn.run()  # What was just answered leaves now.
        await self.ha.stop()
        await self.server.close()
        await self.vip_server.close()
        await self.client.close()
        await self._save_offsets()
        await self.filters.save()
        await self.saves.save_all()
        await self.table_check.leave()
        self.audit.flush()
        await self.tasks.stop()
        await self.store.stop()

    def _queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        # One that fails must not leave the others behind.
        try:
            self.schedule.queues_moved(keys)
            self.transactions.queues_moved(keys)
        except Exception as error:
            self.failures.note("dispatch to delays and transactions", error, f"{keys}"[:200])
        try:
            self.pulls.queues_moved(keys)
        finally:
            self.pair.queues_moved(keys)

    # Timers

    def _start_timers(self) -> None:
        config = self.config
        every = self.tasks.round
        every("save-offsets", lambda: config.flush_consumer_offset_interval, self._save_offsets)
        every("save-delays", lambda: config.flush_delay_offset_interval, self._save_delays)
        every("save-filters", lambda: _FILTER_SAVE_MS, self.filters.save)
        every(
            "check-transactions",
            lambda: config.transaction_check_interval,
            self.transactions.check,
        )
        every("hold-check", lambda: CHECK_INTERVAL_MS, self._check_hold)
        every("client-scan", lambda: CLIENT_SCAN_INTERVAL_MS, self._scan_clients)
        every("lock-sweep", lambda: _LOCK_SWEEP_MS, self._sweep_locks)
        every("forget-producers", lambda: SWEEP_INTERVAL_MS, self.once.sweep)
        every("confirmed-file", lambda: PUBLISH_INTERVAL_MS, self.confirmed_file.publish)
        every("audit", lambda: _AUDIT_TICK_MS, self.audit.tick)
        every("store-stats", lambda: _STATS_SAMPLE_MS, self._sample_store_stats)
        every("stats", lambda: SAMPLE_INTERVAL_MS, self._sample_stats)
        if self.guard is not None:
            every("acl-reload", lambda: RELOAD_INTERVAL_MS, self._reload_rules)

    def config_changed(self, names: Collection[str]) -> None:
        """These attributes of the configuration have other values now, and take effect."""
        if any(name.startswith("register_") for name in names) or not _REGISTERED.isdisjoint(names):
            self.registration.wake()
        if not _TEMPLATE.isdisjoint(names):
            self.topics.update_template()
        if names:
            self.store.reader.config_changed()
            self.ha.configure(self.ha.settings.changed(self.config))

    def _reload_rules(self) -> None:
        assert self.guard is not None
        self.guard.files.reload_if_changed()

    async def _save_offsets(self) -> None:
        self.transactions.note_progress()
        self.skip_guard.tick()
        # Where the log's metadata is applied to now: while the tables are written it goes on.
        place, is_complete = self.pair.mark(), self.pair.is_complete
        tables: list[Any] = [self.topics, self.groups, self.offsets]
        if not self.role.is_master:
            tables.append(self.schedule)
        problems = [await table.saver.save() for table in tables]
        if not any(problems):  # The place in the log says that they hold what is before it.
            await self.pair.save(place)
            if is_complete:
                self.identity.taken_over()

    async def _save_delays(self) -> None:
        if self.role.is_master:
            await self.schedule.saver.save()

    def _check_hold(self) -> None:
        self.hold.check()

    def _scan_clients(self) -> None:
        now = self.clock.monotonic_ms()
        for connection in (*self.producers.expired(now), *self.consumers.expire(now)):
            _LOG.info("client expired peer=%s", connection.remote_text)
            self.failures.contain("client scan", connection.close, "no heartbeat for too long")

    def _sweep_locks(self) -> None:
        if self.role.is_master or not self.role.is_controlled:
            self.locks.forget_expired(self.clock.monotonic_ms())

    def _sample_store_stats(self) -> None:
        self.store_stats.put_times, self.store_stats.put_size = self.stats.put_totals()
        self.store_stats.sample(self.clock.monotonic_ms())
        day = datetime.fromtimestamp(self.clock.now_ms() / 1000).toordinal()
        if self._day and day != self._day:
            self.store_stats.midnight()
        self._day = day

    def _sample_stats(self) -> None:
        puts = self.stats.item(BROKER_PUT_NUMS, self.config.broker_cluster_name)
        puts.value = puts.times = self.stats.put_totals()[0]
        self.stats.sample(self.clock.monotonic_ms())


def build_broker(
    config: BrokerConfig,
    *,
    rng: Rng,
    disk: Disk | None = None,
    clock: Clock | None = None,
    memory_size: int = MEMORY_UNKNOWN,
    config_path: str | None = None,
    on_failure: Callable[[str, BaseException], None] | None = None,
) -> Broker:
    """Put a broker together. Must run on the loop that will serve it.

    `config_path` is the properties file that changes at run time are written back to.
    """
    disk = disk or PosixDisk()
    clock = clock or SystemClock()
    tasks = TaskOwner("broker", on_failure, clock=clock)
    tls = client_tls(config.tls, use_tls=config.use_tls)
    client = RemotingClient(
        clock=clock, tasks=tasks, tls=tls, hooks=_signers(config), name="broker-out"
    )
    broker = Broker(config, disk=disk, clock=clock, tasks=tasks, client=client)
    build_tables(broker)
    build_store(broker, memory_size)
    build_services(broker)
    broker.guard = _build_guard(broker)
    broker.step_back.config_path = config_path
    serve_requests(broker, rng=rng, memory_size=memory_size, config_path=config_path)
    return broker


def _signers(config: BrokerConfig) -> list[AclSigner]:
    """What signs the broker's own requests, if it has an account."""
    if not config.twinlog_access_key:
        return []
    return [AclSigner(config.twinlog_access_key, config.twinlog_secret_key)]


def _build_guard(broker: Broker) -> AccessGuard | None:
    """Access control, if it is on. Its files are where Apache looks for them."""
    if not broker.config.acl_enable:
        return None
    files = rule_files(broker.disk, broker.config.rocketmq_home)
    return AccessGuard(files, is_apache=broker.config.twinlog_acl_as_apache)
