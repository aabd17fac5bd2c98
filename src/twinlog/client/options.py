"""The keyword arguments of the clients as types, for the blocking facade.

A test compares each with the constructor that it stands for. What the arguments mean is said there.
"""

from __future__ import annotations

from twinlog.client.consumer.consumer_core import ConsumeFrom
from twinlog.client.consumer.listener import RebalanceListener
from twinlog.client.consumer.rebalance import AllocateStrategy
from twinlog.client.serializers import Serializer
from twinlog.client.settings import ClientSettings


class ProducerOptions(ClientSettings, total=False):
    """What `Producer` takes besides its group and the name servers."""

    send_timeout_ms: int
    retry_count: int
    retry_when_not_ok: bool
    linger_ms: float | None
    batch_size_max: int
    batch_count_max: int
    buffer_size_max: int
    in_flight_max: int
    compress_over: int | None
    compression: str | None
    message_size_max: int
    avoid_slow_brokers: bool
    idempotent: bool
    producer_id: str | None
    epoch: int
    serializer: Serializer | None


class TransactionOptions(ClientSettings, total=False):
    """What `TransactionProducer` takes besides its group, `check` and the name servers."""

    send_timeout_ms: int


class PushOptions(ClientSettings, total=False):
    """What `PushConsumer` takes besides its group, the name servers and `concurrency`."""

    ordered: bool
    broadcast: bool
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    max_attempts: int | None
    consume_timeout_ms: int
    suspend_ms: int
    shutdown_timeout_ms: int
    strategy: str | AllocateStrategy
    pull_count: int
    queue_count_max: int
    queue_size_max: int
    commit_ms: int
    offset_file: str | None
    serializer: Serializer | None
    listener: RebalanceListener | None
    revoke_timeout_ms: int


class PullOptions(ClientSettings, total=False):
    """What `PullConsumer` takes besides its group and the name servers."""

    auto_commit: bool
    commit_ms: int
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    strategy: str | AllocateStrategy
    pull_count: int
    queue_count_max: int
    queue_size_max: int
    serializer: Serializer | None
    listener: RebalanceListener | None
    revoke_timeout_ms: int
