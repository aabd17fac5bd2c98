"""Ownership of background work. A task is vital or contained, said where it is spawned.

- *vital*: without it the store or replication is unsafe (a failed fsync, a log that cannot be
  trusted). Its first failure is kept with its reason and `on_failure` ends the process.
- *contained*: everything else. Its failure is noted (`runtime/failures.py`) and it is started again
  after a pause that grows; so it is spawned from a factory. A *round* is one that repeats an action
  forever: a failed one costs that round.
- a *job* is contained too, but belongs to one request: it is not started again, and `failed` tells
  whoever waits for it.

RocketMQ's ServiceThread catches everything and goes on; a dead flush or HA thread is then noticed
by its effects.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twinlog.runtime.clock import Clock, SystemClock
from twinlog.runtime.failures import Failures

_LOG = logging.getLogger("twinlog.tasks")
_Result = TypeVar("_Result")

RESTART_MS_MIN = 100
RESTART_MS_MAX = 30_000
INTERVAL_CHECK_MS = 1_000  # An interval that is made shorter while it runs counts so soon.

Factory = Callable[[], Coroutine[Any, Any, Any]]


class Kind(enum.Enum):
    """What the failure of a task means."""

    VITAL = "vital"
    CONTAINED = "contained"


class TaskOwner:
    """Owns tasks by name. `stop` cancels and awaits them; a vital one that fails ends the owner."""

    def __init__(
        self,
        name: str,
        on_failure: Callable[[str, BaseException], None] | None = None,
        *,
        failures: Failures | None = None,
        clock: Clock | None = None,
        tries_max: int | None = None,
    ) -> None:
        """
        Args:
            tries_max: A contained task that fails so often in a row is a failure of the owner: of a
                client, whose status nobody looks at while somebody waits for it.
        """
        self.name = name
        self._tries_max = tries_max
        self.on_failure = on_failure
        self.failures = failures if failures is not None else Failures()
        self.failed: tuple[str, BaseException] | None = None
        self.kinds: dict[str, Kind] = {}
        """Of every service that was ever spawned here, by name; jobs are not among them."""
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # Cancelled in the order of their start.
        self._is_stopping = False

    @property
    def count(self) -> int:
        return len(self._tasks)

    def vital(self, name: str, factory: Factory) -> asyncio.Task[Any]:
        """Run until it ends. An exception in it is a failure of the owner."""
        self.kinds[name] = Kind.VITAL
        return self._start(name, self._vitally(name, factory))

    def contained(self, name: str, factory: Factory, *, about: str = "") -> asyncio.Task[Any]:
        """Run until it ends by itself. After an exception it is started again."""
        self.kinds[name] = Kind.CONTAINED
        return self._start(f"{name} {about}".rstrip(), self._keep_running(name, factory, about))

    def round(
        self, name: str, interval_ms: Callable[[], float], action: Callable[[], object]
    ) -> asyncio.Task[Any]:
        """Repeat `action` (which may be a coroutine function), pausing before each time."""
        self.kinds[name] = Kind.CONTAINED
        return self._start(name, self._repeat(name, interval_ms, action))

    def job(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, _Result],
        *,
        about: str = "",
        failed: Callable[[Exception], object] | None = None,
    ) -> asyncio.Task[_Result]:
        """Run once, for one request: a failure is noted, and `failed` told.

        Who awaits the task itself gets the exception.
        """
        task = self._start(f"{name} {about}".rstrip(), self._once(name, coroutine, about, failed))
        task.add_done_callback(lambda _: coroutine.close())  # Cancelled before it began.
        return task

    def fail(self, name: str, error: BaseException) -> None:
        """What is vital and no task of its own has failed: the turn of the store."""
        self._died(f"{self.name}/{name}", error)

    def _start(self, name: str, coroutine: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    async def _vitally(self, name: str, factory: Factory) -> None:
        try:
            await factory()
        except Exception as error:
            self._died(f"{self.name}/{name}", error)

    async def _keep_running(self, name: str, factory: Factory, about: str) -> None:
        pause_ms, tries = RESTART_MS_MIN, 0
        while True:
            started_ms = self._clock.monotonic_ms()
            try:
                await factory()
                return
            except Exception as error:
                self.failures.note(f"task {name}", error, about)
                _end_if_cancelled()
                if self._clock.monotonic_ms() - started_ms > RESTART_MS_MAX:
                    pause_ms, tries = RESTART_MS_MIN, 0
                tries += 1
                if tries == self._tries_max:
                    self._died(f"{self.name}/{name}", error)
                    return
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, RESTART_MS_MAX)

    async def _repeat(
        self, name: str, interval_ms: Callable[[], float], action: Callable[[], object]
    ) -> None:
        while True:
            try:
                await self._pause(interval_ms)
                result = action()
                if isinstance(result, Coroutine):
                    await result
            except Exception as error:
                self.failures.note(f"timer {name}", error)
                _end_if_cancelled()
                await self._clock.sleep_ms(RESTART_MS_MIN)  # In case the interval itself is bad.

    async def _pause(self, interval_ms: Callable[[], float]) -> None:
        """Wait for an interval that may become shorter meanwhile."""
        started_ms = self._clock.monotonic_ms()
        left = interval_ms()
        while True:  # At least once: an interval of nothing still lets others have their turn.
            await self._clock.sleep_ms(min(max(left, 0), INTERVAL_CHECK_MS))
            left = started_ms + interval_ms() - self._clock.monotonic_ms()
            if left <= 0:
                return

    async def _once(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, _Result],
        about: str,
        failed: Callable[[Exception], object] | None,
    ) -> _Result:
        try:
            return await coroutine
        except Exception as error:
            self.failures.note(f"job {name}", error, about)
            if failed is not None:
                self.failures.contain(f"job {name}", failed, error)
            raise

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # Noted where it was raised.

    def _died(self, name: str, error: BaseException) -> None:
        if self.failed is None:
            self.failed = (name, error)
        _LOG.error("task died name=%s error=%r", name, error, exc_info=error)
        if self.on_failure is not None and not self._is_stopping:
            self.on_failure(name, error)

    def runs_current(self) -> bool:
        """Whether the caller is one of these tasks."""
        return asyncio.current_task() in self._tasks

    async def stop(self) -> None:
        """Cancel what still runs and wait for it to end."""
        self._is_stopping = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)


def _end_if_cancelled() -> None:
    """Clean-up that fails takes the place of the cancellation: whoever cancelled the task still
    waits for its end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
