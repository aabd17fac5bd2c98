"""Finding the last common record of two logs by digests, before a byte of log is sent. Pure.

Two logs of one lineage are equal up to some offset and different from there on: the records behind
it carry other times and, mostly, other lengths. So the end of the common part can be searched by
halving. Usually one question settles it: the last megabytes below the shorter end are equal.

    TAIL      is [end - 4 MiB, end) equal?     yes: all of it is common
    BISECT    windows of 64 KiB, halving       until the first difference lies in two windows
    RECORDS   ends of the master's records     halving again, by digests from a common record on

Equal bytes prove something only where a record begins: its header has the time and the number of
the message. The filler at the end of a file, or one large body that every message has, is the same
in any two logs. So no range is asked about in which the master knows no beginning of a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TAIL_SIZE = 4 * 1024 * 1024
WINDOW_SIZE = 64 * 1024
QUESTION_SIZE_MAX = 8 * 1024 * 1024

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DigestsWanted:
    """An event of either side: compute the digests of these ranges of the own log, which is
    answered with `digests_computed`."""

    ranges: list[Range]


class _Phase(Enum):
    TAIL = "tail"
    BISECT = "bisect"
    RECORDS = "records"
    DONE = "done"


@dataclass(slots=True)
class CommonSearch:
    """Asks one range after another; `answer` says whether it is equal on both sides.

    While `wants_record` is set, `record_found` must be called before the next question, and while
    `wants_boundaries` is set, `boundaries`: both are about the master's log.
    """

    low: int  # both logs have it from here on
    high: int  # ... up to here
    wants_record: Range | None = None
    wants_boundaries: Range | None = None
    common: int = -1
    _phase: _Phase = _Phase.TAIL
    _equal_until: int = 0
    _different_until: int = 0
    _ceiling: int = 0  # of the next window; no record begins from here to `_different_until`
    _question: Range = (0, 0)
    _ends: list[int] | None = None
    _anchor: int = 0
    _first: int = 0
    _last: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.low < self.high
        self._equal_until = self.low
        self._different_until = self._ceiling = self.high
        self.wants_record = (max(self.low, self.high - TAIL_SIZE), self.high)

    @property
    def is_done(self) -> bool:
        return self._phase is _Phase.DONE

    def question(self) -> Range:
        """The range whose digests are to be compared next."""
        assert not self.is_done
        assert self.wants_boundaries is None
        assert self.wants_record is None
        return self._question

    def record_found(self, start: int | None) -> None:
        """`start`: where the first record of the master in `wants_record` begins, if one does."""
        assert self.wants_record is not None
        wanted, self.wants_record = self.wants_record, None
        if self._phase is _Phase.TAIL:
            self._question = wanted
            if start is None:
                self._phase = _Phase.BISECT
                self._settle_bisect()
        elif start is None:
            self._ceiling = wanted[0]
            self._settle_bisect()
        else:
            self._question = start, min(start + WINDOW_SIZE, self._different_until)

    def answer(self, *, is_equal: bool) -> None:
        if self._phase is _Phase.TAIL:
            if is_equal:
                self._finish(self.high)
            else:
                self._phase = _Phase.BISECT
                self._settle_bisect()
        elif self._phase is _Phase.BISECT:
            self._answer_window(is_equal=is_equal)
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
        self.wants_boundaries = None
        # A slave may claim a first offset at which no record begins.
        self._anchor = max(anchor, self.low)
        self._ends = [end for end in ends if self._anchor < end <= self._different_until]
        self._first, self._last = 0, len(self._ends)
        self._phase = _Phase.RECORDS
        self._settle_records()

    def _answer_window(self, *, is_equal: bool) -> None:
        _, end = self._question
        if is_equal:
            self._equal_until = end
            self._ceiling = max(self._ceiling, end)
        else:
            # The difference is in this window or before it, and no record begins between the
            # middle and the window: half of the rest is left in any case.
            self._different_until = end
            self._ceiling = self._middle_offset()

    def _middle_offset(self) -> int:
        return self._equal_until + (self._ceiling - self._equal_until) // 2

    def _settle_bisect(self) -> None:
        if self._ceiling - self._equal_until <= 2 * WINDOW_SIZE:
            self.wants_boundaries = (self._equal_until, self._different_until)
        else:
            self.wants_record = (self._middle_offset(), self._ceiling)

    def _middle(self) -> int:
        """The record to ask about: in the middle, or the next when that is too much to read."""
        assert self._ends is not None
        middle = (self._first + self._last) // 2
        is_small = self._ends[middle] - self._known_end() <= QUESTION_SIZE_MAX
        return middle if is_small else self._first

    def _known_end(self) -> int:
        assert self._ends is not None
        return self._ends[self._first - 1] if self._first else self._anchor

    def _settle_records(self) -> None:
        assert self._ends is not None
        start = self._known_end()
        if self._first < self._last:
            self._question = start, min(self._ends[self._middle()], start + QUESTION_SIZE_MAX)
        else:
            self._finish(start)

    def _finish(self, common: int) -> None:
        assert self.low <= common <= self.high
        self.common = common
        self._phase = _Phase.DONE
