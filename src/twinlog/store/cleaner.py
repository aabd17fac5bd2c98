"""Retention and disk space. Corresponds to RocketMQ's CleanCommitLogService.

A segment is old when its newest record is: the store time of the first record of the next segment
tells. Apache looks at the time of the file, which a copy or a restore changes.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from twinlog.runtime.clock import Clock, SteadyWall
from twinlog.runtime.disk import Disk, DiskSpace
from twinlog.runtime.watermark import Watermark
from twinlog.store.queue.queue_manifest import UNKNOWN_FLOOR
from twinlog.store.running_flags import DISK_FULL

if TYPE_CHECKING:
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_HOUR_MS: Final = 3_600_000
_SEGMENTS_PER_RUN: Final = 10
_FIRST_CHECK_MS: Final = 1000
_MANUAL_RUNS: Final = 20
_WITNESSES: Final = 3


class Cleaner:
    """Deletes what is expired, or what must go, and says when the disk is full."""

    def __init__(self, store: MessageStore, disk: Disk, clock: Clock) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._steady = SteadyWall(clock)
        self._manual_runs = 0
        self._cleaned_to = -1
        self._followed_to = 0
        self._held_path = ""
        # The first byte that a slave lacks; the broker knows.
        self.needed_from: Callable[[], int] = lambda: 1 << 62
        # Of a controlled group: what is behind it may have to be cut off again.
        self.confirmed: Watermark | None = None

    async def run(self) -> None:
        """Until cancelled: the disk is looked at after 1 s, then at each interval."""
        await self._clock.sleep_ms(_FIRST_CHECK_MS)
        while True:
            await self.clean()
            await self._clock.sleep_ms(self._store.config.clean_resource_interval)

    def execute_delete_files_manually(self) -> None:
        """An operator asks: expired files go at once, whatever the hour."""
        self._manual_runs = _MANUAL_RUNS

    async def clean(self) -> int:
        """One round; the number of segments that were deleted."""
        is_forced = self.check_disk()
        count = 0
        if self._is_due(is_forced):
            self._manual_runs = max(0, self._manual_runs - 1)
            count = await self._clean_commit_log(is_forced)
        if count:
            self.check_disk()
        await self._clean_followers()
        return count

    def check_disk(self) -> bool:
        """Set or clear DISK_FULL; whether files must go regardless of their age."""
        store, config = self._store, self._store.config
        spaces = [(path, self._disk.space(path)) for path in config.commit_log_paths]
        path, space = min(spaces, key=lambda item: item[1].ratio)
        warning = config.disk_space_warning_level_ratio / 100
        if space.ratio > warning:
            store.set_flag(DISK_FULL, _full_reason(path, space, warning))
        else:
            store.clear_flag(DISK_FULL)
        return (
            config.clean_file_forcibly_enable
            and space.ratio > config.disk_space_clean_forcibly_ratio / 100
        )

    def _is_due(self, is_forced: bool) -> bool:
        config = self._store.config
        hour = datetime.fromtimestamp(self._clock.now_ms() // 1000).hour
        if is_forced or self._manual_runs or hour in config.delete_when_hours or self._is_over:
            return True
        ratios = [self._disk.space(path).ratio for path in config.commit_log_paths]
        ratios.append(self._disk.space(self._store.root).ratio)
        return any(ratio < 0 or ratio > config.disk_max_used_ratio for ratio in ratios)

    @property
    def _is_over(self) -> bool:
        """Whether the log is larger than `twinlogRetentionBytes` without its first segment."""
        limit, log = self._store.config.twinlog_retention_bytes, self._store.commit_log
        return 0 < limit <= log.max_offset - log.min_offset - log.segment_size

    async def _clean_commit_log(self, is_forced: bool) -> int:
        store = self._store
        log = store.commit_log
        reserved_ms = store.config.file_reserved_time * _HOUR_MS
        count = 0
        while count < _SEGMENTS_PER_RUN and len(log.segments.segments) > 1:
            newest = self._newest_time()
            is_expired = newest >= 0 and self._steady.now_ms() >= newest + reserved_ms
            if not is_expired and not is_forced and not self._is_over:
                break
            is_lacked = log.segments.segments[0].end > self.needed_from()
            if is_lacked and not is_forced:
                self._tell_held(log.segments.segments[0].path)
                break
            if log.segments.segments[0].end > store.dispatched.value:
                break  # Its records have no entries yet.
            if self.confirmed and log.segments.segments[0].end > self.confirmed.value:
                # A replica that lacks the rest may be elected. This log, which is cut to the end of
                # that one then, would have nothing in common with it.
                break
            if log.segments.segments[0].end >= log.flushed.value:
                # Nothing behind it is safe yet: a power cut would leave no log at all, and the
                # next record would get an offset that was given before.
                break
            if is_forced:
                await store.housekeeping.save_numbers()
            elif not await self._is_saved(log.segments.segments[0].end):
                break
            segment = log.remove_first()
            await self._disk.run(self._disk.fsync_directory, posixpath.dirname(segment.path))
            count += 1
            self._held_path = ""
            reason = "expired" if is_expired else "disk space" if is_forced else "bytes"
            level = logging.WARNING if is_lacked else logging.INFO
            lost = ", which a slave does not have yet" if is_lacked else ""
            _LOG.log(level, "segment deleted path=%s reason=%s%s", segment.path, reason, lost)
            if is_forced:
                is_forced = self.check_disk()
            await self._clock.sleep_ms(store.config.delete_commit_log_files_interval)
        return count

    def _tell_held(self, path: str) -> None:
        """Once for a segment: it stays until the slave has it, or the disk is too full."""
        if path != self._held_path:
            self._held_path = path
            limit = self._store.config.disk_space_clean_forcibly_ratio
            _LOG.warning("segment kept for a slave path=%s until_disk_ratio=%d", path, limit)

    async def _is_saved(self, end: int) -> bool:
        """Whether what follows from the records below `end` is safe: the numbers of idempotent
        producers and the ends of queues. After a crash nobody could read them again."""
        point = self._store.checkpoint.saved_point
        if point is not None and point.dispatched >= end:
            return True
        return await self._store.housekeeping.save_round()

    def _newest_time(self) -> int:
        """Store time of the newest record of the first segment, about: of the next segment.

        A record's time has no checksum: one flipped bit, and a segment would be decades old. So
        several records are asked, and the file where they are too few; the middle one counts.
        """
        segments = self._store.commit_log.segments.segments
        times = self._store.reader.store_times_from(segments[1].start, _WITNESSES)
        if len(times) < _WITNESSES:
            times.append(self._disk.modified_ms(segments[0].path))
        return sorted(times)[len(times) // 2]

    @property
    def queues_follow(self) -> int:
        """Where the log begins, once no queue has a file to lose for that; else unknown."""
        floor = self._store.commit_log.min_offset
        return floor if floor == self._followed_to else UNKNOWN_FLOOR

    async def _clean_followers(self) -> None:
        """Queues and index files whose records are gone."""
        store = self._store
        floor = store.commit_log.min_offset
        if floor <= self._cleaned_to or floor == 0:
            return
        self._cleaned_to = floor
        for queue in tuple(store.queue_table):
            if queue.remove_expired_files(self._disk, store.queue_table.pool, floor):
                await self._clock.sleep_ms(store.config.delete_consume_queue_files_interval)
        self._followed_to = floor
        if store.index is not None:
            store.index.remove_expired(floor)


def _full_reason(path: str, space: DiskSpace, warning: float) -> str:
    return (
        f"disk full: {path} is used to {space.ratio:.0%} ({space.used} bytes, "
        f"{space.usable} free), the limit is {warning:.0%}"
    )
