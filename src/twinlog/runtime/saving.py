"""Tables that are written whole: gathered, off the loop, tried again when the disk refuses.

Corresponds to the `persist` of RocketMQ's ConfigManager, which writes after every change. A table
here has a version that grows with each change and one that is on disk. Whoever changes it is told
when that change is on disk, or why it is not; changes that come while a save is on its way share
the next one, so a thousand of them cost a handful of saves.

What cannot be saved (a full disk, a read-only one, EIO) is kept in memory and tried again with
growing pauses. It never ends the process: serving what is there needs no table on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twinlog.runtime.clock import Clock
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.saving")

_PAUSE_MS_MIN = 100
_PAUSE_MS_MAX = 5_000  # Who has freed space waits no longer for what is in memory only.
_SLICE = 50  # Members made into text in one turn of the loop: a millisecond or three.

# Called once, with the reason why a change is not on disk, empty when it is.
SavedCallback = Callable[[str], None]


class HeldForSave(Exception):
    """The request must wait until what it made is on disk; then it is handled again."""

    def __init__(self, saver: TableSaver) -> None:
        super().__init__(saver.name)
        self.saver = saver


class TableSaver:
    """What of one table is on disk. `write` puts down the table as it is when it is called."""

    def __init__(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        self.name = name
        self.problem = ""
        """Why the last try failed; empty when it did not."""
        self.save_count = 0
        self.failure_count = 0
        """Tries in a row."""
        self._write = write
        self._version = 0
        self._saved = 0
        self._wanted = 0  # The version that is to be saved at once.
        self._created: dict[str, int] = {}
        self._waiters: deque[tuple[int, SavedCallback]] = deque()
        self._lock = asyncio.Lock()
        self.is_paused = False
        self._is_unhurried = False
        self.wake: Callable[[], None] = lambda: None
        self.on_failed: Callable[[TableSaver], None] = lambda saver: None

    @property
    def is_dirty(self) -> bool:
        return self._version != self._saved

    @property
    def is_wanted(self) -> bool:
        """Whether to save it now: somebody waits for it, or a try failed and its pause is over."""
        is_asked_for = self._wanted > self._saved or self.failure_count > 0
        return self.is_dirty and is_asked_for and not self.is_paused

    def touched(self) -> None:
        """The table changed; it is saved when its time comes."""
        self._version += 1

    def changed(self, created: Iterable[str] = ()) -> None:
        """The table changed and is to be saved now; `created` names may have to wait for it."""
        self._version += 1
        for name in created:
            self._created[name] = self._version
        self._want()

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Changes inside are saved when somebody waits for them: more of them are to come."""
        self._is_unhurried = True
        try:
            yield
        finally:
            self._is_unhurried = False

    def _want(self) -> None:
        if not self._is_unhurried:
            self._wanted = self._version
            self.wake()

    def when_saved(self, callback: SavedCallback) -> None:
        """Call `callback` when the table as it is now is on disk; at once when it is.

        While tries fail it is told so at once: its change is kept, and nobody waits for space.
        """
        if not self.is_dirty or self.problem:
            callback(self.problem if self.is_dirty else "")
            return
        self._waiters.append((self._version, callback))
        self._want()

    async def saved(self) -> str:
        """The same, awaited."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(reason: str) -> None:
            if not future.done():
                future.set_result(reason)

        self.when_saved(done)
        return await future

    def hold(self, name: str) -> None:
        """Raises HeldForSave while `name` was made and is on its way to the disk."""
        if name in self._created and not self.problem:
            raise HeldForSave(self)

    def is_refused(self, name: str) -> bool:
        """Whether `name` was made and could not be saved."""
        return bool(self.problem) and name in self._created

    async def save(self) -> str:
        """Save now if anything changed; the reason when it could not be."""
        async with self._lock:
            if not self.is_dirty:
                return ""
            version = self._version
            try:
                await self._write()
            except (OSError, ValueError) as error:
                self._failed(version, error)
            else:
                self._done(version)
            return self.problem

    async def check(self, is_intact: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the file is what was written last; else it is written again, and its backup."""
        async with self._lock:
            if self.is_dirty or await is_intact():
                return True
        for _ in range(2):  # What was there becomes the backup: only the second save mends that.
            self.touched()
            await self.save()
        return False

    def _failed(self, version: int, error: Exception) -> None:
        self.failure_count += 1
        self.problem = str(error)
        if not self.failure_count & (self.failure_count - 1):  # The 1st, 2nd, 4th, 8th ...
            _LOG.warning(
                "table not saved, kept in memory table=%s tries=%d error=%s",
                self.name, self.failure_count, error,
            )  # fmt: skip
        self.on_failed(self)
        self._release(version, self.problem)

    def _done(self, version: int) -> None:
        if self.problem:
            _LOG.info("table saved again table=%s tries=%d", self.name, self.failure_count)
        self.problem, self.failure_count = "", 0
        self.save_count += 1
        self._saved = version
        for name in [name for name, made in self._created.items() if made <= version]:
            del self._created[name]
        self._release(version, "")

    def _release(self, version: int, reason: str) -> None:
        while self._waiters and self._waiters[0][0] <= version:
            self._waiters.popleft()[1](reason)


class SaveService:
    """Saves the tables of a process, one at a time: a thread is left for the log's flush."""

    def __init__(self, clock: Clock, savers: Iterable[TableSaver]) -> None:
        self._clock = clock
        self._savers = tuple(savers)
        self._due = asyncio.Event()
        for saver in self._savers:
            saver.wake = self._due.set
            saver.on_failed = self._pause

    @property
    def problems(self) -> dict[str, str]:
        """Why tables are in memory only, by name."""
        return {saver.name: saver.problem for saver in self._savers if saver.problem}

    async def run(self) -> None:
        """Until cancelled: save what is wanted, again after a pause when it failed."""
        while True:
            await self._due.wait()
            self._due.clear()
            for saver in self._savers:
                if saver.is_wanted:
                    await saver.save()
            if any(saver.is_wanted for saver in self._savers):
                self._due.set()

    def start(self, tasks: TaskOwner) -> None:
        tasks.contained("save-tables", self.run)

    def _pause(self, saver: TableSaver) -> None:
        if not saver.is_paused:
            saver.is_paused = True
            pause_ms = min(_PAUSE_MS_MIN << min(saver.failure_count - 1, 10), _PAUSE_MS_MAX)
            self._clock.call_later_ms(pause_ms, self._try_again, saver)

    def _try_again(self, saver: TableSaver) -> None:
        saver.is_paused = False
        self._due.set()

    async def save_all(self) -> None:
        """Save everything that changed, once. For a stop: what fails is said and left."""
        for saver in self._savers:
            await saver.save()


class TableText:
    """The text of a large table; only members that changed are made into text again."""

    def __init__(self, member: Callable[[Any], str]) -> None:
        self._member = member
        self._texts: dict[str, str] = {}

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._texts.pop(name, None)

    def clear(self) -> None:
        self._texts.clear()

    async def pieces(self, table: Callable[[], Mapping[str, Any]]) -> list[str]:
        """The text of all members as they are when this returns, with turns for others."""
        texts = self._texts
        while missing := [name for name in table() if name not in texts][:_SLICE]:
            current = table()
            for name in missing:
                texts[name] = self._member(current[name])
            await asyncio.sleep(0)
        return [texts[name] for name in table()]
