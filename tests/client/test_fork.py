"""Processes that fork: the parent's client goes on, the child's use of it is a clear error."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest

from twinlog.client import Message, Producer, blocking
from twinlog.client.errors import ClientForkedError

Unique = Callable[[str], str]


def in_child(function: Callable[[], str]) -> str:
    """What `function` returns in a forked child, or the name of what it raised."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end) as stream:
        return stream.read()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_blocking_client_refuses_its_child_and_goes_on_in_the_parent(
    cluster: Any, unique: Unique
) -> None:
    topic = unique("T")
    with blocking.Producer("pg", name_server=cluster.name_server) as producer:
        producer.send(Message(topic, b"1"))

        def misuse() -> str:
            producer.send(Message(topic, b"2"))
            return "sent"

        def leave() -> str:
            producer.close()
            return "closed"

        assert in_child(misuse).startswith("ClientForkedError: this client was opened by process")
        assert in_child(leave) == "closed"
        assert producer.send(Message(topic, b"3")).is_acknowledged


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_an_asyncio_client_refuses_its_child(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send(Message(topic, b"1"))

        def misuse() -> str:
            producer.send_nowait(Message(topic, b"2"))
            return "sent"

        assert in_child(misuse).startswith(ClientForkedError.__name__)
        assert (await producer.send(Message(topic, b"3"))).is_acknowledged


def send_from_worker(arguments: tuple[str, str, int]) -> int:
    name_server, topic, number = arguments
    with blocking.Producer("pg", name_server=name_server) as producer:
        return producer.send(Message(topic, b"%d" % number)).queue_offset


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_process_of_a_pool_opens_its_own_client(
    cluster: Any, unique: Unique, method: str
) -> None:
    topic = unique("T")
    with blocking.Producer("pg", name_server=cluster.name_server) as producer:
        producer.send(Message(topic, b"parent"))
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            work = [(cluster.name_server, topic, number) for number in range(6)]
            offsets = pool.map(send_from_worker, work)
        assert len(offsets) == 6
        producer.send(Message(topic, b"parent again"))
