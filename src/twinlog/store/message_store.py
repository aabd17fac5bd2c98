"""The store: one log, its queues and its index. Corresponds to RocketMQ's DefaultMessageStore.

Everything here runs on the loop. `put` assigns the place and buffers; all that was put in one turn
of the loop is written by one call at its end, then `appended` moves once. On a master the entry
of the consume queue and the keys of the index are known at that time. A slave appends raw bytes
and reads them again (ReputService).
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from twinlog.message.batch import BatchMember, batch_size
from twinlog.message.layout import BLANK_SIZE_MIN
from twinlog.message.model import PutMessage
from twinlog.message.names import LMQ_PREFIX
from twinlog.message.record import RecordError, encode_record, encoded_size
from twinlog.message.sysflag import UNQUEUED_FLAG, is_rollback
from twinlog.runtime.broker_config import BrokerConfig, FlushDiskType
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, DiskLock, DiskLockedError, DiskSpace
from twinlog.runtime.limits import CONSUME_QUEUE_FILES_OPEN_MAX, TOPIC_LENGTH_MAX
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.turn import Phase, Turn
from twinlog.runtime.watermark import Watermark
from twinlog.store.cleaner import Cleaner
from twinlog.store.errors import StoreError, StoreLockedError
from twinlog.store.filter import MessageFilter
from twinlog.store.housekeeping import Housekeeping
from twinlog.store.index.index_service import IndexService
from twinlog.store.integrity.damage import DamageLog
from twinlog.store.listeners import DispatchListener, DispatchListeners
from twinlog.store.log.appender import appender_types
from twinlog.store.log.batch_put import BatchEncoder, batch_fault, body_encoder, encode_members
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.log.flush import FlushService
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.store.queue.queue_manifest import QueueManifest
from twinlog.store.queue.queue_table import OWN_TOPICS, TAIL_SIZE_MAX, ConsumeQueueTable
from twinlog.store.reader import StoreReader
from twinlog.store.recovery.checkpoint import StoreCheckpoint
from twinlog.store.recovery.dispatch import Dispatcher, deliver_time
from twinlog.store.recovery.recover import RecoveryReport, recovery_of
from twinlog.store.recovery.reput import ReputService
from twinlog.store.refusals import illegal_message, illegal_record, store_refusal
from twinlog.store.running_flags import RunningFlags
from twinlog.store.status import (
    AppendResult,
    GetMessageStatus,
    GetResult,
    PutMessageStatus,
    QueryResult,
)
from twinlog.store.visibility import Visibility

_LOG = logging.getLogger("twinlog.store")
_PUT_OK: Final = PutMessageStatus.PUT_OK
MEMORY_UNKNOWN: Final = 24 << 30  # RocketMQ's guess where the size of the memory is not known.


class MessageStore:
    """Puts, reads and the life of the store."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        delay_levels: Mapping[int, int],
        memory_size: int = MEMORY_UNKNOWN,
        turn: Turn | None = None,
    ) -> None:
        root = config.store_path_root_dir
        own = posixpath.join(root, "twinlog")
        self.config = config
        self.root = root
        self.turn = turn if turn is not None else Turn()
        self.running_flags = RunningFlags()
        self._disk = disk
        self._clock = clock
        self._levels = dict(delay_levels)
        self._own_directory = own
        self._abort_path = posixpath.join(root, "abort")
        end_type, appender_type = appender_types()
        self._end = end_type()
        self.commit_log = CommitLog(
            disk,
            clock,
            directories=config.commit_log_paths,
            read_only_directories=config.read_only_commit_log_paths,
            segment_size=config.mapped_file_size_commit_log,
            aside_directory=own,
            end=self._end,
        )
        self.appended = self.commit_log.appended
        self.flushed = self.commit_log.flushed
        self.dispatched = Watermark("dispatched")
        self._listeners = DispatchListeners()
        self.queue_table = ConsumeQueueTable(
            disk,
            posixpath.join(root, "consumequeue"),
            file_size=config.consume_queue_file_size,
            open_files_max=CONSUME_QUEUE_FILES_OPEN_MAX,
        )
        self._queues_by_key = self.queue_table.by_key
        self.index: IndexService | None = None
        if config.message_index_enable:
            self.index = IndexService(
                disk,
                clock,
                posixpath.join(root, "index"),
                slots_max=config.max_hash_slot_num,
                index_max=config.max_index_num,
            )
        self.appender = appender_type(
            self._end, self.index, begin=self._turn_begins, mark_dirty=self._queue_is_dirty
        )
        self.checkpoint = StoreCheckpoint(disk, root, own)
        self.queue_manifest = QueueManifest(disk, own)
        self.dispatcher = Dispatcher(self.queue_table, self.index, self._levels, clock)
        self.damage = DamageLog(clock, lambda: config.twinlog_damage_wait_millis)
        self.reader = StoreReader(
            config, self.commit_log, self.queue_table, self.index, memory_size, self.damage
        )
        self.reput = ReputService(
            self.commit_log,
            self.dispatcher,
            self.dispatched,
            self._reput_moved,
            clock,
            self.turn,
        )
        self.flush_service = FlushService(
            self.commit_log,
            disk,
            clock,
            is_sync=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            interval_ms=config.flush_interval_commit_log,
            least_pages=config.flush_commit_log_least_pages,
            thorough_interval_ms=config.flush_commit_log_thorough_interval,
        )
        self.housekeeping = Housekeeping(self, disk, clock)
        self.cleaner = Cleaner(self, disk, clock)
        self._encode_body = body_encoder()
        self.last_store_timestamp = 0
        self.is_master = config.is_master and not config.enable_controller_mode
        self.was_clean = True
        self._hold_reason = ""
        self.closed_reason = ""  # Why a master takes no messages: its group, or its own end.
        self._state = "new"
        self._refusal: AppendResult | None = None
        self._update_refusal()
        self._lock: DiskLock | None = None
        self._tasks: TaskOwner | None = None
        self.on_queues_cut: Callable[[dict[tuple[str, int], int]], None] = lambda ends: None
        self._shown: list[tuple[int, list[ConsumeQueue]]] = []  # Of turns that were written.
        self._visibility = Visibility(self._dispatched_to)
        # (end of the log from now on, whether what is gone was written)
        self.on_cut: Callable[[int, bool], None] = lambda floor, was_written: None
        self.commit_log.on_truncating = self._forget_points
        self.commit_log.on_truncate = self._log_truncated

    def _forget_points(self) -> None:
        self.checkpoint.forget_point()
        self.queue_manifest.forget()

    # Life

    async def load(self, *, was_copy: bool = False) -> RecoveryReport:
        """Take the lock, load, recover. Raises StoreError with a sentence that says what to do.
        `was_copy`: the last process was a slave, whose log may end inside a record."""
        assert self._state == "new"
        self.turn.bind()
        try:
            self._make_directories()
            self._lock = self._disk.lock(posixpath.join(self.root, "lock"))
        except DiskLockedError as error:
            raise StoreLockedError(
                f"{self.root} is in use by another broker: stop it, or set storePathRootDir"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot write to storePathRootDir {self.root}: {error}") from error
        self.was_clean = not self._disk.exists(self._abort_path)
        try:
            report = await self._load_and_recover(self.was_clean, was_copy or not self.is_master)
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError):
                raise StoreError(f"cannot read the store {self.root}: {error}") from error
            raise
        self._mark_unclean()
        self._state = "loaded"
        return report

    def _mark_unclean(self) -> None:
        """From here on, not to be stopped cleanly means to recover."""
        self._disk.open(self._abort_path, create=True).close()
        self._disk.fsync_directory(self.root)

    def _make_directories(self) -> None:
        """Root and our own directory, durable: a file in a lost directory is lost."""
        self._disk.make_directories(self._own_directory)
        self._disk.fsync_directory(self.root)
        self._disk.fsync_directory(posixpath.dirname(self.root))

    async def _load_and_recover(self, was_clean: bool, is_copy: bool) -> RecoveryReport:
        self.commit_log.load()
        self.queue_manifest.load()
        self.queue_table.load(self.queue_manifest.file_size)
        self.checkpoint.load()
        if self.index is not None:
            self.index.load()
            self.index.full_timestamp = self.checkpoint.index_timestamp
        recovery = recovery_of(self, self._clock, self._mark_unclean, is_copy=is_copy)
        report = await recovery.run(was_clean=was_clean)
        self.last_store_timestamp = max(
            report.last_store_timestamp, self.checkpoint.logics_timestamp
        )
        self.dispatched.reset(self.commit_log.max_offset, "the store was loaded")
        return report

    async def start(self, tasks: TaskOwner) -> None:
        """Accept puts (master) and raw bytes (slave); start the background work."""
        self.open_for_puts()
        self._tasks = tasks
        for part in (self.reput, self._listeners, self.appended, self.flushed, self.dispatched):
            part.failures = tasks.failures
        # After a failed sync, or with a checkpoint that says more than is on disk, nothing is safe.
        tasks.vital("flush", self.flush_service.run)
        tasks.vital("housekeeping", self.housekeeping.run)
        tasks.contained("cleaner", self.cleaner.run)

    def open_for_puts(self) -> None:
        """Start without background work: nothing is flushed or written behind (tools, tests)."""
        assert self._state == "loaded"
        self._state = "running"
        self.reput.is_active = not self.is_master
        self.appended.subscribe(lambda _: self.reput.wake())
        self._update_refusal()

    async def stop(self) -> None:
        """Clean stop: everything written and synced, checkpoint saved, `abort` removed.

        A broken store keeps `abort`: the next start recovers. The caller stops the tasks first.
        """
        if self._state in ("new", "stopped"):
            return
        self._state = "stopped"
        self._update_refusal()
        self.reput.is_active = False
        is_clean = False
        try:
            self.write_pending()
            if not self.commit_log.broken_reason:
                is_clean = await self.housekeeping.save_all()
        finally:
            if is_clean:
                self.commit_log.close(remove_spare=True)
                self._disk.unlink(self._abort_path)
                self._disk.fsync_directory(self.root)
            self._close_files()

    def _close_files(self) -> None:
        self.commit_log.close(remove_spare=False)
        self.queue_table.close()
        if self.index is not None:
            self.index.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Put

    def put(self, message: PutMessage) -> AppendResult:
        """Give the message its place. It is in the log once `appended` passes `end_offset`."""
        if self._refusal is not None:
            return self._refusal
        appender = self.appender
        if not appender.is_open:
            appender.open()
        topic = message.topic
        queue = self._queues_by_key.get((topic, message.queue_id))
        if queue is None:
            if len(topic) > TOPIC_LENGTH_MAX:
                return illegal_message(message, self.config.max_message_size)
            queue = self.queue_table.make(topic, message.queue_id)
        if len(message.body) > self.config.max_message_size:
            return illegal_message(message, self.config.max_message_size)
        if message.sys_flag & UNQUEUED_FLAG:
            return self._put_unqueued(message)
        queue_offset = queue.next_offset
        code = message.tags_code
        if queue.is_schedule:
            due = deliver_time(message.properties, appender.timestamp, self._levels)
            code = code if due is None else due
        try:
            offset = appender.append(message, queue, code)
            if offset < 0:
                refused = self._make_room(encoded_size(message))
                if refused is not None:
                    return refused
                offset = appender.append(message, queue, code)
        except RecordError as error:
            return illegal_record(error)
        return AppendResult(_PUT_OK, offset, self._end.tail, queue_offset, appender.timestamp)

    def put_batch(self, message: PutMessage, members: Sequence[BatchMember]) -> AppendResult:
        """All members or none, one after the other in one segment. Corresponds to putMessages.

        `message` gives what they share; each member is stored with its own properties followed by
        those of `message`.
        """
        if self._refusal is not None:
            return self._refusal
        fault = batch_fault(message, batch_size(members), self.config.max_message_size)
        if fault:
            return AppendResult(PutMessageStatus.MESSAGE_ILLEGAL, reason=fault)
        queue = self.queue_table.make(message.topic, message.queue_id)
        try:
            result = self._append_batch(message, queue, partial(encode_members, message, members))
        except RecordError as error:
            return illegal_record(error)
        assert result is not None
        return result

    def put_batch_body(self, message: PutMessage) -> AppendResult | None:
        """`put_batch` of a body as it came; None, and nothing put: it must be taken apart."""
        if (
            self._encode_body is None
            or self._refusal is not None
            or batch_fault(message, len(message.body), self.config.max_message_size)
        ):
            return None
        queue = self._queues_by_key.get((message.topic, message.queue_id))
        return self._append_batch(message, queue, partial(self._encode_body, message))

    def _append_batch(
        self, message: PutMessage, queue: ConsumeQueue | None, encode: BatchEncoder
    ) -> AppendResult | None:
        appender, end = self.appender, self._end
        if not appender.is_open:
            appender.open()
        first, timestamp = 0 if queue is None else queue.next_offset, appender.timestamp
        encoded = encode(first, end.tail, timestamp)
        if encoded is not None and not end.fits(len(encoded.data)):
            refused = self._make_room(len(encoded.data))
            if refused is not None:
                return refused
            encoded = encode(first, end.tail, timestamp)
        if encoded is None:
            return None
        if queue is None:
            queue = self.queue_table.make(message.topic, message.queue_id)
        start = appender.add_batch(encoded.data, queue, encoded.entries)
        if self.index is not None:
            encoded.add_to(self.index, message.topic, timestamp)
        stop, count, offsets = end.tail, encoded.message_count, tuple(encoded.offsets)
        return AppendResult(_PUT_OK, start, stop, first, timestamp, count, offsets, ids=encoded.ids)

    def _put_unqueued(self, message: PutMessage) -> AppendResult:
        """PREPARED and ROLLBACK records have queue offset 0 and no entry in a queue."""
        end, timestamp = self._end, self.appender.timestamp
        try:
            size = len(encode_record(message, 0, end.tail, timestamp))
        except RecordError as error:
            return illegal_record(error)
        if not end.fits(size):
            refused = self._make_room(size)
            if refused is not None:
                return refused
        record = encode_record(message, 0, end.tail, timestamp)
        keys = None if is_rollback(message.sys_flag) else message.keys
        offset = self.appender.add_unqueued(record, message.topic, keys)
        return AppendResult(_PUT_OK, offset, offset + size, 0, timestamp)

    def _make_room(self, size: int) -> AppendResult | None:
        """The record does not fit the segment; None when the next one is ready."""
        log = self.commit_log
        if size + BLANK_SIZE_MIN > log.segment_size:
            reason = f"record of {size} bytes does not fit a segment of {log.segment_size}"
            return AppendResult(PutMessageStatus.MESSAGE_ILLEGAL, reason=reason)
        try:
            log.make_room(size)
        except OSError as error:
            reason = log.disk_full_reason(error)
            self.housekeeping.report_once("segment", reason)
            return AppendResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED, reason=reason)
        except StoreError as error:
            self._append_failed(str(error), self.appender.close())
            return AppendResult(PutMessageStatus.UNKNOWN_ERROR, reason=str(error))
        return None

    # The turn of the loop

    def _turn_begins(self) -> int:
        """Something is put for the first time in this turn; the store time of all of it."""
        self.turn.add(Phase.WRITE_LOG, self._end_turn)
        return self._clock.now_ms()

    def _queue_is_dirty(self, queue: ConsumeQueue, offset: int) -> None:
        self.queue_table.mark_dirty(queue, self._clock.monotonic_ms(), offset)

    def _end_turn(self) -> None:
        try:
            if self.appender.is_open:
                self._write()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._tasks is None:
            raise error
        self._tasks.fail("store turn", error)  # Who waits or listens is contained: the log.

    def write_pending(self) -> None:
        """Write what was put, now; what follows from it is done too, unless a turn is ending."""
        self._write()
        self.turn.run()

    def _write(self) -> None:
        queues = self.appender.close()
        if self._end.tail == self.appended.value:
            return
        try:
            end = self.commit_log.write_pending()
        except OSError as error:
            self._append_failed(f"write to the commit log failed: {error}", queues)
            return
        self.last_store_timestamp = self.appender.timestamp
        if self._visibility.limit is not None:
            self._visibility.hold(end, queues)
        else:
            for queue in queues:
                queue.max_offset = queue.next_offset
            self._shown.append((end, queues))
        self.appended.move(end)
        add = self.turn.add
        add(Phase.WAKE_REPLICAS, self.appended.tell_first)
        add(Phase.RELEASE_REPLIES, self.appended.release)
        add(Phase.NOTIFY_QUEUES, self._notify_queues)

    def _notify_queues(self) -> None:
        try:
            shown, self._shown = self._shown, []
            for end, queues in shown:
                self._dispatched_to(end, queues)
            self._visibility.release()
        except Exception as error:
            self._failed(error)

    def _dispatched_to(self, end: int, queues: list[ConsumeQueue]) -> None:
        for queue in queues:
            if len(queue.tail) > TAIL_SIZE_MAX:
                self.housekeeping.write_queue(queue)
        if self.index is not None and self.index.is_due:
            self.housekeeping.drain_index()
        if end > self.dispatched.value:
            self.dispatched.advance(end)
        self._listeners.tell(queues)

    def _append_failed(self, reason: str, queues: list[ConsumeQueue]) -> None:
        """Nothing of this turn was stored: places are given back, who waits is told."""
        _LOG.error("append failed reason=%s", reason)
        floor = self.appended.value
        for queue in queues:
            queue.truncate_entries(self._disk, self.queue_table.pool, queue.turn_offset)
        if self.index is not None:
            self.index.forget_pending(floor)
        self.commit_log.discard_pending(reason)
        self._update_refusal()
        self.on_cut(floor, False)
        self.appended.fail_above(floor, reason)

    # Controlled groups

    def set_dispatch_limit(self, limit: Watermark | None) -> None:
        """Make messages visible only up to `limit` (confirmed); None: at once."""
        self.dispatcher.shows_at_once = limit is None
        self.cleaner.confirmed = limit
        self._visibility.follow(limit)

    def hide_unconfirmed(self) -> None:
        """After recovery, which shows the whole log: hold back what is beyond the limit."""
        self._visibility.hide(self.appended.value, self.queue_table, self.queue_table.pool)

    def _reput_moved(self, queues: Collection[ConsumeQueue]) -> None:
        if self._visibility.limit is None:
            self._listeners.tell(queues)
        else:
            self._visibility.hold(self.dispatched.value, queues)
            self._visibility.release()

    # Dispatch

    def add_dispatch_listener(self, callback: DispatchListener) -> None:
        """`callback(keys)` once per turn in which queues moved; keys are (topic, queue id)."""
        self._listeners.add(callback)

    def _log_truncated(self, offset: int) -> None:
        """The log was cut (slave, controller): queues and index follow."""
        shorter = self.queue_table.truncate(offset)
        self._visibility.cut(offset)
        self.on_cut(offset, True)
        if self.dispatched.value > offset or self.commit_log.min_offset == offset:
            self.dispatched.reset(offset, "the log was truncated")
        self.on_queues_cut(shorter)
        self.reput.truncated(offset)
        if self.index is not None:
            self.index.follow_cut(offset, self.reader.store_time_at)

    def change_role(self, *, is_master: bool) -> None:
        """From now on puts (master; a torn record at the end is cut off) or raw bytes (slave)."""
        self.write_pending()
        if is_master:
            while self.dispatch_step():
                pass
            assert self.reput.damage_offset < 0, "what follows the damage would be cut off"
            end = self.dispatched.value
            if end < self.appended.value:
                self.commit_log.truncate_to(end, reason="no whole record at the end of the log")
        elif self.is_master and self.dispatched.value < self.appended.value:
            self.dispatched.advance(self.appended.value)  # Queues have what was put here.
        self.is_master = is_master
        self.reput.is_active = not is_master
        self._update_refusal()
        self.reput.wake()

    def dispatch_step(self) -> bool:
        """Give some records of a slave's log their places; whether there are more."""
        return not self.is_master and self.reput.step()

    def close_for_puts(self, reason: str) -> None:
        """Refuse messages with this reason, whatever else holds; empty: take them again."""
        self.closed_reason = reason
        self._update_refusal()

    def hold_puts(self, reason: str) -> None:
        """A master whose log lacks something takes raw bytes first, as a slave does."""
        assert self.is_master
        self.write_pending()
        self._hold_reason = reason
        self.reput.is_active = True
        self._update_refusal()
        self.reput.wake()

    def release_puts(self) -> bool:
        """Take messages again; False while a queue may not know its next number yet."""
        if self.dispatched.value < self.appended.value:
            return False
        self._hold_reason = ""
        self.reput.is_active = not self.is_master
        self._update_refusal()
        return True

    async def flush(self) -> int:
        """Make all that is appended durable; how far that is."""
        return await self.flush_service.flush()

    # State

    def _update_refusal(self) -> None:
        self._refusal = store_refusal(
            self._state,
            broken_reason=self.commit_log.broken_reason,
            is_master=self.is_master,
            hold_reason=self._hold_reason or self.closed_reason,
            flags=self.running_flags,
        )

    def set_flag(self, bit: int, reason: str) -> None:
        """Set a running flag with its reason; puts are refused with it."""
        if self.running_flags.set(bit, reason):
            _LOG.error("store not writeable flag=%d reason=%s", bit, reason)
        self._update_refusal()

    def clear_flag(self, bit: int) -> None:
        if self.running_flags.clear(bit):
            _LOG.info("flag cleared flag=%d writeable=%s", bit, self.is_writeable)
        self._update_refusal()

    @property
    def is_writeable(self) -> bool:
        return self.running_flags.is_writeable and not self.commit_log.broken_reason

    @property
    def is_accepting(self) -> bool:
        """Whether a put would be tried now."""
        return self._refusal is None

    @property
    def refusal_reason(self) -> str:
        """Why a put would be refused now, empty when it would not."""
        return self._refusal.reason if self._refusal is not None else ""

    def disk_space(self) -> DiskSpace:
        """Of the file system of the commit log."""
        return self._disk.space(self.config.commit_log_paths[0])

    # Reads

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        *,
        message_filter: MessageFilter | None = None,
        max_bytes: int | None = None,
    ) -> GetResult:
        """Messages of a queue from `offset` on. Corresponds to getMessage."""
        queue = self.queue_table.by_key.get((topic, queue_id))
        if queue is None:
            next_offset = 0 if self.corrects_offsets else offset
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, next_offset, 0, 0)
        return self.reader.get(
            queue, offset, max_count, message_filter, max_bytes, self.corrects_offsets
        )

    @property
    def corrects_offsets(self) -> bool:
        """Whether a reader that is out of range is told where to go on. A slave may be behind."""
        return self.is_master or self.config.offset_check_in_slave

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        queue = self.queue_table.by_key.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """0 for a queue that is not known, as 4.9 answers (it makes the queue on look-up)."""
        queue = self.queue_table.by_key.get((topic, queue_id))
        if queue is None:
            return 0
        return queue.min_offset(self.queue_table.pool, self.commit_log.min_offset)

    def offset_in_queue_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        queue = self.queue_table.by_key.get((topic, queue_id))
        return self.reader.offset_by_time(queue, timestamp_ms) if queue is not None else 0

    def message_by_offset(self, physical_offset: int, size: int | None = None) -> bytes | None:
        """The record at a physical offset, as stored. Raises RecordDamagedError."""
        return self.reader.record_at(physical_offset, size)

    def is_shown(self, end_offset: int) -> bool:
        limit = self._visibility.limit
        return limit is None or end_offset <= limit.value

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        return self.reader.query(topic, key, max_count, begin_ms, end_ms)

    def message_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of one message, -1 when it is not there."""
        queue = self.queue_table.by_key.get((topic, queue_id))
        return self.reader.store_time(queue, queue_offset) if queue is not None else -1

    def earliest_message_time(self, topic: str | None = None, queue_id: int | None = None) -> int:
        """Store time of the oldest message of a queue, or of the log; -1 when there is none."""
        if topic is None or queue_id is None:
            return self.reader.store_time_at(self.commit_log.min_offset)
        minimum = self.min_offset_in_queue(topic, queue_id)
        return self.message_store_time(topic, queue_id, minimum)

    # Queues

    @property
    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue."""
        return list(self.queue_table.by_key)

    def delete_topics(self, topics: Iterable[str], before: int | None = None) -> int:
        """Remove the queues of these topics; the log keeps their records. `before` is where a
        master did so: queues with a later record have begun again since."""
        return self._destroy(self.queue_table.of_topics(set(topics), before))

    def clean_unused_topics(self, known: Collection[str]) -> int:
        """Remove queues of topics that are not `known`. Corresponds to cleanUnusedTopic."""
        doomed = {queue.topic for queue in self.queue_table} - OWN_TOPICS - set(known)
        return self.delete_topics(t for t in doomed if not t.startswith(LMQ_PREFIX))

    def clean_expired_consume_queues(self) -> int:
        """Remove queues whose every record is gone from the log, except the broker's own."""
        floor = self.commit_log.min_offset
        others = [q for q in self.queue_table if q.topic not in OWN_TOPICS]
        return self._destroy([q for q in others if -1 < q.last_physical_end < floor])

    def _destroy(self, queues: list[ConsumeQueue]) -> int:
        self.write_pending()
        if queues:
            _LOG.info("queues removed keys=%s", [queue.key for queue in queues])
            self.queue_manifest.forget()
        self.queue_table.destroy(queues)
        return len(queues)
