"""Topics of this broker and their queues (RocketMQ's TopicConfigManager).

Owns `config/topics.json`. Every change bumps the data version and is saved; who answers waits for
that (`saver`), so a topic that was answered survives SIGKILL. Who needs to know of a change (name
servers, the send path's cache) subscribes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message import names, perm
from twinlog.remoting.bodies.common import DataVersion, version_of
from twinlog.remoting.bodies.topic import TopicConfig, pretty_text
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.saving import TableSaver, TableText

_LOG = logging.getLogger("twinlog.broker")

SCHEDULE_QUEUE_COUNT = 18  # Apache's constant, whatever messageDelayLevel says.
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


# Called with the names that changed; their configs are in the table, or gone from it.
TopicListener = Callable[[Iterable[str]], None]


class TopicConfigManager:
    """The topic table."""

    def __init__(self, config: BrokerConfig, file: ConfigFile, clock: Clock) -> None:
        self._config = config
        self.file = file
        self._clock = clock
        # Called before a topic is made that was not there; may raise that it must not be.
        self.before_creation: Callable[[], None] = lambda: None
        self._listeners: list[TopicListener] = []
        self.saver = TableSaver("topics", self._write)
        self._texts = TableText(pretty_text)
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self.table: dict[str, TopicConfig] = {}
        self.system_topics = set(names.SYSTEM_TOPICS)
        for topic in _boot_topics(config):
            self.table[topic.topic_name] = topic
            self.system_topics.add(topic.topic_name)

    def load(self) -> None:
        """Read the file over the topics that every broker has."""
        data = self.file.load()
        if data is None:
            return
        self._texts.clear()
        self.data_version = version_of(data.get("dataVersion"), self.data_version)
        for name, value in (data.get("topicConfigTable") or {}).items():
            self.table[name] = topic_from_json(name, value)

    async def _write(self) -> None:
        members = await self._texts.pieces(lambda: self.table)
        await self.file.save_table(self.data_version.to_json(), "topicConfigTable", members)

    def subscribe(self, listener: TopicListener) -> None:
        self._listeners.append(listener)

    def select(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def is_system_topic(self, topic: str) -> bool:
        return topic in self.system_topics or names.is_system_topic(topic)

    def is_order_topic(self, topic: str) -> bool:
        config = self.table.get(topic)
        return config is not None and config.order

    def create_in_send(
        self, topic: str, default_topic: str, *, queue_count: int, sys_flag: int
    ) -> TopicConfig | None:
        """Create `topic` after the template that the producer named; None when it may not be."""
        template = self.table.get(default_topic)
        if template is None:
            return None
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            # The file may still hold the template of a time when creation was allowed.
            template.perm = perm.PERM_READ_WRITE
            self._texts.forget((default_topic,))
        if not perm.is_inherited(template.perm):
            return None
        self.before_creation()
        count = max(0, min(queue_count, template.write_queue_nums))
        config = TopicConfig(
            topic,
            perm=template.perm & ~perm.PERM_INHERIT,
            read_queue_nums=count,
            write_queue_nums=count,
            topic_sys_flag=sys_flag,
            topic_filter_type=template.topic_filter_type,
        )
        _LOG.info("topic created topic=%s queues=%d template=%s", topic, count, default_topic)
        self._put(config)
        return config

    def update_template(self) -> None:
        """`autoCreateTopicEnable` or `defaultTopicQueueNums` changed: so does what is inherited."""
        config = self._config
        if config.auto_create_topic_enable:
            full = perm.PERM_READ_WRITE | perm.PERM_INHERIT
            self._put(_topic(names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, full))

    def create_in_send_back(
        self,
        topic: str,
        *,
        queue_count: int,
        sys_flag: int = 0,
        permission: int = perm.PERM_READ_WRITE,
    ) -> TopicConfig:
        """Return `topic`, created with `queue_count` queues if need be (retry, dead letters)."""
        config = self.table.get(topic)
        if config is None:
            self.before_creation()
            config = TopicConfig(
                topic,
                perm=permission,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                topic_sys_flag=sys_flag,
            )
            _LOG.info("topic created topic=%s queues=%d", topic, queue_count)
            self._put(config)
        return config

    def update(self, config: TopicConfig) -> None:
        """Put `config` in place of what there is."""
        if config.topic_name not in self.table:
            self.before_creation()
        _LOG.info("topic updated config=%s", java_text(config))
        self._put(config)

    def delete(self, topic: str) -> bool:
        if self.table.pop(topic, None) is None:
            return False
        _LOG.info("topic deleted topic=%s", topic)
        self._changed((topic,))
        return True

    def update_order(self, order_topics: Iterable[str]) -> None:
        """Mark exactly these topics as ordered: the name server's ORDER_TOPIC_CONFIG."""
        wanted = set(order_topics)
        changed = [t for t in self.table.values() if t.order != (t.topic_name in wanted)]
        for config in changed:
            config.order = not config.order
        if changed:
            self._changed([config.topic_name for config in changed])

    def bump_version(self) -> None:
        """Say that the table changed though it did not: a name server that has something else
        under this version takes it for known."""
        self._changed(())

    def replace(self, table: Mapping[str, TopicConfig], version: Any) -> None:
        """Take over a master's table and its version (a slave does)."""
        names = {*self.table, *table}
        changed = [name for name in names if self.table.get(name) != table.get(name)]
        self.table = dict(table)
        self._texts.clear()
        self.data_version = version_of(version, self.data_version)
        self.saver.changed()
        if changed:
            self._tell(changed)

    def _put(self, config: TopicConfig) -> None:
        name = config.topic_name
        created = () if name in self.table else (name,)
        self.table[name] = config
        self._changed((name,), created)

    def _changed(self, topics: Collection[str], created: Iterable[str] = ()) -> None:
        self._texts.forget(topics)
        self.data_version = self.data_version.following(self._clock.now_ms())
        self.saver.changed(created)
        self._tell(topics)

    def _tell(self, topics: Iterable[str]) -> None:
        for listener in self._listeners:
            listener(topics)


def java_text(topic: TopicConfig) -> str:
    """Apache's text of a topic, which remarks carry."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm.perm_text(topic.perm)}, "
        f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, "
        f"order={'true' if topic.order else 'false'}]"
    )


def topic_from_json(name: str, value: Any) -> TopicConfig:
    """A topic out of a JSON object; members that are missing take Apache's defaults."""
    config = msgspec.convert({**value, "topicName": name}, TopicConfig, strict=False)
    if config.topic_filter_type not in FILTER_TYPES:
        config.topic_filter_type = FILTER_TYPES[0]
    return config


def _topic(name: str, count: int, permission: int = perm.PERM_READ_WRITE) -> TopicConfig:
    return TopicConfig(name, perm=permission, read_queue_nums=count, write_queue_nums=count)


def _boot_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Topics that are there before the file is read."""
    inherit = perm.PERM_INHERIT
    full = perm.PERM_READ_WRITE | inherit
    topics = [
        _topic(names.SELF_TEST_TOPIC, 1),
        _topic(names.BENCHMARK_TOPIC, 1024),
        _topic(config.broker_cluster_name, 16, full if config.cluster_topic_enable else inherit),
        _topic(config.broker_name, 1, full if config.broker_topic_enable else inherit),
        _topic(names.OFFSET_MOVED_TOPIC, 1),
        _topic(names.SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT),
        _topic(names.reply_topic(config.broker_cluster_name), 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(_topic(names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, full))
    if config.trace_topic_enable:
        topics.append(_topic(config.msg_trace_topic_name, 1))
    return topics
