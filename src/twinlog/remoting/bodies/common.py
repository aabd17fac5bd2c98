"""Small structures that many bodies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from twinlog.remoting.fastjson import bean_members
from twinlog.runtime.numbers import INT32_MAX, number_of


class Body(msgspec.Struct, rename="camel"):
    """A Java bean: wire names in camel case, None is left out."""

    def to_json(self) -> dict[str, Any]:
        """Members in the order in which fastjson writes them."""
        return dict(bean_members(self))


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a table of a broker. Equal when the numbers are. `state_version` is 5.x's: the
    epoch of a controlled group's master."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None

    def following(self, now_ms: int) -> DataVersion:
        """Of the table after one more change."""
        return DataVersion(self.counter + 1, now_ms)

    def to_json(self) -> dict[str, int]:
        """As 4.9 writes it."""
        return {"counter": self.counter, "timestamp": self.timestamp}


def version_of(data: Any, otherwise: DataVersion) -> DataVersion:
    """What a file or a master says (a JSON object), or `otherwise` when it says nothing."""
    if not isinstance(data, dict):
        return otherwise
    return DataVersion(number_of(data.get("counter") or 0), number_of(data.get("timestamp") or 0))


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker (a master and its slaves share the name).

    Also a key of maps, where it is written as a whole object.
    """

    topic: str
    broker_name: str
    queue_id: int

    def java_text(self) -> str:
        """The text that Java's consistent hash hashes."""
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )

    def wire(self) -> dict[str, str | int]:
        """The object that `fastjson` writes."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def queue_from_answer(data: Mapping[str, Any]) -> MessageQueue:
    """A queue that a broker names: KeyError or ValueError when it is none."""
    return MessageQueue(str(data["topic"]), str(data["brokerName"]), number_of(data["queueId"]))


def queue_from_request(data: Mapping[str, Any]) -> MessageQueue:
    """A queue that a client names: what is missing is empty, as with Java."""
    return MessageQueue(
        topic=str(data.get("topic") or ""),
        broker_name=str(data.get("brokerName") or ""),
        queue_id=number_of(data.get("queueId") or 0, -INT32_MAX - 1, INT32_MAX),
    )


class KVTable(Body):
    """A map of strings."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(Body):
    """Names of topics; `broker_addr` only where one broker is to be asked for more."""

    topic_list: list[str] = msgspec.field(default_factory=list)
    broker_addr: str | None = None


TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB = 1, 2
