"""Expressions as RocketMQ reads them."""

from __future__ import annotations

import pytest

from twinlog.client.consumer.subscription import (
    parse_subscription,
    subscription_from_wire,
)
from twinlog.client.errors import InvalidSubscriptionError
from twinlog.remoting.bodies.subscription import SQL92_TYPE, SubscriptionData


@pytest.mark.parametrize("expression", [None, "", "*", "  * "])
def test_everything(expression: str | None) -> None:
    subscription = parse_subscription("T", expression)
    assert (subscription.sub_string, subscription.tags_set) == ("*", ())
    assert subscription.accepts(None)
    assert subscription.accepts("x")


def test_tags_are_split_trimmed_and_hashed() -> None:
    subscription = parse_subscription("T", "TagA || TagB||TagA||", version=5)
    assert subscription.tags_set == ("TagA", "TagB")
    assert subscription.to_json() == {
        "classFilterMode": False,
        "codeSet": [2598919, 2598920],
        "expressionType": "TAG",
        "subString": "TagA || TagB||TagA||",
        "subVersion": 5,
        "tagsSet": ["TagA", "TagB"],
        "topic": "T",
    }
    assert subscription.accepts("TagB")
    assert not subscription.accepts("other")
    assert not subscription.accepts(None)
    assert subscription.is_tag_type


def test_sql_is_kept_as_it_is() -> None:
    subscription = parse_subscription("T", " a > 3 ", sql=True)
    assert (subscription.sub_string, subscription.expression_type) == ("a > 3", SQL92_TYPE)
    assert not subscription.is_tag_type
    assert subscription.accepts(None)


@pytest.mark.parametrize(
    ("expression", "sql"), [("||", False), (" || ", False), ("", True), (None, True), (7, False)]
)
def test_what_cannot_be_read_is_refused(expression: object, sql: bool) -> None:
    with pytest.raises(InvalidSubscriptionError, match="'T'"):
        parse_subscription("T", expression, sql=sql)  # type: ignore[arg-type]


def test_the_wire_form_comes_back() -> None:
    subscription = parse_subscription("T", "a || b", version=3)
    assert subscription_from_wire(subscription.to_json()) == subscription
    assert subscription_from_wire({"topic": "T"}) == SubscriptionData("T")
