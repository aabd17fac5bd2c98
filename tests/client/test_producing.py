"""Sends against our broker: receipts are true, order is kept, nothing is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.client_support import read_all
from support.processes import free_port
from twinlog.admin import Admin, topics
from twinlog.client import (
    ClientHooks,
    Message,
    MessageQueue,
    Producer,
    SendOutcome,
    SendReceipt,
    SendStatus,
)
from twinlog.client.errors import BufferFullError, ClientClosedError, InvalidMessageError

Unique = Callable[[str], str]


async def test_a_receipt_says_where_the_message_is(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        message = Message(topic, b"hello", tags="a", keys=["k1", "k2"], properties={"mine": "1"})
        receipt = await producer.send(message)
    assert receipt.status is SendStatus.SEND_OK
    assert receipt.is_acknowledged
    (stored,) = await read_all(cluster.name_server, topic, 1)
    assert (stored.queue, stored.queue_offset) == (receipt.queue, receipt.queue_offset)
    assert (stored.body, stored.tags, stored.keys) == (b"hello", "a", ["k1", "k2"])
    assert stored.properties["mine"] == "1"
    assert stored.message_id == receipt.message_id
    assert stored.offset_message_id == receipt.offset_message_id


async def test_pipelined_sends_all_arrive_once(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        receipts = await producer.send_many(Message(topic, b"%d" % n) for n in range(500))
    stored = await read_all(cluster.name_server, topic, 500)
    assert sorted(int(m.body) for m in stored) == list(range(500))
    by_id = {m.message_id: m for m in stored}
    for number, receipt in enumerate(receipts):
        found = by_id[receipt.message_id]
        assert int(found.body) == number
        assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)


async def test_automatic_batches_give_every_message_its_own_true_receipt(
    cluster: Any, unique: Unique
) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server, linger_ms=5) as producer:
        receipts = await asyncio.gather(
            *(producer.send(Message(topic, b"%d" % n, tags="x")) for n in range(1000))
        )
    stored = {m.message_id: m for m in await read_all(cluster.name_server, topic, 1000)}
    assert len(stored) == 1000
    for number, receipt in enumerate(receipts):
        found = stored[receipt.message_id]
        assert int(found.body) == number
        assert found.offset_message_id == receipt.offset_message_id
        assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)


def mixed(topic: str, n: int) -> Message:
    """Mostly plain ones, which travel in runs; among them whatever does not."""
    body = b"%d" % n
    match n % 97:
        case 7:
            return Message(topic, body, keys=[f"k{n}"])
        case 11:
            return Message(topic, body, tags="with blank", properties={"n": str(n)})
        case 13:
            return Message(topic, body + b" " * 6000)
        case 17:
            return Message(topic, body, sharding_key="k")
        case 19:
            return Message(topic, body, wait_store_ok=False, flag=n)
        case _:
            return Message(topic, body, tags="x" if n % 2 else None)


async def test_many_of_all_kinds_have_their_receipts_in_order(cluster: Any, unique: Unique) -> None:
    topic, count = unique("T"), 3000
    async with Producer("pg", name_server=cluster.name_server, linger_ms=2) as producer:
        receipts = await producer.send_many(mixed(topic, n) for n in range(count))
    stored = {m.message_id: m for m in await read_all(cluster.name_server, topic, count)}
    assert len(receipts) == len(stored) == count
    for number, receipt in enumerate(receipts):
        found, sent = stored[receipt.message_id], mixed(topic, number)
        assert found.body == sent.body
        assert (found.tags, found.keys, found.flag) == (sent.tags, list(sent.keys), sent.flag)
        assert found.offset_message_id == receipt.offset_message_id
        assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)


async def test_many_leave_no_queue_behind_which_others_wait(cluster: Any, unique: Unique) -> None:
    topic, waiting, batch_size = unique("T"), [0], 64 * 1024
    async with Producer("pg", name_server=cluster.name_server, linger_ms=2) as producer:

        def messages() -> Iterator[Message]:
            for _ in range(16_000):
                waiting.append(producer._batching.size)
                yield Message(topic, bytes(1000) + b"x")

        receipts = await producer.send_many(messages())
    assert len(receipts) == 16_000
    assert max(waiting) <= 2 * batch_size, "one batch that is open, one that could not leave"


@pytest.mark.parametrize("linger_ms", [None, 2])
async def test_what_comes_before_a_mistake_among_many_is_sent(
    cluster: Any, unique: Unique, linger_ms: float | None
) -> None:
    topic = unique("T")

    def until_failure() -> Iterator[Message]:
        yield from (Message(topic, b"%d" % n) for n in range(300))
        raise LookupError("no more")

    async with Producer("pg", name_server=cluster.name_server, linger_ms=linger_ms) as producer:
        with pytest.raises(LookupError, match="no more"):
            await producer.send_many(until_failure())
        with pytest.raises(InvalidMessageError, match="body is empty"):
            await producer.send_many([Message(topic, b"300"), Message(topic, b"")])
        await producer.flush()
    stored = await read_all(cluster.name_server, topic, 301)
    assert sorted(int(m.body) for m in stored) == list(range(301))


async def test_an_explicit_batch_is_stored_as_one(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        receipts = await producer.send_batch(Message(topic, b"%d" % n) for n in range(5))
        assert await producer.send_batch([]) == []
    first = receipts[0].queue_offset
    assert [r.queue_offset for r in receipts] == list(range(first, first + 5))
    assert len({r.queue for r in receipts}) == 1


async def test_a_batch_of_very_many_messages_is_answered(cluster: Any, unique: Unique) -> None:
    """The ids of all of them are in one header of the answer."""
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        receipts = await producer.send_batch(Message(topic, b"x") for _ in range(20_000))
    assert len({r.message_id for r in receipts}) == len(receipts) == 20_000
    assert receipts[-1].queue_offset - receipts[0].queue_offset == 19_999


@pytest.mark.parametrize("linger_ms", [None, 0, 3])
async def test_messages_of_one_key_stay_in_order(
    cluster: Any, unique: Unique, linger_ms: float | None
) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server, linger_ms=linger_ms) as producer:
        futures = []
        for n in range(300):
            # Some must travel alone: they keep their place anyway.
            body = b"%d" % n if n % 50 else b"%d" % n + b" " * 5000
            futures.append(producer.send_nowait(Message(topic, body, sharding_key=f"k{n % 3}")))
            if n % 37 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*futures)
    stored = await read_all(cluster.name_server, topic, 300)
    for key in range(3):
        mine = [int(m.body) for m in stored if int(m.body) % 3 == key]
        assert mine == sorted(mine)
        assert len(mine) == 100
        assert len({m.queue for m in stored if int(m.body) % 3 == key}) == 1


async def test_large_bodies_are_compressed_and_come_back_whole(
    cluster: Any, unique: Unique
) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send(Message(topic, b"x" * 100_000))
    (stored,) = await read_all(cluster.name_server, topic, 1)
    assert stored.sys_flag & 0x701 == 0x301
    assert len(stored.record.body) < 1000
    assert stored.body == b"x" * 100_000


async def test_queues_can_be_chosen(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Admin(cluster.name_server) as admin:
        await topics.create_topic(admin, topic, read_queues=64)
    async with Producer("pg", name_server=cluster.name_server) as producer:
        queues = await producer.queues(topic)
        assert len(queues) == 64
        receipts = [await producer.send(Message(topic, b"x"), queue=q) for q in queues[:5]]
        assert [r.queue for r in receipts] == queues[:5]
        spread = await producer.send_many(Message(topic, b"x") for _ in range(128))
    assert {r.queue for r in spread} == set(queues)


async def test_oneway_arrives(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send(Message(topic, b"first"))
        await producer.send_oneway(Message(topic, b"second"))
        await producer.send(Message(topic, b"third"))
    bodies = {m.body for m in await read_all(cluster.name_server, topic, 3)}
    assert b"second" in bodies


async def test_closing_sends_what_waits(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    producer = Producer("pg", name_server=cluster.name_server, linger_ms=60_000)
    await producer.start()
    futures = [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(10)]
    await producer.close()
    assert [future.result().status for future in futures] == [SendStatus.SEND_OK] * 10
    assert len(await read_all(cluster.name_server, topic, 10)) == 10
    with pytest.raises(ClientClosedError, match="open a new one"):
        await producer.send(Message(topic, b"late"))
    with pytest.raises(ClientClosedError):
        await producer.start()


async def test_a_full_buffer_makes_send_wait_and_send_nowait_raise(
    cluster: Any, unique: Unique
) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server, in_flight_max=10) as producer:
        for _ in range(10):
            producer.send_nowait(Message(topic, b"x"))
        with pytest.raises(BufferFullError, match="10 requests"):
            producer.send_nowait(Message(topic, b"x"))
        receipts = await asyncio.gather(*(producer.send(Message(topic, b"x")) for _ in range(200)))
    assert len(receipts) == 200


async def test_a_send_waits_for_room_no_longer_than_its_time() -> None:
    """A group that was away for long would otherwise take all that waits before new ones."""
    async with Producer("pg", name_server=f"127.0.0.1:{free_port()}", in_flight_max=1) as producer:
        first = asyncio.create_task(producer.send(Message("T", b"1"), timeout_ms=20_000))
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(BufferFullError, match=r"no room within 300 ms.* 1 requests") as raised:
            await producer.send(Message("T", b"2"), timeout_ms=300)
        assert raised.value.outcome is SendOutcome.NOT_STORED
        with pytest.raises(BufferFullError):
            await producer.send_batch([Message("T", b"3")])
        assert time.monotonic() - started < 15
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first


async def test_what_a_batch_cannot_hold_is_refused(cluster: Any) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:
        with pytest.raises(InvalidMessageError, match="the same topic"):
            await producer.send_batch([Message("A", b"x"), Message("B", b"x")])
        with pytest.raises(InvalidMessageError, match="delayed"):
            await producer.send_batch([Message("A", b"x", delay_level=1)])
        with pytest.raises(InvalidMessageError, match="retry topic"):
            await producer.send_batch([Message("%RETRY%g", b"x")])
        with pytest.raises(InvalidMessageError, match="split it"):
            await producer.send_batch([Message("A", b"x" * (3 << 20))] * 2)
        with pytest.raises(InvalidMessageError, match="the properties have"):
            await producer.send(Message("A", b"x", properties={"a": "x" * 33000}))


class Recorder(ClientHooks):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def before_send(self, message: Message) -> Any:
        return message.topic

    def after_send(
        self, context: Any, receipt: SendReceipt | None, error: BaseException | None
    ) -> None:
        self.seen.append((context, receipt is not None, error))
        raise RuntimeError("a hook that fails does not matter")


async def test_hooks_see_every_send(cluster: Any, unique: Unique) -> None:
    hooks, topic = Recorder(), unique("T")
    async with Producer("pg", name_server=cluster.name_server, hooks=hooks) as producer:
        await producer.send(Message(topic, b"x"))
    assert hooks.seen == [(topic, True, None)]


async def test_an_unknown_queue_is_an_error_not_a_hang(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server, send_timeout_ms=1000) as producer:
        await producer.send(Message(topic, b"x"))
        with pytest.raises(Exception, match="no master at the moment"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "nobody", 0))


async def test_name_servers_can_be_found_over_http(cluster: Any, unique: Unique) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + cluster.name_server.encode() + b"\n")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    async with listener, Producer("pg", name_server=url) as producer:
        assert (await producer.send(Message(unique("T"), b"x"))).is_acknowledged
