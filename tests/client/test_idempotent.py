"""Idempotent producers: brokers are killed and everything is sent again; nothing is there twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from support.client_support import eventually, eventually_async, make_topic, read_all
from support.not_twinlog import not_twinlog
from twinlog.client import Message, Producer, PullConsumer, SendReceipt
from twinlog.client.errors import (
    ClientError,
    IdempotenceLostError,
    IdempotenceNotSupportedError,
    OutOfSequenceError,
    ProducerExpiredError,
    ProducerFencedError,
    RepeatDiffersError,
    TopicNotFoundError,
    UsageError,
)
from twinlog.message.once import read_mark

TIMEOUT_MS = 60_000


def once(
    name_server: str, producer_id: str, timeout_ms: int = TIMEOUT_MS, **options: Any
) -> Producer:
    return Producer(
        "pg", name_server=name_server, idempotent=True, producer_id=producer_id,
        send_timeout_ms=timeout_ms, **options,
    )  # fmt: skip


def numbered(topic: str, count: int) -> list[Message]:
    return [Message(topic, b"%d" % number, tags="t") for number in range(count)]


def places(receipts: list[SendReceipt]) -> list[tuple[Any, int, str]]:
    return [(r.queue, r.queue_offset, r.offset_message_id) for r in receipts]


async def stored(name_server: str, topic: str, count: int) -> Counter[int]:
    return Counter(int(message.body) for message in await read_all(name_server, topic, count))


async def test_a_repeat_is_answered_with_the_place_of_the_original(
    cluster: Any, unique: Any
) -> None:
    topic, name = unique("once"), unique("p")
    await make_topic(cluster.name_server, topic)
    messages = numbered(topic, 40)
    async with once(cluster.name_server, name) as producer:
        # One request each at first, then what gathers: the boundaries of batches do not matter.
        first = [await producer.send(message) for message in messages[:10]]
        first += await producer.send_many(messages[10:20])
    async with once(cluster.name_server, name, batch_count_max=3) as producer:
        again = await producer.send_many(messages)
    assert places(again[:20]) == places(first)
    assert all(receipt.is_acknowledged for receipt in again)
    assert len({receipt.queue for receipt in again}) == 4
    async with once(cluster.name_server, name) as producer:
        assert places(await producer.send_many(messages)) == places(again)
    found = await read_all(cluster.name_server, topic, 40)
    assert sorted(int(message.body) for message in found) == list(range(40))
    by_place = {(m.queue, m.queue_offset): m.body for m in found}
    assert [by_place[r.queue, r.queue_offset] for r in again] == [m.body for m in messages]


async def test_without_the_option_the_same_repeats_are_stored(cluster: Any, unique: Any) -> None:
    topic = unique("twice")
    await make_topic(cluster.name_server, topic)
    for _ in range(2):
        async with Producer("pg", name_server=cluster.name_server, linger_ms=0) as producer:
            await producer.send_many(numbered(topic, 20))
    assert set((await stored(cluster.name_server, topic, 40)).values()) == {2}


async def test_delayed_compressed_keyed_and_large_messages_are_told_apart_too(
    cluster: Any, unique: Any
) -> None:
    topic, name = unique("kinds"), unique("p")
    await make_topic(cluster.name_server, topic)
    messages = [
        Message(topic, b"late", delay_level=1),
        Message(topic, b"large " * 2000),
        Message(topic, b"keyed", keys=["k"], sharding_key="s"),
        Message(topic, b"plain", properties={"mine": "x"}),
    ] * 3
    receipts = []
    for _ in range(2):
        async with once(cluster.name_server, name) as producer:
            receipts.append(await producer.send_many(messages))
    assert places(receipts[0]) == places(receipts[1])
    found = await read_all(cluster.name_server, topic, 12)
    assert sorted(m.body for m in found) == sorted(m.body for m in messages)


async def test_two_producers_and_others_share_a_queue(cluster: Any, unique: Any) -> None:
    topic = unique("shared")
    await make_topic(cluster.name_server, topic, queues=1)
    names = [unique("p"), unique("q")]
    first: dict[str, list[Any]] = {}
    for name in names * 2:
        async with Producer("pg", name_server=cluster.name_server) as plain:
            await plain.send(Message(topic, b"-1"))
        async with once(cluster.name_server, name) as producer:
            found = places(await producer.send_many(numbered(topic, 30 if name in first else 15)))
            assert found[:15] == first.setdefault(name, found)
    counts = await stored(cluster.name_server, topic, 64)
    assert counts == Counter({-1: 4, **dict.fromkeys(range(30), 2)})


async def test_a_message_that_carries_the_mark_of_another_queue_is_an_ordinary_one(
    cluster: Any, unique: Any
) -> None:
    """Who forwards all properties must not be refused, nor be taken for a repeat."""
    topic, other = unique("origin"), unique("copy")
    await make_topic(cluster.name_server, topic, queues=1)
    async with once(cluster.name_server, unique("p")) as producer:
        await producer.send_many(numbered(topic, 3))
    found = await read_all(cluster.name_server, topic, 3)
    assert [read_mark(m.record.properties.decode()).number for m in found] == [0, 1, 2]  # type: ignore[union-attr]
    async with Producer("pg", name_server=cluster.name_server) as plain:
        marked = found[2].properties["TWINLOG_ONCE"]
        for _ in range(2):
            await plain._send_special(Message(other, b"2"), properties={"TWINLOG_ONCE": marked})
    assert await stored(cluster.name_server, other, 2) == Counter({2: 2})


async def send_marked(producer: Producer, topic: str, text: str) -> SendReceipt:
    """A single message with a mark of our own making, to queue 0."""
    properties = {"TWINLOG_ONCE": f"{text},0,{topic}"}
    return await producer._send_special(Message(topic, b"x"), properties=properties)


async def test_what_cannot_be_in_order_is_refused_with_a_reason(cluster: Any, unique: Any) -> None:
    topic = unique("gap")
    await make_topic(cluster.name_server, topic, queues=1)
    async with Producer("pg", name_server=cluster.name_server) as plain:
        name = unique("p")
        with pytest.raises(ProducerExpiredError, match="nothing is known"):
            await send_marked(plain, topic, f"{name},0,1")
        await send_marked(plain, topic, f"{name},0,0")
        with pytest.raises(OutOfSequenceError, match="number 1 is expected"):
            await send_marked(plain, topic, f"{name},0,2")
        await send_marked(plain, topic, f"{name},3,0")
        with pytest.raises(ProducerFencedError, match="epoch that has ended"):
            await send_marked(plain, topic, f"{name},0,1")
    assert len(await read_all(cluster.name_server, topic, 2)) == 2


async def test_a_number_that_stands_for_another_message_is_refused(
    cluster: Any, unique: Any
) -> None:
    topic, name = unique("other"), unique("p")
    await make_topic(cluster.name_server, topic, queues=1)
    messages = numbered(topic, 5)
    async with once(cluster.name_server, name) as producer:
        await producer.send_many(messages)
    for changed in (messages[1:], [*messages[:4], Message(topic, b"99"), Message(topic, b"5")]):
        async with once(cluster.name_server, name) as producer:
            with pytest.raises(RepeatDiffersError, match="with another body"):
                await producer.send_many(changed)
    assert await stored(cluster.name_server, topic, 5) == Counter(range(5))


async def test_after_a_failure_of_unknown_outcome_the_queue_is_closed(
    cluster: Any, unique: Any
) -> None:
    topic, name = unique("closed"), unique("p")
    await make_topic(cluster.name_server, topic, queues=1)
    async with once(cluster.name_server, name, epoch=5) as producer:
        await producer.send(Message(topic, b"1"))
    async with once(cluster.name_server, name, epoch=4) as producer:
        with pytest.raises(ProducerFencedError):
            await producer.send(Message(topic, b"2"))
        with pytest.raises(IdempotenceLostError, match="send everything again"):
            await producer.send(Message(topic, b"3"))
        with pytest.raises(UsageError, match="send_many"):
            await producer.send_batch(numbered(topic, 2))
    with pytest.raises(UsageError, match="producer_id"):
        once(cluster.name_server, "a,b")
    with pytest.raises(UsageError, match="idempotent=True"):
        Producer("pg", name_server="127.0.0.1:1", producer_id="x")


async def refused_after_a_failure(producer: Producer, message: Message) -> None:
    """Nothing follows a message that failed, not even that message: both have their turns."""
    with pytest.raises(IdempotenceLostError, match="send everything again") as caught:
        await producer.send(message)
    assert caught.value.is_safe_to_repeat


@pytest.mark.parametrize("queues", [1, 4])
async def test_what_was_not_stored_keeps_its_turn_for_the_next_run(
    bare_cluster: Any, queues: int
) -> None:
    broker = bare_cluster.broker()
    server = bare_cluster.name_server
    await make_topic(server, "T", queues=queues)
    messages = numbered("T", 12)
    async with once(server, "p", timeout_ms=2000) as producer:
        await producer.send_many(messages[:3])
        broker.kill()
        with pytest.raises(ClientError):
            await asyncio.gather(*(producer.send(message) for message in messages[3:5]))
        broker = bare_cluster.restart(broker)
        await refused_after_a_failure(producer, messages[3])
        await refused_after_a_failure(producer, messages[4])
    async with once(server, "p") as producer:
        await producer.send_many(messages)
    assert await stored(server, "T", 12) == Counter(range(12))


async def test_what_found_no_route_keeps_its_turn_for_the_next_run(bare_cluster: Any) -> None:
    bare_cluster.broker(autoCreateTopicEnable="false")
    server = bare_cluster.name_server
    messages = numbered("T", 5)
    async with once(server, "p") as producer:
        with pytest.raises(TopicNotFoundError):
            await producer.send(messages[0])
        await make_topic(server, "T")
        await refused_after_a_failure(producer, messages[1])
    async with once(server, "p") as producer:
        await producer.send_many(messages)
    assert await stored(server, "T", 5) == Counter(range(5))


async def test_a_topic_that_several_brokers_would_create_must_be_there_before(
    bare_cluster: Any,
) -> None:
    for name in ("broker-a", "broker-b"):
        bare_cluster.broker(brokerName=name)
    server = bare_cluster.name_server
    messages = numbered("T", 12)
    async with once(server, "p") as producer:
        with pytest.raises(TopicNotFoundError, match="twinlog topic create T"):
            await producer.send(messages[0])
    async with Producer("g", name_server=server, idempotent=True) as producer:
        await producer.send(Message("other", b"x"))  # nobody runs this one again
    await make_topic(server, "T")
    async with once(server, "p") as producer:
        await producer.send_many(messages[:5])
    async with once(server, "p") as producer:
        await producer.send_many(messages)
    assert await stored(server, "T", 12) == Counter(range(12))


async def test_a_broker_that_is_not_twinlog_is_refused_by_name() -> None:
    with not_twinlog() as other:
        async with once(other.address, "p") as producer:
            with pytest.raises(IdempotenceNotSupportedError, match="is not twinlog"):
                await producer.send(Message("T", b"x"))
        assert other.sends == 0


@pytest.mark.parametrize("is_once", [True, False])
async def test_sigkill_in_mid_traffic_and_everything_is_sent_again(
    bare_cluster: Any, is_once: bool
) -> None:
    """Killed in mid-traffic, stopped, and both again: the state comes from log and snapshot."""
    broker = bare_cluster.broker()
    server = bare_cluster.name_server
    await make_topic(server, "T")
    messages = numbered("T", 3000)
    options: dict[str, Any] = {"send_timeout_ms": TIMEOUT_MS, "batch_count_max": 20}
    if is_once:
        options.update(idempotent=True, producer_id="p")
    else:
        options.update(linger_ms=0, retry_count=100)
    for _ in range(2):
        done = 0

        def count(_: Any) -> None:
            nonlocal done
            done += 1

        async with Producer("pg", name_server=server, **options) as producer:
            futures = [producer.send_nowait(message) for message in messages]
            for future in futures:
                future.add_done_callback(count)
            await eventually(lambda: done >= 1000, "traffic before the kill")  # noqa: B023
            broker.kill()
            broker = bare_cluster.restart(broker)
            receipts = await asyncio.gather(*futures)
        assert all(receipt.is_acknowledged for receipt in receipts)
        # A clean stop: the next start reads nothing of the log, only the snapshot knows.
        broker.stop()
        broker = bare_cluster.restart(broker)
    counts = await stored(server, "T", 3000)
    assert set(counts) == set(range(3000))
    repeats = sum(counts.values()) - len(counts)
    assert repeats == 0 if is_once else repeats >= 3000


async def end_offsets(name_server: str, topic: str) -> list[int]:
    async with PullConsumer("ends", name_server=name_server) as consumer:
        return [await consumer.end_offset(queue) for queue in await consumer.queues(topic)]


async def test_the_slave_that_takes_over_drops_what_the_lost_master_had(bare_cluster: Any) -> None:
    master = bare_cluster.broker(brokerRole="SYNC_MASTER")
    slave = bare_cluster.broker(
        brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{master.ha_port}"
    )
    server = bare_cluster.name_server
    await make_topic(server, "T")
    messages = numbered("T", 600)
    async with once(server, "p", retry_when_not_ok=True, retry_count=100) as producer:
        async with once(server, "warm") as warm:

            async def pair_is_up() -> bool:
                return (await warm.send(Message("W", b"0"))).is_acknowledged

            await eventually_async(pair_is_up, "the pair is up")
        receipts = await producer.send_many(messages[:400])
    assert all(receipt.is_acknowledged for receipt in receipts)
    before = places(receipts)
    master.kill()
    slave.kill()
    bare_cluster.restart(slave, brokerRole="ASYNC_MASTER", brokerId=0, haMasterAddress="")
    async with once(server, "p") as producer:
        again = await producer.send_many(messages)
    assert [p[:2] for p in places(again[:400])] == [p[:2] for p in before]
    assert await stored(server, "T", 600) == Counter(range(600))
    assert sum(await end_offsets(server, "T")) == 600
