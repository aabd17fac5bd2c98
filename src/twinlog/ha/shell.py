"""What both ends of an HA connection do with their transport, whatever the dialect.

Base of `HAConnection` (the master's end) and `MasterLink` (the slave's end). The core that it is
given decides; here are the one write, the one end of a connection, and what a bug costs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

from twinlog.ha.twin.digests import Steps
from twinlog.runtime.clock import Clock
from twinlog.store.errors import StoreError

LINGER_MS = 2000  # For the reason to arrive; a peer that reads nothing does not keep the rest.

_T = TypeVar("_T")


class Core(Protocol):
    """What a shell asks of every core."""

    @property
    def is_ended(self) -> bool: ...

    @property
    def tells_why(self) -> bool:
        """Whether the dialect has words for the end: what is buffered then still goes out."""
        ...


class HAShell(ABC):
    """One connection."""

    core: Core

    def __init__(self, clock: Clock) -> None:
        self.since_ms = clock.now_ms()
        self._clock = clock
        self._transport: asyncio.Transport | None = None

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """A bug: it costs this connection."""

    @abstractmethod
    def _log_changed(self, reason: str) -> None:
        """What is looked for in the log is not there any more."""

    def guard(self, function: Callable[..., object], *arguments: object) -> None:
        """A bug in here must not end as a line of asyncio's log."""
        try:
            function(*arguments)
        except Exception as error:
            self._failed(error)

    def _write(self, data: bytes) -> bool:
        """Whether there was something to write, and somebody to write it to."""
        if not data or self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(data)
        return True

    def _end_transport(self) -> None:
        """The reason may still go out; a peer that reads nothing holds up nobody."""
        if self._transport is None:
            return
        if self.core.tells_why:
            self._transport.close()
            self._clock.call_later_ms(LINGER_MS, self._abort)
        else:
            self._transport.abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _look(self, steps: Steps[_T], then: Callable[[_T], object]) -> None:
        """Look into the log, one megabyte in a turn of the loop: a peer that comes back holds up
        nobody who sends or reads."""
        asyncio.get_running_loop().call_soon(self.guard, self._step, steps, then)

    def _step(self, steps: Steps[_T], then: Callable[[_T], object]) -> None:
        if self.core.is_ended:
            return
        try:
            next(steps)
        except StopIteration as done:
            then(done.value)
        except StoreError as error:
            # Retention deleted the oldest file meanwhile: the next handshake knows the new start.
            self._log_changed(f"the log changed during the handshake: {error}")
        else:
            self._look(steps, then)
