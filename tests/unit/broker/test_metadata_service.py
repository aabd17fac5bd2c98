"""Metadata through the log: two real stores, the slave's bytes copied from the master's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker_tables import Side
from twinlog.broker.pair.metadata_service import MetadataReader
from twinlog.message.model import PutMessage
from twinlog.message.names import METADATA_TOPIC
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig


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
    assert await pair.slave.topics.saver.save() == ""
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
    await pair.reader.save(pair.reader.mark())
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


@pytest.mark.parametrize(
    "sent",
    [
        {"properties": b"CLUSTER\x01c"},
        {"born_host": b"\x0a\0\0\x09\0\0\xc3\x50"},
    ],
    ids=["with properties", "from another address"],
)
async def test_a_record_that_a_client_sent_is_not_applied(
    sent: dict[str, bytes], pair: Pair
) -> None:
    """Our master refuses such a send; Apache's does not."""
    pair.writer.enable()
    pair.master.topics.update(TopicConfig("orders"))
    body = b'{"kind":"topics","version":{"counter":9,"timestamp":9},"deleted":["orders"]}'
    pair.master.store.put(PutMessage(METADATA_TOPIC, 0, body, **sent))
    pair.master.topics.update(TopicConfig("after"))
    await pair.replicate()
    assert {"orders", "after"} <= set(pair.slave.topics.table)


async def test_a_clean_up_leaves_the_records_and_their_numbers(pair: Pair) -> None:
    pair.writer.enable()
    await pair.replicate()
    assert pair.master.store.clean_unused_topics(set()) == 0
    pair.master.topics.update(TopicConfig("after"))
    await pair.replicate()
    assert "after" in pair.slave.topics.table


async def test_records_that_replace_cut_ones_are_applied(pair: Pair) -> None:
    """The slave applied a record that its next master never had: the place is used again."""
    pair.writer.enable()
    await pair.replicate()
    common = pair.slave.store.commit_log.max_offset
    pair.slave.store.on_queues_cut = pair.reader.queues_cut
    pair.master.topics.update(TopicConfig("lost"))
    await pair.replicate()
    assert "lost" in pair.slave.topics.table
    pair.slave.store.commit_log.truncate_to(common, reason="test")
    # The same place of the queue, written by a master that did not have it.
    pair.master.store.commit_log.truncate_to(common, reason="test")
    pair.master.topics.update(TopicConfig("kept"))
    pair.master.topics.update(TopicConfig("also"))
    await pair.replicate()
    assert {"kept", "also"} <= set(pair.slave.topics.table)


async def test_offsets_follow_a_log_that_was_cut(pair: Pair) -> None:
    master, slave = pair.master, pair.slave
    slave.store.on_queues_cut = slave.offsets.queues_cut
    master.store.put(PutMessage("t", 0, b"one"))
    await pair.replicate()
    common = slave.store.commit_log.max_offset
    master.store.put(PutMessage("t", 0, b"two"))
    await pair.replicate()
    slave.offsets.commit("g", "t", 0, 2)
    slave.offsets.commit("g", "elsewhere", 0, 9)
    slave.store.commit_log.truncate_to(common, reason="test")
    assert slave.offsets.query("g", "t", 0) == 1
    assert slave.offsets.query("g", "elsewhere", 0) == 9


async def test_offsets_stay_behind_a_cut_when_a_kill_keeps_their_tables_from_being_saved(
    pair: Pair,
) -> None:
    """Of two processes the second reads the tables that the first saved before its log was cut;
    what takes the place of the cut part is in the log by then."""
    slave, delays = pair.slave, "SCHEDULE_TOPIC_XXXX"

    async def killed_and_started() -> MetadataReader:
        slave.offsets.commit("g", "t", 0, 16)
        slave.schedule.replace({"offsetTable": {"1": 16}})
        again = slave.reader()
        again.load()
        return again

    pair.reader.queues_cut({("t", 0): 6, (delays, 0): 7})
    pair.reader.queues_cut({("t", 0): 9})
    again = await killed_and_started()
    assert (slave.offsets.query("g", "t", 0), slave.schedule.offsets[1]) == (6, 7)
    place = again.mark()
    again.queues_cut({("t", 1): 3})  # While the tables are on their way to the disk.
    await again.save(place)
    slave.offsets.commit("g", "t", 1, 16)
    again = await killed_and_started()
    assert slave.offsets.query("g", "t", 1) == 3
    await again.save(again.mark())
    await killed_and_started()
    assert (slave.offsets.query("g", "t", 0), slave.schedule.offsets[1]) == (16, 16)


async def test_delay_offsets_follow_a_log_that_was_cut(pair: Pair) -> None:
    schedule = pair.slave.schedule
    schedule.replace({"offsetTable": {"1": 5, "2": 6}})
    schedule.queues_cut({("SCHEDULE_TOPIC_XXXX", 0): 3, ("SCHEDULE_TOPIC_XXXX", 1): 8})
    assert schedule.offsets == {1: 3, 2: 6}


async def test_a_master_that_becomes_a_slave_does_not_apply_its_own_records(pair: Pair) -> None:
    pair.writer.enable()
    pair.master.store.write_pending()
    own = pair.master.reader()
    own.follow_master()
    await own.save(own.mark())
    again = pair.master.reader()
    again.load()
    assert again.applied_count == 0
    assert again.behind_count == 0


async def test_a_queue_that_is_shorter_than_what_was_applied(pair: Pair) -> None:
    (pair.slave.root / "metadata.json").write_text('{"next_offset":99}')
    reader = pair.slave.reader()
    reader.load()
    pair.reader = reader
    pair.writer.enable()
    pair.master.topics.update(TopicConfig("t"))
    await pair.replicate()
    assert "t" in pair.slave.topics.table


async def test_what_took_the_place_of_a_cut_tail_counts_after_a_kill(
    pair: Pair, tmp_path: Path
) -> None:
    """The old master's tail is cut, the new one's records come, and before anything is saved the
    process is killed: the place on the disk must not lie behind them."""
    pair.slave.store.on_queues_cut = pair.reader.queues_cut
    pair.writer.enable()
    for number in range(5):
        pair.master.topics.update(TopicConfig(f"lost{number}"))
        pair.writer.tick()
    await pair.replicate()
    await pair.reader.save(pair.reader.mark())
    pair.slave.store.commit_log.truncate_to(0, reason="a test")
    other = Side(tmp_path / "o", role="ASYNC_MASTER")
    await other.start()
    successor = Pair(other, pair.slave)
    successor.reader = pair.reader
    successor.writer.enable()
    for number in range(5):
        other.topics.update(TopicConfig(f"kept{number}"))
        successor.writer.tick()
    await successor.replicate()
    pair.slave.topics.table.clear()  # Nothing of it was saved.
    pair.slave.reader().load()
    await other.stop()
    assert {f"kept{number}" for number in range(5)} <= set(pair.slave.topics.table)
