"""Calls that meet: cancelled subscriptions, seeks under a running handler, starts that fail."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.client_support import eventually
from support.processes import wait_until
from twinlog.admin import Admin, topics
from twinlog.client import (
    JSON,
    ClientClosedError,
    ClientError,
    ConsumeFrom,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendOutcome,
    UsageError,
    blocking,
)

Unique = Callable[[str], str]
FIRST = ConsumeFrom.FIRST_OFFSET


async def filled_topic(cluster: Any, topic: str, count: int, queues: int = 1) -> None:
    async with Admin(cluster.name_server) as admin:
        created = await topics.create_topic(admin, topic, read_queues=queues, write_queues=queues)
        created.all_or_raise()
    await send(cluster, topic, count)


async def send(cluster: Any, topic: str, count: int) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send_many(Message(topic, b"%d" % n) for n in range(count))


def push(cluster: Any, group: str, **settings: Any) -> PushConsumer:
    return PushConsumer(group, name_server=cluster.name_server, consume_from=FIRST, **settings)


def pull(cluster: Any, group: str, **settings: Any) -> PullConsumer:
    return PullConsumer(group, name_server=cluster.name_server, consume_from=FIRST, **settings)


async def ignore(message: ReceivedMessage) -> None: ...


# What was handed out


async def test_drain_of_a_pull_consumer_commits_what_was_handed_out(
    cluster: Any, unique: Unique
) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 20)
    async with pull(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic)
        (queue,) = consumer.assignment
        taken = await consumer.poll(max_count=5)
        assert taken
        await consumer.drain()
        assert await consumer.committed(queue) == len(taken)
        assert await consumer.lag() == {queue: 20 - len(taken)}
        consumer.resume()
        message = await anext(consumer)
        assert int(message.body) == len(taken)


async def test_a_pause_keeps_what_is_in_hand(cluster: Any, unique: Unique) -> None:
    """Not done until the next is asked for, and done then: with the pause as without it."""
    topic = unique("T")
    await filled_topic(cluster, topic, 20)
    async with pull(cluster, unique("g"), auto_commit=False) as consumer:
        await consumer.subscribe(topic)
        first = await anext(consumer)
        consumer.pause(first.queue)
        assert await consumer.lag() == {first.queue: 20}
        assert await consumer.poll(timeout_ms=100) == []
        await consumer.commit()
        assert await consumer.committed(first.queue) == 1
        consumer.resume(first.queue)
        rest: list[ReceivedMessage] = []
        while len(rest) < 19:
            rest += await consumer.poll()
        assert [int(message.body) for message in rest] == list(range(1, 20))


async def test_what_is_handed_back_is_handed_out_again(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 3)
    async with pull(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic)
        first = await anext(consumer)
        consumer.hand_back()
        assert (await anext(consumer)).queue_offset == first.queue_offset


async def test_a_seek_is_obeyed_by_an_ordered_handler_that_runs(
    cluster: Any, unique: Unique
) -> None:
    topic, seen, at_once = unique("T"), [], 0
    await filled_topic(cluster, topic, 30)
    begun, go_on = asyncio.Event(), asyncio.Event()
    running = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal running, at_once
        running += 1
        at_once = max(at_once, running)
        seen.append(int(message.body))
        if len(seen) == 3:
            begun.set()
            await go_on.wait()
        running -= 1

    async with push(cluster, unique("g"), ordered=True) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await asyncio.wait_for(begun.wait(), 10)
        (queue,) = [q for q in consumer.assignment if q.topic == topic]
        consumer.seek(queue, 25)
        # The messages of the new place are there while the old handler still runs.
        await eventually(lambda: consumer.health().held_messages >= 5, "read at the new place")
        assert at_once == 1
        go_on.set()
        await eventually(lambda: len(seen) >= 8, "handled at the new place")
        assert (seen, at_once) == ([0, 1, 2, 25, 26, 27, 28, 29], 1)


# Subscriptions that are given up or replaced


async def test_a_cancelled_subscription_takes_no_messages(cluster: Any, unique: Unique) -> None:
    """It had a subscription without a handler: each message failed and became a dead letter."""
    topic, group, got = unique("T"), unique("g"), []
    await filled_topic(cluster, topic, 4)

    async def handler(message: ReceivedMessage) -> None:
        got.append((int(message.body), message.reconsume_times))

    async with push(cluster, group) as consumer:
        for turns in (1, 2, 4, 8, 16, 32, 64):
            subscribing = asyncio.ensure_future(consumer.subscribe(topic, "*", handler))
            for _ in range(turns):
                await asyncio.sleep(0)
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)
        await asyncio.wait_for(consumer.subscribe(topic, "*", handler), 10)
        await eventually(lambda: len(got) >= 4, "all messages are handled")
        assert {attempts for _, attempts in got} == {0}


async def test_a_topic_is_left_and_taken_in_one_turn(cluster: Any, unique: Unique) -> None:
    topic, got = unique("T"), []
    await filled_topic(cluster, topic, 0)

    async def handler(message: ReceivedMessage) -> None:
        got.append(message.body)

    async with push(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic, "*", ignore)
        await asyncio.gather(consumer.unsubscribe(topic), consumer.subscribe(topic, "*", handler))
        await send(cluster, topic, 4)
        await eventually(lambda: len(got) == 4, "the new handler gets them")


# Starts


async def test_a_start_that_fails_leaves_nothing_behind(cluster: Any, unique: Unique) -> None:
    before = asyncio.all_tasks()
    consumer = push(cluster, unique("g"))
    consumer.on("not a topic")(ignore)
    with pytest.raises(ClientError, match="not a topic"):
        await consumer.start()
    await eventually(lambda: asyncio.all_tasks() <= before, "its tasks have ended")


async def test_a_second_start_changes_nothing(cluster: Any, unique: Unique) -> None:
    consumer = push(cluster, unique("g"), concurrency=2)
    async with await consumer.start():
        first = len(asyncio.all_tasks())
        await consumer.start()
        assert len(asyncio.all_tasks()) == first


# Numbers and values that cannot be


@pytest.mark.parametrize("offset", [-1, 2**63, 1.5])
async def test_an_offset_that_cannot_be_is_refused(
    cluster: Any, unique: Unique, offset: Any
) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 3)
    async with pull(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic)
        (queue,) = consumer.assignment
        with pytest.raises(UsageError, match="offset"):
            consumer.seek(queue, offset)
        with pytest.raises(UsageError, match="offset"):
            await consumer.commit({queue: offset})
        assert len(await consumer.poll()) == 3
        await consumer.commit()
        assert await consumer.committed(queue) == 3


async def test_a_time_that_is_no_whole_number_is_refused(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 3)
    async with pull(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic)
        (queue,) = consumer.assignment
        with pytest.raises(UsageError, match="milliseconds"):
            await consumer.seek_to_time(1.7e12)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="milliseconds"):
            await consumer.offset_for_time(queue, 2**63)


async def test_a_commit_that_fails_does_not_spoil_the_next(cluster: Any, unique: Unique) -> None:
    """The offset of a queue that is not ours stayed in the store: every later commit failed."""
    topic = unique("T")
    await filled_topic(cluster, topic, 3)
    async with pull(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic)
        (queue,) = consumer.assignment
        with pytest.raises(ClientError):
            await consumer.commit({MessageQueue(topic, "no-such-broker", 0): 1})
        assert len(await consumer.poll()) == 3
        await consumer.commit()
        assert await consumer.committed(queue) == 3


class _Picky:
    def dumps(self, value: Any) -> bytes:
        raise KeyError(value)

    def loads(self, body: bytes) -> Any:
        raise AssertionError


def _deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("serializer", "value"),
    [(JSON, float("nan")), (JSON, {"price": float("inf")}), (JSON, _deep()), (_Picky(), 7)],
    ids=["nan", "infinity", "deep", "own"],
)
async def test_a_value_that_cannot_be_written_is_an_invalid_message(
    cluster: Any, unique: Unique, serializer: Any, value: Any
) -> None:
    """NaN is no JSON: what reads it in another language would fail."""
    async with Producer("pg", name_server=cluster.name_server, serializer=serializer) as producer:
        with pytest.raises(InvalidMessageError, match="cannot be written"):
            await producer.send_value(unique("T"), value)


# Handlers and threads


async def test_a_handler_that_is_cancelled_from_within_has_failed(
    cluster: Any, unique: Unique
) -> None:
    """It awaited a task that was cancelled. Its worker ended, and its message stayed forever."""
    topic, attempts = unique("T"), []
    await filled_topic(cluster, topic, 1)

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) <= 2:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    async with push(cluster, unique("g"), concurrency=1) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: attempts == [0, 1, 2], "it comes again until it is handled")


def test_a_plain_handler_that_exits_has_failed(cluster: Any, unique: Unique) -> None:
    """SystemExit ended the loop of the client, and every call waited forever."""
    topic, attempts, done = unique("T"), [], threading.Event()
    asyncio.run(filled_topic(cluster, topic, 1))

    def handler(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) == 1:
            sys.exit(3)
        done.set()

    with blocking.PushConsumer(
        unique("g"), name_server=cluster.name_server, consume_from=FIRST
    ) as consumer:
        consumer.subscribe(topic, "*", handler)
        assert done.wait(30)
        assert attempts == [0, 1]
        assert consumer.health().is_ok


class Interrupted(Exception):
    """What a signal handler of a program raises."""


def test_an_interrupted_poll_takes_no_messages(cluster: Any, unique: Unique) -> None:
    """It went on behind the caller's back, and the next call counted what it took as done."""
    topic = unique("T")
    asyncio.run(filled_topic(cluster, topic, 1))

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with blocking.PullConsumer(
            unique("g"), name_server=cluster.name_server, consume_from=FIRST
        ) as consumer:
            consumer.subscribe(topic)
            assert len(consumer.poll()) == 1
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupted):
                consumer.poll(60_000)
            asyncio.run(send(cluster, topic, 1))
            (queue,) = consumer.assignment
            wait_until(lambda: consumer.health().held_messages == 1, "it was pulled")
            assert [m.queue_offset for m in consumer.poll(10_000)] == [1]
            assert consumer.committed(queue) in (None, 0, 1)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_run_forever_of_a_plain_consumer_raises_when_it_cannot_work(
    cluster: Any, unique: Unique
) -> None:
    with blocking.PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        failure = RuntimeError("broken on purpose")
        consumer._thread.call(consumer._client._instance._task_failed, "worker", failure)
        with pytest.raises(ClientError, match="broken on purpose"):
            consumer.run_forever()
    consumer.run_forever()  # Closed: nothing to wait for.


# Requests


async def test_a_request_whose_producer_is_closed_ends_at_once(
    cluster: Any, unique: Unique
) -> None:
    """No reply can reach it any more; it waited until its own time was over."""
    topic = unique("T")
    await filled_topic(cluster, topic, 0)
    async with Producer("pg", name_server=cluster.name_server) as producer:
        asked = asyncio.ensure_future(producer.request(Message(topic, b"?"), timeout_ms=60_000))
        async with pull(cluster, unique("g")) as consumer:
            await consumer.subscribe(topic)
            assert (await anext(consumer)).body == b"?"
    with pytest.raises(ClientClosedError) as raised:
        await asyncio.wait_for(asked, 5)
    assert raised.value.outcome is SendOutcome.STORED


# Health


async def test_health_is_fine_as_soon_as_a_queue_can_be_pulled_again(
    bare_cluster: Any, unique: Unique
) -> None:
    """Not when the pull ends that the broker holds for 15 seconds, as nothing is there to read."""
    broker = bare_cluster.broker()
    topic = unique("T")
    await filled_topic(bare_cluster, topic, 0)
    async with push(bare_cluster, unique("g")) as consumer:
        await consumer.subscribe(topic, "*", ignore)
        broker.kill()
        await eventually(lambda: not consumer.health().is_ok, "it cannot be pulled")
        await asyncio.to_thread(bare_cluster.restart, broker)
        await eventually(lambda: consumer.health().is_ok, "it can", deadline_s=8)
