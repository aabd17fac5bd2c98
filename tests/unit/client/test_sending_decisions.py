"""Which queue, whether again, and which brokers to leave alone."""

from __future__ import annotations

import pytest

from twinlog.client.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    MessageIllegalError,
    RequestTimeoutError,
    broker_error,
)
from twinlog.client.producer.fault_strategy import FAILURE_PAUSE_MS, FaultStrategy
from twinlog.client.producer.retry import RetryAction, backoff_ms, decide
from twinlog.client.producer.selector import RoundRobin, choose_by_key
from twinlog.client.queues import MessageQueue
from twinlog.message.hashing import jhash

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]


def test_round_robin_takes_queues_in_turn() -> None:
    selector = RoundRobin(3)
    assert [selector.choose(QUEUES) for _ in range(5)] == [QUEUES[i] for i in (3, 0, 1, 2, 3)]


def test_round_robin_avoids_brokers_that_failed() -> None:
    selector = RoundRobin()
    assert selector.choose(QUEUES, avoid=["a"]).broker_name == "b"


def test_round_robin_prefers_available_brokers_but_takes_what_there_is() -> None:
    selector = RoundRobin()
    assert selector.choose(QUEUES, is_available=lambda name: name == "b").broker_name == "b"
    assert (
        selector.choose(QUEUES, avoid=["a"], is_available=lambda name: name == "a").broker_name
        == "b"
    )
    assert selector.choose(QUEUES, avoid=["a", "b"]) in QUEUES
    assert selector.choose(QUEUES, is_available=lambda name: False) in QUEUES


def test_round_robin_survives_a_list_that_shrinks() -> None:
    selector = RoundRobin(11)
    assert selector.choose(QUEUES[:1]) == QUEUES[0]


@pytest.mark.parametrize("key", ["", "user-1", "中文", "polygenelubricants"])
def test_a_key_goes_where_a_java_producer_sends_it(key: str) -> None:
    value = jhash(key)
    expected = 0 if value == -(2**31) else abs(value) % 4
    assert choose_by_key(QUEUES, key) == QUEUES[expected]


def test_the_hash_without_a_positive_twin_goes_to_the_first_queue() -> None:
    assert jhash("polygenelubricants") == -(2**31)
    assert choose_by_key(QUEUES, "polygenelubricants") == QUEUES[0]


def decision(error: Exception, **changes: object) -> RetryAction:
    facts = {"attempt": 1, "attempts_max": 3, "is_pinned": False, "time_left_ms": 1000, **changes}
    return decide(error, **facts)  # type: ignore[arg-type]


def test_an_unknown_outcome_is_retried_elsewhere_a_few_times() -> None:
    error = ConnectionLostError("gone")
    assert decision(error) is RetryAction.ANOTHER_BROKER
    assert decision(error, is_pinned=True) is RetryAction.SAME_QUEUE
    assert decision(error, attempt=3) is RetryAction.GIVE_UP
    assert decision(RequestTimeoutError("late"), time_left_ms=0) is RetryAction.GIVE_UP


def test_what_was_certainly_not_stored_is_retried_until_the_time_is_up() -> None:
    error = BrokerUnreachableError("refused")
    assert decision(error, attempt=99) is RetryAction.ANOTHER_BROKER
    assert decision(error, attempt=99, time_left_ms=0) is RetryAction.GIVE_UP
    assert decision(error, attempt=1, attempts_max=1) is RetryAction.GIVE_UP


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_codes_that_rocketmq_retries(code: int) -> None:
    assert decision(broker_error(code, "no")) is RetryAction.ANOTHER_BROKER


def test_a_message_that_is_too_large_stays_too_large() -> None:
    error = broker_error(13, "too large")
    assert isinstance(error, MessageIllegalError)
    assert decision(error) is RetryAction.GIVE_UP


def test_pauses_grow_and_stop_growing() -> None:
    pauses = [backoff_ms(attempt) for attempt in range(9)]
    assert pauses == [0, 0, 50, 100, 200, 400, 800, 800, 800]


def test_slow_brokers_are_left_alone_when_asked() -> None:
    faults = FaultStrategy(is_enabled=True)
    faults.succeeded("a", 600, now_ms=0)
    assert faults.has_paused
    assert not faults.is_available("a", 29_999)
    assert faults.is_available("a", 30_000)
    assert faults.is_available("b", 0)
    faults.succeeded("a", 60, now_ms=0)
    assert faults.is_available("a", 0)
    faults.succeeded("a", 10, now_ms=0)
    assert not faults.has_paused


def test_latency_is_not_looked_at_unless_asked_but_failures_are() -> None:
    faults = FaultStrategy()
    faults.succeeded("a", 60_000, now_ms=0)
    assert faults.is_available("a", 0)
    faults.failed("a", now_ms=0)
    assert not faults.is_available("a", FAILURE_PAUSE_MS - 1)
    assert faults.is_available("a", FAILURE_PAUSE_MS)


def test_tables_must_match() -> None:
    with pytest.raises(ValueError, match="same length"):
        FaultStrategy(latency_ms=[1], pause_ms=[])
