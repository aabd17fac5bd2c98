"""One consumer group on one broker: RocketMQ's SubscriptionGroupConfig, on the wire and in
`config/subscriptionGroup.json`."""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.remoting.bodies.common import Body, DataVersion


class SubscriptionGroupConfig(Body):
    """One group; the values here are Apache's defaults."""

    group_name: str
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupWrapper(Body):
    """Answer to 201: all groups of a broker and the version of the table."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(
        default_factory=dict
    )


def group_from_json(value: Any) -> SubscriptionGroupConfig:
    """A group out of a JSON object; what is missing takes the default."""
    return msgspec.convert(value, SubscriptionGroupConfig, strict=False)
