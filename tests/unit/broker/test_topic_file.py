"""topics.json is written from parts that are kept; the text is that of the whole table."""

from __future__ import annotations

from typing import Any

from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from twinlog.remoting.bodies.topic import TopicConfig, pretty_text, topics_text
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.simdisk import SimDisk


def as_json(topics: TopicConfigManager) -> dict[str, Any]:
    return {
        "dataVersion": topics.data_version.to_json(),
        "topicConfigTable": {name: topic.to_json() for name, topic in topics.table.items()},
    }


async def test_the_file_is_the_table_after_every_change() -> None:
    disk = SimDisk()
    disk.make_directories("/config")
    file = ConfigFile(disk, "/config/topics.json")
    topics = TopicConfigManager(BrokerConfig(), file, SystemClock())

    async def check() -> None:
        assert await topics.saver.save() == ""
        assert disk.read_bytes(file.path) == fastjson.dumps_pretty(as_json(topics))

    topics.create_in_send("a", "TBW102", queue_count=4, sys_flag=0)
    await check()
    topics.update(TopicConfig('quoted "b" ü', perm=4, read_queue_nums=1))
    await check()
    topics.update_order(["a"])  # Changes a member of a topic that was written before.
    await check()
    topics.delete("a")
    await check()
    again = TopicConfigManager(BrokerConfig(), file, SystemClock())
    again.load()
    assert again.table == topics.table


def test_the_text_of_a_table_is_fastjsons() -> None:
    topics = [
        TopicConfig("%RETRY%group"), TopicConfig("a|b_c-1", 3, 4, 5, "MULTI_TAG", 6, order=True),
        TopicConfig('quoted "b" ü\n'), TopicConfig("odd", topic_filter_type='"'), TopicConfig(""),
    ]  # fmt: skip
    table = {topic.topic_name: topic.to_json() for topic in topics}
    assert topics_text(topics) == fastjson.dumps(table)
    pretty = ",".join(map(pretty_text, topics)).encode()
    assert b"{%b\n\t}" % pretty == fastjson.dumps_pretty(table, level=1)
    body = RegisterBrokerBody(
        TopicConfigSerializeWrapper(
            DataVersion(1, 2), {topic.topic_name: topic for topic in topics}
        )
    )
    assert encode_registration(body, compressed=False) == fastjson.dumps(body)
