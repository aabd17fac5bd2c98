"""Transactions and request-reply against our broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.client_support import eventually
from twinlog.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from twinlog.client.errors import InvalidMessageError, TransactionError

Unique = Callable[[str], str]


async def commit(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


async def test_only_committed_messages_appear(cluster: Any, unique: Unique) -> None:
    topic, seen, checked = unique("T"), [], []

    async def handler(message: ReceivedMessage) -> None:
        seen.append((message.body, message.transaction_id))

    async def check(message: ReceivedMessage) -> TransactionState:
        checked.append(message.body)
        if len(checked) == 1:
            raise RuntimeError("the database is away: ask again")
        return TransactionState.COMMIT

    async def execute(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState(int(message.body.split()[1]))

    async def fail(message: Message, transaction_id: str) -> TransactionState:
        raise ValueError("unknown to us, so the broker asks")

    async def undo(producer: TransactionProducer) -> None:
        async with producer.transaction(Message(topic, b"undone")):
            raise ValueError("rolled back")

    async with (
        TransactionProducer(unique("tg"), check=check, name_server=cluster.name_server) as producer,
        PushConsumer(unique("g"), name_server=cluster.name_server) as consumer,
    ):
        await consumer.subscribe(topic, "*", handler)
        async with producer.transaction(Message(topic, b"block")) as transaction:
            pass
        with pytest.raises(ValueError, match="rolled back"):
            await undo(producer)
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            body = b"executed %d" % state
            outcome = await producer.send_in_transaction(Message(topic, body), execute)
            assert outcome.state is state
        outcome = await producer.send_in_transaction(Message(topic, b"checked"), fail)
        assert outcome.state is TransactionState.UNKNOWN
        assert isinstance(outcome.error, ValueError)
        await eventually(lambda: len(seen) >= 3, "three committed messages", 60)
    assert sorted(body for body, _ in seen) == [b"block", b"checked", b"executed 8"]
    assert dict(seen)[b"block"] == transaction.id
    assert checked == [b"checked", b"checked"]


async def test_what_cannot_be_a_transaction(cluster: Any) -> None:
    async with TransactionProducer("tg", check=commit, name_server=cluster.name_server) as producer:
        with pytest.raises(InvalidMessageError, match="both delayed and transactional"):
            await producer.prepare(Message("T", b"x", delay_level=1))
        with pytest.raises(TransactionError, match="has not begun"):
            _ = producer.transaction(Message("T", b"x")).id


async def test_requests_get_their_own_replies(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with (
        Producer("pg", name_server=cluster.name_server) as producer,
        Producer("pg", name_server=cluster.name_server) as answering,
        PushConsumer(unique("g"), name_server=cluster.name_server) as consumer,
    ):

        async def handler(message: ReceivedMessage) -> None:
            await answering.reply(message, b"re: " + message.body)

        await consumer.subscribe(topic, "*", handler)
        replies = await asyncio.gather(
            *(producer.request(Message(topic, b"%d" % n), timeout_ms=20_000) for n in range(20))
        )
        assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(20)]
        plain = await producer.send(Message(topic, b"plain"))
        assert plain.is_acknowledged


async def test_only_requests_can_be_answered(cluster: Any, unique: Unique) -> None:
    topic, errors = unique("T"), []
    async with (
        Producer("pg", name_server=cluster.name_server) as producer,
        PushConsumer(unique("g"), name_server=cluster.name_server) as consumer,
    ):

        async def handler(message: ReceivedMessage) -> None:
            try:
                await producer.reply(message, b"to nobody")
            except InvalidMessageError as error:
                errors.append(str(error))

        await consumer.subscribe(topic, "*", handler)
        await producer.send(Message(topic, b"not a request"))
        await eventually(lambda: errors, "the refusal")
    assert "not a request" in errors[0]
