"""Where each epoch of a log begins, and how far two logs can agree at most. Pure.

Corresponds to RocketMQ 5's EpochFileCache. Every epoch begins with a record of its own, so no two
elections share a start; RocketMQ drops the second of two that do. The list is an index of those
records and can be rebuilt from them. It is a hint: content decides where two logs part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec


class EpochEntry(msgspec.Struct, frozen=True, array_like=True):
    """`previous_crc` is the checksum of the bytes before the epoch's first record; `is_clean` is
    False when the master was elected without all that may have been acknowledged."""

    epoch: int
    start: int
    previous_crc: int = 0
    is_clean: bool = True


class EpochHistory:
    """Entries in order; epochs and starts both grow."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries = list(entries)
        for before, after in pairwise(self._entries):
            assert before.epoch < after.epoch, (before, after)
            assert before.start < after.start, (before, after)

    def __iter__(self) -> Iterator[EpochEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_epoch(self) -> int:
        return self._entries[-1].epoch if self._entries else 0

    def begin(self, entry: EpochEntry) -> None:
        """The record that opens `entry.epoch` was appended."""
        assert entry.epoch > self.last_epoch, (entry, self._entries)
        assert not self._entries or entry.start > self._entries[-1].start
        self._entries.append(entry)

    def cut(self, end: int) -> None:
        """The log ends at `end` now: epochs that began there or later did not happen here."""
        while self._entries and self._entries[-1].start >= end:
            self._entries.pop()

    def epoch_at(self, offset: int) -> int:
        """The epoch that the byte at `offset` was written in; 0 before the first that is known."""
        epoch = 0
        for entry in self._entries:
            if entry.start > offset:
                break
            epoch = entry.epoch
        return epoch

    def end_of(self, epoch: int, log_end: int) -> int:
        """Where the next epoch begins, or the log ends."""
        return next((e.start for e in self._entries if e.epoch > epoch), log_end)

    def common_end(self, end: int, other: EpochHistory, other_end: int) -> int:
        """An offset above which the two logs cannot be equal, to begin the search from.

        The newest epoch with the same start and the same record before it, on both sides: its
        smaller end. Without one, nothing is known but the lengths.
        """
        theirs = {entry.epoch: entry for entry in other}
        for entry in reversed(self._entries):
            if theirs.get(entry.epoch) == entry:
                mine = self.end_of(entry.epoch, end)
                return min(mine, other.end_of(entry.epoch, other_end), end, other_end)
        return min(end, other_end)
