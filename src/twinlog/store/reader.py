"""Reads: by queue, by time, by key, by physical offset. Answers to the getters of
RocketMQ's DefaultMessageStore.

Records are handed out exactly as stored. Neighbours in the log are read with one call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from twinlog.message.sysflag import BORNHOST_V6_FLAG
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.store.commit_log import CommitLog
from twinlog.store.consume_queue import ENTRY, ENTRY_SIZE, PRE_BLANK_SIZE, ConsumeQueue
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.filter import MessageFilter
from twinlog.store.index_service import IndexService
from twinlog.store.queue_table import ConsumeQueueTable
from twinlog.store.status import GetMessageStatus, GetResult, QueryResult

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_SCAN_ENTRIES: Final = 800  # RocketMQ's 16000 bytes of entries.
_HEAD_SIZE: Final = 76  # Enough for the store time of a record, IPv6 born host included.
_QUERY_ROUNDS: Final = 3
# Records of one queue lie between those of others: one read of all of it is cheaper than one read
# each, as long as not too much is thrown away.
_SPAN_SIZE_MAX: Final = 1 << 20
_SPAN_WASTE: Final = 8
_STRIDE_MAX: Final = 32 << 10  # Records of a queue that lie further apart are read one by one.
_WINDOW_RECORDS: Final = 32
_WINDOW_SIZE_MAX: Final = 256 << 10


def store_timestamp_of(head: bytes) -> int:
    """The store time in the first bytes of a record."""
    (sys_flag,) = _I32.unpack_from(head, 36)
    timestamp: int = _I64.unpack_from(head, 68 if sys_flag & BORNHOST_V6_FLAG else 56)[0]
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
        self._memory_threshold = memory_size * config.access_message_in_memory_max_ratio // 100

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
        data = queue.read(self._queues.pool, offset, max(_SCAN_ENTRIES, count_max))
        if not data:
            entries = queue.file_size // ENTRY_SIZE
            next_file = (offset // entries + 1) * entries
            next_offset = next_file if is_offset_corrected else offset
            status = GetMessageStatus.OFFSET_FOUND_NULL
            return GetResult(status, next_offset, minimum, maximum)
        scan = _QueueScan(self._config, self._log, self._memory_threshold)
        scan.run(data, count_max, message_filter, bytes_max)
        return GetResult(
            status=scan.status,
            next_begin_offset=offset + scan.examined,
            min_offset=minimum,
            max_offset=maximum,
            buffers=self.read_records(scan.found),
            message_count=len(scan.found),
            size=scan.size,
            suggest_pulling_from_slave=(
                self._log.max_offset - scan.last_offset > self._memory_threshold
            ),
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
    """Records of one queue, read for a filter: several by one call when they lie close together."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._data = b""
        self._start = 0
        self._last_offset = -1

    def read(self, offset: int, size: int) -> bytes:
        """The record; what follows it is read along as far as the last stride promises more."""
        at = offset - self._start
        if not 0 <= at <= len(self._data) - size:
            stride = offset + size - self._last_offset if self._last_offset >= 0 else 0
            is_dense = 0 < stride <= _STRIDE_MAX
            wanted = min(_WINDOW_SIZE_MAX, stride * _WINDOW_RECORDS) if is_dense else size
            self._data = self._log.read(offset, max(size, wanted))
            self._start, at = offset, 0
        self._last_offset = offset
        return self._data[at : at + size]


class _QueueScan:
    """One walk over entries: RocketMQ's limits, filter and status."""

    def __init__(self, config: BrokerConfig, log: CommitLog, memory_threshold: int) -> None:
        self._log = log
        self._memory_threshold = memory_threshold
        self._in_memory = (
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
        )
        self._on_disk = (
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
        )
        self.found: list[tuple[int, int]] = []
        self.size = 0
        self.examined = 0
        self.last_offset = log.max_offset
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE

    def run(
        self,
        data: bytes,
        count_max: int,
        message_filter: MessageFilter | None,
        bytes_max: int | None,
    ) -> None:
        log_min, log_max = self._log.min_offset, self._log.max_offset
        disk_below = log_max - self._memory_threshold
        found = self.found
        window = _RecordWindow(self._log)
        for offset, size, tags_code in ENTRY.iter_unpack(data):
            self.last_offset = offset
            if found:
                limit, count_limit = self._in_memory if offset >= disk_below else self._on_disk
                if bytes_max is not None:
                    limit = bytes_max
                if len(found) >= count_max or len(found) >= count_limit or self.size + size > limit:
                    return
            self.examined += 1
            if message_filter is not None and not message_filter.matches_tags_code(tags_code):
                continue
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                if not found:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if (
                message_filter is not None
                and message_filter.needs_record
                and not message_filter.matches_record(window.read(offset, size))
            ):
                continue
            found.append((offset, size))
            self.size += size
            self.status = GetMessageStatus.FOUND


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
