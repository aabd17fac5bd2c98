"""When a reply may leave: the watermarks its mode demands, or the deadline, whichever is first.

Corresponds to CommitLog.submitFlushRequest/submitReplicaRequest and to the place where 4.9 combines
the two futures. Pure: watermarks and time are passed in, decided replies come out.

| demand    | OK when             | else, at its deadline                 |
|-----------|---------------------|---------------------------------------|
| FLUSH     | flushed >= end      | FLUSH_DISK_TIMEOUT                    |
| REPLICATE | confirmed >= end    | FLUSH_SLAVE_TIMEOUT                   |
| BOTH      | both                | the replication status wins           |

Invariants: every entry is decided exactly once; entries of one demand that are decided at the same
moment are decided in offset order; a reply never leaves before its promise holds.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from twinlog.store.status import PutMessageStatus

# Members that are asked for in hot paths: by their class they cost ten times as much.
_PUT_OK: Final = PutMessageStatus.PUT_OK

ReplyT = TypeVar("ReplyT")


class Demand(enum.IntFlag):
    """What a message waits for besides being appended."""

    NONE = 0
    FLUSH = 1
    REPLICATE = 2
    BOTH = 3


class _Entry(Generic[ReplyT]):
    __slots__ = ("count", "end_offset", "flush_deadline_ms", "reply", "slave_deadline_ms")

    def __init__(
        self,
        end_offset: int,
        flush_deadline_ms: int,
        slave_deadline_ms: int,
        reply: ReplyT,
        count: int,
    ) -> None:
        self.end_offset = end_offset
        self.flush_deadline_ms = flush_deadline_ms
        self.slave_deadline_ms = slave_deadline_ms
        self.reply = reply
        self.count = count


# (reply, status, end of its record)
Decided = list[tuple[ReplyT, PutMessageStatus, int]]


class DurabilityQueue(Generic[ReplyT]):
    """Replies that wait for flush, replication or both."""

    def __init__(self) -> None:
        # One line per demand, with its number, in order of offsets: releasing looks only at heads.
        self._lines: tuple[deque[_Entry[ReplyT]], ...] = (deque(), deque(), deque(), deque())
        # Repeats of what was put long ago come behind newer puts: heaps of (end, number, entry).
        self._late: tuple[list[tuple[int, int, _Entry[ReplyT]]], ...] = ([], [], [], [])
        self._late_numbers = itertools.count()
        self._has_late = False
        self.count = 0
        """How many messages wait. Asked for each send, so it is not a property."""

    def __len__(self) -> int:
        return self.count

    def add(
        self,
        demand: Demand,
        end_offset: int,
        reply: ReplyT,
        *,
        flush_deadline_ms: int,
        slave_deadline_ms: int,
        count: int = 1,
    ) -> None:
        """`reply` stands for `count` messages, the last of which ends at `end_offset`."""
        line = self._lines[demand]
        entry = _Entry(end_offset, flush_deadline_ms, slave_deadline_ms, reply, count)
        if line and line[-1].end_offset > end_offset:
            heapq.heappush(self._late[demand], (end_offset, next(self._late_numbers), entry))
            self._has_late = True
        else:
            line.append(entry)
        self.count += count

    def advance(self, flushed: int, confirmed: int) -> Decided[ReplyT]:
        """Take out what the watermarks have passed."""
        decided: Decided[ReplyT] = []
        _, flush, replicate, both = self._lines
        if flush:
            self._release(flush, flushed, decided)
        if replicate:
            self._release(replicate, confirmed, decided)
        if both:
            self._release(both, min(flushed, confirmed), decided)
        if self._has_late:
            self._release_late(flushed, confirmed, decided)
        return decided

    def _release(self, line: deque[_Entry[ReplyT]], reached: int, decided: Decided[ReplyT]) -> None:
        while line and line[0].end_offset <= reached:
            entry = line.popleft()
            self.count -= entry.count
            decided.append((entry.reply, _PUT_OK, entry.end_offset))

    def _release_late(self, flushed: int, confirmed: int, decided: Decided[ReplyT]) -> None:
        _, flush, replicate, both = self._late
        reached = ((flush, flushed), (replicate, confirmed), (both, min(flushed, confirmed)))
        for heap, mark in reached:
            while heap and heap[0][0] <= mark:
                _, _, entry = heapq.heappop(heap)
                self.count -= entry.count
                decided.append((entry.reply, _PUT_OK, entry.end_offset))
        self._has_late = any(self._late)
        decided.sort(key=_end_of)  # Stable: the original before its repeat.

    def expire(self, now_ms: int, flushed: int, confirmed: int) -> Decided[ReplyT]:
        """Take out what ran out of time, with the status of what was missing."""
        decided = self.advance(flushed, confirmed)
        for demand in (Demand.FLUSH, Demand.REPLICATE, Demand.BOTH):
            line, late = self._lines[demand], self._late[demand]
            kept: list[_Entry[ReplyT]] = []
            waiting = itertools.chain(line, (entry for _, _, entry in sorted(late)))
            for entry in waiting:
                status = _overdue(demand, entry, now_ms, flushed, confirmed)
                if status is None:
                    kept.append(entry)
                else:
                    self.count -= entry.count
                    decided.append((entry.reply, status, entry.end_offset))
            if late:
                # They find their place in the line now that all of it is looked at.
                kept.sort(key=_end_of_entry)
                late.clear()
            line.clear()
            line.extend(kept)
        return decided

    @property
    def slave_deadline_ms(self) -> int | None:
        """The first deadline of those that wait for other replicas; None when nobody does."""
        heads = [line[0] for line in self._lines[Demand.REPLICATE :] if line]
        return min((entry.slave_deadline_ms for entry in heads), default=None)

    def fail_all(self) -> list[ReplyT]:
        """Empty the queue because what waits can no longer be promised (shutdown, broken log)."""
        return self._fail((Demand.NONE, Demand.FLUSH, Demand.REPLICATE, Demand.BOTH))

    def fail_replicated(self) -> list[ReplyT]:
        """Take out all that waits for other replicas."""
        return self._fail((Demand.REPLICATE, Demand.BOTH))

    def _fail(self, demands: Sequence[Demand]) -> list[ReplyT]:
        failed: list[_Entry[ReplyT]] = []
        for demand in demands:
            failed += self._lines[demand]
            failed += (entry for _, _, entry in self._late[demand])
            self._lines[demand].clear()
            self._late[demand].clear()
        self.count -= sum(entry.count for entry in failed)
        self._has_late = any(self._late)
        return [entry.reply for entry in failed]


def _end_of(decided: tuple[ReplyT, PutMessageStatus, int]) -> int:
    return decided[2]


def _end_of_entry(entry: _Entry[ReplyT]) -> int:
    return entry.end_offset


def _overdue(
    demand: Demand, entry: _Entry[ReplyT], now_ms: int, flushed: int, confirmed: int
) -> PutMessageStatus | None:
    """The status of an entry that is not done, or None while it may still wait."""
    if demand & Demand.REPLICATE and confirmed < entry.end_offset:
        # Replication decides alone: its status wins whatever becomes of the flush.
        if now_ms >= entry.slave_deadline_ms:
            return PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        return None
    if now_ms >= entry.flush_deadline_ms:
        return PutMessageStatus.FLUSH_DISK_TIMEOUT
    return None
