"""A TCP proxy in a thread that can delay, throttle, cut and hold what passes through it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and forwards to `target_port`.

    `cut()` closes all connections and refuses new ones until `heal()`; `hold()` lets connections
    stand but passes nothing (half open); `delay_s` and `bytes_per_second` apply to each direction.
    """

    def __init__(
        self, target_port: int, *, delay_s: float = 0.0, bytes_per_second: int = 0
    ) -> None:
        self.target_port = target_port
        self.delay_s = delay_s
        self.bytes_per_second = bytes_per_second
        self.port = 0
        self.accepted = 0
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def cut(self) -> None:
        self._is_cut = True
        self._call(self._close_all)

    def hold(self) -> None:
        self._call(self._passing.clear)

    def heal(self) -> None:
        self._is_cut = False
        self._call(self._passing.set)

    def close(self) -> None:
        self._call(self._close_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _call(self, function: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._passing.set()
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._passing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.bytes_per_second:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
