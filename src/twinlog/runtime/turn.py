"""One turn of the event loop, and the order of what happens at its end.

While the loop reads sockets and runs timers, parts add what must follow from it, each to its phase.
At the end of the turn all of it is done, phase by phase. This is the only place that says what
comes before what, and why:

WRITE_LOG: all that was put is written by one call.
    First: nothing may be replicated, answered or seen that is not in the log.
WAKE_REPLICAS: the new bytes leave for the slaves.
    What a send waits for longest is the way to a slave and back: it begins before all else.
RELEASE_REPLIES: sends that waited for the log are answered.
    A producer hears of its message before a consumer can act on it.
NOTIFY_QUEUES: held pulls, delays and transactions see what moved.
    It is the longest of all, and no producer waits for it.
FLUSH_SOCKETS: what was said to each connection leaves in one write.
    Last: every phase above may say something.

What is added for a phase that is over, or is being done, waits for the next turn, so that sockets
are read in between: a put that a notification makes, the next run of a long transfer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twinlog.runtime.compiled import load

Work = Callable[[], None]


class Phase:
    """In the order in which they are done. Plain numbers: they are looked up in every turn."""

    WRITE_LOG: Final = 0
    WAKE_REPLICAS: Final = 1
    RELEASE_REPLIES: Final = 2
    NOTIFY_QUEUES: Final = 3
    FLUSH_SOCKETS: Final = 4


_PHASES: Final = range(5)
_BETWEEN: Final = 5


class TurnInPython:
    """What is to be done at the end of this turn of the loop.

    Whoever adds work keeps its errors to itself: one that comes out nevertheless is a bug, goes to
    whoever ends the turn (the loop), and costs neither the other work nor the later phases.
    """

    __slots__ = ("_is_scheduled", "_loop", "_phase", "_work")

    def __init__(self) -> None:
        self._work: list[list[Work]] = [[] for _ in _PHASES]
        self._phase = _BETWEEN  # The one that is being done.
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """The turns are those of the loop that is running: asked for once, before the first."""
        self._loop = asyncio.get_running_loop()

    def add(self, phase: int, work: Work) -> None:
        """Do `work` in its phase: of this turn, or of the next if it is past that."""
        self._work[phase].append(work)
        if phase <= self._phase and not self._is_scheduled:
            self._is_scheduled = True
            self.next(self.run)

    def next(self, work: Work) -> None:
        """Do `work` at the beginning of the next turn, behind what is added to this one."""
        if self._loop is None:
            self.bind()
        assert self._loop is not None
        self._loop.call_soon(work)

    def run(self) -> None:
        """End the turn now. Within a turn that is being ended: nothing, its phases go on."""
        if self._phase != _BETWEEN:
            return
        self._is_scheduled = False  # The loop may call once more, and find nothing to do.
        failed: Exception | None = None
        every = self._work
        try:
            for phase in _PHASES:
                self._phase = phase
                work = every[phase]
                if work:
                    every[phase] = []
                    for one in work:
                        try:
                            one()
                        except Exception as error:
                            failed = failed or error
        finally:
            self._phase = _BETWEEN
        if failed is not None:
            raise failed


if TYPE_CHECKING:
    Turn = TurnInPython
else:
    _compiled = load("twinlog.runtime._turn")
    Turn = TurnInPython if _compiled is None else _compiled.Turn
