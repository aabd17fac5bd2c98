"""Reads: by queue, by time, by key, by physical offset. Corresponds to the getters of
RocketMQ's DefaultMessageStore.

Records are handed out exactly as stored. Neighbours in the log are read with one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from twinlog.message.crc import crc32
from twinlog.message.layout import (
    ENTRY_SIZE,
    HOST_V6_EXTRA,
    PHYSICAL_OFFSET_AT,
    PRE_BLANK_SIZE,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from twinlog.message.sysflag import BORNHOST_V6_FLAG
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.compiled import load
from twinlog.runtime.disk import FileBytes
from twinlog.store.errors import OffsetOutOfRangeError, RecordDamagedError
from twinlog.store.filter import MessageFilter, PropertyPairs, TagsCodeFilter
from twinlog.store.index.index_service import IndexService
from twinlog.store.integrity.damage import Damage, DamageLog, place_of
from twinlog.store.integrity.record_check import (
    QueuePlace,
    body_fault,
    entry_fault,
    queue_place,
    structure_fault,
)
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.queue.queue_table import ConsumeQueueTable
from twinlog.store.queue_scan import Limits, QueueScan
from twinlog.store.status import GetMessageStatus, GetResult, QueryResult

# Members that are asked for in hot paths: by their class they cost ten times as much.
_FOUND: Final = GetMessageStatus.FOUND

_compiled = load("twinlog.store.queue._gather")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
SCAN_ENTRIES: Final = 800  # RocketMQ's 16000 bytes of entries.
# Enough for the store time of a record, IPv6 born host included.
_HEAD_SIZE: Final = STORE_TIMESTAMP_AT + HOST_V6_EXTRA + 8
_QUERY_ROUNDS: Final = 3
# Records of one queue lie between those of others: one read of all of it is cheaper than one read
# each, as long as not too much is thrown away.
_SPAN_SIZE_MAX: Final = 1 << 20
_SPAN_WASTE: Final = 8
Wanted = frozenset[int] | PropertyPairs  # Tags codes, or pairs of properties.
# Entries, bytes of a segment and its first offset, begin and end of the log, how far behind the end
# a record counts as in memory.
Walk = tuple[bytes, FileBytes, int, int, int, int]


def store_timestamp_of(head: bytes) -> int:
    """The store time in the first bytes of a record."""
    (sys_flag,) = _I32.unpack_from(head, SYS_FLAG_AT)
    extra = HOST_V6_EXTRA if sys_flag & BORNHOST_V6_FLAG else 0
    timestamp: int = _I64.unpack_from(head, STORE_TIMESTAMP_AT + extra)[0]
    return timestamp


class StoreReader:
    """Everything that only reads."""

    def __init__(
        self,
        config: BrokerConfig,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        memory_size: int,
        damage: DamageLog,
    ) -> None:
        self._config = config
        self._damage = damage
        self._log = log
        self._queues = queues
        self._index = index
        self._memory_size = memory_size
        self.config_changed()

    def config_changed(self) -> None:
        """How far behind the end a record counts as in memory; may change while running."""
        ratio = self._config.access_message_in_memory_max_ratio
        self._memory_threshold = self._memory_size * ratio // 100

    # By queue

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        count_max: int,
        message_filter: MessageFilter | None,
        bytes_max: int | None,
        is_offset_corrected: bool,
    ) -> GetResult:
        """RocketMQ's getMessage for one queue."""
        minimum = queue.min_offset(self._queues.pool, self._log.min_offset) if queue else 0
        maximum = queue.max_offset if queue else 0
        status, position = _classify(offset, minimum, maximum)
        if status is not _FOUND or queue is None:
            next_offset = position if is_offset_corrected else offset
            return GetResult(status, next_offset, minimum, maximum)
        if message_filter is None:
            # All entries are wanted, but for those before the first: as many as may be handed out,
            # and the one behind them, whose distance to the end says where to pull next.
            span = count_max + 1
            result = self._get_common(queue, offset, count_max, None, bytes_max, minimum, span)
            if result is not None and result.message_count:
                return result
        else:
            wanted = asked_of(message_filter)
            if wanted is not None:
                span = max(SCAN_ENTRIES, count_max)
                result = self._get_common(
                    queue, offset, count_max, wanted, bytes_max, minimum, span
                )
                if result is not None:
                    return result
        data = queue.read(self._queues.pool, offset, max(SCAN_ENTRIES, count_max))
        if not data:
            entries = queue.file_size // ENTRY_SIZE
            next_file = (offset // entries + 1) * entries
            next_offset = next_file if is_offset_corrected else offset
            status = GetMessageStatus.OFFSET_FOUND_NULL
            return GetResult(status, next_offset, minimum, maximum)
        scan = QueueScan(self._log, self._memory_threshold, self._place(queue), offset)
        limits = _limits(self._config, count_max, bytes_max)
        scan.run(data, limits, message_filter, self.read_records)
        if scan.status is GetMessageStatus.MESSAGE_DAMAGED:
            return self._damaged(queue, offset + scan.examined, scan, minimum)
        return GetResult(
            status=scan.status,
            next_begin_offset=offset + scan.examined,
            min_offset=minimum,
            max_offset=maximum,
            buffers=scan.buffers,
            message_count=len(scan.found),
            size=scan.size,
            suggest_pulling_from_slave=(
                self._log.max_offset - scan.last_offset > self._memory_threshold
            ),
        )

    def _place(self, queue: ConsumeQueue) -> QueuePlace | None:
        """What records of a queue are compared with; None: they are handed out unchecked."""
        if not self._config.twinlog_check_reads:
            return None
        return queue_place(queue.topic, queue.queue_id)

    def _damaged(
        self, queue: ConsumeQueue, number: int, scan: QueueScan, minimum: int
    ) -> GetResult:
        """The answer where a damaged record comes next: wait at it, or go on behind it."""
        entry = scan.fault_place
        damage = Damage(queue.topic, queue.queue_id, number, *entry, scan.fault)
        damage.may_be_entry = bool(self._compared(queue, number, entry)[0])
        is_waiting = self._damage.found(damage)
        return GetResult(
            GetMessageStatus.MESSAGE_DAMAGED,
            number if is_waiting else number + 1,
            minimum,
            queue.max_offset,
            reason=damage.text,
            is_retried=is_waiting,
        )

    def _get_common(
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        wanted: Wanted | None,
        bytes_max: int | None,
        minimum: int,
        span: int,
    ) -> GetResult | None:
        """What is mostly asked for, by the compiled walk; None where the other must do it."""
        if _compiled is None:
            return None
        walk = self.begin_walk(queue, offset, span)
        if walk is None:
            return None
        data, segment, base, log_min, log_max, threshold = walk
        recent, old = _limits(self._config, count_max, bytes_max)
        place = self._place(queue)
        found = _compiled.gather(
            data, segment, base, log_min, log_max, log_max - threshold, recent, old, wanted,
            None if place is None else (crc32, place.topic, place.queue_id, offset),
        )  # fmt: skip
        if found is None:
            return None
        records, count, examined, last_offset, is_gone = found
        if count:
            status = _FOUND
        elif is_gone:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status,
            offset + examined,
            minimum,
            queue.max_offset,
            [records] if count else [],
            count,
            len(records),
            log_max - last_offset > threshold,
        )

    def begin_walk(self, queue: ConsumeQueue, offset: int, span: int) -> Walk | None:
        """What the compiled walk looks at: entries from `offset` on, and the segment of the first.

        To be dropped before the turn ends. None: there is nothing, or it is not mapped.
        """
        data = queue.read(self._queues.pool, offset, span)
        if not data:
            return None
        log = self._log
        first = _I64.unpack_from(data)[0]
        log_min, log_max = log.min_offset, log.appended.value
        mapped = log.map_at(first) if log_min <= first < log_max else None
        if mapped is None:
            return None
        return data, mapped[0], mapped[1], log_min, log_max, self._memory_threshold

    def read_records(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of (offset, size) records in order; neighbours joined."""
        if not wanted:
            return []
        if len(wanted) == 1:
            return [self._read(*wanted[0])]
        first, total = wanted[0][0], sum(size for _, size in wanted)
        last_offset, last_size = wanted[-1]
        span = last_offset + last_size - first
        segment_size = self._log.segment_size
        if (
            total <= span <= min(_SPAN_SIZE_MAX, total * _SPAN_WASTE)
            and first // segment_size == last_offset // segment_size
        ):
            data = self._read(first, span)
            if total == span:
                return [data]
            return [data[start - first : start - first + size] for start, size in _runs(wanted)]
        return [self._read(offset, size) for offset, size in _runs(wanted)]

    def _read(self, offset: int, size: int) -> bytes:
        """What is checked may be unreadable: the check says so."""
        if self._config.twinlog_check_reads:
            return self._log.read_to_check(offset, size)
        return self._log.read(offset, size)

    # By physical offset

    def record_at(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The whole record that starts at `physical_offset`, None when there is none.

        Raises RecordDamagedError where one must be, by what the size of it says, and is not sound.
        """
        data = self._bytes_at(physical_offset, size)
        if data is None or not self._config.twinlog_check_reads:
            return data
        fault = structure_fault(data, 0, len(data), physical_offset)
        if fault and size is None:
            return None  # Whoever asks may have made the offset up.
        fault = fault or body_fault(data, 0, len(data))
        if not fault:
            return data
        damage = place_of(physical_offset, len(data), fault)
        is_waiting = self._damage.found(damage)
        raise RecordDamagedError(damage.text, is_retried=is_waiting)

    def record_of(self, queue: ConsumeQueue, number: int, entry: tuple[int, int]) -> bytes | None:
        """The record that an entry, an offset and a size, of a queue leads to; None when it has
        expired or was left out.

        Raises RecordDamagedError when that record is not the one of this number: one of the two is
        damaged, and both can be healed.
        """
        offset, size = entry
        if size == PRE_BLANK_SIZE:
            return None
        if not self._config.twinlog_check_reads:
            return self._bytes_at(offset, size)
        fault, data = self._compared(queue, number, entry)
        may_be_entry = bool(fault)
        if not fault:
            fault = body_fault(data, 0, size)
            if not fault:
                return data
        if number < queue.min_offset(self._queues.pool, self._log.min_offset):
            return None
        damage = Damage(
            queue.topic, queue.queue_id, number, offset, size, fault, may_be_entry=may_be_entry
        )
        is_waiting = self._damage.found(damage)
        raise RecordDamagedError(damage.text, is_retried=is_waiting)

    def _compared(
        self, queue: ConsumeQueue, number: int, entry: tuple[int, int]
    ) -> tuple[str, bytes]:
        """Why the record of this number is not where its entry says, else the record; its body is
        not looked at."""
        offset, size = entry
        fault = entry_fault(offset, size, self._log.min_offset, self._log.max_offset)
        if fault:
            return fault, b""
        (own_size,) = _I32.unpack(self._read(offset, _I32.size))
        if own_size != size:  # A wrong one may be that of a whole segment.
            return f"the record says {own_size} bytes, not {size}", b""
        data = self._read(offset, size)
        place = queue_place(queue.topic, queue.queue_id)
        return structure_fault(data, 0, size, offset, place=place, number=number), data

    def _bytes_at(self, physical_offset: int, size: int | None) -> bytes | None:
        try:
            if size is None:
                head = self._read(physical_offset, _I32.size)
                if len(head) < _I32.size:
                    return None
                (size,) = _I32.unpack(head)
                if size <= 0:
                    return None
            data = self._read(physical_offset, size)
        except OffsetOutOfRangeError:
            return None
        return data if len(data) == size else None

    def store_time_at(self, physical_offset: int) -> int:
        """Store time of the record at `physical_offset`, -1 when there is none."""
        try:
            head = self._log.read_to_check(physical_offset, _HEAD_SIZE)
        except OffsetOutOfRangeError:
            return -1
        if (
            len(head) < _HEAD_SIZE
            or _I64.unpack_from(head, PHYSICAL_OFFSET_AT)[0] != physical_offset
        ):
            return -1  # No record begins there: the entry that says so is damaged.
        return store_timestamp_of(head)

    def store_times_from(self, physical_offset: int, count: int) -> list[int]:
        """Store times of the first `count` records from `physical_offset` on, without those that
        are not what they must be."""
        times = []
        for _ in range(count):
            time = self.store_time_at(physical_offset)
            if time > 0:
                times.append(time)
            try:
                (size,) = _I32.unpack(self._log.read_to_check(physical_offset, _I32.size))
            except (OffsetOutOfRangeError, struct.error):
                break
            physical_offset += max(size, 1)
        return times

    # By time

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Store time of one message of a queue, -1 when it is not available."""
        entry = queue.entry(self._queues.pool, queue_offset)
        if entry is None or entry[1] == PRE_BLANK_SIZE:
            return -1
        return self.store_time_at(entry[0])

    def offset_by_time(self, queue: ConsumeQueue, timestamp: int) -> int:
        """RocketMQ's getOffsetInQueueByTime: the message stored nearest to `timestamp`.

        Apache picks the file by its modification time; ours by the store time of its last record,
        which a copy of the store does not change.
        """
        low = queue.min_offset(self._queues.pool, self._log.min_offset)
        high = queue.max_offset
        if low >= high:
            return low if high else 0
        start, end = self._file_by_time(queue, low, high, timestamp)
        return self._search(queue, start, end - 1, timestamp)

    def _file_by_time(
        self, queue: ConsumeQueue, low: int, high: int, timestamp: int
    ) -> tuple[int, int]:
        """Number range of the first file whose last message is not older; else of the last."""
        entries = queue.file_size // ENTRY_SIZE
        first, last = low // entries, (high - 1) // entries
        while first < last:
            middle = (first + last) // 2
            if self.store_time(queue, (middle + 1) * entries - 1) >= timestamp:
                last = middle
            else:
                first = middle + 1
        return max(low, first * entries), min(high, (first + 1) * entries)

    def _search(self, queue: ConsumeQueue, low: int, high: int, timestamp: int) -> int:
        left = right = -1
        left_time = right_time = -1
        while low <= high:
            middle = (low + high) // 2
            time = self.store_time(queue, middle)
            if time < 0:
                left, low = middle, middle + 1
            elif time == timestamp:
                return middle
            elif time > timestamp:
                right, right_time, high = middle, time, middle - 1
            else:
                left, left_time, low = middle, time, middle + 1
        if left_time < 0:
            return max(right, 0)
        if right_time < 0 or timestamp - left_time <= right_time - timestamp:
            return left
        return right

    # By key

    def query(self, topic: str, key: str, count_max: int, begin: int, end: int) -> QueryResult:
        """RocketMQ's queryMessage: collisions of the hash are returned, the client filters."""
        if self._index is None:
            return QueryResult()
        count_max = min(count_max, self._config.max_msgs_num_batch)
        last_time = end
        buffers: list[bytes] = []
        offsets: list[int] = []
        timestamp = last_offset = 0
        for _ in range(_QUERY_ROUNDS):
            found, timestamp, last_offset = self._index.query(
                topic, key, count_max, begin, last_time
            )
            if not found:
                break
            found.sort()
            for number, offset in enumerate(found):
                if number == 0:
                    last_time = self.store_time_at(offset)
                record = self._sound_record(offset)
                if record is not None:
                    buffers.append(record)
                    offsets.append(offset)
            if buffers or last_time < begin:
                break
        return QueryResult(buffers, offsets, timestamp, last_offset)

    def _sound_record(self, offset: int) -> bytes | None:
        """For a query, which answers with what is sound; the damage is named where it is met."""
        try:
            return self.record_at(offset)
        except RecordDamagedError:
            return None


def asked_of(message_filter: MessageFilter) -> Wanted | None:
    """What a filter looks at, for the compiled walk; None where only the filter itself can say."""
    if isinstance(message_filter, TagsCodeFilter):
        return message_filter.codes
    return message_filter.pairs


def _limits(config: BrokerConfig, count_max: int, bytes_max: int | None) -> tuple[Limits, Limits]:
    """Of an answer while its records are recent, and from the first old one on.

    Whoever says how many bytes are wanted is bounded by them instead.
    """
    if bytes_max is not None:
        return (bytes_max, count_max), (bytes_max, count_max)
    recent = (
        config.max_transfer_bytes_on_message_in_memory,
        min(count_max, config.max_transfer_count_on_message_in_memory),
    )
    old = (
        config.max_transfer_bytes_on_message_in_disk,
        min(count_max, config.max_transfer_count_on_message_in_disk),
    )
    return recent, old


def _classify(offset: int, minimum: int, maximum: int) -> tuple[GetMessageStatus, int]:
    """RocketMQ's order of conditions; the number is the corrected next offset."""
    if maximum == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < minimum:
        return GetMessageStatus.OFFSET_TOO_SMALL, minimum
    if offset == maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > maximum:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, maximum
    return _FOUND, offset


def _runs(wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring (offset, size) ranges joined."""
    runs: list[tuple[int, int]] = []
    start, size = wanted[0]
    for offset, length in wanted[1:]:
        if offset == start + size:
            size += length
        else:
            runs.append((start, size))
            start, size = offset, length
    runs.append((start, size))
    return runs
