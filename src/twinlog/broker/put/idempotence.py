"""What idempotent producers have stored: the pure core of dropping repeats.

RocketMQ has nothing like it; the shape is Kafka's ProducerStateManager, with places instead of the
last five batches. Per (producer, topic, queue) the table knows the last number and, as runs, where
the messages are, so that a repeat is answered with the place of the original.

A number counts from 0 within an epoch; epochs only grow, and a new one begins at 0. So a message
that is missing before the one that comes is seen (GAP), never skipped.

Everything here follows from the records of the log (`seen`), in their order. Whoever reads the same
log has the same table; what a snapshot adds is only that nobody must read all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from twinlog.message.once import Mark

IDLE_MS_MAX: Final = 7 * 24 * 3600 * 1000  # A producer that is idle longer is forgotten.
IDLE_MS_CROWDED: Final = 3600 * 1000  # The same while the table is full.
ENTRIES_MAX: Final = 20_000
RUNS_MAX: Final = 64  # Places kept of one producer on one queue; a run has any number of messages.
_MAGIC: Final = b"TWINONCE1 "

Key = tuple[str, str, int]  # Producer, topic, queue.
NextOffset = Callable[[str, int], int]


class Verdict(enum.Enum):
    """What to do with a message."""

    NEW = "new"
    REPEAT = "repeat"
    GAP = "gap"
    STALE = "stale"  # Of an epoch that has ended, and not known to be stored.
    EXPIRED = "expired"  # Not the first of a producer that is not known (any more).
    OTHER = "other"  # A repeat by its number, and not the same message.
    FULL = "full"  # A new producer, and no room in the table.


class Decision(NamedTuple):
    """The verdict; how many leading members are repeats; the number that would be right."""

    verdict: Verdict
    known: int = 0
    expected: int = 0


class Place(NamedTuple):
    """Where a message is. `physical_offset` is -1 when only the consume queue knows it."""

    queue_offset: int
    physical_offset: int
    safe_end: int  # Who has the log up to here has the message.
    is_exact: bool = True  # `safe_end` is the end of the message, not of others behind it too.
    run_start: int = 0  # The message is not before this.

    @property
    def first(self) -> int:
        """The message does not begin before this offset of the log."""
        return self.run_start if self.physical_offset < 0 else self.physical_offset

    def narrowed(self, offset: int, size: int) -> Place:
        """With what an entry of the consume queue says, if it can be the entry of this message.

        It is not after retention: a queue that was made again begins with entries that stand for
        nothing, and a damaged one says anything. Nobody may wait for what they say.
        """
        if size <= 0 or offset < self.run_start or offset + size > self.safe_end:
            return self
        return Place(self.queue_offset, offset, offset + size)


class _Run(msgspec.Struct, array_like=True, gc=False):
    """Messages with consecutive numbers and consecutive queue offsets."""

    epoch: int
    number: int
    count: int
    queue_offset: int
    physical_offset: int  # Of the first.
    end_offset: int  # Behind the last.
    is_elsewhere: bool = False  # In a queue of the broker's own (delayed): never merged.


class _Entry(msgspec.Struct, array_like=True, gc=False):
    last_ms: int
    runs: list[_Run]

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of what comes next."""
        last = self.runs[-1]
        return last.epoch, last.number + last.count


class _Snapshot(msgspec.Struct):
    position: int
    producers: list[tuple[str, str, int, _Entry]]


class SnapshotError(ValueError):
    """A snapshot that cannot be read."""


class ProducerTable:
    """Last numbers and places of idempotent producers. Time is passed in: store times."""

    def __init__(self, entries_max: int = ENTRIES_MAX, runs_max: int = RUNS_MAX) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._entries_max = entries_max
        self._runs_max = runs_max
        self.version = 0
        """Grows with every change: who saved this version needs not save again."""

    def __len__(self) -> int:
        return len(self._entries)

    def decide(self, mark: Mark, count: int, now_ms: int) -> Decision:
        """What to do with `count` messages of which `mark` is the first."""
        key = (mark.producer, mark.topic, mark.queue_id)
        entry = self._entries.get(key)
        if entry is not None and now_ms - entry.last_ms > IDLE_MS_MAX:
            self._remove(key)
            entry = None
        if entry is None:
            if mark.number:
                return Decision(Verdict.EXPIRED)
            if len(self._entries) >= self._entries_max and not self.expire(now_ms):
                return Decision(Verdict.FULL)
            return Decision(Verdict.NEW)
        epoch, expected = entry.position
        if mark.epoch == epoch:
            if mark.number > expected:
                return Decision(Verdict.GAP, 0, expected)
            known = min(expected - mark.number, count)
            return Decision(Verdict.REPEAT if known == count else Verdict.NEW, known, expected)
        if mark.epoch > epoch:
            verdict = Verdict.GAP if mark.number else Verdict.NEW
            return Decision(verdict)
        last = mark._replace(number=mark.number + count - 1)
        if self.place(mark) is not None and self.place(last) is not None:
            return Decision(Verdict.REPEAT, count)
        return Decision(Verdict.STALE, 0, expected)

    def place(self, mark: Mark) -> Place | None:
        """Where the message is; None when it is not known, or so old that its run is forgotten."""
        entry = self._entries.get((mark.producer, mark.topic, mark.queue_id))
        for run in reversed(entry.runs if entry is not None else []):
            index = mark.number - run.number
            if run.epoch == mark.epoch and 0 <= index < run.count:
                physical = run.physical_offset if index == 0 else -1
                is_exact = run.count == 1
                number, start = run.queue_offset + index, run.physical_offset
                return Place(number, physical, run.end_offset, is_exact, start)
        return None

    def forgotten_place(self, mark: Mark) -> Place:
        """Of a message that is known to be stored and whose place is not: the messages of one
        producer are in the log in the order of their numbers, so it ends before the next run."""
        entry = self._entries[mark.producer, mark.topic, mark.queue_id]
        for run in entry.runs:
            if (run.epoch, run.number) > (mark.epoch, mark.number):
                return Place(-1, -1, run.physical_offset, is_exact=False)
        return Place(-1, -1, entry.runs[-1].end_offset, is_exact=False)

    def seen(
        self,
        mark: Mark,
        queue_offset: int,
        physical_offset: int,
        end_offset: int,
        store_ms: int,
        *,
        count: int = 1,
        is_elsewhere: bool = False,
    ) -> bool:
        """`count` messages from `mark` on are in the log there; false when that is no news."""
        key = (mark.producer, mark.topic, mark.queue_id)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(store_ms, [])
        elif (mark.epoch, mark.number) < entry.position:
            return False
        self.version += 1
        entry.last_ms = max(entry.last_ms, store_ms)
        last = entry.runs[-1] if entry.runs else None
        if (
            last is not None
            and not last.is_elsewhere
            and not is_elsewhere
            and (mark.epoch, mark.number) == entry.position
            and queue_offset == last.queue_offset + last.count
        ):
            last.count += count
            last.end_offset = end_offset
            return True
        entry.runs.append(
            _Run(
                mark.epoch, mark.number, count, queue_offset, physical_offset, end_offset,
                is_elsewhere,
            )
        )  # fmt: skip
        if len(entry.runs) > self._runs_max:
            del entry.runs[0]
        return True

    def truncate(self, floor: int, next_offset: NextOffset) -> bool:
        """The log ends at `floor` now; `next_offset` gives the ends of its queues. News or not."""
        version = self.version
        for key, entry in list(self._entries.items()):
            runs = entry.runs
            if runs[-1].end_offset <= floor:
                continue
            self.version += 1
            while runs and runs[-1].physical_offset >= floor:
                runs.pop()
            if runs and runs[-1].end_offset > floor:
                run = runs[-1]
                left = next_offset(key[1], key[2]) - run.queue_offset
                run.count = max(1, min(run.count, left))
                run.end_offset = floor
            if not runs:
                del self._entries[key]
        return self.version != version

    def expire(self, now_ms: int) -> int:
        """Forget idle producers, in a full table after a shorter time; how many."""
        limit = IDLE_MS_CROWDED if len(self._entries) >= self._entries_max else IDLE_MS_MAX
        idle = [key for key, entry in self._entries.items() if now_ms - entry.last_ms > limit]
        for key in idle:
            self._remove(key)
        return len(idle)

    def _remove(self, key: Key) -> None:
        del self._entries[key]
        self.version += 1

    # Snapshots

    def snapshot(self, position: int) -> bytes:
        """All of it, as it is for the log up to `position` (or further)."""
        producers = [(*key, entry) for key, entry in self._entries.items()]
        data = msgspec.json.encode(_Snapshot(position, producers))
        return b"%s%08x\n%s" % (_MAGIC, crc32(data), data)

    def restore(self, snapshot: bytes) -> int:
        """Take over a snapshot; the position of the log that it was made for.

        Raises SnapshotError and leaves the table as it was.
        """
        head, _, data = snapshot.partition(b"\n")
        if head != b"%s%08x" % (_MAGIC, crc32(data)):
            raise SnapshotError("wrong head or checksum")
        try:
            found = msgspec.json.decode(data, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise SnapshotError(str(error)) from error
        self._entries = {
            (producer, topic, queue_id): entry
            for producer, topic, queue_id, entry in found.producers
            if entry.runs
        }
        self.version += 1
        return found.position

    def clear(self) -> None:
        """Forget everything."""
        if self._entries:
            self._entries.clear()
            self.version += 1

    @property
    def keys(self) -> Iterable[Key]:
        return self._entries.keys()
