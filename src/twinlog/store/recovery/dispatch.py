"""From records to consume queues and index. Corresponds to RocketMQ's CommitLogDispatcher classes.

Used where the log is read again: on a slave, in recovery, for a rebuild. The put path of a master
knows the entry already and does the same without decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from twinlog.message.crc import crc32
from twinlog.message.layout import ENTRY, QUEUE_OFFSET_AT, SECTOR_SIZE, SYS_FLAG_AT
from twinlog.message.properties import delay_level, tags_and_keys
from twinlog.message.record import ScanEntry
from twinlog.message.sysflag import TRANSACTION_ROLLBACK_TYPE, UNQUEUED_FLAG
from twinlog.runtime.clock import Clock
from twinlog.runtime.compiled import load
from twinlog.store.index.index_service import IndexService
from twinlog.store.integrity.record_check import number_max
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.queue.queue_table import TAIL_SIZE_MAX, ConsumeQueueTable

_LOG = logging.getLogger("twinlog.store")
_UNKNOWN_LEVEL_DELAY_MS: Final = 1000  # RocketMQ's, for a level that the table does not have.
NOT_TORN: Final = 1 << 62


class QueueGapError(Exception):
    """A record's number is ahead of its queue: entries before it are missing."""

    def __init__(self, message: str, physical_offset: int) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset
        self.moved: Collection[ConsumeQueue] = ()  # By the records before it.


class StaleRecordError(Exception):
    """A record's number was given before: bytes of an earlier life of the log."""

    def __init__(self, message: str, physical_offset: int) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset


def deliver_time(properties: bytes, store_timestamp: int, levels: Mapping[int, int]) -> int | None:
    """The tags code of a delayed message: when it is due. None: it is not delayed."""
    try:
        level = delay_level(properties)
    except ValueError:
        return None
    if level is None or level <= 0:
        return None
    delay_ms = levels.get(level)
    if delay_ms is None:
        delay_ms = levels.get(min(level, max(levels, default=0)), _UNKNOWN_LEVEL_DELAY_MS)
    return store_timestamp + delay_ms


class Taken(NamedTuple):
    """Records that were dispatched all at once."""

    end: int  # Physical offset behind the last one.
    record_count: int
    last_timestamp: int
    moved: Collection[ConsumeQueue]


class Dispatcher:
    """Puts scanned records into queues and index; both ignore what they have."""

    def __init__(
        self,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        levels: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._index = index
        self._levels = levels
        self._clock = clock
        compiled = load("twinlog.store.recovery._scan")
        self._scan_plain: Any = None if compiled is None else compiled.scan_plain
        # Recovery asks for errors where later, on a slave, the gap is filled and reported.
        self.is_strict = False
        # Records of a copy that are stored behind this offset and after this time may be torn: it
        # asks its master for them again.
        self.torn_from, self.torn_after_ms = NOT_TORN, 0
        # False in controlled groups: entries have their places at once, consumers see them later.
        self.shows_at_once = True
        # Told about records whose properties contain `observed`, in the order of the log.
        self.observed = b""
        self.observer: Callable[[ScanEntry], None] | None = None

    def dispatch(self, entries: Iterable[ScanEntry]) -> Collection[ConsumeQueue]:
        """Queues that moved. Their new entries are visible at once, unless the store holds them."""
        by_key, index = self._queues.by_key, self._index
        now_ms = self._clock.monotonic_ms()
        pending = index.pending if index is not None else []
        moved: dict[ConsumeQueue, None] = {}
        pack = ENTRY.pack
        observer, observed = self.observer, self.observed
        try:
            for entry in entries:
                offset, size, queue_id, queue_offset, sys_flag, stored_at, topic, properties = entry
                tags_code, keys = tags_and_keys(properties)
                if not sys_flag & UNQUEUED_FLAG:
                    queue = by_key.get((topic, queue_id)) or self._queues.make(topic, queue_id)
                    if queue_offset == queue.next_offset or self._place(
                        queue, queue_offset, offset, size, stored_at
                    ):
                        if queue.is_schedule:
                            due = deliver_time(properties, stored_at, self._levels)
                            tags_code = tags_code if due is None else due
                        if queue.dirty_since_ms < 0:
                            self._queues.mark_dirty(queue, now_ms, offset)
                        queue.tail += pack(offset, size, tags_code)
                        queue.next_offset += 1
                        queue.last_physical_end = offset + size
                        moved[queue] = None
                elif sys_flag & TRANSACTION_ROLLBACK_TYPE == TRANSACTION_ROLLBACK_TYPE:
                    continue
                if keys:
                    pending.append((topic, keys, offset, stored_at))
                elif index is not None:
                    index.bare_offset = offset
                if observer is not None and observed in properties:
                    observer(entry)
        except QueueGapError as error:
            error.moved = moved
            raise
        finally:
            self._finish(moved)
        return moved

    @property
    def is_compiled(self) -> bool:
        """Whether `dispatch_plain` takes anything."""
        return self._scan_plain is not None

    def dispatch_plain(
        self, data: bytes, position: int, physical_offset: int, *, check_crc: bool
    ) -> Taken | None:
        """The plain records from `position` of `data` on, all at once; None, and nothing done, when
        there are none, or it is not so simple: then `scan` and `dispatch` are for the first."""
        if self._scan_plain is None:
            return None
        check = crc32 if check_crc else None
        observed = self.observed if self.observer is not None else b""
        plain = self._scan_plain(data, position, physical_offset, check, observed)
        return None if plain is None else self._dispatch_groups(plain)

    def _dispatch_groups(self, plain: Any) -> Taken | None:
        """What `_scan.pyx` found; the queues are asked before anything is changed."""
        wanted = []
        for group in plain.groups:
            queue = self._queues.make(group.topic, group.queue_id)
            if group.end <= queue.last_physical_end:
                continue  # It has them all.
            if queue.is_schedule or group.first_number != queue.next_offset:
                return None
            wanted.append((queue, group))
        now_ms = self._clock.monotonic_ms()
        for queue, group in wanted:
            if queue.dirty_since_ms < 0:
                self._queues.mark_dirty(queue, now_ms, group.first_offset)
            queue.add_many(group.entries, group.end)
        if self._index is not None:
            self._index.add_hashed(
                plain.key_hashes, plain.key_offsets, plain.key_timestamps, plain.bare_offset
            )
        if self.observer is not None:
            for entry in plain.observed:
                self.observer(entry)
        moved = dict.fromkeys(queue for queue, _ in wanted)
        self._finish(moved)
        return Taken(plain.end, plain.count, plain.last_timestamp, moved)

    def _finish(self, moved: Collection[ConsumeQueue]) -> None:
        # First all of them: a full disk ends the second loop, and the next try finds them done.
        if self.shows_at_once:
            for queue in moved:
                queue.max_offset = queue.next_offset
        for queue in moved:
            if len(queue.tail) > TAIL_SIZE_MAX:
                self._queues.write(queue)
        if self._index is not None and self._index.is_due:
            self._index.drain()

    def _place(
        self, queue: ConsumeQueue, queue_offset: int, offset: int, size: int, stored_at: int
    ) -> bool:
        """Whether the record gets an entry although its number is not the next one."""
        if offset + size <= queue.last_physical_end:
            return False  # It has one.
        name = f"{queue.topic}-{queue.queue_id}"
        if queue_offset > queue.next_offset:
            if queue.next_offset == 0:
                queue.begin_at(queue_offset)
                return True
            gap = f"record {queue_offset} at {offset}, queue {name} ends at {queue.next_offset}"
            if self.is_strict or queue_offset > number_max(
                queue.next_offset, queue.last_physical_end, offset
            ):
                raise QueueGapError(gap, offset)
            _LOG.error("queue has a gap, filled with blank entries: %s", gap)
            queue.fill_gap(queue_offset)
            return True
        is_torn = queue_offset == 0 and self._may_be_torn(offset, size, stored_at)
        if queue_offset == 0 and not is_torn:
            _LOG.warning("queue starts again name=%s offset=%d", name, offset)
            self._queues.restart(queue)
            return True
        text = f"record {queue_offset} at {offset} of queue {name} was there before"
        if self.is_strict or is_torn:
            raise StaleRecordError(text, offset)
        _LOG.error("record skipped: %s", text)
        return False

    def _may_be_torn(self, offset: int, size: int, stored_at: int) -> bool:
        """Whether the number 0 may be what a power cut left of another one.

        A classic master sends bytes, not records: the slave's last write before the power cut may
        have ended inside the number, and the sector of that write is the one that the disk kept.
        Its rest is zero then, up to the next sector, which begins before the record's own offset
        ends: that one is right.
        """
        if offset + size <= self.torn_from or stored_at <= self.torn_after_ms:
            return False
        sector_at = -(-(offset + QUEUE_OFFSET_AT + 1) // SECTOR_SIZE) * SECTOR_SIZE
        return sector_at < offset + SYS_FLAG_AT
