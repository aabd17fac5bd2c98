"""Ownership of background work: a task that dies takes its owner down, never silently.

RocketMQ's ServiceThread catches everything and goes on; a dead flush or HA thread is then noticed
by its effects. Here the first failure is kept with its reason, reported once, and `on_failure`
ends the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_LOG = logging.getLogger("twinlog.tasks")


class TaskOwner:
    """Owns tasks by name. `stop` cancels and awaits them; a crash is reported to `on_failure`."""

    def __init__(
        self, name: str, on_failure: Callable[[str, BaseException], None] | None = None
    ) -> None:
        self.name = name
        self.on_failure = on_failure
        self.failed: tuple[str, BaseException] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    @property
    def count(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `coroutine` until it ends. An exception in it is a failure of the owner."""
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        name = task.get_name()
        if self.failed is None:
            self.failed = (name, error)
        _LOG.error("task died name=%s error=%r", name, error, exc_info=error)
        if self.on_failure is not None and not self._is_stopping:
            self.on_failure(name, error)

    async def stop(self) -> None:
        """Cancel what still runs and wait for it to end."""
        self._is_stopping = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
