"""Follow the log where records arrive as bytes. Corresponds to RocketMQ's ReputMessageService.

A slave appends what the master sends, unparsed. This reads it again, checks every record and
dispatches it. At damage it stops, says so, and goes on only after the log was truncated: what is
behind would be served silently otherwise.

What arrives after a pause is dispatched in the next turn of the loop. In a stream of small frames
the bytes of up to GATHER_MS are gathered: a step costs as much as the first ten records in it, and
hundreds of records taken together cost half of as many taken one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from twinlog.message.record import ScanResult, ScanStop, scan
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.failures import Failures
from twinlog.runtime.turn import Phase, Turn
from twinlog.runtime.watermark import Watermark
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.recovery.dispatch import Dispatcher, QueueGapError

_LOG = logging.getLogger("twinlog.store")
GATHER_MS: Final = 10  # So far the queues may be behind the log of a slave under load.
RETRY_MS: Final = 1000  # A full disk does not get free in a hurry.
_CHUNK_SIZE_MAX: Final = 1 << 20
_CHUNK_SIZE_MIN: Final = 1 << 16
_RECORDS_A_STEP: Final = 512  # 1 to 3 ms of work: an acknowledgement may wait so long for its turn.
_ODD_A_TIME: Final = 16  # Records one by one, before those behind them may be plain again.
_RECORDS_MAX: Final = 1 << 62


class ReputService:
    """Scans from `dispatched` to `appended`, a chunk per turn of the loop."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        dispatched: Watermark,
        moved: Callable[[Collection[ConsumeQueue]], None],
        clock: Clock,
        turn: Turn,
        *,
        check_crc: bool = True,
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._dispatched = dispatched
        self._moved = moved
        self._clock = clock
        self._turn = turn
        self._check_crc = check_crc
        self._is_scheduled = False
        self._timer: TimerHandle | None = None
        self._ran_ms = -GATHER_MS
        self._chunk_size = _CHUNK_SIZE_MIN
        self.is_active = False
        self.failures: Failures | None = None  # Set when the store starts.
        self.damage_offset = -1
        self.on_damage: Callable[[int, str], None] | None = None

    def wake(self) -> None:
        """There may be something to do: in the next turn, or with what else comes soon."""
        if self._is_scheduled or not self.is_active or self.damage_offset >= 0:
            return
        waiting = self._end() - self._dispatched.value
        if waiting <= 0:
            return
        if waiting >= self._chunk_size or self._clock.monotonic_ms() - self._ran_ms >= GATHER_MS:
            self._is_scheduled = True
            self._turn.add(Phase.NOTIFY_QUEUES, self._run)
        elif self._timer is None:
            self._timer = self._clock.call_later_ms(GATHER_MS, self._gathered)

    def _gathered(self) -> None:
        self._timer = None
        if not self._is_scheduled:
            self._run()

    def _has_work(self) -> bool:
        return self.damage_offset < 0 and self._dispatched.value < self._end()

    def _end(self) -> int:
        return self._log.appended.value

    def _run(self) -> None:
        self._is_scheduled = False
        if not self.is_active or not self._has_work():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            has_more = self.step()
        except OSError as error:
            # Nothing is lost: what was done is found done, the rest is done again.
            _LOG.error("dispatch waits, a queue or the index was not written error=%s", error)
            self._timer = self._clock.call_later_ms(RETRY_MS, self._gathered)
            return
        except Exception as error:
            if self.failures is None:
                raise
            # Replication of the log goes on; what is dispatched stands still, and status says so.
            self.failures.note("dispatch", error, f"log offset {self._dispatched.value}")
            self._timer = self._clock.call_later_ms(RETRY_MS, self._gathered)
            return
        self._ran_ms = self._clock.monotonic_ms()
        if has_more:
            self.wake()

    def step(self) -> bool:
        """Dispatch one chunk; whether there may be more."""
        offset = max(self._dispatched.value, self._log.min_offset)
        end = self._end()
        if offset >= end:
            return False
        data = self._log.read(offset, min(self._chunk_size, end - offset))
        position = 0
        while position < len(data):
            taken = self._take_plain(data, position, offset)
            if taken:
                position += taken
                continue
            result = self._scan(data, position, offset)
            is_cut = result.stop is ScanStop.INCOMPLETE and not result.position
            if is_cut and result.size > len(data):
                data = self._log.read(offset, min(result.size, end - offset))
                result = self._scan(data, 0, offset)
            has_more = self._take(result, position, offset, end)
            if result.stop is not ScanStop.COUNT:
                return has_more
            position = result.position
        return True

    def _scan(self, data: bytes, position: int, offset: int) -> ScanResult:
        count_max = _ODD_A_TIME if self._dispatcher.is_compiled else _RECORDS_MAX
        return scan(
            data, position, offset + position, check_crc=self._check_crc, count_max=count_max
        )

    def _take_plain(self, data: bytes, position: int, offset: int) -> int:
        """Plain records all at once; how many bytes. 0, and nothing done, when there are none."""
        start = offset + position
        taken = self._dispatcher.dispatch_plain(data, position, start, check_crc=self._check_crc)
        if taken is None:
            return 0
        self._learn(taken.end - start, taken.record_count)
        self._dispatched.advance(taken.end)
        if taken.moved:
            self._moved(taken.moved)
        return taken.end - start

    def _take(self, result: ScanResult, start: int, offset: int, end: int) -> bool:
        """Dispatch what was found from `start` on; whether there may be more."""
        try:
            moved = self._dispatcher.dispatch(result.entries)
        except QueueGapError as error:
            self._dispatched.advance(max(error.physical_offset, self._dispatched.value))
            if error.moved:
                self._moved(error.moved)
            self._stop(error.physical_offset, str(error))
            return False
        self._learn(result.position - start, len(result.entries))
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

    def _learn(self, size: int, count: int) -> None:
        """How many bytes are the records of one step, as far as the last ones tell."""
        if count:
            wanted = size * _RECORDS_A_STEP // count
            self._chunk_size = max(_CHUNK_SIZE_MIN, min(_CHUNK_SIZE_MAX, wanted))

    def _end_of_segment(self, position: int, end: int) -> int:
        """Behind a blank record nothing comes in this segment; wait until all of it is there."""
        size = self._log.segment_size
        segment_end = position - position % size + size
        return segment_end if segment_end <= end else position

    def _stop(self, offset: int, reason: str) -> None:
        self.damage_offset = offset
        _LOG.error("damage in the log, dispatch stops offset=%d reason=%s", offset, reason)
        if self.on_damage is not None:
            self.on_damage(offset, reason)

    def healed(self) -> None:
        """The record that dispatch stopped at is sound again."""
        self.damage_offset = -1
        self.wake()

    def truncated(self, offset: int) -> None:
        """The log was cut: go on from there."""
        self.damage_offset = -1
        if self._dispatched.value > offset:
            self._dispatched.reset(offset, "the log was truncated")
        self.wake()
