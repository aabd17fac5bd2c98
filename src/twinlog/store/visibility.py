"""How far consumers see into the queues of a controlled group.

Places follow the log: every record that is appended has its entry, and the next message its number.
What consumers see follows the watermark *confirmed*. RocketMQ 5 cuts its queues to the confirm
offset at recovery instead, and has given places twice.

Invariants: entries are held back in the order of the log; a queue's `max_offset` never passes an
entry whose record is above the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from twinlog.runtime.watermark import Watermark
from twinlog.store.log.file_pool import FilePool
from twinlog.store.queue.consume_queue import ConsumeQueue

# (end of the log behind these entries, queues with the number that they show then)
_Held = tuple[int, list[tuple[ConsumeQueue, int]]]


class Visibility:
    """`limit` is None in fixed pairs: everything is seen at once."""

    def __init__(self, shown: Callable[[int, list[ConsumeQueue]], None]) -> None:
        self._shown = shown
        self._held: deque[_Held] = deque()
        self._unsubscribe: Callable[[], None] = lambda: None
        self.limit: Watermark | None = None

    def follow(self, limit: Watermark | None) -> None:
        """Show up to `limit` from now on; None: all."""
        self._unsubscribe()
        self._unsubscribe = lambda: None
        self.limit = limit
        if limit is not None:
            self._unsubscribe = limit.subscribe(lambda _: self.release())
        self.release()

    def hold(self, end: int, queues: Collection[ConsumeQueue]) -> None:
        """These have entries up to `end` that nobody sees yet."""
        self._held.append((end, [(queue, queue.next_offset) for queue in queues]))

    def release(self) -> None:
        limit = self.limit
        while self._held and (limit is None or self._held[0][0] <= limit.value):
            end, moves = self._held.popleft()
            for queue, top in moves:
                queue.max_offset = top
            self._shown(end, [queue for queue, _ in moves])

    def hide(self, end: int, queues: Iterable[ConsumeQueue], pool: FilePool) -> None:
        """After recovery, which shows all up to `end`: hold back what is beyond the limit."""
        assert self.limit is not None
        assert not self._held
        floor = self.limit.value
        hidden = [queue for queue in queues if queue.last_physical_end > floor]
        for queue in hidden:
            queue.max_offset = queue.entries_up_to(pool, floor)
        if hidden:
            self.hold(end, hidden)

    def cut(self, offset: int) -> None:
        """The log ends at `offset` now; the queues have been cut."""
        self._held = deque(
            (min(end, offset), [(queue, min(top, queue.next_offset)) for queue, top in moves])
            for end, moves in self._held
        )
