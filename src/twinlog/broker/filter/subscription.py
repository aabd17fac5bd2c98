"""What a group wants of a topic (RocketMQ's SubscriptionData and FilterAPI). Pure.

Tag hashes are always rebuilt from the text: the C++ client sends wrong ones in its heartbeats.
"""

from __future__ import annotations

from typing import Any

from twinlog.message.hashing import jhash
from twinlog.runtime.numbers import number_of

SUBSCRIBE_ALL = "*"
TAG_TYPE = "TAG"


class SubscriptionError(ValueError):
    """An expression that cannot be a subscription."""


class SubscriptionData:
    """One topic of a group: the expression, its tags and their hashes."""

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
        sub_string: str = SUBSCRIBE_ALL,
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
        return self.is_tag_type and self.sub_string == SUBSCRIBE_ALL

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": [jhash(tag) for tag in self.tags_set],
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags_set),
            "topic": self.topic,
        }


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG_TYPE


def build_subscription(
    topic: str, sub_string: str | None, expression_type: str | None = None, sub_version: int = 0
) -> SubscriptionData:
    """Parse an expression.

    Raises:
        SubscriptionError: nothing is left of a tag expression, or another kind is empty.
    """
    if not is_tag_type(expression_type):
        if not sub_string:
            raise SubscriptionError(f"Expression can't be null! {expression_type}")
        return SubscriptionData(
            topic,
            sub_string,
            expression_type=expression_type or TAG_TYPE,
            sub_version=sub_version,
        )
    if not sub_string or sub_string == SUBSCRIBE_ALL:
        return SubscriptionData(topic, sub_version=sub_version)
    tags = tuple(dict.fromkeys(t for part in sub_string.split("||") if (t := part.strip())))
    if not sub_string.replace("||", ""):
        raise SubscriptionError("subString split error")
    return SubscriptionData(topic, sub_string, tags=tags, sub_version=sub_version)


def subscription_from_json(value: Any) -> SubscriptionData:
    """A subscription out of a heartbeat. Java and C++ forms; hashes are made again.

    Raises:
        SubscriptionError: a member is of a kind that it cannot be.
    """
    topic, sub_string = _text(value, "topic"), _text(value, "subString")
    expression_type = _text(value, "expressionType") or TAG_TYPE
    try:
        version = number_of(value.get("subVersion") or 0)
    except ValueError as error:
        raise SubscriptionError(f"subVersion: {error}") from None
    try:
        data = build_subscription(topic, sub_string, expression_type, version)
    except SubscriptionError:
        # A heartbeat never fails for one bad expression; its pulls will say what is wrong.
        data = SubscriptionData(
            topic, sub_string, expression_type=expression_type, sub_version=version
        )
    data.class_filter_mode = bool(value.get("classFilterMode", False))
    return data


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name) or ""
    if not isinstance(found, str):
        raise SubscriptionError(f"{name} of a subscription is not text")
    return found
