"""Which half messages are undecided, and how far both queues are done. Pure.

RocketMQ reads half and op queue again at every check. Here the same facts are kept: a half message
comes, moves to the end of its queue when it is checked, and is done. The progress of both queues
is what RocketMQ keeps under CID_RMQ_SYS_TRANS: every half message below `half_progress` is done;
every op message below `op_progress` speaks of such a one. The compiled end of a transaction takes
what it commits out of `places`, and adds to `ops`, itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class HalfPlace(NamedTuple):
    """Where a half record is in the log."""

    physical_offset: int
    size: int


class PendingHalves:
    """Undecided half messages by their queue offset."""

    def __init__(self, half_progress: int = 0, op_progress: int = 0) -> None:
        self.places: dict[int, HalfPlace] = {}
        self._order: deque[int] = deque()
        self._moved: dict[int, int] = {}
        self._before: dict[int, list[int]] = {}  # The places that lead to where one is now.
        self._done_early: set[int] = set()
        self.ops: deque[tuple[int, int]] = deque()  # Of each op message, and of its half.
        self.next_offset = half_progress
        self._op_progress = op_progress

    def __len__(self) -> int:
        return len(self.places)

    def add(self, half_offset: int, place: HalfPlace) -> None:
        """A half message was stored. They come in the order of their queue."""
        self.add_run(half_offset, (place,))

    def add_run(self, start: int, places: Sequence[HalfPlace]) -> None:
        """Those from `start` on were stored."""
        assert start >= self.next_offset, "half messages come in order"
        self.next_offset = start + len(places)
        early = self._done_early
        for half_offset, place in enumerate(places, start):
            if half_offset in early:
                early.discard(half_offset)
            else:
                self.places[half_offset] = place
                self._order.append(half_offset)

    def find(self, half_offset: int) -> int | None:
        """The offset under which this half message is undecided now; None when it is done.

        A check moves a message; who answers late still names the place where it was before. One
        that is stored, and that its queue does not show yet, is undecided, too: in a controlled
        group it is shown when it is confirmed, and its end may come earlier.
        """
        current = self._moved.get(half_offset, half_offset)
        if current >= self.next_offset:
            return None if current in self._done_early else current
        return current if current in self.places else None

    def is_at(self, half_offset: int, physical_offset: int) -> bool:
        """Whether this half message is undecided, and its record is where `physical_offset` says.

        Not so for one that a check has moved.
        """
        place = self.places.get(half_offset)
        return place is not None and place[0] == physical_offset

    def place(self, half_offset: int) -> HalfPlace | None:
        """None for one that its queue does not show yet."""
        return self.places.get(half_offset)

    def done(self, half_offset: int) -> None:
        """The half message is decided, given up, or stored again elsewhere."""
        if half_offset >= self.next_offset:
            # Decided in the turn in which it was stored, before it was seen in its queue.
            self._done_early.add(half_offset)
        self.places.pop(half_offset, None)

    def moved(self, half_offset: int, new_offset: int) -> None:
        """A check stored the message again at `new_offset`."""
        before = [*self._before.pop(half_offset, ()), half_offset]
        self._before[new_offset] = before
        self._moved.update(dict.fromkeys(before, new_offset))
        self.done(half_offset)

    def forget_moves_of_done(self) -> None:
        """Drop what is no longer needed to find a moved message."""
        for current in list(self._before):
            if current < self.next_offset and current not in self.places:
                for known in self._before.pop(current):
                    del self._moved[known]

    def op_stored(self, op_offset: int, half_offset: int) -> None:
        self.ops.append((op_offset, half_offset))

    def snapshot(self) -> list[int]:
        """Offsets of all undecided, in order."""
        return sorted(self.places)

    @property
    def half_progress(self) -> int:
        while self._order and self._order[0] not in self.places:
            self._order.popleft()
        return self._order[0] if self._order else self.next_offset

    @property
    def op_progress(self) -> int:
        limit = self.half_progress
        while self.ops and self.ops[0][1] < limit:
            self._op_progress = self.ops.popleft()[0] + 1
        return self._op_progress
