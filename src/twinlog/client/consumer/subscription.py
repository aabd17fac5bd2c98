"""What a consumer wants of a topic: tags or an SQL92 expression.

Corresponds to FilterAPI; what a subscription is on the wire: `remoting.bodies.subscription`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinlog.client.errors import InvalidSubscriptionError
from twinlog.remoting.bodies.subscription import (
    SQL92_TYPE,
    SUB_ALL,
    TAG_TYPE,
    SubscriptionData,
    split_tags,
)
from twinlog.runtime.numbers import number_of


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
            raise InvalidSubscriptionError(
                f"the SQL92 expression for topic {topic!r} is empty: write one such as 'a > 5'"
            )
        return SubscriptionData(topic, text, expression_type=SQL92_TYPE, sub_version=version)
    if text in ("", SUB_ALL):
        return SubscriptionData(topic, sub_version=version)
    tags = split_tags(text)
    if not tags:
        raise InvalidSubscriptionError(
            f"the expression {expression!r} for topic {topic!r} names no tag: write '*' for all"
        )
    return SubscriptionData(topic, text, tags=tags, sub_version=version)


def subscription_from_wire(data: Mapping[str, Any]) -> SubscriptionData:
    """The form in which brokers list it."""
    return SubscriptionData(
        topic=str(data.get("topic", "")),
        sub_string=str(data.get("subString", SUB_ALL)),
        expression_type=str(data.get("expressionType") or TAG_TYPE),
        tags=tuple(data.get("tagsSet") or ()),
        sub_version=number_of(data.get("subVersion") or 0),
    )
