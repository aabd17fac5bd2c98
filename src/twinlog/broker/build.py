"""How the parts of a broker are put together: each gets what it needs through its constructor."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from twinlog.broker.delay.schedule import ScheduleMessageService
from twinlog.broker.filter.consumer_filter import ConsumerFilterManager
from twinlog.broker.group.confirmed_answers import ConfirmedAnswers
from twinlog.broker.group.controller_link import ControllerLink
from twinlog.broker.group.relay import Relay
from twinlog.broker.group.replicas import ReplicasManager
from twinlog.broker.group.stored import StoredGroup
from twinlog.broker.host import store_host
from twinlog.broker.pair.confirmed_file import ConfirmedFile
from twinlog.broker.pair.dispatch_damage import DispatchDamage
from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.metadata_service import MetadataReader, MetadataWriter, PairTables
from twinlog.broker.pair.offset_moved import OffsetMovedEvents
from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.pair.replica_ranges import ReplicaRanges
from twinlog.broker.pair.service import PairService
from twinlog.broker.pair.shorter_log import ShorterLog
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.pair.slave_synchronize import SlaveSynchronize
from twinlog.broker.pair.step_back import StepBack
from twinlog.broker.pair.succession import Succession
from twinlog.broker.processors.client_manage import notify_members
from twinlog.broker.processors.pull import PullMessageProcessor
from twinlog.broker.put.once_service import IdempotentSends
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.routes.registration import Registration
from twinlog.broker.stats.broker_stats import BrokerStatsManager
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.broker.tables.clients import ConsumerGroupInfo, ConsumerManager, ProducerManager
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.rebalance_lock import RebalanceLockManager
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.table_check import Table, TableCheck
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.broker.transaction.service import TransactionalMessageService
from twinlog.ha.epoch_file import EpochFile
from twinlog.ha.service import HAService
from twinlog.ha.settings import HASettings
from twinlog.runtime.saving import SaveService
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.message_store import MessageStore

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


def build_tables(broker: Broker) -> None:
    config, clock = broker.config, broker.clock
    broker.table_check = TableCheck(broker.disk, config.store_path_root_dir)
    broker.topics = TopicConfigManager(config, _file(broker, "topics.json"), clock)
    broker.groups = SubscriptionGroupManager(config, _file(broker, "subscriptionGroup.json"), clock)
    broker.topics.before_creation = broker.groups.before_creation = broker.creations.take
    broker.offsets = ConsumerOffsetManager(_file(broker, "consumerOffset.json"))
    broker.skip_guard = SkipGuard(broker.disk, config.store_path_root_dir, clock)
    broker.offsets.guard = broker.skip_guard
    broker.producers = ProducerManager()
    broker.filters = ConsumerFilterManager(config, _file(broker, "consumerFilter.json"), clock)

    def members_changed(info: ConsumerGroupInfo) -> None:
        if not info.channels:
            broker.filters.group_gone(info.group)
        notify_members(config, info)

    broker.consumers = ConsumerManager(members_changed)
    broker.locks = RebalanceLockManager()
    broker.stats = BrokerStatsManager()
    broker.store_stats = StoreStats(clock.now_ms())


def _file(broker: Broker, name: str) -> ConfigFile:
    directory = posixpath.join(broker.config.store_path_root_dir, "config")
    path = posixpath.join(directory, name)
    return ConfigFile(broker.disk, path, broker.table_check.is_decayed)


def build_store(broker: Broker, memory_size: int) -> None:
    config = broker.config
    broker.store = MessageStore(
        config,
        disk=broker.disk,
        clock=broker.clock,
        delay_levels=config.delay_levels,
        memory_size=memory_size,
        turn=broker.turn,
    )
    broker.shorter_log = ShorterLog(broker.store, broker.topics, broker.offsets, broker.skip_guard)
    root = config.store_path_root_dir
    own = posixpath.join(root, "twinlog")
    broker.scrubber = Scrubber(broker.store, broker.disk, broker.clock, own)
    broker.once = IdempotentSends(broker.store, broker.disk, broker.clock, root)
    broker.identity = StoreIdentity(config, broker.disk, role=broker.role)
    broker.ha = HAService(
        HASettings.from_config(config),
        broker.store,
        broker.clock,
        broker.tasks,
        twin=broker.identity.twin(),
        ask_dialect=lambda address: broker.pair.ask_dialect(address),  # The pair is built later.
        reseed_all=broker.reseed_all,
        epochs=EpochFile(broker.disk, root) if broker.role.is_controlled else None,
        turn=broker.turn,
    )
    broker.confirmed_file = ConfirmedFile(
        config, broker.disk, lambda: broker.ha.confirmed_offset, role=broker.role
    )
    broker.store.reput.on_damage = _build_dispatch_damage(broker).found
    broker.store.cleaner.needed_from = lambda: broker.ha.acks.lowest
    broker.replies = PutReplies(
        config,
        clock=broker.clock,
        appended=broker.store.appended,
        flushed=broker.store.flushed,
        replication=broker.ha,
        store_host=store_host(config),
        stats=broker.store_stats,
        failures=broker.failures,
        role=broker.role,
    )


def _build_dispatch_damage(broker: Broker) -> DispatchDamage:
    is_controlled = broker.role.is_controlled
    return DispatchDamage(
        log=broker.store.commit_log,
        reput=broker.store.reput,
        healer=broker.scrubber.healer,
        clock=broker.clock,
        tasks=broker.tasks,
        is_twin=lambda: is_controlled or broker.pair.is_master_twin,
        is_linked=lambda: broker.ha.is_linked,
        is_controlled=is_controlled,
        cut=broker.ha.damage_found,
    )


def build_services(broker: Broker) -> None:
    config = broker.config
    broker.schedule = ScheduleMessageService(
        store=broker.store,
        replies=broker.replies,
        levels=config.delay_levels,
        stats=broker.stats,
        file=_file(broker, "delayOffset.json"),
        clock=broker.clock,
        failures=broker.failures,
    )
    tables: tuple[Any, ...] = (
        broker.topics, broker.groups, broker.offsets, broker.filters, broker.schedule
    )  # fmt: skip
    broker.saves = SaveService(broker.clock, [table.saver for table in tables])
    broker.scrubber.at_start.append(broker.table_check.run)
    broker.scrubber.at_end.append(broker.table_check.run)
    broker.table_check.tables = [Table(table.file, table.saver) for table in tables]
    broker.transactions = TransactionalMessageService(broker)
    broker.registration = Registration(
        config,
        client=broker.client,
        topics=broker.topics,
        clock=broker.clock,
        broker_address=broker.address,
        ha_address=broker.ha_address,
        on_master=lambda ha_address, address: broker.pair.master_registered(address, ha_address),
        role=broker.role,
    )
    broker.pair = _build_pair(broker)
    broker.succession = _build_succession(broker)
    broker.registration.on_rival = broker.succession.met_rival
    broker.replica_ranges = _build_replica_ranges(broker)
    broker.ha.on_twin_joined = broker.pair.twin_slave_joined
    broker.pair.before_link = broker.succession.ask_before_link
    broker.ha.on_linked = broker.succession.linked
    broker.store.on_queues_cut = broker.queues_were_cut
    if broker.ha.catch_up is not None:
        broker.ha.catch_up.on_own_cut = lambda end, reason: broker.replies.give_up(reason)
        broker.ha.catch_up.on_fetch = broker.pair.tail_is_coming
        broker.ha.catch_up.on_fetched = broker.tail_came
    broker.pulls = PullMessageProcessor(
        broker,
        offset_moved=OffsetMovedEvents(
            config, broker.store, broker.clock, store_host(config)
        ).record,
    )
    if broker.role.is_controlled:
        broker.relay = broker.requests.relay = Relay(broker)
        broker.requests.confirms = ConfirmedAnswers(
            broker.store, broker.ha, broker.role, broker.pair.writer
        )
        broker.replicas = _build_replicas(broker)


def _build_replica_ranges(broker: Broker) -> ReplicaRanges:
    return ReplicaRanges(
        client=broker.client,
        identity=broker.identity,
        succession=broker.succession,
        log=broker.store.commit_log,
        scrubber=broker.scrubber,
        disk=broker.disk,
        clock=broker.clock,
        tasks=broker.tasks,
        name_servers=lambda: broker.registration.addresses,
    )


def _build_succession(broker: Broker) -> Succession:
    broker.step_back = StepBack(
        broker.config,
        disk=broker.disk,
        identity=broker.identity,
        has_taken_sends=lambda: broker.stats.put_totals()[0] > 0,
        restart=lambda reason: broker.on_restart(reason),
    )
    return Succession(
        broker.config,
        disk=broker.disk,
        clock=broker.clock,
        client=broker.client,
        identity=broker.identity,
        address=broker.address,
        log_end=lambda: broker.store.commit_log.max_offset,
        master_address=lambda: broker.pair.synchronize.master_address,
        is_linked=lambda: broker.ha.is_linked,
        withdraw=broker.registration.withdraw,
        fail=lambda reason: broker.on_end(reason),
        step_back=broker.step_back,
        tasks=broker.tasks,
        role=broker.role,
    )


def _build_replicas(broker: Broker) -> ReplicasManager:
    config = broker.config
    stored = StoredGroup(
        broker.disk, config.store_path_root_dir, config.broker_cluster_name, config.broker_name
    )
    link = ControllerLink(broker.client, config)
    return ReplicasManager(broker, stored, link, broker.identity.new_token)


def _build_pair(broker: Broker) -> PairService:
    config = broker.config
    tables = PairTables(
        store=broker.store,
        topics=broker.topics,
        groups=broker.groups,
        offsets=broker.offsets,
        schedule=broker.schedule,
        guard=broker.skip_guard,
        clock=broker.clock,
        locks=broker.locks if broker.role.is_controlled else None,
    )
    path = posixpath.join(config.store_path_root_dir, "twinlog", "metadata.json")
    return PairService(
        config,
        disk=broker.disk,
        clock=broker.clock,
        tasks=broker.tasks,
        client=broker.client,
        writer=MetadataWriter(tables, host=store_host(config)),
        reader=MetadataReader(tables, disk=broker.disk, path=path),
        synchronize=SlaveSynchronize(
            config,
            client=broker.client,
            is_classic=lambda: broker.pair.is_master_classic,
            is_twin=lambda: broker.pair.is_master_twin,
            is_following=lambda: _is_following(broker),
            queue_end=broker.store.max_offset_in_queue,
            topics=broker.topics,
            groups=broker.groups,
            offsets=broker.offsets,
            schedule=broker.schedule,
            clock=broker.clock,
        ),
        offset_return=OffsetReturn(
            config,
            client=broker.client,
            offsets=broker.offsets,
            queue_end=broker.store.max_offset_in_queue,
            role=broker.role,
        ),
        ask_registration=broker.registration.ask_master,
        master_is_back=broker.ha.master_is_back,
        master_is_at=broker.ha.update_master_address,
        dialect_heard=lambda is_other: broker.ha.dialect_heard(is_other=is_other),
        dialled=lambda: broker.ha.client.master_address if broker.ha.client is not None else None,
        is_copy=lambda: _is_copy(broker),
        is_replicating=lambda: broker.ha.client is None or broker.ha.client.link is not None,
        ha_address=lambda: broker.ha_address,
        redispatch=broker.redispatch,
        role=broker.role,
    )


def _is_copy(broker: Broker) -> bool:
    return broker.identity.is_copy and broker.store.commit_log.max_offset > 0


def _is_following(broker: Broker) -> bool:
    """Whether what the master says of its tables is about the log that this slave has."""
    client = broker.ha.client
    return not _is_copy(broker) or (client is not None and client.is_linked)
