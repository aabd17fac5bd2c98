"""Make the log durable. Corresponds to RocketMQ's GroupCommitService and FlushRealTimeService.

One fdatasync is in flight at a time, in a thread. SYNC_FLUSH: it starts as soon as something was
appended, and what arrives meanwhile shares the next one. ASYNC_FLUSH: at intervals. A failed sync
is final: the kernel has dropped the pages, so the store is broken and those who wait are told.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Final

from twinlog.observe.histogram import Histogram
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk
from twinlog.store.errors import StoreBrokenError
from twinlog.store.log.commit_log import CommitLog

_PAGE_SIZE: Final = 4096


class FlushService:
    """Moves `flushed` towards `appended`."""

    def __init__(
        self,
        log: CommitLog,
        disk: Disk,
        clock: Clock,
        *,
        is_sync: bool,
        interval_ms: int,
        least_pages: int,
        thorough_interval_ms: int,
    ) -> None:
        self._log = log
        self._disk = disk
        self._clock = clock
        self.is_sync = is_sync
        self._interval_ms = interval_ms
        self._least_pages = least_pages
        self._thorough_interval_ms = thorough_interval_ms
        self.histogram = Histogram()
        """Times of single syncs."""
        self._wake = asyncio.Event()
        self._in_flight = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled. Raises StoreBrokenError after a failed sync."""
        if self.is_sync:
            await self._run_group_commit()
        else:
            await self._run_intervals()

    async def _run_group_commit(self) -> None:
        unsubscribe = self._log.appended.subscribe(lambda _: self._wake.set())
        try:
            while True:
                if self._log.flushed.value >= self._log.appended.value:
                    self._wake.clear()
                    await self._wake.wait()
                await self.flush()
        finally:
            unsubscribe()

    async def _run_intervals(self) -> None:
        last_thorough = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(self._interval_ms)
            now = self._clock.monotonic_ms()
            is_thorough = now >= last_thorough + self._thorough_interval_ms
            if is_thorough:
                last_thorough = now
            if is_thorough or self._has_pages():
                await self.flush()

    def _has_pages(self) -> bool:
        """RocketMQ's "able to flush": enough new pages, or a segment that is full."""
        flushed, appended = self._log.flushed.value, self._log.appended.value
        if self._least_pages == 0:
            return appended > flushed
        size = self._log.segment_size
        return (
            appended // _PAGE_SIZE - flushed // _PAGE_SIZE >= self._least_pages
            or appended // size > flushed // size
        )

    async def flush(self) -> int:
        """Sync everything appended so far; the new flushed offset."""
        async with self._in_flight:
            log = self._log
            target = log.appended.value
            if log.broken_reason:
                raise StoreBrokenError(log.broken_reason)
            if target <= log.flushed.value:
                return log.flushed.value
            segments = log.unsynced(target)
            cut_count = log.cut_count
            try:
                for segment in segments:
                    if cut_count != log.cut_count:
                        break
                    began_ms = self._clock.monotonic_ms()
                    await segment.file.fdatasync_async()
                    self.histogram.observe(self._clock.monotonic_ms() - began_ms)
            except OSError as error:
                if error.errno == errno.EBADF and cut_count != log.cut_count:
                    return log.flushed.value  # The cut closed the file: there is nothing to sync.
                reason = f"sync of the commit log failed: {error}"
                log.break_down(reason)
                raise StoreBrokenError(reason) from error
            # Cut meanwhile, the log may already hold other bytes that this sync did not see.
            if cut_count == log.cut_count and target > log.flushed.value:
                log.flushed.advance(target)
            return log.flushed.value
