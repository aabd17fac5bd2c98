"""What a put adds: bytes to the end of the log, an entry to a queue, keys for the index.

The one place where all three happen, for single messages and for batches. `_appender.pyx` has the
same classes compiled, and another entrance for the send lane of the broker.

A turn of the loop is opened by its first put and closed when its bytes are written: all records of
a turn have the same store time, and a write that fails gives back the places of exactly this turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twinlog.message.layout import BLANK_SIZE_MIN, ENTRY, ENTRY_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record
from twinlog.runtime.compiled import load

if TYPE_CHECKING:
    from twinlog.store.index.index_service import IndexService
    from twinlog.store.queue.consume_queue import ConsumeQueue

_ENTRY_PACK: Final = ENTRY.pack


class LogEnd:
    """Where the next record goes, and the bytes before it that wait to be written."""

    __slots__ = ("pieces", "segment_end", "tail")

    def __init__(self) -> None:
        self.tail = 0
        self.segment_end = 0  # Of the segment that is being filled; 0 when there is none.
        self.pieces: list[bytes] = []

    def fits(self, size: int) -> bool:
        """Whether the segment has room for a record, and for the blank one that closes it."""
        return self.tail + size + BLANK_SIZE_MIN <= self.segment_end

    def add(self, piece: bytes) -> int:
        """Append bytes; the offset of the first."""
        offset = self.tail
        self.pieces.append(piece)
        self.tail = offset + len(piece)
        return offset


class Appender:
    """Records of one turn, each with its entry and its keys."""

    __slots__ = (
        "_begin",
        "_index",
        "_mark_dirty",
        "end",
        "is_open",
        "queues",
        "timestamp",
        "turn",
    )

    def __init__(
        self,
        end: LogEnd,
        index: IndexService | None,
        *,
        begin: Callable[[], int],
        mark_dirty: Callable[[ConsumeQueue, int], None],
    ) -> None:
        """`begin` is called when a turn opens and says its store time; `mark_dirty` for a queue
        that had nothing to write before, with the offset of the record."""
        self.end = end
        self._index = index
        self._begin = begin
        self._mark_dirty = mark_dirty
        self.is_open = False
        self.turn = 0
        self.timestamp = 0
        self.queues: list[ConsumeQueue] = []

    def open(self) -> None:
        """The first put of a turn."""
        assert not self.is_open
        self.is_open = True
        self.turn += 1
        self.timestamp = self._begin()

    def close(self) -> list[ConsumeQueue]:
        """The turn is over; the queues that it put to."""
        self.is_open = False
        queues, self.queues = self.queues, []
        return queues

    def append(self, message: PutMessage, queue: ConsumeQueue, code: int) -> int:
        """A message: its record, its entry with `code` (tags code or deliver time), its keys.

        The offset of the record; -1, and nothing is added, when the segment has no room for it.
        Raises RecordError.
        """
        end = self.end
        offset = end.tail
        record = encode_record(message, queue.next_offset, offset, self.timestamp)
        size = len(record)
        if offset + size + BLANK_SIZE_MIN > end.segment_end:
            return -1
        end.pieces.append(record)
        end.tail = offset + size
        if queue.turn != self.turn:
            self._touch(queue, offset)
        queue.tail += _ENTRY_PACK(offset, size, code)
        queue.next_offset += 1
        queue.last_physical_end = offset + size
        index = self._index
        if index is not None:
            if message.keys:
                index.pending.append((message.topic, message.keys, offset, self.timestamp))
            else:
                index.bare_offset = offset
        return offset

    def add_batch(self, data: bytes, queue: ConsumeQueue, entries: bytes) -> int:
        """Records that follow each other, with all their entries; the offset of the first."""
        assert len(entries) % ENTRY_SIZE == 0
        offset = self.end.add(data)
        if queue.turn != self.turn:
            self._touch(queue, offset)
        queue.add_many(entries, offset + len(data))
        return offset

    def add_unqueued(self, record: bytes, topic: str, keys: tuple[str, ...] | None) -> int:
        """A record without an entry; `keys` None: it is not for the index at all."""
        offset = self.end.add(record)
        index = self._index
        if index is not None and keys is not None:
            if keys:
                index.pending.append((topic, keys, offset, self.timestamp))
            else:
                index.bare_offset = offset
        return offset

    def _touch(self, queue: ConsumeQueue, offset: int) -> None:
        """The first record of this turn for the queue."""
        queue.turn = self.turn
        queue.turn_offset = queue.next_offset
        self.queues.append(queue)
        if queue.dirty_since_ms < 0:
            self._mark_dirty(queue, offset)


def appender_types() -> tuple[type[LogEnd], type[Appender]]:
    """The compiled ones, where they were built."""
    compiled = load("twinlog.store.log._appender")
    if compiled is None:
        return LogEnd, Appender
    return compiled.LogEnd, compiled.Appender
