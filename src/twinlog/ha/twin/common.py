"""Finding the last common record of two logs by digests, before a byte of log is sent. Pure.

Two logs of one lineage are equal up to some offset and different from there on: the records behind
it carry other times and, mostly, other lengths. So the end of the common part can be searched by
halving. Usually one question settles it: the last megabytes below the shorter end are equal.

    TAIL      is [end - 4 MiB, end) equal?     yes: all of it is common
    BISECT    windows of 64 KiB, halving       until the first difference lies in two windows
    RECORDS   ends of the master's records     halving again, by digests from a common record on
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TAIL_SIZE = 4 * 1024 * 1024
WINDOW_SIZE = 64 * 1024

Range = tuple[int, int]


class _Phase(Enum):
    TAIL = "tail"
    BISECT = "bisect"
    RECORDS = "records"
    DONE = "done"


@dataclass(slots=True)
class CommonSearch:
    """Asks one range after another; `answer` says whether it is equal on both sides.

    After BISECT it needs the record boundaries of the master's log around the difference: while
    `wants_boundaries` is set, `boundaries` must be called before the next question.
    """

    low: int  # both logs have it from here on
    high: int  # ... up to here
    wants_boundaries: Range | None = None
    common: int = -1
    _phase: _Phase = _Phase.TAIL
    _equal_until: int = 0
    _different_until: int = 0
    _ends: list[int] | None = None
    _anchor: int = 0
    _first: int = 0
    _last: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.low <= self.high
        self._equal_until = self.low
        self._different_until = self.high
        if self.low == self.high:
            self._finish(self.high)

    @property
    def is_done(self) -> bool:
        return self._phase is _Phase.DONE

    def question(self) -> Range:
        """The range whose digests are to be compared next."""
        assert not self.is_done
        assert self.wants_boundaries is None
        if self._phase is _Phase.TAIL:
            return max(self.low, self.high - TAIL_SIZE), self.high
        if self._phase is _Phase.BISECT:
            return self._window()
        assert self._ends is not None
        return self._anchor, self._ends[self._middle()]

    def answer(self, *, is_equal: bool) -> None:
        if self._phase is _Phase.TAIL:
            if is_equal:
                self._finish(self.high)
            else:
                self._phase = _Phase.BISECT
                self._settle_bisect()
        elif self._phase is _Phase.BISECT:
            start, end = self._window()
            if is_equal:
                self._equal_until = end
            else:
                # The difference is in this window or before it.
                self._different_until = end
                if start == self._equal_until:
                    self._want_records()
                    return
            self._settle_bisect()
        else:
            middle = self._middle()
            if is_equal:
                self._first = middle + 1
            else:
                self._last = middle
            self._settle_records()

    def boundaries(self, anchor: int, ends: list[int]) -> None:
        """`anchor`: a record start of the master at or before the difference; `ends`: the ends of
        its records from there on, in order."""
        assert self.wants_boundaries is not None
        assert self.low <= anchor <= self._equal_until or anchor == self.low
        self.wants_boundaries = None
        self._anchor = anchor
        self._ends = [end for end in ends if anchor < end <= self._different_until]
        self._first, self._last = 0, len(self._ends)
        self._phase = _Phase.RECORDS
        self._settle_records()

    def _window(self) -> Range:
        span = self._different_until - self._equal_until
        if span <= 2 * WINDOW_SIZE:
            return self._equal_until, self._different_until
        start = self._equal_until + span // 2
        return start, min(start + WINDOW_SIZE, self._different_until)

    def _settle_bisect(self) -> None:
        if self._different_until - self._equal_until <= 2 * WINDOW_SIZE:
            self._want_records()

    def _want_records(self) -> None:
        self.wants_boundaries = (self._equal_until, self._different_until)

    def _middle(self) -> int:
        return (self._first + self._last) // 2

    def _settle_records(self) -> None:
        if self._first < self._last:
            return
        assert self._ends is not None
        self._finish(self._ends[self._first - 1] if self._first else self._anchor)

    def _finish(self, common: int) -> None:
        assert self.low <= common <= self.high
        self.common = common
        self._phase = _Phase.DONE
