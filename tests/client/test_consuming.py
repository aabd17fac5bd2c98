"""Handlers that work, fail, dawdle and hang; order, filters, retries, dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.client_support import Seen, eventually, eventually_async, make_topic, read_all
from twinlog.client import (
    ClientHooks,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from twinlog.client.errors import UsageError

Unique = Callable[[str], str]


async def send(cluster: Any, topic: str, count: int, **options: Any) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send_many(Message(topic, b"%d" % n, **options) for n in range(count))


async def test_messages_sent_after_subscribe_are_received(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), Seen()
    await make_topic(cluster.name_server, topic)
    async with PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "*", seen)
        assert len([q for q in consumer.assignment if q.topic == topic]) == 4
        await send(cluster, topic, 100)
        await eventually(lambda: len(seen.messages) >= 100, "all messages")
    assert sorted(map(int, seen.bodies)) == list(range(100))


async def test_one_consumer_reads_64_queues(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), Seen()
    await make_topic(cluster.name_server, topic, queues=64)
    async with PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "*", seen)
        await send(cluster, topic, 640)
        await eventually(lambda: len(seen.messages) >= 640, "all of 64 queues")
    assert sorted(map(int, seen.bodies)) == list(range(640))
    assert len({message.queue for message in seen.messages}) == 64


async def test_a_topic_may_appear_after_its_subscription(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), Seen()
    async with PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "*", seen)
        await send(cluster, topic, 10)
        await eventually(lambda: len(seen.messages) >= 10, "messages of the new topic")


async def test_what_was_handled_before_closing_does_not_come_again(
    cluster: Any, unique: Unique
) -> None:
    topic, group = unique("T"), unique("g")
    await make_topic(cluster.name_server, topic)
    await send(cluster, topic, 50)
    counts: Counter[bytes] = Counter()
    for _ in range(5):
        done = 0

        async def handler(message: ReceivedMessage) -> None:
            nonlocal done
            await asyncio.sleep(0.001)
            counts[message.body] += 1
            done += 1

        async with PushConsumer(group, name_server=cluster.name_server, concurrency=3) as consumer:
            await consumer.subscribe(topic, "*", handler)
            before = len(counts)
            target = min(50, before + 11)
            await eventually(lambda goal=target: len(counts) >= goal, "some more")
    assert len(counts) == 50
    assert set(counts.values()) == {1}


async def test_a_failing_handler_gets_the_message_again(cluster: Any, unique: Unique) -> None:
    topic, attempts = unique("T"), []
    await make_topic(cluster.name_server, topic)

    async def handler(message: ReceivedMessage) -> None:
        attempts.append((message.topic, message.reconsume_times))
        if message.reconsume_times == 0:
            raise ValueError("not this time")
        if message.reconsume_times == 1:
            raise RetryLater(delay_level=2)

    async with PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await send(cluster, topic, 1)
        await eventually(lambda: len(attempts) >= 3, "three attempts")
    assert attempts == [(topic, 0), (topic, 1), (topic, 2)]


async def test_a_message_that_never_works_becomes_a_dead_letter(
    cluster: Any, unique: Unique
) -> None:
    topic, group = unique("T"), unique("g")
    attempts: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        raise ValueError("never")

    await make_topic(cluster.name_server, topic)
    async with PushConsumer(group, name_server=cluster.name_server, max_attempts=1) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await send(cluster, topic, 1, keys=["k"])
        await eventually(lambda: len(attempts) >= 2, "two attempts")
        (letter,) = await read_all(cluster.name_server, f"%DLQ%{group}", 1)
    assert (letter.body, letter.keys, letter.properties["RETRY_TOPIC"]) == (b"0", ["k"], topic)
    assert attempts == [0, 1]


async def test_slow_handlers_run_side_by_side_up_to_the_limit(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    running = peak = done = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal running, peak, done
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.02)
        running -= 1
        done += 1

    await make_topic(cluster.name_server, topic)
    await send(cluster, topic, 60)
    async with PushConsumer(
        unique("g"), name_server=cluster.name_server, concurrency=5
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: done >= 60, "all handled")
    assert peak == 5


async def test_flow_control_stops_pulling_for_a_handler_that_hangs(
    cluster: Any, unique: Unique
) -> None:
    topic, release = unique("T"), asyncio.Event()
    done = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal done
        await release.wait()
        done += 1

    await make_topic(cluster.name_server, topic, queues=1)
    await send(cluster, topic, 400)
    async with PushConsumer(
        unique("g"), name_server=cluster.name_server, concurrency=1, queue_count_max=40
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        reader = next(r for q, r in consumer._core.readers.items() if q.topic == topic)
        await eventually(lambda: reader.process.count >= 40, "the limit")
        assert reader.process.count < 40 + 32
        release.set()
        await eventually(lambda: done >= 400, "everything after the hang")


async def test_a_handler_that_never_returns_is_cancelled_and_retried(
    cluster: Any, unique: Unique
) -> None:
    topic, attempts = unique("T"), []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        if message.reconsume_times == 0:
            await asyncio.Event().wait()

    await make_topic(cluster.name_server, topic)
    async with PushConsumer(
        unique("g"), name_server=cluster.name_server, concurrency=1, consume_timeout_ms=300
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await send(cluster, topic, 1)
        await eventually(lambda: attempts == [0, 1], "the second attempt")


async def test_closing_does_not_wait_forever_for_a_handler(cluster: Any, unique: Unique) -> None:
    topic, group, started = unique("T"), unique("g"), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.Event().wait()

    await make_topic(cluster.name_server, topic)
    async with PushConsumer(
        group, name_server=cluster.name_server, shutdown_timeout_ms=100
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await send(cluster, topic, 1)
        await asyncio.wait_for(started.wait(), 30)
    seen = Seen()
    async with PushConsumer(group, name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "*", seen)
        await eventually(lambda: seen.bodies == [b"0"], "the unfinished message again")


async def test_tags_are_filtered_and_compared_by_text(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), Seen()
    await make_topic(cluster.name_server, topic)
    # "Aa" and "BB" have the same hash: the broker cannot tell them apart, the client must.
    async with PushConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic, "Aa || other", seen)
        async with Producer("pg", name_server=cluster.name_server) as producer:
            for tag in ("BB", "Aa", "none", "other"):
                await producer.send(Message(topic, tag.encode(), tags=tag))
        await eventually(lambda: len(seen.messages) >= 2, "two messages")
        await asyncio.sleep(0.2)
    assert sorted(seen.bodies) == [b"Aa", b"other"]


async def test_sql92_and_a_change_of_subscription(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), Seen()
    await make_topic(cluster.name_server, topic)
    async with (
        PushConsumer(unique("g"), name_server=cluster.name_server) as consumer,
        Producer("pg", name_server=cluster.name_server) as producer,
    ):
        await consumer.subscribe(topic, "price > 3 AND kind = 'a'", seen, sql=True)
        for number in range(6):
            await producer.send(
                Message(topic, b"%d" % number, properties={"price": str(number), "kind": "a"})
            )
        await eventually(lambda: len(seen.messages) >= 2, "what matches")
        await consumer.subscribe(topic, "t", seen)
        await producer.send(Message(topic, b"x", properties={"price": "9", "kind": "a"}))
        await producer.send(Message(topic, b"y", tags="t"))
        await eventually(lambda: b"y" in seen.bodies, "the new filter")
        with pytest.raises(Exception, match="price >"):
            await consumer.subscribe(topic, "price >", seen, sql=True)
    assert sorted(seen.bodies) == [b"4", b"5", b"y"]


async def test_ordered_mode_keeps_order_over_failures(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    handled: dict[int, list[int]] = {0: [], 1: []}
    failures: Counter[bytes] = Counter()

    async def handler(message: ReceivedMessage) -> None:
        number = int(message.body)
        if number % 10 == 5 and failures[message.body] < 2:
            failures[message.body] += 1
            raise ValueError("again, please")
        await asyncio.sleep(0)
        handled[number % 2].append(number)

    await make_topic(cluster.name_server, topic, queues=3)
    async with PushConsumer(
        unique("g"), name_server=cluster.name_server, ordered=True, suspend_ms=20
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        async with Producer("pg", name_server=cluster.name_server) as producer:
            await producer.send_many(
                Message(topic, b"%d" % n, sharding_key=f"k{n % 2}") for n in range(60)
            )
        await eventually(lambda: len(handled[0]) + len(handled[1]) >= 60, "all handled")
    assert handled == {0: list(range(0, 60, 2)), 1: list(range(1, 60, 2))}
    assert set(failures.values()) == {2}


async def test_a_queue_changes_hands_when_its_handler_has_ended(
    cluster: Any, unique: Unique
) -> None:
    """Ordered mode: a second member joins while the first one handles a message."""
    topic, group = unique("T"), unique("g")
    release, begun = asyncio.Event(), asyncio.Event()
    handled: list[bytes] = []

    async def slow(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()
        handled.append(message.body)

    async def other(message: ReceivedMessage) -> None:
        assert release.is_set(), "two members in one queue"
        handled.append(message.body)

    await make_topic(cluster.name_server, topic, queues=1)
    options: dict[str, Any] = {"name_server": cluster.name_server, "ordered": True}
    async with PushConsumer(group, client_id=unique("z"), **options) as first:
        await first.subscribe(topic, "*", slow)
        async with Producer("pg", name_server=cluster.name_server) as producer:
            for body in (b"1", b"2"):
                await producer.send(Message(topic, body))
        await asyncio.wait_for(begun.wait(), 20)
        async with PushConsumer(group, client_id=unique("a"), **options) as second:
            await second.subscribe(topic, "*", other)
            core = first._core
            await eventually(
                lambda: any(reader.process.is_dropped for reader in core.readers.values()),
                "the queue belongs to the second member",
            )
            await core.round()
            assert core.readers, "still ours"
            release.set()
            await eventually(lambda: len(handled) >= 2, "both handled")
    assert handled == [b"1", b"2"]


async def test_ordered_mode_with_a_limit_gives_up_into_the_dead_letters(
    cluster: Any, unique: Unique
) -> None:
    topic, group, handled = unique("T"), unique("g"), []

    async def handler(message: ReceivedMessage) -> None:
        if message.body == b"0":
            raise ValueError("never")
        handled.append(message.body)

    await make_topic(cluster.name_server, topic, queues=1)
    async with PushConsumer(
        group, name_server=cluster.name_server, ordered=True, suspend_ms=10, max_attempts=2
    ) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await send(cluster, topic, 3)
        await eventually(lambda: len(handled) >= 2, "what comes behind it")
        (letter,) = await read_all(cluster.name_server, f"%DLQ%{group}", 1)
    assert (letter.body, handled) == (b"0", [b"1", b"2"])


async def test_broadcast_reaches_everybody_and_remembers_in_a_file(
    cluster: Any, unique: Unique, tmp_path: Path
) -> None:
    topic, group = unique("T"), unique("g")
    await make_topic(cluster.name_server, topic)
    first, second = Seen(), Seen()

    def consumer(name: str) -> PushConsumer:
        return PushConsumer(
            group, name_server=cluster.name_server, broadcast=True,
            offset_file=str(tmp_path / f"{name}.json"),
        )  # fmt: skip

    async with consumer("a") as one, consumer("b") as two:
        await one.subscribe(topic, "*", first)
        await two.subscribe(topic, "*", second)
        await send(cluster, topic, 20)
        await eventually(lambda: len(first.messages) + len(second.messages) >= 40, "all, twice")
    assert sorted(first.bodies) == sorted(second.bodies)
    again = Seen()
    async with consumer("a") as one:
        await one.subscribe(topic, "*", again)
        await send(cluster, topic, 1)
        await eventually(lambda: len(again.messages) >= 1, "the new message")
    assert len(again.messages) == 1


class Watcher(ClientHooks):
    def __init__(self) -> None:
        self.outcomes: list[tuple[str, bool]] = []

    def before_consume(self, message: ReceivedMessage, group: str) -> Any:
        return message.topic

    def after_consume(self, context: Any, error: BaseException | None) -> None:
        self.outcomes.append((context, error is None))


async def test_hooks_see_every_handling(cluster: Any, unique: Unique) -> None:
    topic, hooks, seen = unique("T"), Watcher(), Seen()
    await make_topic(cluster.name_server, topic)
    async with PushConsumer(unique("g"), name_server=cluster.name_server, hooks=hooks) as consumer:
        await consumer.subscribe(topic, "*", seen)
        await send(cluster, topic, 2)
        await eventually(lambda: len(seen.messages) >= 2, "both")
    assert hooks.outcomes == [(topic, True), (topic, True)]


async def test_pulling_seek_pause_and_commit(cluster: Any, unique: Unique) -> None:
    topic, group = unique("T"), unique("g")
    await make_topic(cluster.name_server, topic, queues=2)
    await send(cluster, topic, 20)
    async with PullConsumer(group, name_server=cluster.name_server, auto_commit=False) as consumer:
        await consumer.subscribe(topic)
        first, second = consumer.assignment
        got = await consumer.poll(5000, 5)
        assert 0 < len(got) <= 5
        assert await consumer.committed(first) in (0, None)
        await consumer.commit()
        await consumer.seek_to_begin()
        consumer.pause(second)
        seen = []
        while batch := await consumer.poll(500):
            seen += batch
        assert {m.queue for m in seen} == {first}
        assert len(seen) == 10
        consumer.resume(second)
        assert {m.queue for m in await consumer.poll(5000)} == {second}
        consumer.seek(first, 7)
        assert consumer.position(first) == 7
        await consumer.commit({first: 3})
        assert await consumer.committed(first) == 3
        await consumer.seek_to_end()
        assert await consumer.poll(200) == []
        with pytest.raises(UsageError, match=r"from 0 to \d+, not -1"):
            consumer.seek(first, -1)
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(first._replace(queue_id=9), 1)
        with pytest.raises(UsageError, match="exclude each other"):
            await consumer.assign([first])


async def test_iteration_counts_a_message_as_done_when_the_next_is_asked_for(
    cluster: Any, unique: Unique
) -> None:
    topic, group = unique("T"), unique("g")
    await make_topic(cluster.name_server, topic, queues=1)
    await send(cluster, topic, 10)
    bodies: list[bytes] = []

    async def break_in_the_middle_of_the_fourth() -> None:
        async with PullConsumer(group, name_server=cluster.name_server) as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 4:
                    raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await break_in_the_middle_of_the_fourth()
    async with PullConsumer(group, name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 8:
                break
    async with PullConsumer(group, name_server=cluster.name_server) as consumer:
        await consumer.subscribe(topic)
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 11:
                break
    expected = [b"0", b"1", b"2", b"3", b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert bodies == expected


async def test_assigned_queues_are_read_outside_of_the_group(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await make_topic(cluster.name_server, topic)
    await send(cluster, topic, 40)
    async with PullConsumer(
        unique("g"), name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues[1:3])
        got: list[ReceivedMessage] = []

        async def poll() -> bool:
            got.extend(await consumer.poll(100))
            return len(got) >= 20

        await eventually_async(poll, "both queues")
    assert {m.queue for m in got} == set(queues[1:3])


async def test_offsets_by_time_are_the_first_at_or_after_it(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await make_topic(cluster.name_server, topic, queues=1)
    for _ in range(3):
        await send(cluster, topic, 3)
        await asyncio.sleep(0.02)
    stored = await read_all(cluster.name_server, topic, 9)
    times = [m.store_timestamp for m in stored]
    async with PullConsumer(unique("g"), name_server=cluster.name_server) as consumer:
        (queue,) = await consumer.queues(topic)
        probes = {0, *times, *(t + 1 for t in times), *(t - 1 for t in times), times[-1] + 10**6}
        for probe in sorted(probes):
            expected = next((i for i, t in enumerate(times) if t >= probe), 9)
            assert await consumer.offset_for_time(queue, probe) == expected, (probe, times)


async def test_ten_consumers_come_and_go_and_nothing_is_lost(cluster: Any, unique: Unique) -> None:
    """Each of ten members joins while messages flow; then nine leave, one after the other.

    Nothing may be lost. A message may be handled twice: RocketMQ does not fence the old owner of a
    queue, so whatever the old one had handled and not committed when the new one asked is repeated.
    A clean leave commits first, and the one who takes over waits a moment: repeats stay rare.
    """
    topic, group, total = unique("T"), unique("g"), 3000
    await make_topic(cluster.name_server, topic, queues=16)
    counts: Counter[bytes] = Counter()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        counts[message.body] += 1

    stop = asyncio.Event()
    sent = 0

    async def produce() -> None:
        nonlocal sent
        async with Producer("pg", name_server=cluster.name_server) as producer:
            while sent < total or not stop.is_set():
                batch = [Message(topic, b"%d" % (sent + n)) for n in range(50)]
                await producer.send_many(batch)
                sent += 50
                await asyncio.sleep(0.05)

    producing = asyncio.get_running_loop().create_task(produce())
    consumers = []
    for _ in range(10):
        consumer = PushConsumer(group, name_server=cluster.name_server)
        await consumer.start()
        await consumer.subscribe(topic, "*", handler)
        consumers.append(consumer)

    def shares() -> list[int]:
        return [len([q for q in c.assignment if q.topic == topic]) for c in consumers]

    await eventually(lambda: sorted(shares()) == [1] * 4 + [2] * 6, "16 queues over 10 members")
    owned = [q for c in consumers for q in c.assignment if q.topic == topic]
    assert len(set(owned)) == 16
    for consumer in consumers[:9]:
        await consumer.close()
    consumers = consumers[9:]
    await eventually(lambda: shares() == [16], "all queues at the last member")
    stop.set()
    await producing
    await eventually(lambda: len(counts) >= sent, "every message")
    await consumers[0].close()
    repeats = sum(count - 1 for count in counts.values())
    print(f"messages {sent}, repeats {repeats}")
    assert len(counts) == sent
    assert repeats < sent // 20
