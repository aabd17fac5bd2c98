"""Small structures that many bodies share."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, rename="camel"):
    """A Java bean: wire names in camel case, None is left out."""


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a table of a broker. Equal when both numbers are."""

    counter: int = 0
    timestamp: int = 0


class MessageQueue(msgspec.Struct, frozen=True, rename="camel", order=True):
    """One queue in the cluster; also a key of maps, where it is written as a whole object."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0


class KVTable(Body):
    """A map of strings."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(Body):
    """Names of topics; `broker_addr` only where one broker is to be asked for more."""

    topic_list: list[str] = msgspec.field(default_factory=list)
    broker_addr: str | None = None


PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB = 1, 2
