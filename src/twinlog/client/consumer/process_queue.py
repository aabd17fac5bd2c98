"""What was pulled from one queue and is not finished: the source of the offset to commit.

Corresponds to ProcessQueue. Messages finish in any order; the offset that may be committed is the
lowest one not finished, because after a crash everything from there is delivered again.

Invariants: `commit_offset` never goes back; it is at most one above the highest offset added; a
message is counted in `count` and `size` from `add` until `finish`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class QueuedMessage(Protocol):
    """What this module needs to know of a message."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def body_size(self) -> int: ...


class ProcessQueue:
    """Offsets in flight of one queue."""

    __slots__ = ("_end_offset", "_finished", "_offsets", "_sizes", "is_dropped", "size")

    def __init__(self, start_offset: int) -> None:
        self._offsets: deque[int] = deque()
        self._sizes: dict[int, int] = {}
        self._finished: set[int] = set()
        self._end_offset = start_offset
        self.size = 0
        # Set when the queue goes to another member: nothing new may start or be committed.
        self.is_dropped = False

    @property
    def count(self) -> int:
        """Messages that are waiting or being handled."""
        return len(self._sizes)

    @property
    def span(self) -> int:
        """From the oldest unfinished offset to the newest: one stuck message makes it grow."""
        return self._offsets[-1] - self._offsets[0] if self._offsets else 0

    @property
    def commit_offset(self) -> int:
        """The lowest offset that is not finished."""
        return self._offsets[0] if self._offsets else self._end_offset

    @property
    def end_offset(self) -> int:
        """One above the highest offset seen."""
        return self._end_offset

    def add(self, messages: Iterable[QueuedMessage]) -> None:
        """Take a pulled batch, in queue order."""
        for message in messages:
            offset = message.queue_offset
            assert offset >= self._end_offset, f"offset {offset} below {self._end_offset}"
            self._offsets.append(offset)
            self._sizes[offset] = message.body_size
            self.size += message.body_size
            self._end_offset = offset + 1

    def skip_to(self, offset: int) -> None:
        """The broker says that nothing for us is below `offset` (filtered, deleted, damaged)."""
        if offset > self._end_offset:
            self._end_offset = offset

    def forget_from(self, offset: int) -> None:
        """What was pulled from `offset` on and nobody has seen will be pulled again."""
        while self._offsets and self._offsets[-1] >= offset:
            self.size -= self._sizes.pop(self._offsets.pop(), 0)
        self._end_offset = min(self._end_offset, offset)

    def finish(self, offset: int) -> int:
        """The message at `offset` is done, whatever came of it. Returns `commit_offset`."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return self.commit_offset
        self.size -= size
        offsets, finished = self._offsets, self._finished
        if offsets[0] != offset:
            finished.add(offset)
            return offsets[0]
        offsets.popleft()
        while offsets and offsets[0] in finished:
            finished.discard(offsets.popleft())
        return self.commit_offset

    def is_full(self, *, count_max: int, size_max: int, span_max: int) -> bool:
        """Flow control: whether pulling should wait."""
        return len(self._sizes) >= count_max or self.size >= size_max or self.span > span_max
