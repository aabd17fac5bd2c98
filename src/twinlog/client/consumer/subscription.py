"""What a consumer wants of a topic: tags or an SQL92 expression.

Corresponds to SubscriptionData and FilterAPI. The broker compares hashes of tags only, so the
consumer compares the tag itself again (`accepts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twinlog.client.errors import InvalidSubscriptionError
from twinlog.message.hashing import jhash

TAG = "TAG"
SQL92 = "SQL92"
SUB_ALL = "*"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic of a group. `version` rises with every change; brokers keep the highest."""

    topic: str
    expression: str = SUB_ALL
    expression_type: str = TAG
    tags: tuple[str, ...] = ()
    version: int = 0

    @property
    def is_tag(self) -> bool:
        return self.expression_type == TAG

    def accepts(self, tag: str | None) -> bool:
        """False for a message that only shares a hash with a wanted tag."""
        return not self.tags or tag in self.tags

    def wire(self) -> dict[str, Any]:
        return {
            "classFilterMode": False,
            "codeSet": [jhash(tag) for tag in self.tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def parse_subscription(
    topic: str, expression: str | None, *, sql: bool = False, version: int = 0
) -> SubscriptionData:
    """Read `a || b`, `*` or, with `sql`, an SQL92 condition over properties."""
    if expression is not None and not isinstance(expression, str):
        raise InvalidSubscriptionError(
            f"the expression for topic {topic!r} must be text such as 'a || b', "
            f"not {type(expression).__name__}"
        )
    text = (expression or "").strip()
    if sql:
        if not text:
            raise InvalidSubscriptionError(f"the SQL92 expression for topic {topic!r} is empty")
        return SubscriptionData(topic, text, SQL92, (), version)
    if text in ("", SUB_ALL):
        return SubscriptionData(topic, SUB_ALL, TAG, (), version)
    tags = tuple(dict.fromkeys(part.strip() for part in text.split("||") if part.strip()))
    if not tags:
        raise InvalidSubscriptionError(
            f"the expression {expression!r} for topic {topic!r} names no tag"
        )
    return SubscriptionData(topic, text, TAG, tags, version)


def subscription_from_wire(data: Mapping[str, Any]) -> SubscriptionData:
    """The form in which brokers list it."""
    return SubscriptionData(
        topic=str(data.get("topic", "")),
        expression=str(data.get("subString", SUB_ALL)),
        expression_type=str(data.get("expressionType") or TAG),
        tags=tuple(data.get("tagsSet") or ()),
        version=int(data.get("subVersion") or 0),
    )
