"""A deterministic event loop on virtual time, with hosts that can be killed, paused and skewed.

The same seed gives the same run: time jumps to the next timer when nothing is ready, ready
callbacks are shuffled by the seeded generator, threads and real sockets are refused. Production
code runs in it unchanged; only disk, clock and transport are replaced.

Hosts: every callback belongs to the host in whose context it was made. A killed host's callbacks
are dropped, not cancelled: no `finally` of a dead process can save anything, as with SIGKILL. A
paused host's callbacks wait, as with SIGSTOP.
"""
# It leans on private names of BaseEventLoop (a test pins them), which have no types.
# mypy: disable-error-code="override,attr-defined,no-untyped-call,misc"

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from twinlog.testing.sim_network import SimNetwork

T = TypeVar("T")


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
        self.parked: list[asyncio.Handle] = []

    def __repr__(self) -> str:
        return f"<{self.name}#{self.incarnation}>"


# (host, incarnation) to which the running callback belongs; None is the simulation itself.
_IDENTITY: contextvars.ContextVar[tuple[SimHost, int] | None] = contextvars.ContextVar(
    "sim_host", default=None
)


def current_host() -> SimHost | None:
    """The host whose code is running."""
    identity = _IDENTITY.get()
    return identity[0] if identity else None


def _is_running(identity: tuple[SimHost, int]) -> bool:
    """Whether the process that a callback belongs to lives, and is not paused."""
    host, incarnation = identity
    return incarnation == host.incarnation and not host.is_paused


class _Selector:
    """Nothing to select: time moves instead."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise SimDeadlock("nothing ready, nothing scheduled")
        return []

    def close(self) -> None:
        return


class _Handle(asyncio.Handle):
    """Without what debugging needs: half a million are made in a minute of simulation."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any = None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _TimerHandle(_Handle, asyncio.TimerHandle):
    __slots__ = ()
    __init__ = _Handle.__init__

    def cancel(self) -> None:
        self._cancelled = True  # The loop forgets it when its time comes.
        self._callback, self._args = None, ()


class SimLoop(asyncio.base_events.BaseEventLoop):
    """See the module. `step_max` bounds a run."""

    def __init__(self, seed: int, *, step_max: int = 5_000_000, shuffle: bool = True) -> None:
        super().__init__()
        self.is_finished = False
        self.rng = random.Random(seed)
        self.network = SimNetwork(self)
        self.step_count = 0
        self.now_s = 0.0
        self.failures: list[str] = []
        self._step_max = step_max
        self._shuffle = shuffle
        self._selector = _Selector()
        self._clock_resolution = 1e-9
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._graveyard: list[asyncio.Handle] = []
        self._graveyard_of_timers: list[object] = []
        self._paused: list[SimHost] = []
        self.bare_context = contextvars.Context()
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        return self.now_s

    # Hosts.

    def add_host(self, name: str, address: str | None = None) -> SimHost:
        host = SimHost(name, address or f"10.0.0.{len(self.network.hosts) + 1}")
        self.network.hosts[host.address] = host
        return host

    def context_of(self, host: SimHost) -> contextvars.Context:
        """A context whose callbacks belong to `host` as it is now."""
        context = contextvars.copy_context()
        context.run(_IDENTITY.set, (host, host.incarnation))
        return context

    def spawn_on(self, host: SimHost, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `coroutine` as a process of `host`."""
        with self._as(host):
            return self.create_task(coroutine)

    @contextmanager
    def _as(self, host: SimHost) -> Iterator[None]:
        token = _IDENTITY.set((host, host.incarnation))
        try:
            yield
        finally:
            _IDENTITY.reset(token)

    def kill(self, host: SimHost, *, power_loss: bool = False) -> None:
        """SIGKILL, or with `power_loss` the machine: then nobody tells the peers."""
        host.incarnation += 1
        host.is_alive = False
        self._set_paused(host, value=False)
        self._graveyard += host.parked
        host.parked = []
        for _, _, handle in self._timers:
            identity = handle._context.get(_IDENTITY)
            if identity is not None and identity[0] is host:
                self._graveyard_of_timers.append((handle._callback, handle._args))
                handle.cancel()
        self.network.host_died(host, tells_peers=not power_loss)

    def revive(self, host: SimHost) -> None:
        """The machine is up again; the caller starts its processes."""
        host.is_alive = True

    def pause(self, host: SimHost) -> None:
        """SIGSTOP: its callbacks wait, the network goes on into its buffers."""
        self._set_paused(host, value=True)

    def resume(self, host: SimHost) -> None:
        self._set_paused(host, value=False)
        self._ready.extend(host.parked)
        host.parked = []

    def _set_paused(self, host: SimHost, *, value: bool) -> None:
        host.is_paused = value
        self._paused = [each for each in self.network.hosts.values() if each.is_paused]

    # The loop.

    def _run_once(self) -> None:
        # The base class's, without what real time and debugging need: a seed has 20,000 steps.
        ready, timers, identity_of = self._ready, self._timers, _IDENTITY
        while not self._stopping:
            self.step_count += 1
            if self.step_count > self._step_max:
                text = f"{self._step_max} steps at {self.now_s:.3f} s of virtual time"
                raise SimStepsExceeded(text)
            self._take_due(ready, timers)
            handles = list(ready)
            ready.clear()
            if len(handles) > 1 and self._shuffle:
                self.rng.shuffle(handles)
            if self._paused:
                handles = [handle for handle in handles if self._may_run(handle)]
            for handle in handles:
                if handle._cancelled:
                    continue
                context = handle._context
                identity = context.get(identity_of)
                if identity is not None and not _is_running(identity):
                    self._may_run(handle)
                    continue
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._callback_failed(handle, error)

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        message = f"Exception in callback {handle._callback!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _take_due(
        self, ready: deque[asyncio.Handle], timers: list[tuple[float, int, asyncio.TimerHandle]]
    ) -> None:
        """Time moves on when nothing is ready; what is due then is."""
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise SimDeadlock("nothing ready, nothing scheduled")
            self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            ready.append(heapq.heappop(timers)[2])

    def _may_run(self, handle: asyncio.Handle) -> bool:
        """Bury the callbacks of the dead, park those of the paused."""
        identity = handle._context.get(_IDENTITY)
        if identity is None:
            return True
        host, incarnation = identity
        if incarnation != host.incarnation:
            self._graveyard.append(handle)
            return False
        if host.is_paused:
            host.parked.append(handle)
            return False
        return True

    def _process_events(self, events: list[Any]) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def _note_failure(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {error!r}")

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        raise RuntimeError("no threads in the simulation")

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.network.listen(factory, current_host(), int(port or 0))

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(factory, current_host(), str(host), int(port))

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self.is_finished:
            self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle: asyncio.TimerHandle = _TimerHandle(callback, args, self, context)
        handle._when = when
        if not self.is_finished:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def finish(self) -> None:
        """End the run: what still waits is forgotten, and what it does about it has no effect."""
        self.is_finished = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            with suppress(BaseException):
                task.get_coro().close()
        self._ready.clear()
        self._timers.clear()
        self._graveyard.clear()
        self._graveyard_of_timers.clear()
        self.close()
