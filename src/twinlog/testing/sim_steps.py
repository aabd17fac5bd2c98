"""The steps of the simulated loop: what is ready, what is due, and in which order it runs.

Time jumps to the next timer when nothing is ready; what is ready is shuffled by the loop's seeded
generator. `StepsInPython` is the reference; `_sim_steps.pyx` is the same, compiled, draws the same
numbers and takes the same steps.
"""
# The loop's `_stopping` is a private name of BaseEventLoop (a test pins it), without a type.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import contextvars
import heapq
from typing import TYPE_CHECKING, Any

from twinlog.runtime.compiled import load

if TYPE_CHECKING:
    from twinlog.testing.sim_loop import SimLoop


class SimDeadlock(RuntimeError):
    """Nothing is ready and nothing is scheduled, but someone still waits."""


class SimStepsExceeded(RuntimeError):
    """The run took more steps than its budget: something spins."""


class SimHost:
    """One machine of the simulation. A restart is a new incarnation with the same address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.incarnation = 0
        self.is_alive = True
        self.is_paused = False
        self.wall_offset_ms = 0
        self.clock_rate = 1.0
        """How fast its clocks run; what asyncio counts by itself is not touched."""
        self.parked: list[Any] = []

    def __repr__(self) -> str:
        return f"<{self.name}#{self.incarnation}>"


# (host, incarnation) to which the running callback belongs; None is the simulation itself.
IDENTITY: contextvars.ContextVar[tuple[SimHost, int] | None] = contextvars.ContextVar(
    "sim_host", default=None
)


class _Handle:
    """asyncio's, without what debugging needs: half a million are made in a minute."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, callback: Any, args: Any, context: Any, when: float) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True  # The loop forgets it when its time comes.
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


def wake(future: Any) -> None:
    """The end of a sleep."""
    if not future.cancelled():
        future.set_result(None)


class StepsInPython:
    """`ready` and `timers` belong to the loop, too, which kills and pauses hosts."""

    def __init__(self, loop: SimLoop, *, step_max: int, shuffles: bool) -> None:
        self.ready: list[Any] = []
        self.timers: list[tuple[float, int, Any]] = []
        self.step_count = 0
        self.is_finished = False
        self._loop = loop
        self._step_max = step_max
        self._shuffles = shuffles
        self._timer_count = 0

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = _Handle(callback, args, context, 0.0)
        if not self.is_finished:
            self.ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._loop.now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = _Handle(callback, args, context, when)
        if not self.is_finished:
            self._timer_count += 1
            heapq.heappush(self.timers, (when, self._timer_count, handle))
        return handle

    def run(self) -> None:
        """Until the loop is told to stop."""
        loop = self._loop
        while not loop._stopping:
            self.step_count += 1
            if self.step_count > self._step_max:
                text = f"{self._step_max} steps at {loop.now_s:.3f} s of virtual time"
                raise SimStepsExceeded(text)
            self._take_due()
            handles = self.ready[:]
            self.ready.clear()
            if len(handles) > 1 and self._shuffles:
                loop.rng.shuffle(handles)
            if loop.paused:
                handles = [handle for handle in handles if loop.may_run(handle)]
            for handle in handles:
                self._run(handle)

    def _run(self, handle: _Handle) -> None:
        if handle._cancelled or not self._loop.may_run(handle):
            return
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.callback_failed(handle, error)

    def _take_due(self) -> None:
        """Time moves on when nothing is ready; what is due then is."""
        loop, timers, ready = self._loop, self.timers, self.ready
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise SimDeadlock("nothing ready, nothing scheduled")
            loop.now_s = max(loop.now_s, timers[0][0])
        while timers and timers[0][0] <= loop.now_s:
            ready.append(heapq.heappop(timers)[2])


if TYPE_CHECKING:
    Steps = StepsInPython
else:
    _compiled = load("twinlog.testing._sim_steps")
    Steps = StepsInPython if _compiled is None else _compiled.Steps
    wake = wake if _compiled is None else _compiled.wake
