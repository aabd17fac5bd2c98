"""A dial that is given up at the moment at which it succeeds, on the loops that brokers run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from support.ha_fake_store import FakeLog
from twinlog.ha.client import HAClient
from twinlog.ha.link import MasterLink
from twinlog.ha.receiver import ReceiverSettings
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.watermark import Watermark

DEADLINE_S = 30
Runner = Callable[[Coroutine[Any, Any, None]], None]


def run_with_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class CancelledClient(HAClient):
    """Its task is cancelled while the loop tells it of the connection."""

    links: list[MasterLink]
    task: asyncio.Task[None]

    def link_made(self, link: MasterLink) -> None:
        super().link_made(link)
        self.links.append(link)
        self.task.cancel()


async def _cancel_at_the_connection() -> None:
    lost = asyncio.Event()

    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass
        writer.close()
        lost.set()

    server = await asyncio.start_server(master, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = CancelledClient(
        FakeLog(), Watermark("flushed", 0), SystemClock(), ReceiverSettings(1000, 5000, 20_000),
        fixed_address=f"{host}:{port}",
    )  # fmt: skip
    client.links = []
    tasks = TaskOwner("broker")
    client.task = tasks.contained("ha-client", client.run)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([client.task])
        await lost.wait()
        await tasks.stop()
    assert client.task.cancelled()
    assert client.link is None
    assert [link.closed.is_set() for link in client.links] == [True]
    assert tasks.failures.count == 0
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("run", [asyncio.run, run_with_uvloop], ids=["asyncio", "uvloop"])
def test_a_dial_that_is_cancelled_as_it_succeeds_leaves_no_link(run: Runner) -> None:
    """uvloop closes the socket and tells nobody: the link's timer went on, its end failed, and the
    cancelled task began again. A broker that was stopped at that moment never ended."""
    run(_cancel_at_the_connection())
