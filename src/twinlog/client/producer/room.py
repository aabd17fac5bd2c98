"""Sends that wait for room in the buffer of their producer, in the order in which they came.

Room comes when a send has its outcome. Whoever waits has a limit of its own, or a group that is
away for long, and comes back, would have everything to take that came meanwhile before it takes
what is new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from twinlog.client.errors import BufferFullError, ClientError


class Room:
    """`is_full` says whether there is none now, `usage` what takes it, in words."""

    def __init__(self, *, is_full: Callable[[], bool], usage: Callable[[], str]) -> None:
        self._is_full = is_full
        self._usage = usage
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.count = 0  # Sends that were taken and wait here.

    async def wait(
        self,
        timeout_ms: float | None,
        left: Callable[[], object],
        is_full: Callable[[], bool] | None = None,
    ) -> None:
        """Until there is room; `left` is called a turn after this one waits no longer.

        Raises:
            BufferFullError: there was none within the time.
        """
        loop = asyncio.get_running_loop()
        self.count += 1
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while (is_full or self._is_full)():
                    waiter: asyncio.Future[None] = loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise BufferFullError(
                f"no room within {timeout_ms:.0f} ms, so nothing was sent: {self._usage()}"
            ) from None
        finally:
            self.count -= 1
            # Room may be left, and whoever had it may not have used it: the next one looks.
            loop.call_soon(left)

    def wake(self) -> None:
        """Let the next one look."""
        while self._waiters and not self._is_full():
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def fail_all(self, error: ClientError) -> None:
        """The producer is closed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
