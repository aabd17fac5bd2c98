"""A deterministic event loop on virtual time, with hosts that can be killed, paused and skewed.

The same seed gives the same run: time jumps to the next timer when nothing is ready, ready
callbacks are shuffled by the seeded generator, threads and real sockets are refused. Production
code runs in it unchanged; only disk, clock and transport are replaced.

Hosts: every callback belongs to the host in whose context it was made. A killed host's callbacks
are dropped, not cancelled: no `finally` of a dead process can save anything, as with SIGKILL. A
paused host's callbacks wait, as with SIGSTOP.
"""
# It leans on private names of BaseEventLoop (a test pins them), which have no types.
# mypy: disable-error-code="override,attr-defined,no-untyped-call,misc,assignment,method-assign"

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from twinlog.testing.sim_network import SimNetwork
from twinlog.testing.sim_steps import IDENTITY, SimDeadlock, SimHost, Steps

T = TypeVar("T")


def current_host() -> SimHost | None:
    """The host whose code is running."""
    identity = IDENTITY.get()
    return identity[0] if identity else None


class _Selector:
    """Nothing to select: time moves instead."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise SimDeadlock("nothing ready, nothing scheduled")
        return []

    def close(self) -> None:
        return


class SimLoop(asyncio.base_events.BaseEventLoop):
    """See the module. `step_max` bounds a run."""

    def __init__(self, seed: int, *, step_max: int = 5_000_000, shuffle: bool = True) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.network = SimNetwork(self)
        self.now_s = 0.0
        self.failures: list[str] = []
        self._selector = _Selector()
        self._clock_resolution = 1e-9
        self._steps = steps = Steps(self, step_max=step_max, shuffles=shuffle)
        self._ready, self._timers = steps.ready, steps.timers
        self.call_soon, self.call_at = steps.call_soon, steps.call_at
        self.call_later, self.call_soon_threadsafe = steps.call_later, steps.call_soon
        self.create_future = partial(asyncio.Future, loop=self)
        self._graveyard: list[Any] = []
        self._graveyard_of_timers: list[object] = []
        self.paused: list[SimHost] = []
        self.bare_context = contextvars.Context()
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        return self.now_s

    @property
    def step_count(self) -> int:
        return self._steps.step_count

    @property
    def is_finished(self) -> bool:
        return self._steps.is_finished

    # Hosts.

    def add_host(self, name: str, address: str | None = None) -> SimHost:
        host = SimHost(name, address or f"10.0.0.{len(self.network.hosts) + 1}")
        self.network.hosts[host.address] = host
        return host

    def context_of(self, host: SimHost) -> contextvars.Context:
        """A context whose callbacks belong to `host` as it is now."""
        context = contextvars.copy_context()
        context.run(IDENTITY.set, (host, host.incarnation))
        return context

    def spawn_on(self, host: SimHost, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `coroutine` as a process of `host`."""
        with self._as(host):
            return self.create_task(coroutine)

    @contextmanager
    def _as(self, host: SimHost) -> Iterator[None]:
        token = IDENTITY.set((host, host.incarnation))
        try:
            yield
        finally:
            IDENTITY.reset(token)

    def kill(self, host: SimHost, *, power_loss: bool = False) -> None:
        """SIGKILL, or with `power_loss` the machine: then nobody tells the peers."""
        host.incarnation += 1
        host.is_alive = False
        self._set_paused(host, value=False)
        self._graveyard += host.parked
        host.parked = []
        for _, _, handle in self._timers:
            identity = handle._context.get(IDENTITY)
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
        self.paused = [each for each in self.network.hosts.values() if each.is_paused]

    # The loop.

    def _run_once(self) -> None:
        self._steps.run()  # Without what real time and debugging need.

    def callback_failed(self, handle: Any, error: BaseException) -> None:
        message = f"Exception in callback {handle._callback!r}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def may_run(self, handle: Any) -> bool:
        """Bury the callbacks of the dead, park those of the paused."""
        identity = handle._context.get(IDENTITY)
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

    def finish(self) -> None:
        """End the run: what still waits is forgotten, and what it does about it has no effect."""
        self._steps.is_finished = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False
            with suppress(BaseException):
                task.get_coro().close()
        self._ready.clear()
        self._timers.clear()
        self._graveyard.clear()
        self._graveyard_of_timers.clear()
        self.close()
