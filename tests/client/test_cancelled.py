"""A call is cancelled at each place where it waits: nothing stays open, the client goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psutil
import pytest

from support.cancelling import cancelled_at
from support.client_support import eventually
from twinlog.client import (
    ClientClosedError,
    ClientError,
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    UsageError,
)

Unique = Callable[[str], str]
COUNT = 20


def connections() -> int:
    found = psutil.Process().net_connections()
    return sum(connection.status in ("ESTABLISHED", "CLOSE_WAIT") for connection in found)


@pytest.fixture(autouse=True)
async def nothing_stays(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, no connection, no future that nobody read, no error in the log."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    tasks, open_before = asyncio.all_tasks(), connections()
    yield
    own = asyncio.current_task()
    await eventually(lambda: not asyncio.all_tasks() - tasks - {own}, "all tasks have ended")
    await eventually(lambda: connections() <= open_before, "all connections are closed")
    assert complaints == []
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@pytest.fixture
async def topic(cluster: Any, unique: Unique) -> str:
    name = unique("cancelled")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send_many(Message(name, b"%d" % n) for n in range(COUNT))
    return name


@pytest.mark.parametrize("when_done", [False, True], ids=["at once", "when it is done"])
@pytest.mark.parametrize("options", [{}, {"linger_ms": 1}, {"idempotent": True}], ids=str)
async def test_closing_a_producer(
    cluster: Any, topic: str, options: dict[str, Any], when_done: bool
) -> None:
    place, is_cancelled = 0, True
    while is_cancelled:
        producer = Producer("pg", name_server=cluster.name_server, **options)
        await producer.start()
        futures = [producer.send_nowait(Message(topic, b"more")) for _ in range(COUNT)]
        is_cancelled = await cancelled_at(producer.close(), place, when_done=when_done)
        # Everything that was taken has its outcome, and nobody has to close it once more.
        assert all(future.done() for future in futures), place
        for future in futures:
            future.exception()
        await producer.close()
        place += 1
    assert place > 2


@pytest.mark.parametrize("when_done", [False, True], ids=["at once", "when it is done"])
async def test_closing_a_pull_consumer(
    cluster: Any, topic: str, unique: Unique, when_done: bool
) -> None:
    place, is_cancelled = 0, True
    while is_cancelled:
        consumer = PullConsumer(
            unique("cg"), name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        await consumer.start()
        await consumer.subscribe(topic)
        await consumer.poll()
        is_cancelled = await cancelled_at(consumer.close(), place, when_done=when_done)
        place += 1
    assert place > 2


@pytest.mark.parametrize("when_done", [False, True], ids=["at once", "when it is done"])
async def test_closing_a_push_consumer(
    cluster: Any, topic: str, unique: Unique, when_done: bool
) -> None:
    place, is_cancelled = 0, True
    while is_cancelled:
        began = asyncio.Event()

        async def handle(message: ReceivedMessage, began: asyncio.Event = began) -> None:
            began.set()
            await asyncio.sleep(0)

        consumer = PushConsumer(
            unique("cg"), name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        await consumer.start()
        await consumer.subscribe(topic, "*", handle)
        await began.wait()
        is_cancelled = await cancelled_at(consumer.close(), place, when_done=when_done)
        await consumer.run_forever()  # Returns: it is closed.
        place += 1
    assert place > 2


async def test_starting_a_push_consumer(cluster: Any, topic: str, unique: Unique) -> None:
    place, is_cancelled = 0, True
    while is_cancelled:
        consumer = PushConsumer(unique("cg"), name_server=cluster.name_server)

        @consumer.on(topic)
        async def handle(message: ReceivedMessage) -> None: ...

        is_cancelled = await cancelled_at(consumer.start(), place)
        await consumer.close()
        place += 1
    assert place > 1


@pytest.mark.parametrize("when_done", [False, True], ids=["at once", "when it is done"])
@pytest.mark.parametrize("call", ["subscribe", "unsubscribe", "poll", "commit", "drain", "batch"])
async def test_a_consumer_goes_on(
    cluster: Any, topic: str, unique: Unique, call: str, when_done: bool
) -> None:
    """After a cancelled call, every message is still to be had."""
    place, is_cancelled = 0, True
    while is_cancelled:
        consumer = PullConsumer(
            unique("cg"), name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET
        )
        got: set[bytes] = set()

        async def poll(consumer: PullConsumer = consumer, got: set[bytes] = got) -> None:
            got.update(message.body for message in await consumer.poll())

        async def batch(consumer: PullConsumer = consumer, got: set[bytes] = got) -> None:
            async with consumer.batch() as messages:
                got.update(message.body for message in messages)

        async with consumer:
            if call != "subscribe":
                await consumer.subscribe(topic)
            if call in ("commit", "drain"):
                await poll()
            calls = {
                "subscribe": lambda: consumer.subscribe(topic),  # noqa: B023
                "unsubscribe": lambda: consumer.unsubscribe(topic),  # noqa: B023
                "poll": poll,
                "commit": consumer.commit,
                "drain": consumer.drain,
                "batch": batch,
            }
            is_cancelled = await cancelled_at(calls[call](), place, when_done=when_done)
            if call in ("subscribe", "unsubscribe"):
                await consumer.subscribe(topic)
            consumer.resume()
            while len(got) < COUNT:
                await poll()
        place += 1


async def test_others_who_close_wait_until_it_is_closed(cluster: Any, topic: str) -> None:
    """The second call must not cut off what the first still sends."""
    producer = Producer("pg", name_server=cluster.name_server, linger_ms=50)
    await producer.start()
    futures = [producer.send_nowait(Message(topic, b"last")) for _ in range(COUNT)]
    await asyncio.gather(*(producer.close() for _ in range(3)))
    assert all(future.result().is_acknowledged for future in futures)


async def test_a_handler_may_close_its_consumer(cluster: Any, topic: str, unique: Unique) -> None:
    """Whoever is still subscribing is told, and is not cancelled; no worker stays behind."""
    consumer = PushConsumer(
        unique("cg"), name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET,
        shutdown_timeout_ms=200,
    )  # fmt: skip
    await consumer.start()

    async def handle(message: ReceivedMessage) -> None:
        await consumer.close()

    with contextlib.suppress(ClientClosedError):
        await consumer.subscribe(topic, "*", handle)
    await consumer.run_forever()


CALLS: dict[str, Callable[[PullConsumer, MessageQueue], Coroutine[Any, Any, Any]]] = {
    "subscribe": lambda consumer, queue: consumer.subscribe(queue.topic),
    "assign": lambda consumer, queue: consumer.assign([queue]),
    "committed": lambda consumer, queue: consumer.committed(queue),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_is_overtaken_by_the_close(
    cluster: Any, topic: str, unique: Unique, call: str
) -> None:
    """Whoever waits is told, and is not cancelled: that is for its own callers to do."""
    for turns in (*range(24), *range(24, 200, 16)):
        consumer = PullConsumer(unique("cg"), name_server=cluster.name_server)
        await consumer.start()
        waiting = asyncio.ensure_future(CALLS[call](consumer, MessageQueue(topic, "broker-a", 0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await consumer.close()
        with contextlib.suppress(ClientError):
            await waiting
        assert not waiting.cancelled(), turns


async def test_a_client_of_another_loop_is_refused_and_unharmed(
    cluster: Any, topic: str, unique: Unique
) -> None:
    async with (
        Producer("pg", name_server=cluster.name_server) as producer,
        PullConsumer(unique("cg"), name_server=cluster.name_server) as consumer,
    ):
        await consumer.subscribe(topic)
        calls: list[Callable[[], Any]] = [
            lambda: producer.queues(unique("new")),
            lambda: producer.send(Message(topic, b"x")),
            consumer.poll,
            consumer.commit,
            consumer.lag,
            consumer.seek_to_begin,
        ]

        async def elsewhere() -> None:
            for call in calls:
                with pytest.raises(UsageError, match="another event loop"):
                    await call()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert (await producer.send(Message(topic, b"x"))).is_acknowledged
        assert await producer.queues(unique("new"))
