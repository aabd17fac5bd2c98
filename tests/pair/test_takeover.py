"""A copy that takes over, and is killed before its tables are on its disk."""

from __future__ import annotations

import shutil
from typing import Any

from support.local_brokers import Brokers, until
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
