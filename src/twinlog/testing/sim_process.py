"""A server of a simulation: a host and a disk, which survive the processes that come and go."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from twinlog.testing.seed_run import SeedRun
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.simdisk import SimDisk


class SimProcess(ABC):
    """A subclass has `_boot`, which starts the server on the host and says when it `is_up`."""

    def __init__(self, run: SeedRun, name: str) -> None:
        self._run = run
        self.name = name
        self.host = run.loop.add_host(name)
        self.clock = SimClock(run.loop, self.host)
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.is_up = False

    @abstractmethod
    async def _boot(self) -> None:
        """The start of the server, as a task of the host."""

    def boot(self) -> None:
        """Start the process."""
        self._run.loop.revive(self.host)
        self.is_up = False
        self._begins()
        self._run.loop.spawn_on(self.host, self._boot()).add_done_callback(self._booted)

    def _begins(self) -> None:
        """A process is about to start."""
        self._run.trace(f"{self.name} boots")

    def _booted(self, task: asyncio.Task[None]) -> None:
        """A server may refuse to start on a full disk; whoever supervises it tries again."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if "No space left" not in str(error):
            self._run.fail(f"{self.name} did not start: {error!r}")
            return
        self._run.trace(f"{self.name} did not start: {error}")
        self.kill()
        self._run.loop.call_later(1.0, self.boot_if_down)

    def boot_if_down(self) -> None:
        if not self.host.is_alive:
            self.boot()

    def resume_if_paused(self) -> None:
        if self.host.is_alive and self.host.is_paused:
            self._run.loop.resume(self.host)

    def kill(self) -> None:
        """SIGKILL: what was written stays."""
        self._run.trace(f"{self.name} killed")
        self._note_down()
        self._run.loop.kill(self.host)
        self.disk = self.disk.kill()

    def power_loss(self) -> None:
        """What was not synced may be gone, in part, and nobody is told."""
        self._run.trace(f"{self.name} lost power")
        self._note_down()
        self._run.loop.kill(self.host, power_loss=True)
        self.disk = self.disk.crash(self._run.rng)

    def _note_down(self) -> None:
        self.is_up = False
