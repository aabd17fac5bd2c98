"""A monotonic number and those who wait for it.

Corresponds to RocketMQ's WaitNotifyObject, GroupCommitService's request queue,
GroupTransferService's request queue and FlushDiskWatcher: all of them wait for an offset to be
passed.

Invariants: the value never goes back except through `reset`; every waiter is called exactly once;
waiters of one watermark are called in offset order, and in arrival order for equal offsets.
"""

from __future__ import annotations

import asyncio
import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twinlog.runtime.failures import Failures


class Outcome(enum.Enum):
    """How a wait ended."""

    REACHED = "reached"
    TIMEOUT = "timeout"
    FAILED = "failed"


# Members that are asked for in hot paths: by their class they cost ten times as much.
_REACHED: Final = Outcome.REACHED

# (argument, outcome, reason): the reason is a sentence, empty when the offset was reached.
WaiterCallback = Callable[[Any, Outcome, str], None]


class _Waiter:
    __slots__ = ("argument", "callback", "deadline_ms", "offset")

    def __init__(
        self, offset: int, deadline_ms: int, callback: WaiterCallback, argument: Any
    ) -> None:
        self.offset = offset
        self.deadline_ms = deadline_ms
        self.callback = callback
        self.argument = argument


def _waiter_offset(waiter: _Waiter) -> int:
    return waiter.offset


class Watermark:
    """A monotonic offset with waiters in offset order.

    `wait` costs one append in the common case (offsets arrive in order) and `advance` releases
    every covered waiter in one pass. Deadlines are absolute, on the monotonic clock, and are
    applied by `expire`, which the owner calls from a timer.
    """

    __slots__ = (
        "_deadline_min", "_first", "_on_skip", "_subscribers", "_waiters", "failures", "name",
        "value",
    )  # fmt: skip

    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name
        self.value = value
        """Read by everyone, many times per message, so it is not a property; set only in here."""
        self._waiters: deque[_Waiter] = deque()
        self._deadline_min: int | None = None
        self.failures: Failures | None = None
        """Where an error of one who waits is noted: it must not keep the others, nor the
        store, from going on. Without it, the error goes to whoever advances."""
        self._first: list[Callable[[int], None]] = []
        self._subscribers: list[Callable[[int], None]] = []
        self._on_skip: list[Callable[[str], None]] = []

    @property
    def waiter_count(self) -> int:
        return len(self._waiters)

    @property
    def deadline_ms(self) -> int | None:
        """The earliest deadline of a waiter, None when nobody waits."""
        return self._deadline_min

    def advance(self, value: int) -> None:
        """Move forward to `value` and release those who waited for it. A lower value is a bug."""
        assert value >= self.value, f"{self.name} would go back from {self.value} to {value}"
        if value == self.value:
            return
        self.value = value
        if self._first:
            self.tell_first()
        self.release()

    def move(self, value: int) -> None:
        """Only move: whoever does this calls `tell_first` and `release` later, in this order."""
        assert value > self.value, f"{self.name} would go from {self.value} to {value}"
        self.value = value

    def tell_first(self) -> None:
        """Call those who subscribed to be first."""
        for subscriber in self._first:
            try:
                subscriber(self.value)
            except Exception as error:
                self._caught(error)

    def release(self) -> None:
        """Call those who waited for the value, then all other subscribers."""
        waiters = self._waiters
        # A callback may wait, advance, reset or fail others: the deque stays the same object, and
        # how far it may be emptied is asked again each time.
        while waiters and waiters[0].offset <= self.value:
            waiter = waiters.popleft()
            try:
                waiter.callback(waiter.argument, _REACHED, "")
            except Exception as error:
                self._caught(error)
        if not waiters:
            self._deadline_min = None
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(self.value)
            except Exception as error:
                self._caught(error)

    def _caught(self, error: Exception) -> None:
        if self.failures is None:
            raise error
        self.failures.note(f"waiter for {self.name}", error, f"offset {self.value}")

    def _release(self, waiters: list[_Waiter], outcome: Outcome, reason: str) -> None:
        for waiter in waiters:
            try:
                waiter.callback(waiter.argument, outcome, reason)
            except Exception as error:
                self._caught(error)

    def reset(self, value: int, reason: str) -> None:
        """Set any value (truncation, another epoch): all who wait are told that it failed."""
        self.value = value
        self.fail_above(-1, reason)

    def skip(self, offset: int, reason: str) -> None:
        """The value will pass over what is below `offset` without having reached it: whoever waits
        for that is told now. The value itself moves later."""
        for callback in self._on_skip:
            callback(reason)
        skipped = [w for w in self._waiters if w.offset <= offset]
        self._keep([w for w in self._waiters if w.offset > offset])
        self._release(skipped, Outcome.FAILED, reason)

    def on_skip(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` at each `skip`, before the waiters."""
        self._on_skip.append(callback)

    def wait(
        self, offset: int, deadline_ms: int, callback: WaiterCallback, argument: Any = None
    ) -> None:
        """Call `callback(argument, outcome, reason)` once the value reaches `offset`.

        Called at once, before this returns, when it already has.
        """
        if offset <= self.value:
            callback(argument, _REACHED, "")
            return
        waiter = _Waiter(offset, deadline_ms, callback, argument)
        waiters = self._waiters
        if waiters and waiters[-1].offset > offset:
            # Out of order happens only when waits start after an await; it stays rare.
            waiters.insert(bisect_right(waiters, offset, key=_waiter_offset), waiter)
        else:
            waiters.append(waiter)
        if self._deadline_min is None or deadline_ms < self._deadline_min:
            self._deadline_min = deadline_ms

    def expire(self, now_ms: int) -> None:
        """Release with TIMEOUT every waiter whose deadline has passed."""
        if self._deadline_min is None or now_ms < self._deadline_min:
            return
        expired = [w for w in self._waiters if w.deadline_ms <= now_ms]
        self._keep([w for w in self._waiters if w.deadline_ms > now_ms])
        self._release(expired, Outcome.TIMEOUT, f"{self.name} did not reach in time")

    def fail_above(self, offset: int, reason: str) -> None:
        """Release with FAILED every waiter for more than `offset`."""
        failed = [w for w in self._waiters if w.offset > offset]
        self._keep([w for w in self._waiters if w.offset <= offset])
        self._release(failed, Outcome.FAILED, reason)

    def _keep(self, kept: list[_Waiter]) -> None:
        self._waiters.clear()
        self._waiters.extend(kept)
        self._deadline_min = min((w.deadline_ms for w in kept), default=None)

    def subscribe(
        self, callback: Callable[[int], None], *, is_first: bool = False
    ) -> Callable[[], None]:
        """Call `callback(value)` after each advance; returns the function that ends it.

        `is_first`: before the waiters are called. Such a callback neither subscribes nor waits.
        """
        subscribers = self._first if is_first else self._subscribers
        subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in subscribers:
                subscribers.remove(callback)

        return unsubscribe

    async def reached(self, offset: int, deadline_ms: int) -> Outcome:
        """Await `offset`. For cold paths: it costs a future."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(_: Any, outcome: Outcome, __: str) -> None:
            if not future.done():
                future.set_result(outcome)

        self.wait(offset, deadline_ms, done)
        return await future
