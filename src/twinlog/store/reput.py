"""Follow the log where records arrive as bytes. Answers to RocketMQ's ReputMessageService.

A slave appends what the master sends, unparsed. This reads it again, checks every record and
dispatches it. At damage it stops, says so, and goes on only after the log was truncated: what is
behind would be served silently otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from twinlog.message.record import ScanStop, scan
from twinlog.runtime.watermark import Watermark
from twinlog.store.commit_log import CommitLog
from twinlog.store.consume_queue import ConsumeQueue
from twinlog.store.dispatch import Dispatcher, QueueGapError

_LOG = logging.getLogger("twinlog.store")
_CHUNK_SIZE: Final = 1 << 20  # About 2 ms of work for records of 1 KiB: the loop stays responsive.


class ReputService:
    """Scans from `dispatched` to `appended`, a chunk per turn of the loop."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        dispatched: Watermark,
        moved: Callable[[set[ConsumeQueue]], None],
        *,
        check_crc: bool = True,
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._dispatched = dispatched
        self._moved = moved
        self._check_crc = check_crc
        self._is_scheduled = False
        self.is_active = False
        self.limit: Watermark | None = None  # Controller mode: not beyond what is confirmed.
        self.damage_offset = -1
        self.damage_reason = ""
        self.on_damage: Callable[[int, str], None] | None = None

    def wake(self) -> None:
        """There may be something to do; runs in the next turn."""
        if self.is_active and not self._is_scheduled and self._has_work():
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _has_work(self) -> bool:
        return self.damage_offset < 0 and self._dispatched.value < self._end()

    def _end(self) -> int:
        end = self._log.appended.value
        return end if self.limit is None else min(end, self.limit.value)

    def _run(self) -> None:
        self._is_scheduled = False
        if self.is_active and self._has_work() and self.step():
            self.wake()

    def step(self) -> bool:
        """Dispatch one chunk; whether there may be more."""
        offset = max(self._dispatched.value, self._log.min_offset)
        end = self._end()
        if offset >= end:
            return False
        data = self._log.read(offset, min(_CHUNK_SIZE, end - offset))
        result = scan(data, 0, offset, check_crc=self._check_crc)
        if result.stop is ScanStop.INCOMPLETE and not result.entries and result.size > len(data):
            data = self._log.read(offset, min(result.size, end - offset))
            result = scan(data, 0, offset, check_crc=self._check_crc)
        try:
            moved = self._dispatcher.dispatch(result.entries)
        except QueueGapError as error:
            self._stop(offset, str(error))
            return False
        position = offset + result.position
        if result.stop is ScanStop.BLANK:
            position = self._end_of_segment(position, end)
        if position > self._dispatched.value:
            self._dispatched.advance(position)
        if moved:
            self._moved(moved)
        if result.stop in (ScanStop.DAMAGED, ScanStop.EMPTY):
            self._stop(position, result.reason or "zeros where a record must begin")
            return False
        return position > offset

    def _end_of_segment(self, position: int, end: int) -> int:
        """Behind a blank record nothing comes in this segment; wait until all of it is there."""
        size = self._log.segment_size
        segment_end = position - position % size + size
        return segment_end if segment_end <= end else position

    def _stop(self, offset: int, reason: str) -> None:
        self.damage_offset = offset
        self.damage_reason = reason
        _LOG.error("damage in the log, dispatch stops offset=%d reason=%s", offset, reason)
        if self.on_damage is not None:
            self.on_damage(offset, reason)

    def truncated(self, offset: int) -> None:
        """The log was cut: go on from there."""
        self.damage_offset = -1
        self.damage_reason = ""
        if self._dispatched.value > offset:
            self._dispatched.reset(offset, "the log was truncated")
        self.wake()
