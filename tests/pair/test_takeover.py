"""A copy that takes over, and is killed before its tables are on its disk."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from support.local_brokers import Brokers, until
from twinlog.broker.pair.succession import Succession
from twinlog.broker.server import Broker
from twinlog.remoting.codes import RequestCode

TWIN: dict[str, Any] = {"twinlog_ha_dialect": "twin", "flush_consumer_offset_interval": 600_000}
MASTER: dict[str, Any] = {**TWIN, "broker_role": "ASYNC_MASTER"}


def killed(brokers: Brokers, name: str, image: str, topics: bytes) -> None:
    """What a kill would leave of the store `name`, as another store; its topics not saved since
    they were `topics`."""
    while True:
        try:
            shutil.copytree(brokers.directory / name, brokers.directory / image)
            break
        except shutil.Error:  # A file that was saved beside its old one meanwhile: as it is now.
            shutil.rmtree(brokers.directory / image)
    for file in (brokers.directory / image / "config").glob("topics.json*"):
        file.write_bytes(topics)


async def create_topic(brokers: Brokers, master: Broker, name: str) -> None:
    header = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    answer = await brokers.call(master, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == 0, answer.remark


async def test_what_its_log_says_of_topics_survives_kills(brokers: Brokers) -> None:
    master = await brokers.master(**MASTER)
    slave = await brokers.slave(master, **TWIN)
    await create_topic(brokers, master, "first")
    saved = brokers.directory / "slave" / "config" / "topics.json"
    await until(lambda: saved.exists() and b"first" in saved.read_bytes())
    topics = saved.read_bytes()
    await create_topic(brokers, master, "made")
    await until(lambda: "made" in slave.topics.table)
    killed(brokers, "slave", "image0", topics)
    await brokers.end(slave)
    await brokers.end(master)
    for number in range(2):
        promoted = await brokers.start(f"image{number}", **MASTER)
        assert "made" in promoted.topics.table, f"start {number}"
        assert promoted.skip_guard.is_armed
        killed(brokers, f"image{number}", f"image{number + 1}", topics)
    again = await brokers.start("image2", **MASTER)
    assert "made" in again.topics.table
    assert again.skip_guard.is_armed


async def test_a_slave_knows_its_group_before_it_acknowledges_anything(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its master may be lost right after the first SEND_OK: a promotion asks what it was."""
    known: list[str] = []
    linked = Succession.linked

    def watched(self: Succession) -> None:
        linked(self)
        known.append(self.memory.master_address)

    monkeypatch.setattr(Succession, "linked", watched)
    server = await brokers.name_server()
    names = {"namesrv_addr": f"127.0.0.1:{server.port}", "twinlog_ha_dialect": "auto"}
    master = await brokers.master(**names)
    await brokers.start("slave", broker_role="SLAVE", broker_id=1, **names)
    await until(lambda: known)
    assert known == [master.address]


async def test_a_tail_that_an_old_master_brings_back_counts_with_all_that_it_says(
    brokers: Brokers,
) -> None:
    """The promoted copy serves already; topics and offsets of the tail are news to it, and who has
    read the tail goes on behind it."""
    sync = {**TWIN, "broker_role": "SYNC_MASTER"}
    master = await brokers.master(**sync)
    slave = await brokers.slave(master, **TWIN)
    assert (await brokers.send(master, topic="t", queue_id=0)).code == 0
    await until(lambda: slave.store.appended.value == master.store.appended.value)
    await brokers.end(slave)
    await create_topic(brokers, master, "late")
    for topic in ("late", "t"):
        await brokers.send(master, topic=topic, queue_id=0)
    master.offsets.commit("g", "t", 0, 2)
    end = master.store.appended.value
    await brokers.end(master)
    promoted = await brokers.start("slave", **sync)
    assert "late" not in promoted.topics.table
    assert promoted.store.appended.value < end
    await brokers.start(
        "master",
        broker_role="SLAVE",
        broker_id=1,
        ha_master_address=f"127.0.0.1:{promoted.ha.listen_port}",
        **TWIN,
    )
    await until(lambda: len(promoted.ha.acks) == 1)
    tail = promoted.ha.catch_up
    await until(lambda: promoted.store.dispatched.value >= end and tail and not tail.reason)
    assert "late" in promoted.topics.table
    assert promoted.offsets.query("g", "t", 0) == 2
    guard = promoted.skip_guard
    assert guard.is_armed
    assert guard.pull("g", "t", 0, 2, {}, committed=2, queue_end=2) is None
