"""What all simulations of one seed share: ids, a trace with its digest, and the first failure."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from twinlog.testing.sim_loop import SimLoop


class SeedFailure(AssertionError):
    """Something does not hold; the text begins with the seed, `simulation` has the trace."""

    simulation: Any


class SeedRun(ABC):
    """One seed. A subclass has `_main`, which calls `fail` for everything that does not hold."""

    failure_type: ClassVar[type[SeedFailure]] = SeedFailure
    rng: random.Random

    def __init__(self, seed: int, loop: SimLoop, *, keeps_trace: bool) -> None:
        self.seed = seed
        self.loop = loop
        self.lines: list[str] = []
        self.failure = ""
        self._keeps_trace = keeps_trace
        self._token_rng = random.Random(seed)
        self._digest = hashlib.sha256()
        self._is_over = False

    def token(self) -> str:
        """Ids and nonces that are the same for the same seed."""
        return f"{self._token_rng.getrandbits(128):032x}"

    def trace(self, text: str) -> None:
        line = f"{self.loop.now_s:10.4f} {text}"
        self._digest.update(line.encode())
        if self._keeps_trace:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """The same for the same seed, or the simulation is not deterministic."""
        return self._digest.hexdigest()

    def fail(self, text: str) -> None:
        if self._is_over:
            return  # Processes that are torn down say anything.
        self.trace(f"FAILURE {text}")
        if not self.failure:
            self.failure = f"{text} at {self.loop.now_s:.3f} s"

    async def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        deadline_s = self.loop.now_s + within_s
        while not condition():
            if self.loop.now_s > deadline_s or self.failure:
                return False
            await asyncio.sleep(0.05)
        return True

    def run(self) -> None:
        """Raises `failure_type` when something does not hold."""
        with self._logged(), _uncollected():
            self._run()
        if self.failure:
            failure = self.failure_type(f"seed {self.seed}: {self.failure}")
            failure.simulation = self
            raise failure

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            asyncio.set_event_loop(None)
            for text in self.loop.failures:
                self.fail(text)
            self._is_over = True
            self.loop.finish()

    @abstractmethod
    async def _main(self) -> None:
        """The run itself, on the simulated loop."""

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Log lines of production code go to the trace, if it is kept, and nowhere else."""
        logger = logging.getLogger("twinlog")
        handler: Any = _TraceHandler(self) if self._keeps_trace else logging.NullHandler()
        logger.addHandler(handler)
        level, propagates = logger.level, logger.propagate
        logger.propagate = False
        # A record that nobody gets is not even made: that looks for the line that logs.
        logger.setLevel(logging.INFO if self._keeps_trace else logging.CRITICAL + 1)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagates
            logger.setLevel(level)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Cycles of one seed are few, and looking for them takes an eighth of its time.

    The seed before is garbage by now: dozens of megabytes in few objects, so that the collector
    would not come for them by itself. `gc.freeze()` makes it quick where there is much else.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _TraceHandler(logging.Handler):
    """Log lines, in virtual time."""

    def __init__(self, run: SeedRun) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        now_s = self._run.loop.now_s
        self._run.lines.append(f"{now_s:10.4f}   {record.name} {record.getMessage()}")
