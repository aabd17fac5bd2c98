"""Put right what is damaged: bytes of the log from a replica, entries of queues from the log.

Bytes of a replica count when they are proved: a range by its digest, a record by its sizes, its own
place and the CRC of its body, and by what is left of the damaged one or follows it in both logs.
What is replaced is kept in `store/twinlog/damaged-OFFSET-TIME`.
"""

from __future__ import annotations

import logging
import posixpath
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from twinlog.message.layout import ENTRY, ENTRY_SIZE, PRE_BLANK_SIZE, RECORD_SIZE_MIN
from twinlog.message.record import ScanStop, scan
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk
from twinlog.store.integrity.damage import Damage
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of
from twinlog.store.integrity.mixing import whole_of
from twinlog.store.integrity.record_check import (
    QueuePlace,
    body_fault,
    is_same_record,
    queue_place,
    structure_fault,
)
from twinlog.store.integrity.resume import behind_damage
from twinlog.store.integrity.walk import Run, Walked, differing, walk
from twinlog.store.log.segment import segment_name
from twinlog.store.queue.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_I32: Final = struct.Struct(">i")
_SEARCH_SIZE_MAX: Final = 64 << 20  # Between two neighbours of a queue; more is for the scrub.
_SEARCH_STEP: Final = 256 << 10
_SEARCH_DAMAGES_MAX: Final = 64  # Each may cost a read of some megabytes to find what follows it.
_PROOF_SIZE: Final = 64 << 10
_PROOF_RECORDS: Final = 8  # Some of them may have decayed, too.


class Replica(Protocol):
    """Another copy of this log."""

    name: str

    async def digests(self, offset: int, count: int) -> list[bytes] | None:
        """Of `count` ranges from `offset` on; None when it cannot say."""
        ...

    async def read(self, offset: int, size: int) -> bytes | None:
        """Bytes of its log, fewer where it ends; None when it has none there or cannot say."""
        ...


class Healer:
    """Repairs single places. Knows the store; the replicas are found by the broker."""

    def __init__(
        self, store: MessageStore, digests: RangeDigests, disk: Disk, clock: Clock, own: str
    ) -> None:
        self._store = store
        self._digests = digests
        self._disk = disk
        self._clock = clock
        self._own = own
        self.replicas: Callable[[], list[Replica]] = list
        self.healed_bytes = 0
        self.healed_entries = 0
        self.on_event: Callable[..., None] = lambda kind, **details: None

    # The log

    async def heal_range(self, offset: int, size: int) -> bool:
        """A whole range by its digest."""
        wanted = self._digests.find(offset)
        if wanted is None:
            return False
        log = self._store.commit_log
        cut_count = log.cut_count
        for replica in self.replicas():
            data = await replica.read(offset, size)
            if data is None or len(data) != size:
                continue
            mine = log.read_to_check(offset, size)
            whole = await self._disk.run(whole_of, mine, data, wanted)
            if whole is not None:
                return await self._replace(offset, whole, replica.name, cut_count)
        return False

    async def heal_record(
        self, offset: int, *, place: QueuePlace | None = None, number: int = -1
    ) -> bool:
        """One record by its own checks; with a place only if it is that one."""
        log = self._store.commit_log
        cut_count = log.cut_count
        for replica in self.replicas():
            head = await replica.read(offset, _I32.size)
            if head is None or len(head) < _I32.size:
                continue
            (size,) = _I32.unpack(head)
            left = log.segment_size - offset % log.segment_size
            if not RECORD_SIZE_MIN <= size <= left or offset + size > log.max_offset:
                continue
            data = await replica.read(offset, size)
            if data is None or len(data) != size:
                continue
            if structure_fault(data, 0, size, offset, place=place, number=number):
                continue
            if body_fault(data, 0, size):
                continue
            mine = log.read_to_check(offset, size)
            if is_same_record(mine, data) or await self._goes_on_alike(replica, offset + size):
                return self._forget_digests_of_damage(offset, data) and await self._replace(
                    offset, data, replica.name, cut_count
                )
        return False

    async def _goes_on_alike(self, replica: Replica, at: int) -> bool:
        """Whether a copy has the records that follow here. One that went on differently, as an old
        master's until it is cut, may have another sound record in the place of a damaged one."""
        log = self._store.commit_log
        if not log.min_offset <= at < log.max_offset:
            return True
        mine = log.read_to_check(at, _PROOF_SIZE)
        found = scan(mine, 0, at, count_max=_PROOF_RECORDS).entries
        if not found:
            return True
        its = await replica.read(at, found[-1][0] + found[-1][1] - at)
        spans = [(entry[0] - at, entry[0] - at + entry[1]) for entry in found]
        return its is not None and any(its[a:b] == mine[a:b] for a, b in spans)

    def _forget_digests_of_damage(self, offset: int, record: bytes) -> bool:
        """A range that was digested when this record was damaged already has a digest that proves
        the damage. It goes before the damage does: after a kill it would call the repaired bytes
        damaged. The scrub makes another. False: the disk has no room to say so."""
        log = self._store.commit_log
        if log.read_to_check(offset, len(record)) == record:
            return True
        begin, size = range_of(offset, log.segment_size)
        is_forgotten = False
        while begin < offset + len(record):
            wanted = self._digests.find(begin)
            if wanted is not None and digest_of(log.read_to_check(begin, size)) == wanted:
                self._digests.forget(begin)
                is_forgotten = True
            begin, size = range_of(begin + size, log.segment_size)
        try:
            if is_forgotten:
                self._digests.save()
        except OSError as error:
            _LOG.error("log not healed, its digest cannot be dropped offset=%d error=%s; tried "
                       "again by the next pass", offset, error)  # fmt: skip
            return False
        return True

    async def _replace(self, offset: int, data: bytes, source: str, cut_count: int) -> bool:
        """Write proved bytes over those that are there, which are kept."""
        log = self._store.commit_log
        segment = log.segments.find(offset)
        if segment is None or log.cut_count != cut_count or offset + len(data) > log.max_offset:
            return False  # The log was cut, or the segment expired, while we asked.
        at = offset - segment.start
        bad = log.read_to_check(offset, len(data))
        try:
            if bad == data and segment.file.size() >= at + len(data):
                return True
            await self._disk.run(self._keep_aside, offset, bad)
            if log.cut_count != cut_count or log.segments.find(offset) is not segment:
                return False
            segment.file.pwritev((data,), at)
            await self._disk.run(segment.file.fdatasync)
        except OSError as error:
            _LOG.error(
                "log not healed, a good copy is there offset=%d size=%d path=%s error=%s; is there "
                "room on the disk, and may the broker write there? tried again by the next pass",
                offset, len(data), segment.path, error,
            )  # fmt: skip
            return False
        changed = sum(mine != its for mine, its in zip(bad, data, strict=True))
        self.healed_bytes += changed
        _LOG.warning(
            "log healed offset=%d size=%d bytes_changed=%d from=%s",
            offset, len(data), changed, source,
        )  # fmt: skip
        self.on_event("store-healed", offset=offset, size=len(data), bytes=changed, source=source)
        return True

    def _keep_aside(self, offset: int, bad: bytes) -> None:
        name = f"damaged-{segment_name(offset)}-{self._clock.now_ms()}"
        path = posixpath.join(self._own, name)
        file = self._disk.open(path, create=True)
        try:
            file.pwritev((bad,), 0)
            file.fdatasync()
        except OSError:
            self._disk.unlink(path)  # A part of it is of no use, and takes the room that is left.
            raise
        finally:
            file.close()
        self._disk.fsync_directory(self._own)

    # Queues

    def mend_run(self, run: Run, *, is_proved: bool = True) -> int:
        """Compare entries of a queue with those that the log says; the number that were mended.

        An entry that is not the log's here but sound stays: a topic that was deleted and made
        again numbers its messages again. One that differs in its tags alone stays while the range
        is not proved, because the bit may have flipped in the record.
        """
        queue = self._store.queue_table.get(run.topic, run.queue_id)
        if queue is None:
            return 0
        mended = 0
        first = max(run.first_number, queue.first_offset)
        last = min(run.first_number + len(run.entries) // ENTRY_SIZE, queue.max_offset)
        while first < last:
            found = queue.read(self._store.queue_table.pool, first, last - first)
            if not found:
                break
            at = (first - run.first_number) * ENTRY_SIZE
            part = run._replace(first_number=first, entries=run.entries[at : at + len(found)])
            for number in differing(part, found):
                entry = part.entries[(number - first) * ENTRY_SIZE :][:ENTRY_SIZE]
                mended += self._mend_entry(queue, number, entry, is_proved=is_proved)
            first += len(found) // ENTRY_SIZE
        return mended

    def _mend_entry(
        self, queue: ConsumeQueue, number: int, entry: bytes, *, is_proved: bool
    ) -> bool:
        pool = self._store.queue_table.pool
        now = queue.entry(pool, number)
        wanted = ENTRY.unpack(entry)
        if now is None:
            return False
        is_same_record = now[:2] == wanted[:2]
        if now[1] == PRE_BLANK_SIZE:
            if not is_proved or not self._is_in_order(queue, number, wanted):
                return False
        elif not is_proved if is_same_record else self._is_sound(queue, number, now):
            return False
        at = number * ENTRY_SIZE
        if at >= queue.written_end:
            return False  # Still in memory, where nothing decays.
        start = at - at % queue.file_size
        pool.get(queue.path_of(start)).pwritev((entry,), at - start)
        queue.unsynced.add(start)
        queue.forget_minimum()
        self.healed_entries += 1
        _LOG.warning(
            "queue entry repaired topic=%s queue=%d number=%d was=%s is=%s",
            queue.topic, queue.queue_id, number, now, wanted,
        )  # fmt: skip
        self.on_event("queue-healed", topic=queue.topic, queueId=queue.queue_id, number=number)
        return True

    def _is_in_order(self, queue: ConsumeQueue, number: int, wanted: tuple[int, int, int]) -> bool:
        """Whether a record lies between those of the entries around a blank one: it was damaged
        when the queue was made, and is whole again. One of a topic that was deleted does not."""
        pool, (offset, size, _) = self._store.queue_table.pool, wanted
        before, after = queue.entry(pool, number - 1), queue.entry_from(pool, number + 1)
        is_behind = (
            before is not None and before[1] != PRE_BLANK_SIZE and before[0] + before[1] <= offset
        )
        return is_behind and (after is None or offset + size <= after[0])

    def _is_sound(self, queue: ConsumeQueue, number: int, entry: tuple[int, int, int]) -> bool:
        """Whether an entry leads to a record of its queue and number, or means none."""
        offset, size, _ = entry
        log = self._store.commit_log
        if size == PRE_BLANK_SIZE or 0 <= offset < log.min_offset:
            return True
        if size < RECORD_SIZE_MIN or offset < 0 or offset + size > log.max_offset:
            return False
        data = log.read_to_check(offset, size)
        place = queue_place(queue.topic, queue.queue_id)
        return not structure_fault(data, 0, size, offset, place=place, number=number)

    def is_gone(self, damage: Damage) -> bool:
        """Whether there is nothing at the place any more that somebody could read."""
        log = self._store.commit_log
        if not damage.topic:
            end = damage.physical_offset + damage.size
            return end <= log.min_offset or damage.physical_offset >= log.max_offset
        queue = self._store.queue_table.get(damage.topic, damage.queue_id)
        if queue is None:
            return True
        first = queue.min_offset(self._store.queue_table.pool, log.min_offset)
        return not first <= damage.queue_offset < queue.max_offset

    # What a reader met

    async def heal(self, damage: Damage) -> bool:
        """Whatever is wrong with one message: its record, or the entry that leads to it."""
        queue = self._store.queue_table.get(damage.topic, damage.queue_id)
        if queue is None:
            return await self.heal_record(damage.physical_offset)
        if self._is_readable(queue, damage.queue_offset):
            return True
        place = queue_place(damage.topic, damage.queue_id)
        entry = queue.entry(self._store.queue_table.pool, damage.queue_offset)
        if (
            entry is not None
            and await self._heal_at(entry[0], place, damage.queue_offset)
            # Its offset may be right and its size wrong: then the record was never damaged.
            and self._is_readable(queue, damage.queue_offset)
        ):
            return True
        await self._search_entry(queue, damage.queue_offset)
        if self._is_readable(queue, damage.queue_offset):
            return True
        entry = queue.entry(self._store.queue_table.pool, damage.queue_offset)
        return entry is not None and await self._heal_at(entry[0], place, damage.queue_offset)

    async def _heal_at(self, offset: int, place: QueuePlace, number: int) -> bool:
        log = self._store.commit_log
        if not log.min_offset <= offset < log.max_offset:
            return False
        return await self.heal_record(offset, place=place, number=number)

    def _is_readable(self, queue: ConsumeQueue, number: int) -> bool:
        entry = queue.entry(self._store.queue_table.pool, number)
        if entry is None or not self._is_sound(queue, number, entry):
            return False
        offset, size, _ = entry
        if size == PRE_BLANK_SIZE or offset < self._store.commit_log.min_offset:
            return True
        return not body_fault(self._store.commit_log.read_to_check(offset, size), 0, size)

    async def _search_entry(self, queue: ConsumeQueue, number: int) -> None:
        """Look for the record between those of the neighbours, and mend what leads to it."""
        log, pool = self._store.commit_log, self._store.queue_table.pool
        before, after = queue.entry(pool, number - 1), queue.entry(pool, number + 1)
        at = log.min_offset
        if before is not None and self._is_sound(queue, number - 1, before):
            at = max(at, before[0] + before[1] if before[1] != PRE_BLANK_SIZE else at)
        end = self._store.dispatched.value
        if after is not None and self._is_sound(queue, number + 1, after):
            end = after[0]
        end = min(end, at + _SEARCH_SIZE_MAX)
        damages = 0
        while at < end and damages <= _SEARCH_DAMAGES_MAX:
            found = await self._walk_at(at, end)
            for run in found.runs:
                if (run.topic, run.queue_id) == queue.key:
                    self.mend_run(run)
            if found.end > at:
                at = found.end
            elif found.stop is ScanStop.BLANK:
                at += log.segment_size - at % log.segment_size
            else:
                damages += 1
                at = await behind_damage(log, self._disk, at, end)

    async def _walk_at(self, at: int, end: int) -> Walked:
        log, levels = self._store.commit_log, self._store.config.delay_levels
        data = await self._disk.run(log.read_to_check, at, _SEARCH_STEP)
        found = walk(data, at, levels)
        if found.end > at or found.stop is not ScanStop.INCOMPLETE or found.size > end - at:
            return found
        data = await self._disk.run(log.read_to_check, at, found.size)
        return walk(data, at, levels)


def range_of(offset: int, segment_size: int) -> tuple[int, int]:
    """Begin and size of the range that holds `offset`."""
    start = offset - offset % segment_size
    begin = start + (offset - start) // RANGE_SIZE * RANGE_SIZE
    return begin, min(RANGE_SIZE, start + segment_size - begin)
