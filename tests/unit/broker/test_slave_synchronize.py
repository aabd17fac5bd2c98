"""A slave copies its master's tables (checklist 87 to 93), and what it refuses to copy."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.broker_tables import Side
from twinlog.broker.pair.slave_synchronize import SPARED_MAX, SlaveSynchronize
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.message.model import PutMessage
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode as Code
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimCrash, SimDisk

MASTER = "127.0.0.1:10911"
ORDER = [
    ("127.0.0.1:10909", Code.GET_ALL_TOPIC_CONFIG),
    (MASTER, Code.GET_ALL_CONSUMER_OFFSET),
    (MASTER, Code.GET_ALL_DELAY_OFFSET),
    (MASTER, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
]


class Master:
    """What the slave's client talks to; `answers` are JSON values, raw bytes or errors."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.before_answer: Callable[[int], None] = lambda code: None
        self.answers: dict[int, Any] = {
            Code.GET_ALL_TOPIC_CONFIG: topics("DefaultCluster", "orders"),
            Code.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {"orders@g": {"0": 7}}},
            Code.GET_ALL_DELAY_OFFSET: {"offsetTable": {"3": 11}},
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups("readers"),
        }

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> Any:
        self.asked.append((address, command.code))
        self.before_answer(command.code)
        answer = self.answers[command.code]
        if isinstance(answer, Exception):
            raise answer
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return RemotingCommand(code=0, body=body)


def version(counter: int, timestamp: int = 1000) -> dict[str, int]:
    return {"counter": counter, "timestamp": timestamp}


def topics(*names: str, counter: int = 5, **more: Any) -> dict[str, Any]:
    table = {name: {"topicName": name, "perm": 6, "writeQueueNums": 4, **more} for name in names}
    return {"dataVersion": version(counter), "topicConfigTable": table}


def groups(*names: str, counter: int = 5) -> dict[str, Any]:
    table = {name: {"groupName": name, "retryMaxTimes": 3} for name in names}
    return {"dataVersion": version(counter), "subscriptionGroupTable": table}


class Slave(Side):
    def __init__(self, root: Path, *, is_classic: bool = True) -> None:
        super().__init__(root, role="SLAVE")
        self.master = Master()
        self.is_classic = is_classic
        self.is_twin = False
        self.is_following = True
        self.sync = SlaveSynchronize(
            self.config,
            client=self.master,  # type: ignore[arg-type]
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            schedule=self.schedule,
            clock=self.clock,
            is_classic=lambda: self.is_classic,
            queue_end=self.store.max_offset_in_queue,
            is_twin=lambda: self.is_twin,
            is_following=lambda: self.is_following,
        )
        self.sync.master_address = MASTER

    def saved(self, name: str) -> Any:
        return fastjson.loads((self.root / "config" / f"{name}.json").read_bytes())


@pytest.fixture
def slave(tmp_path: Path) -> Slave:
    return Slave(tmp_path)


async def test_item_087_topics_offsets_delays_groups_in_this_order(slave: Slave) -> None:
    """The topics through the VIP port, two below the service port."""
    assert await slave.sync.sync_all()
    assert slave.master.asked == ORDER
    assert slave.sync.last_success_ms > 0


async def test_item_088_first_after_3_s_and_then_every_10_s(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(0)
    moments: list[int] = []
    monkeypatch.setattr(slave.sync, "_clock", clock)

    async def cycle() -> bool:
        moments.append(clock.now_ms())
        if len(moments) == 4:
            raise asyncio.CancelledError
        return True

    monkeypatch.setattr(slave.sync, "sync_all", cycle)
    with pytest.raises(asyncio.CancelledError):
        await slave.sync.run()
    assert moments == [3_000, 13_000, 23_000, 33_000]


async def test_item_089_what_was_fetched_is_in_memory_and_on_disk(slave: Slave) -> None:
    await slave.sync.sync_all()
    assert slave.topics.table["orders"].write_queue_nums == 4
    assert slave.offsets.query("g", "orders", 0) == 7
    assert slave.schedule.offsets == {3: 11}
    assert slave.groups.table["readers"].retry_max_times == 3
    assert "orders" in slave.saved("topics")["topicConfigTable"]
    assert slave.saved("offsets")["offsetTable"]["orders@g"]["0"] == 7
    assert slave.saved("delays")["offsetTable"]["3"] == 11
    assert "readers" in slave.saved("groups")["subscriptionGroupTable"]


async def test_item_089_memory_first(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    save = slave.topics.saver.save

    async def look() -> str:
        seen.append("orders" in slave.topics.table)
        return await save()

    monkeypatch.setattr(slave.topics.saver, "save", look)
    await slave.sync.sync_all()
    assert seen == [True]


async def test_item_090_tables_are_replaced_when_versions_differ_and_then_are_equal(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slave.sync.sync_all()
    assert slave.topics.data_version.to_json() == version(5)
    assert slave.groups.data_version.to_json() == version(5)
    calls: list[str] = []
    monkeypatch.setattr(slave.topics, "replace", lambda *_: calls.append("topics"))
    monkeypatch.setattr(slave.groups, "replace", lambda *_: calls.append("groups"))
    await slave.sync.sync_all()
    assert calls == []
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", counter=6)
    await slave.sync.sync_all()
    assert calls == ["topics"]


async def test_item_090_what_the_master_deleted_goes_with_its_newer_table(slave: Slave) -> None:
    await slave.sync.sync_all()
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", "new", counter=6)
    await slave.sync.sync_all()
    assert set(slave.topics.table) == {"DefaultCluster", "new"}


async def test_item_090_a_version_that_the_log_brought_is_not_copied_again(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    await slave.sync.sync_all()
    slave.topics.replace(dict(slave.topics.table), version(6))
    calls: list[str] = []
    monkeypatch.setattr(slave.topics, "replace", lambda *_: calls.append("topics"))
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", counter=6)
    await slave.sync.sync_all()
    assert calls == []


FAULTS = {
    "refused": RemotingError("connection refused"),
    "damaged": b'{"dataVersion":{"counter":5,"timest',
    "not JSON": b"\xff\x00\xfe",
    "no body": b"",
    "a list": [1, 2],
    "members of the wrong kind": {
        "topicConfigTable": {"DefaultCluster": 5},
        "offsetTable": {"a@b": {"0": "x"}},
        "subscriptionGroupTable": {"g": [1]},
    },
    "a table of the wrong kind": {
        "topicConfigTable": [1],
        "offsetTable": [1],
        "subscriptionGroupTable": "x",
    },
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", range(4))
async def test_item_091_one_that_fails_does_not_stop_the_others(
    slave: Slave, fault: str, place: int
) -> None:
    slave.topics.update(TopicConfig("ours"))
    slave.groups.update(SubscriptionGroupConfig("ours"))
    slave.offsets.commit("ours", "ours", 0, 5)
    slave.schedule.replace({"offsetTable": {"1": 4}})
    slave.master.answers[ORDER[place][1]] = FAULTS[fault]
    assert not await slave.sync.sync_all()
    assert slave.master.asked == ORDER
    assert len(slave.sync.problems) == 1
    assert slave.offsets.query("ours", "ours", 0) == 5
    taken = [
        "orders" in slave.topics.table,
        slave.offsets.query("g", "orders", 0) == 7,
        slave.schedule.offsets.get(3) == 11,
        "readers" in slave.groups.table,
    ]
    assert taken == [number != place for number in range(4)]
    kept = ["ours" in slave.topics.table, True, slave.schedule.offsets.get(1) == 4,
            "ours" in slave.groups.table]  # fmt: skip
    assert kept[place]


async def test_a_fault_is_said_once_and_its_end_too(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    good = slave.master.answers[Code.GET_ALL_DELAY_OFFSET]
    slave.master.answers[Code.GET_ALL_DELAY_OFFSET] = b"{"
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await slave.sync.sync_all()
        slave.master.answers[Code.GET_ALL_DELAY_OFFSET] = good
        await slave.sync.sync_all()
    lines = [record.message for record in caplog.records if "slave sync" in record.message]
    assert [line.partition(" table")[0] for line in lines] == [
        "slave sync failed",
        "slave sync works again",
    ]
    assert slave.sync.problems == {}


async def test_item_092_without_a_master_nothing_is_asked_and_nothing_cleared(
    slave: Slave,
) -> None:
    await slave.sync.sync_all()
    tables = (dict(slave.topics.table), dict(slave.offsets.table), dict(slave.groups.table))
    slave.sync.master_address = None
    asked = len(slave.master.asked)
    assert not await slave.sync.sync_all()
    assert len(slave.master.asked) == asked
    assert tables == (slave.topics.table, slave.offsets.table, slave.groups.table)


async def test_item_092_a_master_that_leaves_during_a_cycle(slave: Slave) -> None:
    def leave(code: int) -> None:
        slave.sync.master_address = None

    slave.master.before_answer = leave
    assert not await slave.sync.sync_all()
    assert slave.master.asked == ORDER[:1]


async def test_item_093_a_kill_at_any_moment_leaves_the_old_table_or_the_new_one() -> None:
    old, new = {"DefaultCluster", "a", "b", "c"}, {"DefaultCluster", "b", "c", "d", "e"}
    config = BrokerConfig(store_path_root_dir="/store")

    def manager(disk: SimDisk) -> TopicConfigManager:
        file = ConfigFile(disk, "/store/config/topics.json")
        topics = TopicConfigManager(config, file, ManualClock())
        topics.table.clear()  # What every broker has is not what is looked at.
        return topics

    async def write(names: set[str], on: TopicConfigManager, counter: int) -> None:
        on.replace({name: TopicConfig(name) for name in names}, version(counter))
        await on.saver.save()

    outcomes = set()
    for moment in range(1, 100):
        disk = SimDisk()
        disk.make_directories("/store/config")
        disk.fsync_directory("/store")
        disk.fsync_directory("/")
        topics = manager(disk)
        await write(old, topics, 1)
        disk.crash_after = disk.change_count + moment
        try:
            await write(new, topics, 2)
        except SimCrash:
            pass
        else:
            break
        for found in (disk.crash(None), disk.kill()):
            again = manager(found)
            again.load()
            assert set(again.table) in (old, new)
            outcomes.add(set(again.table) == new)
    assert outcomes == {True, False}


# What is refused, and what never moves back


@pytest.mark.parametrize("code", [Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG])
async def test_an_empty_table_deletes_nothing(slave: Slave, code: int) -> None:
    await slave.sync.sync_all()
    slave.master.answers[code] = {
        "dataVersion": version(9), "topicConfigTable": {}, "subscriptionGroupTable": {}
    }  # fmt: skip
    assert not await slave.sync.sync_all()
    assert "orders" in slave.topics.table
    assert "readers" in slave.groups.table
    assert "empty" in next(iter(slave.sync.problems.values()))


async def test_empty_offset_tables_delete_nothing(slave: Slave) -> None:
    await slave.sync.sync_all()
    slave.master.answers[Code.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": {}}
    slave.master.answers[Code.GET_ALL_DELAY_OFFSET] = {"offsetTable": {}}
    assert await slave.sync.sync_all()
    assert slave.offsets.query("g", "orders", 0) == 7
    assert slave.schedule.offsets == {3: 11}


async def test_a_version_that_went_back_adds_and_deletes_nothing(
    slave: Slave, caplog: pytest.LogCaptureFixture
) -> None:
    await slave.sync.sync_all()
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics(
        "DefaultCluster", "restored", counter=2
    )
    for _ in range(3):
        assert await slave.sync.sync_all()
    assert {"orders", "restored"} <= set(slave.topics.table)
    assert sum("went back" in record.message for record in caplog.records) == 1
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", counter=9)
    await slave.sync.sync_all()
    assert set(slave.topics.table) == {"DefaultCluster"}


async def test_of_another_clusters_master_nothing_is_taken(slave: Slave) -> None:
    slave.topics.update(TopicConfig("ours"))
    slave.offsets.commit("g", "orders", 0, 100)
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("Elsewhere", "orders", counter=99)
    for _ in range(2):
        assert not await slave.sync.sync_all()
    assert "orders" not in slave.topics.table
    assert "ours" in slave.topics.table
    assert slave.offsets.query("g", "orders", 0) == 100
    assert slave.schedule.offsets == {}
    assert "readers" not in slave.groups.table
    assert all("another cluster" in reason for reason in slave.sync.problems.values())
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", counter=100)
    assert await slave.sync.sync_all()
    assert slave.sync.problems == {}


async def test_item_102_plain_mode_the_masters_older_offsets_are_copied(slave: Slave) -> None:
    slave.offsets.commit("g", "orders", 0, 100)
    slave.offsets.commit("own", "orders", 0, 3)
    await slave.sync.sync_all()
    assert slave.offsets.query("g", "orders", 0) == 7
    assert slave.offsets.query("own", "orders", 0) == 3


async def test_between_twinlogs_offsets_move_forward_and_not_beyond_the_log(
    tmp_path: Path,
) -> None:
    slave = Slave(tmp_path, is_classic=False)
    slave.config.broker_role = type(slave.config.broker_role)("ASYNC_MASTER")
    slave.store.is_master = True
    await slave.start()
    for _ in range(5):
        slave.store.put(PutMessage("orders", 0, b"x"))
    slave.store.write_pending()
    slave.master.answers[Code.GET_ALL_CONSUMER_OFFSET] = {
        "offsetTable": {"orders@g": {"0": 7}, "orders@h": {"0": 3}, "absent@g": {"0": 9}}
    }
    slave.offsets.commit("h", "orders", 0, 4)
    await slave.sync.sync_all()
    assert slave.offsets.query("g", "orders", 0) == 5
    assert slave.offsets.query("h", "orders", 0) == 4
    assert slave.offsets.query("g", "absent", 0) == -1
    await slave.stop()


async def test_between_twinlogs_delay_offsets_are_the_logs(tmp_path: Path) -> None:
    slave = Slave(tmp_path, is_classic=False)
    slave.schedule.replace({"offsetTable": {"3": 5}})
    slave.master.answers[Code.GET_ALL_DELAY_OFFSET] = {"offsetTable": {"3": 11, "4": 2}}
    await slave.sync.sync_all()
    assert slave.schedule.offsets == {3: 5, 4: 2}


async def test_an_empty_disk_against_ten_thousand_topics(slave: Slave) -> None:
    names = [f"topic-{number}" for number in range(10_000)]
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", *names)
    told: list[int] = []
    slave.topics.subscribe(lambda changed: told.append(len(list(changed))))
    assert await slave.sync.sync_all()
    assert len(slave.topics.table) == 10_001
    assert told[0] >= 10_000
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics(
        "DefaultCluster", "one-more", *names, counter=6
    )
    assert await slave.sync.sync_all()
    assert told[1:] == [1]


def facts(run: str = "1", *, topics: int = 5, groups: int = 5) -> dict[str, Any]:
    return {"run": run, "topicsVersion": version(topics), "groupsVersion": version(groups)}


async def test_a_twinlog_master_is_asked_for_large_tables_once(tmp_path: Path) -> None:
    """What changes comes through the log: ten thousand topics every ten seconds would not."""
    slave = Slave(tmp_path, is_classic=False)
    slave.is_twin = True
    question = [(MASTER, Code.TWINLOG_INFO)]
    slave.master.answers[Code.TWINLOG_INFO] = facts()
    for expected in (question + ORDER, question, question):
        slave.master.asked.clear()
        assert await slave.sync.sync_all()
        assert slave.master.asked == expected
    # A change that the log did not bring, another run of the master, a master that says nothing.
    slave.master.answers[Code.GET_ALL_TOPIC_CONFIG] = topics("DefaultCluster", "new", counter=6)
    for answer in (facts(topics=6), facts("2", topics=6), RemotingError("too late"), {}, [1]):
        slave.master.answers[Code.TWINLOG_INFO] = answer
        slave.master.asked.clear()
        assert await slave.sync.sync_all()
        assert slave.master.asked == question + ORDER
    assert "new" in slave.topics.table


async def test_the_tables_of_a_twinlog_master_are_taken_again_now_and_then(tmp_path: Path) -> None:
    slave = Slave(tmp_path, is_classic=False)
    slave.is_twin = True
    slave.master.answers[Code.TWINLOG_INFO] = facts()
    for _ in range(SPARED_MAX + 2):
        assert await slave.sync.sync_all()
    assert slave.master.asked.count(ORDER[1]) == 2


async def test_a_problem_ends_with_the_next_round_also_of_the_same_process(tmp_path: Path) -> None:
    """A master that hung for a while is the process it was, and nothing has changed meanwhile."""
    slave = Slave(tmp_path, is_classic=False)
    slave.is_twin = True
    slave.master.answers[Code.TWINLOG_INFO] = facts()
    assert await slave.sync.sync_all()
    table = slave.master.answers[Code.GET_ALL_TOPIC_CONFIG]
    for code in (Code.TWINLOG_INFO, Code.GET_ALL_TOPIC_CONFIG):
        slave.master.answers[code] = RemotingError("no answer in time")
    assert not await slave.sync.sync_all()
    assert slave.sync.problems == {"topics": "no answer in time"}
    slave.master.answers |= {Code.TWINLOG_INFO: facts(), Code.GET_ALL_TOPIC_CONFIG: table}
    assert await slave.sync.sync_all()
    assert slave.sync.problems == {}


async def test_a_large_table_is_saved_beside_other_work(slave: Slave) -> None:
    """200,000 offsets: the loop turns between slices, and the disk is a thread's."""
    for n in range(50_000):
        slave.offsets.table[f"topic-{n % 10_000}@group-{n}"] = {0: n, 1: n, 2: n, 3: n}
    slave.offsets.commit("g", "t", 0, 1)
    turns = 0
    saving = asyncio.ensure_future(slave.offsets.saver.save())
    while not saving.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 50
    assert len(slave.saved("offsets")["offsetTable"]) == 50_001


async def test_of_a_master_whose_log_is_not_copied_nothing_is_taken(slave: Slave) -> None:
    """It was started with an empty disk: its tables would erase what this log says."""
    slave.is_following = False
    assert not await slave.sync.sync_all()
    assert slave.master.asked == []
    slave.is_following = True
    slave.master.before_answer = lambda code: setattr(slave, "is_following", False)
    assert not await slave.sync.sync_all()
    assert "orders" not in slave.topics.table
    assert "replicate" in slave.sync.problems["topics"]
