"""`close()` in every state: from another loop, twice at once, and while others send."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from client.conftest import Cluster
from support.processes import wait_until
from twinlog.admin.client import Admin
from twinlog.client import Message, Producer, PullConsumer, PushConsumer, blocking
from twinlog.client.errors import ClientClosedError, ClientError, UsageError

KINDS: list[Callable[[str], Any]] = [
    lambda name_server: Producer("closing", name_server=name_server),
    lambda name_server: PullConsumer("closing-pull", name_server=name_server),
    lambda name_server: PushConsumer("closing-push", name_server=name_server),
    Admin,
]
IDS = ["producer", "pull", "push", "admin"]


# A transport of a loop that has ended cannot be closed, only collected; Python says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_client_whose_loop_has_ended_is_closed_in_another(
    cluster: Cluster, kind: Callable[[str], Any]
) -> None:
    client = kind(cluster.name_server)

    async def begin() -> Any:
        await client.start()
        if isinstance(client, Producer):
            await client.send(Message("closing", b"first"))
            return client.send_nowait(Message("closing", b"second", sharding_key="k"))
        return None

    async def again() -> None:
        await client.close()
        await client.close()

    taken = asyncio.run(begin())
    asyncio.run(asyncio.wait_for(again(), 10))
    gc.collect()
    if taken is not None:
        assert taken.done(), "a message that was taken has neither a receipt nor an error"
        with pytest.raises(ClientClosedError):
            asyncio.run(client.send(Message("closing", b"third")))


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
async def test_a_client_is_not_closed_in_another_loop_while_its_own_is_there(
    cluster: Cluster, kind: Callable[[str], Any]
) -> None:
    async with kind(cluster.name_server) as client:

        def elsewhere() -> None:
            with pytest.raises(UsageError, match="another event loop"):
                asyncio.run(asyncio.wait_for(client.close(), 10))

        await asyncio.to_thread(elsewhere)
        if isinstance(client, Producer):
            assert (await client.send(Message("closing", b"still"))).is_acknowledged


async def test_a_flush_in_another_loop_is_refused(cluster: Cluster) -> None:
    async with Producer("closing", name_server=cluster.name_server) as producer:

        def elsewhere() -> None:
            with pytest.raises(UsageError, match="another event loop"):
                asyncio.run(asyncio.wait_for(producer.flush(), 10))

        await asyncio.to_thread(elsewhere)


async def test_whoever_closes_second_finds_nothing_open(cluster: Cluster) -> None:
    for turns in range(12):
        producer = await Producer("closing", name_server=cluster.name_server).start()
        sends = [producer.send_nowait(Message("closing", b"x", sharding_key="k"))]
        first = asyncio.ensure_future(producer.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        await producer.close()
        assert all(send.done() for send in sends), turns
        await first


def test_a_blocking_call_that_meets_a_close_ends(cluster: Cluster) -> None:
    """From several threads: every call returns or raises, whenever the close comes."""
    for _ in range(6):
        producer = blocking.Producer("closing", name_server=cluster.name_server).start()
        futures: list[concurrent.futures.Future[Any]] = []

        def send(client: blocking.Producer, taken: list[Any]) -> None:
            with contextlib.suppress(ClientError):
                for _ in range(2000):
                    taken.append(client.send_nowait(Message("closing", b"x")))

        threads = [threading.Thread(target=send, args=(producer, futures)) for _ in range(2)]
        for thread in threads:
            thread.start()
        closers = [threading.Thread(target=producer.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        for thread in (*closers, *threads):
            thread.join(30)
            assert not thread.is_alive()
        _, late = concurrent.futures.wait(futures, timeout=5)
        assert not late, f"{len(late)} of {len(futures)} stay open"
        for future in futures:
            assert not future.cancelled(), "neither a receipt nor an error that says what it is"


def test_a_handler_that_closes_during_a_close_does_not_wait_for_itself(
    cluster: Cluster, unique: Callable[[str], str]
) -> None:
    topic = unique("closed-by-handler")
    closing, closed = threading.Event(), threading.Event()
    seen: list[bytes] = []
    consumer = blocking.PushConsumer(
        unique("g"),
        name_server=cluster.name_server,
        consume_from=blocking.ConsumeFrom.FIRST_OFFSET,
        shutdown_timeout_ms=60_000,
    )

    def handle(message: blocking.ReceivedMessage) -> None:
        seen.append(message.body)
        assert closing.wait(30)
        consumer.close()
        closed.set()

    with blocking.Producer("p", name_server=cluster.name_server) as producer:
        producer.send(Message(topic, b"x"))
    consumer.start()
    consumer.subscribe(topic, "*", handle)
    wait_until(lambda: seen, "a message in hand")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        close = pool.submit(consumer.close)
        wait_until(consumer._closed.is_set, "the close has begun")
        closing.set()
        assert closed.wait(20)
        close.result(20)


def test_a_close_from_a_signal_handler_during_a_close_returns(cluster: Cluster) -> None:
    producer = blocking.Producer("p", name_server=cluster.name_server).start()
    calls = []

    def interrupting(coroutine: Any, **options: Any) -> Any:
        calls.append(producer.close())  # As a handler that runs within the first close.
        return run(coroutine, **options)

    run, producer._thread.run = producer._thread.run, interrupting  # type: ignore[method-assign]
    producer.close()
    assert calls == [None]
