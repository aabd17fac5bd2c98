"""What the store does on the side: write waiting entries, sync them, save the checkpoint.

Corresponds to RocketMQ's FlushConsumeQueueService and the flushing part of IndexService. A round
makes queues, index and log durable up to one offset and writes that offset down, so that a crash
costs a scan from there and nothing more.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import posixpath
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, DiskSyncError
from twinlog.store.errors import StoreBrokenError
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.recovery.checkpoint import RecoveryPoint
from twinlog.store.running_flags import INDEX_FILE_ERROR, LOGICS_QUEUE_ERROR

if TYPE_CHECKING:
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_TICK_MS: Final = 50
_QUEUES_PER_TICK: Final = 256  # About 5 ms when every file must be opened.
_ROUND_INTERVAL_MS: Final = 5000
_INDEX_DELAY_MS: Final = 1000  # A query drains the index first, so waiting keys hurt nobody.
_REPORT_INTERVAL_MS: Final = 10_000
_SYNC_FILES_MAX: Final = 64


class Housekeeping:
    """One task: a tick every 50 ms, a durable round every few seconds."""

    def __init__(self, store: MessageStore, disk: Disk, clock: Clock) -> None:
        self._store = store
        self._disk = disk
        self._clock = clock
        self._reported: dict[str, int] = {}
        self._slots_written_ms = 0
        self._index_drained_ms = 0
        # Two rounds at once: the second would count what the first is still syncing as safe.
        self._round = asyncio.Lock()
        # Saves what else follows the log: recovery will not read again what is below the point.
        self.before_checkpoint: Callable[[], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        if self._store.index is not None:
            await self._store.index.prepare()
        next_round = self._clock.monotonic_ms() + _ROUND_INTERVAL_MS
        while True:
            await self._clock.sleep_ms(_TICK_MS)
            now_ms = self._clock.monotonic_ms()
            self._tick(now_ms)
            log = self._store.commit_log
            if log.needs_next and not log.broken_reason:
                await log.prepare_next()
            if now_ms >= next_round:
                await self.save_round()
                spent = self._clock.monotonic_ms() - now_ms
                # A slow disk gets at most a tenth of the time of this.
                next_round = now_ms + max(_ROUND_INTERVAL_MS, 10 * spent)

    def _tick(self, now_ms: int) -> None:
        store = self._store
        for watermark in (store.appended, store.flushed, store.dispatched):
            watermark.expire(now_ms)
        if store.commit_log.broken_reason:
            raise StoreBrokenError(store.commit_log.broken_reason)
        store.write_pending()
        try:
            store.queue_table.write_due(now_ms, _QUEUES_PER_TICK)
        except OSError as error:
            self._queue_failed(error)
        else:
            if store.running_flags.bits & LOGICS_QUEUE_ERROR:
                self._retry_queues()
        if now_ms - self._index_drained_ms >= _INDEX_DELAY_MS:
            self._index_drained_ms = now_ms
            self.drain_index()

    def _retry_queues(self) -> None:
        try:
            self._store.queue_table.write_all()
        except OSError as error:
            self._queue_failed(error)
        else:
            self._store.clear_flag(LOGICS_QUEUE_ERROR)

    def write_queue(self, queue: ConsumeQueue) -> None:
        """Write the entries of one queue now; a full disk makes the store refuse puts."""
        try:
            self._store.queue_table.write(queue)
        except OSError as error:
            self._queue_failed(error)

    def _queue_failed(self, error: OSError) -> None:
        self._store.set_flag(
            LOGICS_QUEUE_ERROR, f"consume queue not written: {error}; retried until it works"
        )

    def drain_index(self) -> None:
        """Write waiting keys; an error keeps them and makes the store refuse puts."""
        index = self._store.index
        if index is None:
            return
        try:
            index.drain()
        except OSError as error:
            self._store.set_flag(INDEX_FILE_ERROR, f"index not written: {error}; retried")
        else:
            if self._store.running_flags.bits & INDEX_FILE_ERROR:
                self._store.clear_flag(INDEX_FILE_ERROR)

    # Durable rounds

    async def save_round(self, *, is_stop: bool = False) -> bool:
        """Make everything dispatched so far durable and write it down; false: not this time."""
        async with self._round:
            return await self._save_round(is_stop=is_stop)

    async def _save_round(self, *, is_stop: bool) -> bool:
        store = self._store
        store.write_pending()
        target = store.dispatched.value
        timestamp = store.last_store_timestamp
        cut_count = store.checkpoint.cut_count
        try:
            while True:
                has_more = store.queue_table.write_before(target, _QUEUES_PER_TICK)
                if not has_more:
                    break
                await asyncio.sleep(0)
            if store.index is not None:
                store.index.drain()
                self._write_slots()
        except OSError as error:
            self._queue_failed(error)
            return False
        now_ms = self._clock.monotonic_ms()
        known = store.queue_manifest.gather(
            store.queue_table, now_ms, floor=store.cleaner.queues_follow, is_stop=is_stop
        )
        paths = store.queue_table.take_unsynced()
        index_files = store.index.take_unsynced() if store.index is not None else []
        try:
            await self._sync(paths, [file.path for file in index_files])
            flushed = await store.flush_service.flush()
        except OSError as error:
            reason = f"sync of consume queue or index failed: {error}"
            store.commit_log.break_down(reason)
            raise StoreBrokenError(reason) from error
        if store.checkpoint.cut_count != cut_count:
            return False  # The log was cut while we waited.
        if store.index is not None:
            store.index.synced(index_files)
            store.checkpoint.index_timestamp = store.index.full_timestamp
        store.checkpoint.physic_timestamp = timestamp
        store.checkpoint.logics_timestamp = timestamp
        point = RecoveryPoint(flushed=min(flushed, target), dispatched=target)
        try:
            if self.before_checkpoint is not None:
                await self.before_checkpoint()
            if known is not None:
                await store.queue_manifest.save(known, store.queue_table.file_size)
            save = functools.partial(store.checkpoint.save, point, cut_count=cut_count)
            return await self._disk.run(save)
        except DiskSyncError:
            raise
        except OSError as error:
            # A full disk: the old checkpoint stays and is good, recovery only reads more.
            self.report_once("checkpoint", f"checkpoint not saved: {error}")
            return False

    async def save_numbers(self) -> None:
        """Those of idempotent producers alone, if there is room: a whole round would wait for it,
        and a full disk gets none while it waits."""
        try:
            if self.before_checkpoint is not None:
                await self.before_checkpoint()
        except DiskSyncError:
            raise
        except OSError as error:
            _LOG.debug("numbers of idempotent producers not saved reason=%s", error)

    def _write_slots(self) -> None:
        """The slots follow from the entries: written seldom, for those who read the files."""
        store = self._store
        now_ms = self._clock.monotonic_ms()
        interval = store.config.flush_consume_queue_thorough_interval
        if store.index is not None and now_ms - self._slots_written_ms >= interval:
            self._slots_written_ms = now_ms
            store.index.write_slots()

    async def save_all(self) -> bool:
        """Clean stop: as a round, with the slots of the index and every directory."""
        store = self._store
        if not store.is_master:
            while store.reput.step():
                pass
        if store.index is not None:
            store.index.drain()
            store.index.write_slots()
        if not await self.save_round(is_stop=True):
            return False
        # Bytes that are no whole record yet (slave) are kept; the next start asks for the rest.
        return store.dispatched.value == store.appended.value and store.is_writeable

    async def _sync(self, paths: list[str], index_paths: list[str]) -> None:
        if len(paths) > _SYNC_FILES_MAX:
            # One call for all: thousands of single ones take minutes.
            await self._disk.run(self._disk.sync_filesystem, self._store.root)
            return
        if paths:
            await self._disk.run(self._sync_paths, paths)
        if index_paths:
            await self._disk.run(self._sync_files, index_paths)
            await self._disk.run(self._disk.fsync_directory, posixpath.dirname(index_paths[0]))
            await self._disk.run(self._disk.fsync_directory, self._store.root)

    def _sync_files(self, paths: list[str]) -> None:
        """In a thread, with descriptors of its own: the loop may close or remove a file."""
        for path in paths:
            try:
                file = self._disk.open(path)
            except FileNotFoundError:
                continue  # Removed meanwhile.
            try:
                file.fdatasync()
            finally:
                file.close()

    def _sync_paths(self, paths: list[str]) -> None:
        """Files of queues, and the directories that they may be new in."""
        self._sync_files(paths)
        directories = {posixpath.dirname(path) for path in paths}
        # A name is safe when all names above it are: queue, topic, `consumequeue`.
        for _ in range(3):
            for directory in directories:
                if self._disk.exists(directory):
                    self._disk.fsync_directory(directory)
            directories = {posixpath.dirname(directory) for directory in directories}
        if directories:
            self._disk.fsync_directory(self._store.root)

    def report_once(self, what: str, reason: str) -> None:
        """A warning that would come with every put, at most every 10 s."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._reported.get(what, -_REPORT_INTERVAL_MS) >= _REPORT_INTERVAL_MS:
            self._reported[what] = now_ms
            _LOG.error("put refused reason=%s", reason)
