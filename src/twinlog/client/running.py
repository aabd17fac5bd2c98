"""Running clients until the process is asked to end.

    consumer = PushConsumer("group", name_server="127.0.0.1:9876")

    @consumer.on("orders", "paid || shipped")
    async def handle(message): ...

    run(consumer)

SIGTERM and SIGINT end it cleanly: nothing more is pulled, running handlers end, offsets are
committed, and the function returns. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Protocol

from twinlog.client.errors import UsageError
from twinlog.client.lifetime import Lifetime

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Runnable(Protocol):
    """A client that works by itself once it is started: a PushConsumer."""

    async def start(self) -> object:
        """Begin to work."""
        ...

    async def close(self) -> None:
        """End cleanly."""
        ...

    async def run_forever(self) -> None:
        """Return when it was closed; raise when it can no longer work."""
        ...


def run(*clients: Runnable) -> None:
    """Start the clients and work until SIGTERM or SIGINT, then close them and return.

    Raises:
        ClientError: one of them cannot start, or can no longer work. The others are closed.
    """
    asyncio.run(run_until_stopped(*clients))


async def run_until_stopped(*clients: Runnable) -> None:
    """The same within a loop of yours."""
    for client in clients:
        if not isinstance(client, Lifetime) or not hasattr(client, "run_forever"):
            raise UsageError(f"run() takes push consumers, which call handlers, not {client!r}")
    if not clients:
        raise UsageError("run() needs at least one consumer")
    async with contextlib.AsyncExitStack() as stack:
        with _until_signal() as stopped:
            for client in clients:
                await client.start()
                stack.push_async_callback(client.close)
            await _first_end(clients, stopped)


@contextlib.contextmanager
def _until_signal() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; the second does what signals do."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _first_end(clients: tuple[Runnable, ...], stopped: asyncio.Event) -> None:
    """Until the signal, or until one of them cannot go on; its error is raised."""
    waits: list[asyncio.Future[bool]] = [asyncio.ensure_future(stopped.wait())]
    waits += [asyncio.ensure_future(_forever(client)) for client in clients]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _forever(client: Runnable) -> bool:
    await client.run_forever()
    return True
