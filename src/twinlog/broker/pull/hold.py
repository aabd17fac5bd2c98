"""Pulls that wait for messages (RocketMQ's PullRequestHoldService).

A held pull is woken by the progress of its queue, not by polling: the store's dispatcher says
which queues moved. Deadlines are kept in a heap and served by one timer. As in Apache a check
every 5 s answers a pull whose queue has moved although nothing matched its filter, so that the
consumer's offset goes on. Where very many wait for one queue, some are looked at in each turn of
the loop (`runtime/loop_share.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.loop_share import LoopShare

QueueKey = tuple[str, int]
CHECK_INTERVAL_MS = 5_000  # Apache's pause between two looks at all held pulls.
HELD_PULLS_MAX = 200_000  # About 100 MB of held requests: beyond, a pull is answered at once.

STALE_DEADLINES_MAX = 64
_AT_ONCE = 64  # So many are looked at before the time is.


class HeldPull:
    """One held pull. `scan_offset` is how far its filter has already looked."""

    __slots__ = (
        "connection",
        "deadline_ms",
        "is_done",
        "is_due",
        "is_over",
        "key",
        "offset",
        "pull",
        "request",
        "scan_offset",
    )

    def __init__(
        self, key: QueueKey, offset: int, deadline_ms: int, connection: Any, request: Any, pull: Any
    ) -> None:
        self.key = key
        self.offset = offset
        self.scan_offset = offset
        self.deadline_ms = deadline_ms
        self.connection = connection
        self.request = request
        self.pull = pull
        self.is_done = False
        self.is_due = False  # Looked at in one of the next turns,
        self.is_over = False  # and answered whatever there is.


class PullRequestHold:
    """Held pulls by queue.

    `try_answer(held)` answers a pull if there is something for it and says whether it did;
    `answer(held)` answers it whatever there is. A pull for which one of them raises is given to
    `failed`, which answers it: the others of its queue go on.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_offset: Callable[[str, int], int],
        try_answer: Callable[[HeldPull], bool],
        answer: Callable[[HeldPull], None],
        failed: Callable[[HeldPull, Exception], None],
    ) -> None:
        self._clock = clock
        self._max_offset = max_offset
        self._try_answer = try_answer
        self._answer = answer
        self._failed = failed
        # Dicts as ordered sets: a pull is dropped from the middle when its connection closes.
        self._queues: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_connection: dict[Any, dict[HeldPull, None]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._sequence = 0
        self._count = 0
        self._timer: TimerHandle | None = None
        self._timer_at_ms = 0
        self._due: deque[HeldPull] = deque()
        self._due_timer: TimerHandle | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= HELD_PULLS_MAX

    def add(self, held: HeldPull) -> None:
        assert not self.is_full, "the caller answers at once when no more can be held"
        self._queues.setdefault(held.key, {})[held] = None
        self._by_connection.setdefault(held.connection, {})[held] = None
        self._count += 1
        self._sequence += 1
        heapq.heappush(self._deadlines, (held.deadline_ms, self._sequence, held))
        self._arm()

    def queues_moved(self, keys: Collection[QueueKey]) -> None:
        """Wake those whose queue has something new. Called once per dispatch turn."""
        if not self._queues:
            return
        queues = self._queues
        for key in keys:
            waiting = queues.get(key)
            if waiting is None:
                continue
            if len(waiting) <= _AT_ONCE:
                for held in list(waiting):
                    self._wake(held)
            else:
                self._look_at(waiting)

    def check(self) -> None:
        """Answer those whose queue moved past them without a match."""
        for key, waiting in list(self._queues.items()):
            end = self._max_offset(*key)
            self._look_at([held for held in waiting if end > held.offset], is_over=True)

    def connection_closed(self, connection: Any) -> None:
        """Drop the pulls of a connection that is closed."""
        for held in list(self._by_connection.get(connection, ())):
            self._remove(held)

    def release_all(self) -> None:
        """Answer everything: the broker stops."""
        for waiting in list(self._queues.values()):
            for held in list(waiting):
                self._settle(held)

    def stop(self) -> None:
        for timer in (self._timer, self._due_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._due_timer = None
        self._due.clear()

    def _look_at(self, chosen: Iterable[HeldPull], *, is_over: bool = False) -> None:
        """Now, as far as this turn has time for them; behind those that wait for the next."""
        for held in chosen:
            held.is_over |= is_over
            if not held.is_due:
                held.is_due = True
                self._due.append(held)
        if self._due_timer is None:
            self._look_at_due()

    def _look_at_due(self) -> None:
        self._due_timer = None
        due, share, count = self._due, LoopShare(self._clock), 0
        while due:
            held = due.popleft()
            held.is_due = False
            if not held.is_done:
                self._settle(held) if held.is_over else self._wake(held)
            count += 1
            if not count % _AT_ONCE and share.is_used and due:
                self._due_timer = self._clock.call_later_ms(0, self._look_at_due)
                return

    def _wake(self, held: HeldPull) -> None:
        try:
            is_over = held.connection.is_closed or (
                self._max_offset(*held.key) > held.scan_offset and self._try_answer(held)
            )
        except Exception as error:
            is_over = True
            self._failed(held, error)
        if is_over:
            self._remove(held)

    def _settle(self, held: HeldPull) -> None:
        self._remove(held)
        if not held.connection.is_closed:
            try:
                self._answer(held)
            except Exception as error:
                self._failed(held, error)

    def _remove(self, held: HeldPull) -> None:
        if held.is_done:
            return
        held.is_done = True
        self._count -= 1
        _discard(self._queues, held.key, held)
        _discard(self._by_connection, held.connection, held)
        # Answered pulls stay in the heap until their deadline; without this a busy consumer would
        # keep fifteen seconds of them there, requests and all.
        if len(self._deadlines) > 2 * self._count + STALE_DEADLINES_MAX:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_done]
            heapq.heapify(self._deadlines)

    def _arm(self) -> None:
        """Keep one timer, for the nearest deadline."""
        while self._deadlines and self._deadlines[0][2].is_done:
            heapq.heappop(self._deadlines)
        if not self._deadlines:
            return
        nearest = self._deadlines[0][0]
        if self._timer is not None:
            if self._timer_at_ms <= nearest:
                return
            self._timer.cancel()
        self._timer_at_ms = nearest
        delay = max(0, nearest - self._clock.monotonic_ms())
        self._timer = self._clock.call_later_ms(delay, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = None
        now = self._clock.monotonic_ms()
        passed = []
        while self._deadlines and self._deadlines[0][0] <= now:
            passed.append(heapq.heappop(self._deadlines)[2])
        self._look_at(passed, is_over=True)
        self._arm()


def _discard(table: dict[Any, dict[HeldPull, None]], key: Any, held: HeldPull) -> None:
    members = table[key]
    del members[held]
    if not members:
        del table[key]
