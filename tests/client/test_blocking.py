"""The blocking facade has the same names and does the same things."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import twinlog.client
from support.processes import wait_until
from twinlog.client import blocking
from twinlog.client.blocking import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionProducer,
    TransactionState,
)
from twinlog.client.errors import ClientClosedError, InvalidHandlerError

Unique = Callable[[str], str]


def test_the_facade_has_the_names_and_methods_of_the_original() -> None:
    for name in ("Producer", "PullConsumer", "PushConsumer", "TransactionProducer"):
        original, facade = getattr(twinlog.client, name), getattr(blocking, name)
        missing = {
            method
            for method in vars(original) | {"close": 0}
            if not method.startswith("_") and not hasattr(facade, method)
        }
        # The two-step form of a transaction and the hooks of the instance are for asyncio only.
        assert missing <= {"heartbeat_data", "role", "routes_changed", "now_ms", "prepare", "end",
                           "wait_for_work", "work", "forget_in_hand"}, name  # fmt: skip


def test_sending_and_pulling(cluster: Any, unique: Unique) -> None:
    topic, group = unique("T"), unique("g")
    with Producer("pg", name_server=cluster.name_server) as producer:
        assert producer.send(Message(topic, b"0")).is_acknowledged
        producer.send_oneway(Message(topic, b"1"))
        assert producer.send_nowait(Message(topic, b"2")).result(30).is_acknowledged
        assert len(producer.send_batch([Message(topic, b"3"), Message(topic, b"4")])) == 2
        assert len(producer.send_many(Message(topic, b"%d" % n) for n in range(5, 20))) == 15
        producer.flush()
        assert len(producer.queues(topic)) == 4
    with PullConsumer(group, name_server=cluster.name_server) as consumer:
        consumer.subscribe(topic)
        bodies = []
        for message in consumer:
            bodies.append(int(message.body))
            if len(bodies) == 20:
                break
        assert sorted(bodies) == list(range(20))
        consumer.commit()
        assert sum(consumer.committed(q) or 0 for q in consumer.assignment) == 20
        consumer.seek_to_begin()
        queue = consumer.assignment[0]
        consumer.seek(queue, consumer.end_offset(queue))
        assert consumer.position(queue) == consumer.end_offset(queue)
        consumer.pause()
        assert consumer.poll(100) == []
        consumer.resume()
        assert consumer.poll(5000)
        assert consumer.pull(queue, consumer.begin_offset(queue)).messages
        assert consumer.offset_for_time(queue, 0) == 0
        assert len(consumer.queues(topic)) == 4


def test_handlers_are_plain_functions_in_threads(cluster: Any, unique: Unique) -> None:
    topic, threads = unique("T"), set()
    attempts: list[int] = []

    def handler(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        attempts.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise RetryLater(1)

    async def wrong(message: ReceivedMessage) -> None: ...

    with (
        Producer("pg", name_server=cluster.name_server) as producer,
        PushConsumer(unique("g"), name_server=cluster.name_server, concurrency=2) as consumer,
    ):
        consumer.subscribe(topic, "*", handler)
        with pytest.raises(InvalidHandlerError, match="plain function"):
            consumer.subscribe(topic, "*", wrong)  # type: ignore[arg-type]
        producer.send(Message(topic, b"x"))
        wait_until(lambda: len(attempts) >= 2, "the second attempt")
        assert consumer.assignment
        consumer.pause()
        consumer.resume()
        consumer.unsubscribe(topic)
    consumer.run_forever()
    assert attempts == [0, 1]
    assert threading.current_thread().name not in threads


def test_transactions(cluster: Any, unique: Unique) -> None:
    topic = unique("T")

    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    def execute(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    with TransactionProducer("tg", check=check, name_server=cluster.name_server) as producer:
        outcome = producer.send_in_transaction(Message(topic, b"1"), execute)
        assert outcome.state is TransactionState.COMMIT
        with producer.transaction(Message(topic, b"2")) as transaction:
            assert transaction.id == transaction.receipt.message_id


def test_a_closed_client_says_so(cluster: Any) -> None:
    producer = Producer("pg", name_server=cluster.name_server)
    with pytest.raises(ClientClosedError, match="not started"):
        producer.send(Message("T", b"x"))
    producer.close()
    with pytest.raises(ClientClosedError, match="closed"):
        producer.start()
    with Producer("pg", name_server=cluster.name_server) as producer:
        pass
    with pytest.raises(ClientClosedError, match="closed"):
        producer.send(Message("T", b"x"))
