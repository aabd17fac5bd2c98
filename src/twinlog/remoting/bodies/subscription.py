"""What a group wants of a topic: RocketMQ's SubscriptionData, in heartbeats and in answers."""

from __future__ import annotations

from typing import Any

from twinlog.message.hashing import jhash

SUB_ALL = "*"
TAG_TYPE = "TAG"
SQL92_TYPE = "SQL92"


class SubscriptionData:
    """One topic of a group: the expression, its tags and their hashes.

    Hashes are always made from the text: the C++ client sends wrong ones in its heartbeats.
    `sub_version` rises with every change; brokers keep the highest.
    """

    __slots__ = (
        "class_filter_mode",
        "code_set",
        "expression_type",
        "sub_string",
        "sub_version",
        "tags_set",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        sub_string: str = SUB_ALL,
        *,
        expression_type: str = TAG_TYPE,
        tags: tuple[str, ...] = (),
        sub_version: int = 0,
    ) -> None:
        self.topic = topic
        self.sub_string = sub_string
        self.expression_type = expression_type
        self.tags_set = tags
        self.code_set = frozenset(jhash(tag) for tag in tags)
        self.sub_version = sub_version
        self.class_filter_mode = False

    @property
    def is_tag_type(self) -> bool:
        return is_tag_type(self.expression_type)

    @property
    def is_all(self) -> bool:
        """Whether every message matches."""
        return self.is_tag_type and self.sub_string == SUB_ALL

    def accepts(self, tag: str | None) -> bool:
        """False for a message that only shares a hash with a wanted tag: brokers compare hashes."""
        return not self.tags_set or tag in self.tags_set

    def to_json(self) -> dict[str, Any]:
        """Members in the order in which fastjson writes them."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": [jhash(tag) for tag in self.tags_set],
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags_set),
            "topic": self.topic,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubscriptionData) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.topic, self.sub_string, self.sub_version))


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG_TYPE


def split_tags(expression: str) -> tuple[str, ...]:
    """The tags of `a || b`, each once, in their order."""
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
