"""Reads: by queue, by time, by key, by physical offset. Answers to the getters of
RocketMQ's DefaultMessageStore.

Records are handed out exactly as stored. Neighbours in the log are read with one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from twinlog.message.layout import (
    ENTRY,
    ENTRY_SIZE,
    HOST_V6_EXTRA,
    PRE_BLANK_SIZE,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
)
from twinlog.message.record import properties_at
from twinlog.message.sysflag import BORNHOST_V6_FLAG
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.compiled import load
from twinlog.runtime.disk import FileBytes
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.filter import MessageFilter, PropertyPairs, TagsCodeFilter
from twinlog.store.index.index_service import IndexService
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.queue.queue_table import ConsumeQueueTable
from twinlog.store.status import GetMessageStatus, GetResult, QueryResult

_compiled = load("twinlog.store.queue._gather")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_SCAN_ENTRIES: Final = 800  # RocketMQ's 16000 bytes of entries.
# Enough for the store time of a record, IPv6 born host included.
_HEAD_SIZE: Final = STORE_TIMESTAMP_AT + HOST_V6_EXTRA + 8
_QUERY_ROUNDS: Final = 3
# Records of one queue lie between those of others: one read of all of it is cheaper than one read
# each, as long as not too much is thrown away.
_SPAN_SIZE_MAX: Final = 1 << 20
_SPAN_WASTE: Final = 8
_STRIDE_MAX: Final = 32 << 10  # Records of a queue that lie further apart are read one by one.
_WINDOW_RECORDS_MIN: Final = 8
_WINDOW_SIZE_MAX: Final = 256 << 10
_Wanted = frozenset[int] | PropertyPairs | None  # Tags codes, pairs of properties, or everything.
_Limits = tuple[int, int]  # (bytes, messages) of one answer.


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
    ) -> None:
        self._config = config
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
        if status is not GetMessageStatus.FOUND or queue is None:
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
            wanted: _Wanted = message_filter.pairs
            if isinstance(message_filter, TagsCodeFilter):
                wanted = message_filter.codes
            if wanted is not None:
                span = max(_SCAN_ENTRIES, count_max)
                result = self._get_common(
                    queue, offset, count_max, wanted, bytes_max, minimum, span
                )
                if result is not None:
                    return result
        data = queue.read(self._queues.pool, offset, max(_SCAN_ENTRIES, count_max))
        if not data:
            entries = queue.file_size // ENTRY_SIZE
            next_file = (offset // entries + 1) * entries
            next_offset = next_file if is_offset_corrected else offset
            status = GetMessageStatus.OFFSET_FOUND_NULL
            return GetResult(status, next_offset, minimum, maximum)
        scan = _QueueScan(self._config, self._log, self._memory_threshold)
        scan.run(data, _limits(self._config, count_max, bytes_max), message_filter)
        return GetResult(
            status=scan.status,
            next_begin_offset=offset + scan.examined,
            min_offset=minimum,
            max_offset=maximum,
            buffers=scan.buffers or self.read_records(scan.found),
            message_count=len(scan.found),
            size=scan.size,
            suggest_pulling_from_slave=(
                self._log.max_offset - scan.last_offset > self._memory_threshold
            ),
        )

    def _get_common(
        self,
        queue: ConsumeQueue,
        offset: int,
        count_max: int,
        wanted: _Wanted,
        bytes_max: int | None,
        minimum: int,
        span: int,
    ) -> GetResult | None:
        """What is mostly asked for, by the compiled walk; None where the other must do it."""
        if _compiled is None:
            return None
        log = self._log
        data = queue.read(self._queues.pool, offset, span)
        if not data:
            return None
        first = _I64.unpack_from(data)[0]
        log_min, log_max = log.min_offset, log.max_offset
        mapped = log.map_at(first) if log_min <= first < log_max else None
        if mapped is None:
            return None
        recent, old = _limits(self._config, count_max, bytes_max)
        found = _compiled.gather(
            data, *mapped, log_min, log_max, log_max - self._memory_threshold, recent, old, wanted
        )
        if found is None:
            return None
        records, count, examined, last_offset, is_gone = found
        if count:
            status = GetMessageStatus.FOUND
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
            log_max - last_offset > self._memory_threshold,
        )

    def read_records(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of (offset, size) records in order; neighbours joined."""
        if not wanted:
            return []
        if len(wanted) == 1:
            return [self._log.read(*wanted[0])]
        first, total = wanted[0][0], sum(size for _, size in wanted)
        last_offset, last_size = wanted[-1]
        span = last_offset + last_size - first
        segment_size = self._log.segment_size
        if (
            total <= span <= min(_SPAN_SIZE_MAX, total * _SPAN_WASTE)
            and first // segment_size == last_offset // segment_size
        ):
            data = self._log.read(first, span)
            if total == span:
                return [data]
            return [data[start - first : start - first + size] for start, size in _runs(wanted)]
        return [self._log.read(offset, size) for offset, size in _runs(wanted)]

    # By physical offset

    def record_at(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The whole record that starts at `physical_offset`, None when there is none."""
        try:
            if size is None:
                head = self._log.read(physical_offset, _I32.size)
                if len(head) < _I32.size:
                    return None
                (size,) = _I32.unpack(head)
                if size <= 0:
                    return None
            data = self._log.read(physical_offset, size)
        except OffsetOutOfRangeError:
            return None
        return data if len(data) == size else None

    def store_time_at(self, physical_offset: int) -> int:
        """Store time of the record at `physical_offset`, -1 when there is none."""
        try:
            head = self._log.read(physical_offset, _HEAD_SIZE)
        except OffsetOutOfRangeError:
            return -1
        return store_timestamp_of(head) if len(head) == _HEAD_SIZE else -1

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
                record = self.record_at(offset)
                if record is not None:
                    buffers.append(record)
                    offsets.append(offset)
            if buffers or last_time < begin:
                break
        return QueryResult(buffers, offsets, timestamp, last_offset)


class _RecordWindow:
    """Records of one queue for a filter, which wants a few bytes of each.

    In the mapped segment; where that cannot be, several are read by one call when they lie close
    together.
    """

    def __init__(self, log: CommitLog, entries: bytes) -> None:
        self._log = log
        self._entries = entries
        self._last = len(entries) // ENTRY_SIZE - 1

    def find(self, number: int, offset: int, size: int, count: int) -> tuple[FileBytes, int]:
        """Bytes with the record of entry `number`, at least, and the offset of the first."""
        mapped = self._log.map_at(offset)
        return mapped if mapped is not None else (self._read(number, offset, size, count), offset)

    def _read(self, number: int, offset: int, size: int, count: int) -> bytes:
        """The record of entry `number`, and of the next `count` those that are near enough."""
        count = max(_WINDOW_RECORDS_MIN, count)
        while count > 1:
            last = min(self._last, number + count - 1)
            last_offset, last_size, _ = ENTRY.unpack_from(self._entries, last * ENTRY_SIZE)
            span = last_offset + last_size - offset
            if size <= span <= min(_WINDOW_SIZE_MAX, count * _STRIDE_MAX):
                return self._log.read(offset, span)
            count //= 2
        return self._log.read(offset, size)


class _QueueScan:
    """One walk over entries: RocketMQ's limits, filter and status."""

    def __init__(self, config: BrokerConfig, log: CommitLog, memory_threshold: int) -> None:
        self._config = config
        self._log = log
        self._recent_from = log.max_offset - memory_threshold
        self.found: list[tuple[int, int]] = []
        self.buffers: list[bytes] = []  # Of those found, where a filter had to read them.
        self.size = 0
        self.examined = 0
        self.last_offset = log.max_offset
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE

    def run(
        self, data: bytes, limits: tuple[_Limits, _Limits], message_filter: MessageFilter | None
    ) -> None:
        recent, old = limits
        if message_filter is not None and message_filter.needs_properties:
            self._run_by_properties(data, message_filter, recent, old)
        else:
            self._run_by_tags(data, message_filter, recent, old)

    def _run_by_tags(
        self, data: bytes, message_filter: MessageFilter | None, recent: _Limits, old: _Limits
    ) -> None:
        log_min, log_max = self._log.min_offset, self._log.max_offset
        recent_from, found, total = self._recent_from, self.found, 0
        offset, number = self.last_offset, 0
        for offset, size, tags_code in ENTRY.iter_unpack(data):
            if found:
                limit, count_limit = recent if offset >= recent_from else old
                if len(found) >= count_limit or total + size > limit:
                    break
            number += 1
            if message_filter is not None and not message_filter.matches_tags_code(tags_code):
                continue
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                if not found:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            found.append((offset, size))
            total += size
        self._ended(offset, number, total)

    def _run_by_properties(
        self, data: bytes, message_filter: MessageFilter, recent: _Limits, old: _Limits
    ) -> None:
        log_min, log_max = self._log.min_offset, self._log.max_offset
        recent_from, found, total = self._recent_from, self.found, 0
        offset, number = self.last_offset, 0
        matches = message_filter.matches_properties
        window = _RecordWindow(self._log, data)
        records: FileBytes = b""
        first = end = 0  # Offsets of the begin and end of `records`.
        for offset, size, _ in ENTRY.iter_unpack(data):
            if found:
                limit, count_limit = recent if offset >= recent_from else old
                if len(found) >= count_limit or total + size > limit:
                    break
            number += 1
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                if not found:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if offset < first or offset + size > end:
                wanted = recent[1] - len(found)
                records, first = window.find(number - 1, offset, size, wanted)
                end = first + len(records)
            at = offset - first
            if matches(properties_at(records, at, at + size)):
                found.append((offset, size))
                self.buffers.append(records[at : at + size])
                total += size
        self._ended(offset, number, total)

    def _ended(self, last_offset: int, examined: int, size: int) -> None:
        self.last_offset = last_offset
        self.examined = examined
        self.size = size
        if self.found:
            self.status = GetMessageStatus.FOUND


def _limits(config: BrokerConfig, count_max: int, bytes_max: int | None) -> tuple[_Limits, _Limits]:
    """Of an answer while its records are recent, and from the first old one on."""
    recent = (
        config.max_transfer_bytes_on_message_in_memory if bytes_max is None else bytes_max,
        min(count_max, config.max_transfer_count_on_message_in_memory),
    )
    old = (
        config.max_transfer_bytes_on_message_in_disk if bytes_max is None else bytes_max,
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
    return GetMessageStatus.FOUND, offset


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
