"""What a producer took is sent, or its future has an error, before `flush` or `close` return."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from client.conftest import Cluster
from support.client_support import read_all
from support.processes import free_port
from twinlog.client import Message, Producer, TransactionProducer, blocking
from twinlog.client.errors import ClientError, NameServerUnreachableError, SendOutcome
from twinlog.client.producer.transaction import TransactionState

COUNT = 40
KINDS: list[dict[str, Any]] = [
    {},
    {"linger_ms": 0},
    {"linger_ms": 60_000},
    {"idempotent": True},
    {"linger_ms": 5, "batch_count_max": 3},
]


def keyed(topic: str, number: int) -> Message:
    return Message(topic, b"%d" % number, sharding_key=f"key-{number % 3}")


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("ending", ["flush", "close"])
async def test_everything_taken_before_the_route_is_known_is_stored(
    cluster: Cluster,
    unique: Callable[[str], str],
    options: dict[str, Any],
    has_key: bool,
    ending: str,
) -> None:
    topic = unique("taken")
    producer = Producer("taken", name_server=cluster.name_server, **options)
    await producer.start()
    sends = [
        producer.send_nowait(keyed(topic, n) if has_key else Message(topic, b"%d" % n))
        for n in range(COUNT)
    ]
    await (producer.flush() if ending == "flush" else producer.close())
    assert all(send.done() for send in sends)
    receipts = [send.result() for send in sends]
    await producer.close()
    messages = await read_all(cluster.name_server, topic, COUNT)
    assert sorted(int(m.body) for m in messages) == list(range(COUNT))
    if has_key:
        for key in range(3):
            places = [(receipts[n].queue, receipts[n].queue_offset) for n in range(key, COUNT, 3)]
            assert places == sorted(places), "messages of one key are in one queue, in order"


async def test_keyed_messages_of_before_and_after_the_route_keep_their_order(
    cluster: Cluster, unique: Callable[[str], str]
) -> None:
    """The route comes between two sends: the second must not overtake the first."""
    topic = unique("overtake")
    async with Producer("overtake", name_server=cluster.name_server) as producer:
        sends = []
        for number in range(COUNT):
            sends.append(producer.send_nowait(Message(topic, b"%d" % number, sharding_key="k")))
            await asyncio.sleep(0)
        await producer.flush()
        offsets = [send.result().queue_offset for send in sends]
    assert offsets == list(range(COUNT))


def test_a_blocking_producer_ends_with_nothing_open(
    cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = unique("blocking-taken")
    for ending in ("flush", "close"):
        producer = blocking.Producer(
            "taken", name_server=cluster.name_server, in_flight_max=8
        ).start()
        sends = [producer.send_nowait(keyed(topic, n)) for n in range(COUNT)]
        sends += [producer.send_nowait(Message(topic, b"%d" % n)) for n in range(COUNT)]
        if ending == "flush":
            producer.flush()
            assert all(send.done() for send in sends)
        producer.close()
        assert all(send.done() for send in sends)
        assert all(send.result().is_acknowledged for send in sends)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("ending", ["flush", "close"])
async def test_without_a_name_server_every_future_has_its_error(
    options: dict[str, Any], ending: str
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    producer = Producer("nobody", name_server=nobody, send_timeout_ms=1000, **options)
    await producer.start()
    sends = [producer.send_nowait(keyed("t", n)) for n in range(5)]
    sends += [producer.send_nowait(Message("t", b"x")) for n in range(5)]
    await (producer.flush() if ending == "flush" else producer.close())
    assert all(send.done() for send in sends)
    for send in sends:
        error = send.exception()
        assert isinstance(error, NameServerUnreachableError)
        assert error.outcome is SendOutcome.NOT_STORED
        assert error.is_safe_to_repeat
    await producer.close()


def test_a_blocking_close_without_a_name_server_leaves_no_future_open() -> None:
    producer = blocking.Producer(
        "nobody", name_server=f"127.0.0.1:{free_port()}", send_timeout_ms=500, in_flight_max=3
    ).start()
    sends = [producer.send_nowait(Message("t", b"x")) for _ in range(10)]
    sends += [producer.send_nowait(keyed("t", n)) for n in range(10)]
    producer.close()
    assert all(send.done() for send in sends)
    for send in sends:
        with pytest.raises((ClientError, concurrent.futures.CancelledError)):
            send.result()


async def check(message: Any) -> TransactionState:
    return TransactionState.COMMIT


async def test_a_transaction_without_a_name_server_fails_when_its_time_is_up() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with TransactionProducer(
        "tx", check=check, name_server=nobody, send_timeout_ms=500
    ) as producer:
        with pytest.raises(NameServerUnreachableError) as caught:
            await producer.prepare(keyed("t", 1))
    assert caught.value.outcome is SendOutcome.NOT_STORED


@pytest.mark.parametrize(
    "call", ["send", "keyed", "oneway", "request", "idempotent", "batch", "many", "blocking"]
)
async def test_a_send_to_a_new_topic_waits_for_a_name_server_that_is_away(
    bare_cluster: Cluster, unique: Callable[[str], str], call: str
) -> None:
    """It comes back within the time of the send, and the message arrives."""
    bare_cluster.broker()
    topic = unique("later")
    options = {"idempotent": True} if call == "idempotent" else {}
    producer = Producer(
        "later", name_server=bare_cluster.name_server, send_timeout_ms=30_000, retry_count=0,
        **options,
    )  # fmt: skip
    await producer.start()
    bare_cluster.namesrv.kill()
    sending = asyncio.ensure_future(_send(producer, call, topic, bare_cluster.name_server))
    done, _ = await asyncio.wait([sending], timeout=0.4)
    assert not done, f"given up at once: {sending}"
    await asyncio.to_thread(bare_cluster.restart_namesrv)
    await asyncio.wait_for(sending, 30)
    await read_all(bare_cluster.name_server, topic, 1)
    await producer.close()


async def _send(producer: Producer, call: str, topic: str, name_server: str) -> Any:
    message = Message(topic, b"x")
    if call == "keyed":
        return await producer.send(Message(topic, b"x", sharding_key="k"))
    if call == "oneway":
        return await producer.send_oneway(message)
    if call == "batch":
        return await producer.send_batch([message])
    if call == "many":
        return await producer.send_many([message])
    if call == "request":
        with pytest.raises(ClientError) as caught:  # Nobody replies.
            await producer.request(message, timeout_ms=8_000)
        assert caught.value.outcome is SendOutcome.STORED, caught.value
        return None
    if call == "blocking":
        return await asyncio.to_thread(_send_blocking, name_server, message)
    return await producer.send(message)


def _send_blocking(name_server: str, message: Message) -> Any:
    with blocking.Producer("later", name_server=name_server, send_timeout_ms=30_000) as producer:
        return producer.send(message)


def test_every_close_of_a_blocking_producer_returns_when_nothing_is_open() -> None:
    producer = blocking.Producer(
        "nobody", name_server=f"127.0.0.1:{free_port()}", send_timeout_ms=1500
    ).start()
    sends = [producer.send_nowait(keyed("t", n)) for n in range(10)]
    begun = threading.Barrier(4)

    def close() -> int:
        begun.wait()
        producer.close()
        return sum(send.done() for send in sends)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        closes = [pool.submit(close) for _ in range(4)]
        assert [call.result(30) for call in closes] == [len(sends)] * 4
    producer.close()
