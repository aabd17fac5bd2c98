"""Subscriptions out of heartbeats and pulls (RocketMQ's FilterAPI). Pure."""

from __future__ import annotations

from typing import Any

from twinlog.remoting.bodies.subscription import (
    SUB_ALL,
    TAG_TYPE,
    SubscriptionData,
    is_tag_type,
    split_tags,
)
from twinlog.runtime.numbers import number_of

# As of SQL92. Tags become objects of twenty times their text, and each held pull has its own.
EXPRESSION_LENGTH_MAX = 8192


class SubscriptionError(ValueError):
    """An expression that cannot be a subscription."""


def build_subscription(
    topic: str, sub_string: str | None, expression_type: str | None = None, sub_version: int = 0
) -> SubscriptionData:
    """Parse an expression.

    Raises:
        SubscriptionError: nothing is left of a tag expression, another kind is empty, or it is
            longer than can be meant.
    """
    if sub_string and len(sub_string) > EXPRESSION_LENGTH_MAX:
        raise SubscriptionError(f"the expression is longer than {EXPRESSION_LENGTH_MAX} characters")
    if not is_tag_type(expression_type):
        if not sub_string:
            raise SubscriptionError(f"Expression can't be null! {expression_type}")
        return SubscriptionData(
            topic,
            sub_string,
            expression_type=expression_type or TAG_TYPE,
            sub_version=sub_version,
        )
    if not sub_string or sub_string == SUB_ALL:
        return SubscriptionData(topic, sub_version=sub_version)
    if not sub_string.replace("||", ""):
        raise SubscriptionError("subString split error")
    return SubscriptionData(topic, sub_string, tags=split_tags(sub_string), sub_version=sub_version)


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
