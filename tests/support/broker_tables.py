"""The tables and the store of one broker, without ports: what the pair's parts work on."""

from __future__ import annotations

from pathlib import Path

from support.replication import NoReplication
from twinlog.broker.delay.schedule import ScheduleMessageService
from twinlog.broker.pair.metadata_service import MetadataReader, MetadataWriter, PairTables
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.role import Role
from twinlog.broker.stats.broker_stats import BrokerStatsManager
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.message.ids import NO_HOST
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import BrokerConfig, BrokerRole
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.message_store import MessageStore


class Side:
    """The tables and the store of one broker."""

    def __init__(self, root: Path, *, role: str) -> None:
        (root / "config").mkdir(parents=True, exist_ok=True)
        self.config = BrokerConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            max_hash_slot_num=100,
            max_index_num=400,
            broker_role=BrokerRole(role),
            broker_id=0 if role != "SLAVE" else 1,
        )
        self.disk, self.clock = PosixDisk(), SystemClock()
        self.tasks = TaskOwner("test")
        self.store = MessageStore(
            self.config, disk=self.disk, clock=self.clock, delay_levels=self.config.delay_levels
        )
        self.topics = TopicConfigManager(self.config, self.file(root, "topics"), self.clock)
        self.groups = SubscriptionGroupManager(self.config, self.file(root, "groups"), self.clock)
        self.offsets = ConsumerOffsetManager(self.file(root, "offsets"))
        replies = PutReplies(
            self.config,
            clock=self.clock,
            appended=self.store.appended,
            flushed=self.store.flushed,
            replication=NoReplication(),
            store_host=NO_HOST,
            stats=StoreStats(0),
            role=Role(self.config),
        )
        self.schedule = ScheduleMessageService(
            store=self.store,
            replies=replies,
            levels=self.config.delay_levels,
            stats=BrokerStatsManager(),
            file=self.file(root, "delays"),
            clock=self.clock,
        )
        self.guard = SkipGuard(self.disk, str(root), self.clock)
        self.root = root

    def file(self, root: Path, name: str) -> ConfigFile:
        return ConfigFile(self.disk, str(root / "config" / f"{name}.json"))

    def pair_tables(self) -> PairTables:
        return PairTables(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            schedule=self.schedule,
            guard=self.guard,
            clock=self.clock,
        )

    def writer(self) -> MetadataWriter:
        return MetadataWriter(self.pair_tables(), host=NO_HOST)

    def reader(self) -> MetadataReader:
        path = str(self.root / "metadata.json")
        return MetadataReader(self.pair_tables(), disk=self.disk, path=path)

    async def start(self) -> None:
        await self.store.load()
        await self.store.start(self.tasks)

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.store.stop()
