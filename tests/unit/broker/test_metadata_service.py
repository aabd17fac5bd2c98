"""Metadata through the log: two real stores, the slave's bytes copied from the master's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.replication import NoReplication
from twinlog.broker.config_file import ConfigFile
from twinlog.broker.consumer_offset import ConsumerOffsetManager
from twinlog.broker.metadata_log import METADATA_TOPIC
from twinlog.broker.metadata_service import MetadataReader, MetadataWriter
from twinlog.broker.replies import PutReplies
from twinlog.broker.schedule import ScheduleMessageService
from twinlog.broker.stats import BrokerStatsManager
from twinlog.broker.store_stats import StoreStats
from twinlog.broker.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from twinlog.broker.topic_config import TopicConfig, TopicConfigManager
from twinlog.message.ids import NO_HOST
from twinlog.message.model import PutMessage
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
            flush_writes=lambda: None,
        )
        self.schedule = ScheduleMessageService(
            store=self.store,
            replies=replies,
            levels=self.config.delay_levels,
            stats=BrokerStatsManager(),
            file=self.file(root, "delays"),
            clock=self.clock,
        )
        self.root = root

    def file(self, root: Path, name: str) -> ConfigFile:
        return ConfigFile(self.disk, str(root / "config" / f"{name}.json"))

    def writer(self) -> MetadataWriter:
        return MetadataWriter(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            schedule=self.schedule,
            clock=self.clock,
            host=NO_HOST,
        )

    def reader(self) -> MetadataReader:
        return MetadataReader(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            schedule=self.schedule,
            clock=self.clock,
            disk=self.disk,
            path=str(self.root / "metadata.json"),
        )

    async def start(self) -> None:
        await self.store.load()
        await self.store.start(self.tasks)

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.store.stop()


class Pair:
    def __init__(self, master: Side, slave: Side) -> None:
        self.master, self.slave = master, slave
        self.writer, self.reader = master.writer(), slave.reader()

    async def replicate(self) -> None:
        """Copy the bytes, then let the slave dispatch and apply them."""
        self.master.store.write_pending()
        source, target = self.master.store.commit_log, self.slave.store.commit_log
        while target.max_offset < source.max_offset:
            target.append_raw(target.max_offset, source.read(target.max_offset, 65536))
        deadline = self.slave.clock.monotonic_ms() + 30_000
        await self.slave.store.dispatched.reached(source.max_offset, deadline)
        self.reader.catch_up()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    master, slave = Side(tmp_path / "m", role="ASYNC_MASTER"), Side(tmp_path / "s", role="SLAVE")
    await master.start()
    await slave.start()
    yield Pair(master, slave)
    await master.stop()
    await slave.stop()


async def test_nothing_is_written_before_a_twin_slave_has_come(pair: Pair) -> None:
    pair.master.topics.update(TopicConfig("orders"))
    pair.writer.tick()
    assert pair.master.store.commit_log.max_offset == 0


async def test_what_was_there_before_reaches_the_slave(pair: Pair) -> None:
    pair.master.topics.update(TopicConfig("orders", write_queue_nums=3))
    pair.master.groups.update(SubscriptionGroupConfig("readers", retry_max_times=4))
    pair.master.offsets.commit("readers", "orders", 1, 42)
    pair.writer.enable()
    await pair.replicate()
    assert pair.slave.topics.table["orders"].write_queue_nums == 3
    assert pair.slave.groups.table["readers"].retry_max_times == 4
    assert pair.slave.offsets.query("readers", "orders", 1) == 42
    assert pair.slave.topics.data_version == pair.master.topics.data_version


async def test_changes_follow_each_other_in_the_order_of_the_log(pair: Pair) -> None:
    pair.writer.enable()
    pair.master.topics.update(TopicConfig("orders", perm=4))
    pair.master.topics.update(TopicConfig("orders", perm=6))
    pair.master.topics.update(TopicConfig("gone"))
    pair.master.topics.delete("gone")
    pair.master.groups.update(SubscriptionGroupConfig("g"))
    pair.master.groups.delete("g")
    await pair.replicate()
    assert pair.slave.topics.table["orders"].perm == 6
    assert "gone" not in pair.slave.topics.table
    assert "g" not in pair.slave.groups.table
    saved = json.loads((pair.slave.root / "config" / "topics.json").read_text())
    assert "orders" in saved["topicConfigTable"]


async def test_an_idle_master_writes_nothing(pair: Pair) -> None:
    pair.writer.enable()
    pair.master.store.write_pending()
    before = pair.master.store.commit_log.max_offset
    for _ in range(5):
        pair.writer.tick()
    pair.master.store.write_pending()
    assert pair.master.store.commit_log.max_offset == before


async def test_offsets_and_delays_move_with_the_next_tick(pair: Pair) -> None:
    pair.writer.enable()
    pair.master.offsets.commit("g", "t", 0, 10)
    pair.master.schedule.replace({"offsetTable": {"3": 7}})
    pair.writer.tick()
    await pair.replicate()
    assert pair.slave.offsets.query("g", "t", 0) == 10
    assert pair.slave.schedule.offsets[3] == 7


async def test_a_commit_made_on_the_slave_is_not_moved_back(pair: Pair) -> None:
    pair.writer.enable()
    pair.slave.offsets.commit("g", "t", 0, 100)
    pair.master.offsets.commit("g", "t", 0, 50)
    pair.writer.tick()
    await pair.replicate()
    assert pair.slave.offsets.query("g", "t", 0) == 100
    pair.master.offsets.commit("g", "t", 0, 20)  # set back on purpose
    pair.writer.tick()
    await pair.replicate()
    assert pair.slave.offsets.query("g", "t", 0) == 20


async def test_a_slave_goes_on_where_it_stopped(pair: Pair) -> None:
    pair.writer.enable()
    await pair.replicate()
    pair.reader.save()
    applied = pair.reader.applied_count
    assert applied > 0
    again = pair.slave.reader()
    again.load()
    assert again.applied_count == 0
    (pair.slave.root / "metadata.json").write_text("{damaged")
    damaged = pair.slave.reader()
    damaged.load()
    assert damaged.applied_count == applied


async def test_a_record_that_is_not_understood_is_skipped(pair: Pair) -> None:
    pair.writer.enable()
    pair.master.store.put(PutMessage(METADATA_TOPIC, 0, b'{"kind":"of tomorrow"}'))
    pair.master.topics.update(TopicConfig("after"))
    await pair.replicate()
    assert "after" in pair.slave.topics.table
