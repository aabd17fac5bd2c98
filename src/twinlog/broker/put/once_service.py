"""Keeps the table of idempotent producers next to the log: loads it, follows the log, saves it.

The state is in the log (`message/once.py`); `store/twinlog/producers` is a snapshot of it. It is
written before every checkpoint that follows a change, so what recovery does not read again is in
it. A snapshot may know records that a crash then took: after recovery the table is cut to the log
that there is, and saved before anything new can take their place.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import threading
from typing import Final

from twinlog.broker.put.idempotence import Decision, Place, ProducerTable, SnapshotError
from twinlog.message.crc import crc32
from twinlog.message.layout import BODY_CRC_AT, CRC_MASK, QUEUE_ID_AT
from twinlog.message.names import SCHEDULE_TOPIC
from twinlog.message.once import ONCE_BYTES, Mark, read_mark
from twinlog.message.properties import PROPERTY_REAL_TOPIC, property_value
from twinlog.message.record import ScanEntry, ScanStop, scan
from twinlog.runtime.clock import Clock, SteadyWall
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.store.message_store import MessageStore
from twinlog.store.recovery.recover import RecoveryReport
from twinlog.store.status import AppendResult

_LOG = logging.getLogger("twinlog.broker")
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_CHUNK_SIZE: Final = 4 << 20
SWEEP_INTERVAL_MS: Final = 60_000


class IdempotentSends:
    """The table, its snapshot and its ties to the store."""

    def __init__(self, store: MessageStore, disk: Disk, clock: Clock, root: str) -> None:
        self._store = store
        self._disk = disk
        self._steady = SteadyWall(clock)
        self._path = posixpath.join(root, "twinlog", "producers")
        self._position = -1
        self._saved_version = 0
        # A round writes in a thread; after a cut of the log its snapshot must not win.
        self._lock = threading.Lock()
        self._cut_count = 0
        self.table = ProducerTable()
        store.dispatcher.observed = ONCE_BYTES
        store.dispatcher.observer = self._observe
        store.housekeeping.before_checkpoint = self.save
        store.on_cut = self._cut

    # Start

    def load(self) -> None:
        """Read the snapshot. Before the store is loaded: recovery goes on from it."""
        if not self._disk.exists(self._path):
            return
        try:
            self._position = self.table.restore(self._disk.read_bytes(self._path))
            self._saved_version = self.table.version
        except SnapshotError as error:
            self._position = 0  # All that the log has is read again.
            _LOG.warning("producer snapshot unreadable path=%s reason=%s", self._path, error)

    async def recovered(self, report: RecoveryReport) -> None:
        """After recovery: read what it did not, and forget what the log does not have."""
        log = self._store.commit_log
        is_damaged = self._position == 0 and not self._saved_version
        is_behind = not report.has_point and self._position >= 0
        if (is_damaged or is_behind) and report.start_offset > max(self._position, log.min_offset):
            self.table.clear()
            if not is_damaged:
                self.table.restore(self._disk.read_bytes(self._path))
            await self._scan(max(self._position, log.min_offset))
        self.table.truncate(log.max_offset, self._next_offset)
        if self.table.version != self._saved_version:
            self._save_now()

    async def _scan(self, position: int) -> None:
        """Look for marks in the log from `position` on."""
        log = self._store.commit_log
        _LOG.info("looking for idempotent sends from=%d to=%d", position, log.max_offset)
        size = _CHUNK_SIZE
        while position < log.max_offset:
            data = log.read(position, min(size, log.max_offset - position))
            result = scan(data, 0, position, check_crc=False)
            for entry in result.entries:
                if ONCE_BYTES in entry[7]:
                    self._observe(entry)
            size = _CHUNK_SIZE
            if result.stop is ScanStop.BLANK:
                at = position + result.position
                position = at - at % log.segment_size + log.segment_size
            elif result.entries:
                position += result.position
            elif result.size > len(data) and result.stop is ScanStop.INCOMPLETE:
                size = result.size
            else:
                return  # The end, or what recovery would not have passed.
            await asyncio.sleep(0)

    # Following the log

    def _observe(self, entry: ScanEntry) -> None:
        """A record that has the property; whether it counts depends on where it is."""
        offset, size, queue_id, queue_offset, _, stored_at, topic, properties = entry
        mark = read_mark(properties.decode("utf-8", "replace"))
        if mark is None:
            return
        is_elsewhere = topic == SCHEDULE_TOPIC
        if is_elsewhere:
            if property_value(properties, _REAL_TOPIC) != mark.topic.encode():
                return
        elif topic != mark.topic or queue_id != mark.queue_id:
            return
        self.table.seen(
            mark, queue_offset, offset, offset + size, stored_at, is_elsewhere=is_elsewhere
        )

    def stored(self, mark: Mark, result: AppendResult, *, is_elsewhere: bool) -> None:
        """A put of this broker's own: as if the record was observed."""
        self.table.seen(
            mark, result.queue_offset, result.physical_offset, result.end_offset,
            result.store_timestamp, count=result.message_count, is_elsewhere=is_elsewhere,
        )  # fmt: skip

    def decide(self, mark: Mark, count: int) -> Decision:
        return self.table.decide(mark, count, self._steady.now_ms())

    def place(self, mark: Mark) -> Place | None:
        """Where a message is and ends, as exactly as the consume queue still knows it."""
        place = self.table.place(mark)
        if place is None or place.is_exact:
            return place
        queues = self._store.queue_table
        queue = queues.by_key.get((mark.topic, mark.queue_id))
        entry = queue.entry(queues.pool, place.queue_offset) if queue is not None else None
        if entry is None:
            return place
        offset, size, _ = entry
        return place.narrowed(offset, size)

    def forgotten_place(self, mark: Mark) -> Place:
        """Of a message so old that its place is forgotten: nowhere, and what to wait for."""
        return self.table.forgotten_place(mark)

    def is_same(self, place: Place, body: bytes | memoryview) -> bool:
        """Whether the record there has this body; true when the log cannot tell (any more)."""
        log, offset = self._store.commit_log, place.physical_offset
        if not max(log.min_offset, 0) <= offset < log.max_offset:
            return True
        stored = log.read(offset, QUEUE_ID_AT)[BODY_CRC_AT:]
        crc = crc32(body) & CRC_MASK if len(body) else 0
        return len(stored) < 4 or int.from_bytes(stored, "big") == crc

    def _next_offset(self, topic: str, queue_id: int) -> int:
        queue = self._store.queue_table.by_key.get((topic, queue_id))
        return queue.next_offset if queue is not None else 0

    def _cut(self, floor: int, was_written: bool) -> None:
        """The log ends at `floor` from now on. What was in it may be in the snapshot too: that is
        saved at once, or a crash brings it all back."""
        if self.table.truncate(floor, self._next_offset) and was_written:
            self._cut_count += 1
            self._save_now()

    def sweep(self) -> None:
        """Forget those who have been idle for too long."""
        count = self.table.expire(self._steady.now_ms())
        if count:
            _LOG.info("idle producers forgotten count=%d left=%d", count, len(self.table))

    # Saving

    async def save(self) -> None:
        """Before a checkpoint: everything below it must be in the snapshot. Raises OSError."""
        if self.table.version == self._saved_version:
            return
        self._store.write_pending()  # Only what is in the log gets into the snapshot.
        version = self.table.version
        data = self.table.snapshot(self._store.dispatched.value)
        await self._disk.run(self._write, data, self._cut_count)
        self._saved_version = version

    def _save_now(self) -> None:
        version = self.table.version
        try:
            self._write(self.table.snapshot(self._store.dispatched.value), self._cut_count)
        except OSError as error:
            # A snapshot that knows records which are gone would answer for them after a crash.
            # Without one nothing is known, and repeats are refused: gone is better than wrong.
            _LOG.error("producer snapshot not saved, removed path=%s error=%s", self._path, error)
            self._remove()
            return
        self._saved_version = version

    def _remove(self) -> None:
        try:
            self._disk.unlink(self._path)
            self._disk.fsync_directory(posixpath.dirname(self._path))
        except OSError as error:
            _LOG.error("producer snapshot not removed path=%s error=%s", self._path, error)

    def _write(self, data: bytes, cut_count: int) -> None:
        with self._lock:
            if cut_count == self._cut_count:
                write_atomically(self._disk, self._path, data)
