"""One topic on one broker: RocketMQ's TopicConfig, on the wire and in `config/topics.json`.

A table of 10,000 topics is written at every change and told to every name server. Member by member
that stops a broker's loop for a third of a second; as one piece of text a topic takes 2 us.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import Body

# Nothing in them has to be escaped: the characters that a topic may have.
_is_plain: Final = re.compile(r"[%|A-Za-z0-9_-]+").fullmatch
_COMPACT: Final = (
    '{"order":%s,"perm":%d,"readQueueNums":%d,"topicFilterType":"%s","topicName":"%s",'
    '"topicSysFlag":%d,"writeQueueNums":%d}'
)
# Of a member of a member of the file.
_PRETTY: Final = (
    _COMPACT.replace(',"', ',\n\t\t\t"').replace("{", "{\n\t\t\t").replace("}", "\n\t\t}")
)  # fmt: skip


DIGEST_MASK: Final = (1 << 64) - 1  # Sums of digests are taken modulo 2**64.


class TopicConfig(Body):
    """One topic. Defaults are Java's."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False


def topic_digest(name: str, read_queues: int, write_queues: int) -> int:
    """A number that stands for one topic; their sum stands for a table, in whatever order.

    Permissions are not part of it: a name server may have been told to change them.
    """
    text = f"{name}\0{read_queues}\0{write_queues}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def topics_text(topics: Iterable[TopicConfig]) -> bytes:
    """A table of topics by name, as Java sends it."""
    return b"{%b}" % members_text(topics)


def members_text(topics: Iterable[TopicConfig]) -> bytes:
    """The members of such a table, without what stands around them."""
    return ",".join(
        f'"{topic.topic_name}":{_formatted(_COMPACT, topic)}'
        if _is_plain(topic.topic_name) and _is_plain(topic.topic_filter_type)
        else fastjson.dumps({topic.topic_name: topic})[1:-1].decode()
        for topic in topics
    ).encode()


def table_text(data_version: object, topics: Iterable[TopicConfig]) -> bytes:
    """RocketMQ's TopicConfigSerializeWrapper."""
    version = fastjson.dumps(data_version)
    return b'{"dataVersion":%b,"topicConfigTable":%b}' % (version, topics_text(topics))


def pretty_text(topic: TopicConfig) -> str:
    """The member of the table in a configuration file."""
    if _is_plain(topic.topic_name) and _is_plain(topic.topic_filter_type):
        return f'\n\t\t"{topic.topic_name}":{_formatted(_PRETTY, topic)}'
    return fastjson.dumps_pretty({topic.topic_name: topic}, level=1)[1:-3].decode()


def _formatted(form: str, topic: TopicConfig) -> str:
    return form % (
        "true" if topic.order else "false",
        topic.perm,
        topic.read_queue_nums,
        topic.topic_filter_type,
        topic.topic_name,
        topic.topic_sys_flag,
        topic.write_queue_nums,
    )
