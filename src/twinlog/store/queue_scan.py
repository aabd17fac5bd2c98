"""One walk over the entries of a queue: RocketMQ's limits, filter and status, and what is damaged.

The reference for `_gather.pyx`, which takes the common kinds of a pull.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twinlog.message.layout import ENTRY, ENTRY_SIZE, PRE_BLANK_SIZE
from twinlog.message.record import properties_at
from twinlog.store.filter import MessageFilter
from twinlog.store.integrity.record_check import (
    QueuePlace,
    body_fault,
    entry_fault,
    structure_fault,
)
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.status import GetMessageStatus

_STRIDE_MAX: Final = 32 << 10  # Records of a queue that lie further apart are read one by one.
_WINDOW_RECORDS_MIN: Final = 8
_WINDOW_SIZE_MAX: Final = 256 << 10
Limits = tuple[int, int]  # (bytes, messages) of one answer.
ReadRecords = Callable[[Sequence[tuple[int, int]]], list[bytes]]


class _RecordWindow:
    """Records of one queue for a filter, which wants a few bytes of each.

    Several are read by one call when they lie close together. Not in the mapped segment: a page
    that the disk cannot read would end the process there.
    """

    def __init__(self, log: CommitLog, entries: bytes, *, is_checked: bool) -> None:
        self._read = log.read_to_check if is_checked else log.read
        self._entries = entries
        self._last = len(entries) // ENTRY_SIZE - 1

    def find(self, number: int, offset: int, size: int, count: int) -> bytes:
        """The record of entry `number`, and of the next `count` those that are near enough."""
        count = max(_WINDOW_RECORDS_MIN, count)
        while count > 1:
            last = min(self._last, number + count - 1)
            last_offset, last_size, _ = ENTRY.unpack_from(self._entries, last * ENTRY_SIZE)
            span = last_offset + last_size - offset
            if size <= span <= min(_WINDOW_SIZE_MAX, count * _STRIDE_MAX):
                return self._read(offset, span)
            count //= 2
        return self._read(offset, size)


class QueueScan:
    """What one pull finds.

    With a `place` every record is checked before it is handed out. The walk ends before one that is
    damaged; when that is the first, `fault` says what is wrong with it.
    """

    def __init__(
        self, log: CommitLog, memory_threshold: int, place: QueuePlace | None, first_number: int
    ) -> None:
        self._log = log
        self._recent_from = log.max_offset - memory_threshold
        self._place = place
        self._first_number = first_number
        self.found: list[tuple[int, int]] = []
        self._numbers: list[int] = []  # Of those found, counted from the first entry.
        self.buffers: list[bytes] = []
        self.size = 0
        self.examined = 0
        self.last_offset = log.max_offset
        self.fault = ""
        self.fault_place = (0, 0)  # What the entry of a damaged record says: offset and size.
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE

    def run(
        self,
        data: bytes,
        limits: tuple[Limits, Limits],
        message_filter: MessageFilter | None,
        read_records: ReadRecords,
    ) -> None:
        recent, old = limits
        if message_filter is not None and message_filter.needs_properties:
            self._run_by_properties(data, message_filter, recent, old)
        else:
            self._run_by_tags(data, message_filter, recent, old)
            self.buffers = read_records(self.found)
            if self._place is not None:
                self._check_bodies(read_records)
        if self.found:
            self.status = GetMessageStatus.FOUND
        elif self.fault:
            self.status = GetMessageStatus.MESSAGE_DAMAGED

    def _run_by_tags(
        self, data: bytes, message_filter: MessageFilter | None, recent: Limits, old: Limits
    ) -> None:
        log_min, log_max = self._log.min_offset, self._log.max_offset
        recent_from, found, total = self._recent_from, self.found, 0
        is_checked, end = self._place is not None, 0
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
                if is_checked and size != PRE_BLANK_SIZE:
                    self._faulty(entry_fault(offset, size, log_min, log_max), offset, size)
                    number -= 1
                    break
                if not found:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if is_checked and offset < end:
                # Records of a queue follow each other; which of the two is wrong is seen below.
                self._faulty("its queue entry points backwards", offset, size)
                number -= 1
                break
            found.append((offset, size))
            self._numbers.append(number - 1)
            total += size
            end = offset + size
        self._ended(offset, number, total)

    def _run_by_properties(
        self, data: bytes, message_filter: MessageFilter, recent: Limits, old: Limits
    ) -> None:
        log_min, log_max = self._log.min_offset, self._log.max_offset
        recent_from, found, total = self._recent_from, self.found, 0
        offset, number = self.last_offset, 0
        matches, place = message_filter.matches_properties, self._place
        window = _RecordWindow(self._log, data, is_checked=place is not None)
        records = b""
        first = end = 0  # Offsets of the begin and end of `records`.
        for offset, size, _ in ENTRY.iter_unpack(data):
            if found:
                limit, count_limit = recent if offset >= recent_from else old
                if len(found) >= count_limit or total + size > limit:
                    break
            number += 1
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                if place is not None and size != PRE_BLANK_SIZE:
                    self._faulty(entry_fault(offset, size, log_min, log_max), offset, size)
                    number -= 1
                    break
                if not found:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if offset < first or offset + size > end:
                wanted = recent[1] - len(found)
                records = window.find(number - 1, offset, size, wanted)
                first, end = offset, offset + len(records)
            at = offset - first
            if place is not None:
                entry_number = self._first_number + number - 1
                fault = structure_fault(records, at, size, offset, place=place, number=entry_number)
                if not fault and matches(properties_at(records, at, at + size)):
                    fault = body_fault(records, at, size)
                elif not fault:
                    continue
                if fault:
                    self._faulty(fault, offset, size)
                    number -= 1
                    break
            elif not matches(properties_at(records, at, at + size)):
                continue
            found.append((offset, size))
            self.buffers.append(records[at : at + size])
            total += size
        self._ended(offset, number, total)

    def _check_bodies(self, read_records: ReadRecords) -> None:
        """Keep what comes before the first damaged one of those that were read."""
        sound, fault = self._sound_count()
        if sound == len(self.found):
            return
        offset, size = self.found[sound]
        self._faulty(fault, offset, size)
        number = self._numbers[sound]
        del self.found[sound:]
        self.buffers = read_records(self.found)
        self._ended(offset, number, sum(length for _, length in self.found))

    def _sound_count(self) -> tuple[int, str]:
        """How many records, from the first on, are as they were written; why not the next."""
        buffers, at = iter(self.buffers), 0
        buffer = next(buffers, b"")
        for index, (offset, size) in enumerate(self.found):
            if at == len(buffer) and index:
                buffer, at = next(buffers, b""), 0
            number = self._first_number + self._numbers[index]
            fault = structure_fault(
                buffer, at, size, offset, place=self._place, number=number
            ) or body_fault(buffer, at, size)
            if fault:
                return index, fault
            at += size
        return len(self.found), ""

    def _faulty(self, fault: str, offset: int, size: int) -> None:
        self.fault, self.fault_place = fault or "it is not in the log", (offset, size)

    def _ended(self, last_offset: int, examined: int, size: int) -> None:
        self.last_offset = last_offset
        self.examined = examined
        self.size = size
