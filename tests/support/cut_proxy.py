"""A TCP proxy in the test's loop that cuts each connection after a number of bytes."""

from __future__ import annotations

import asyncio
import random


class CutProxy:
    """Forwards to `target_port`. Each connection is cut when one of its directions has passed as
    many bytes as chosen: at random up to twice `cut_after`, (towards the target, back)."""

    def __init__(self, target_port: int, numbers: random.Random) -> None:
        self._target_port = target_port
        self._numbers = numbers
        self.cut_after = (1 << 30, 1 << 30)
        self.port = 0
        self.cuts = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        forth, back = (self._numbers.randrange(2 * limit + 1) for limit in self.cut_after)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pipes = [
            asyncio.ensure_future(_pipe(reader, far_writer, forth)),
            asyncio.ensure_future(_pipe(far_reader, writer, back)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            self.cuts += 1
        except asyncio.CancelledError:
            pass  # The proxy is closed; asyncio's server would log a cancelled task as a failure.
        finally:
            for pipe in pipes:
                pipe.cancel()
            # Bytes that passed have arrived: closing the far side keeps them, a reset would not.
            far_writer.close()
            writer.transport.abort()
            self._tasks.discard(task)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
    while limit > 0 and (data := await reader.read(4096)):
        writer.write(data[:limit])
        limit -= len(data)
        await writer.drain()
