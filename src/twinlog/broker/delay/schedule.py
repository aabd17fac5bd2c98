"""Delivery of delayed messages (RocketMQ's ScheduleMessageService).

Each level is a queue of SCHEDULE_TOPIC_XXXX whose entries become due in order: the tags code of
an entry is its time of delivery. A level sleeps until its head is due, is woken when its queue
moves, and puts what is due into the real topics. The offset of a level moves when the copy is
appended, never before: a crash repeats a delivery, it does not lose one.

Offsets are in `config/delayOffset.json`, saved every `flushDelayOffsetInterval`. After a crash the
file is behind; what was delivered since is recognised by its unique id in the log's index and is
not delivered twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from twinlog.broker.delay.levels import DelayLevels
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.stats.broker_stats import BrokerStatsManager
from twinlog.broker.stats.store_view import (
    INDEX_SLACK_MS,
    placed_end,
    queue_entries,
    record_of_entry,
)
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message.model import PutMessage, Record
from twinlog.message.names import HALF_TOPIC, SCHEDULE_TOPIC
from twinlog.message.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    tags_and_keys,
)
from twinlog.message.record import RecordError, decode_record
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.failures import Failures
from twinlog.runtime.numbers import INT32_MAX, number_of, number_or_none
from twinlog.runtime.saving import TableSaver
from twinlog.store.errors import RecordDamagedError
from twinlog.store.filter import TAGS_HASH_MIN
from twinlog.store.message_store import MessageStore
from twinlog.store.reader import store_timestamp_of
from twinlog.store.status import PutMessageStatus

_LOG = logging.getLogger("twinlog.broker")

_BATCH = 256  # Entries of a level in one turn: due crowds must not stop the loop for long.
_RETRY_MS = 100  # Apache's pause after a put that was refused.
_IDLE_MS_MAX = 10_000  # A level looks at its head at least so often, in case a clock was set.
_DUPLICATES_MAX = 64
_TRIES_MAX = 6  # Within 13 s: what still fails then would hold back its level forever.


def delay_table(data: Any) -> dict[int, int]:
    """Level -> offset out of a file's or a master's JSON object."""
    table = (data or {}).get("offsetTable") or {}
    return {number_of(level): number_of(offset) for level, offset in table.items()}


class _Level:
    __slots__ = ("delay_ms", "failed", "in_flight", "level", "offset", "timer", "verify_until")

    def __init__(self, level: int, delay_ms: int) -> None:
        self.level = level
        self.delay_ms = delay_ms
        self.offset = 0
        self.verify_until = 0
        self.in_flight = False
        self.failed = (-1, 0)  # The entry that failed last, and how often in a row.
        self.timer: TimerHandle | None = None


class ScheduleMessageService:
    """Levels and their offsets. Runs on a master only."""

    def __init__(
        self,
        *,
        store: MessageStore,
        replies: PutReplies,
        levels: DelayLevels,
        stats: BrokerStatsManager,
        file: ConfigFile,
        clock: Clock,
        failures: Failures | None = None,
    ) -> None:
        self._failures = failures if failures is not None else Failures()
        self._store = store
        self._replies = replies
        self._stats = stats
        self._clock = clock
        self.file = file
        self._levels = {level: _Level(level, delay) for level, delay in levels.items()}
        self._known: dict[int, int] = {}
        self._is_running = False
        self.saver = TableSaver("delays", self._write)

    @property
    def offsets(self) -> dict[int, int]:
        """Level -> next entry to look at, for the levels that were ever used."""
        return self._known

    def load(self) -> None:
        data = self.file.load()
        if data is not None:
            self._take(data)

    def replace(self, data: Any) -> None:
        """Take over offsets as a master has them."""
        self._take(data)
        self.saver.touched()

    def _take(self, data: Any) -> None:
        self._known = delay_table(data)
        for number, offset in self._known.items():
            level = self._levels.get(number)
            if level is not None:
                level.offset = offset

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The log of a slave was cut: what comes again is not delivered yet."""
        for number, offset in self._known.items():
            end = ends.get((SCHEDULE_TOPIC, number - 1), offset)
            if end < offset:
                self._known[number] = end
                self.saver.touched()

    async def _write(self) -> None:
        await self.file.save(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {"offsetTable": dict(sorted(self._known.items()))}

    def max_offset(self, level: int) -> int:
        return self._store.max_offset_in_queue(SCHEDULE_TOPIC, level - 1)

    def _placed_end(self, level: int) -> int:
        """A group's new master may have delivered what it does not know to be confirmed yet."""
        return placed_end(self._store, SCHEDULE_TOPIC, level - 1)

    def start(self, *, after_crash: bool) -> None:
        """Begin to deliver. After a crash what is in the queues now is checked for copies."""
        self._is_running = True
        for level in self._levels.values():
            level.offset = self._known.get(level.level, 0)
            level.verify_until = self._placed_end(level.level) if after_crash else 0
            self._schedule(level, 0)

    def stop(self) -> None:
        self._is_running = False
        for level in self._levels.values():
            if level.timer is not None:
                level.timer.cancel()
                level.timer = None

    def queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        """Something was dispatched: wake the levels concerned."""
        if not self._is_running:
            return
        for topic, queue_id in keys:
            if topic == SCHEDULE_TOPIC:
                level = self._levels.get(queue_id + 1)
                # One that has a timer knows its head; one without saw its queue empty.
                if level is not None and level.timer is None:
                    self._schedule(level, 0)

    def _schedule(self, level: _Level, delay_ms: float) -> None:
        if not self._is_running or level.in_flight:
            return
        if level.timer is not None:
            level.timer.cancel()
        level.timer = self._clock.call_later_ms(delay_ms, self._run_safely, level)

    def _run_safely(self, level: _Level) -> None:
        """A level that fails goes on by itself; one message that always does is passed over."""
        try:
            self._run(level)
        except Exception as error:
            offset, times = level.failed
            times = times + 1 if offset == level.offset else 1
            level.failed = (level.offset, times)
            self._failures.note(
                "delayed delivery", error, f"level {level.level} entry {level.offset}"
            )
            if times >= _TRIES_MAX:
                _LOG.error(
                    "delayed message passed over level=%d entry=%d", level.level, level.offset
                )
                self._advance(level, level.offset + 1)
            self._schedule(level, _RETRY_MS << times)

    def _run(self, level: _Level) -> None:
        """Deliver what is due, then sleep until the next is."""
        level.timer = None
        queue_id = level.level - 1
        self._correct_offset(level)
        entries = queue_entries(self._store, SCHEDULE_TOPIC, queue_id, level.offset, _BATCH)
        now = self._clock.now_ms()
        for physical_offset, size, tags_code in entries:
            deliver_at = tags_code
            if tags_code < TAGS_HASH_MIN:
                deliver_at = self._stored_at(level, physical_offset, size) + level.delay_ms
            wait = deliver_at - now
            # Stored while the clock was ahead: it would hold back all behind it for as long. Due
            # now, as in Apache; it has waited for some of its time at least.
            if 0 < wait <= level.delay_ms:
                self._schedule(level, min(wait, _IDLE_MS_MAX))
                return
            if not self._deliver(level, physical_offset, size):
                return
        if entries:
            self._schedule(level, 0)

    def _read(self, level: _Level, physical_offset: int, size: int) -> bytes | None:
        """The record of the level's next entry."""
        entry = (physical_offset, size)
        return record_of_entry(self._store, SCHEDULE_TOPIC, level.level - 1, level.offset, entry)

    def _stored_at(self, level: _Level, physical_offset: int, size: int) -> int:
        """For entries whose time is in a file that only Apache reads; 0: the record is gone."""
        try:
            data = self._read(level, physical_offset, size)
        except RecordDamagedError:
            return 0  # Due at once: the delivery says what is wrong.
        return 0 if data is None else store_timestamp_of(data)

    def _correct_offset(self, level: _Level) -> None:
        queue_id = level.level - 1
        low = self._store.min_offset_in_queue(SCHEDULE_TOPIC, queue_id)
        high = self._placed_end(level.level)
        corrected = min(max(level.offset, low, 0), high)
        if corrected != level.offset:
            _LOG.warning(
                "delay offset corrected level=%d from=%d to=%d",
                level.level,
                level.offset,
                corrected,
            )
            self._advance(level, corrected)

    def _deliver(self, level: _Level, physical_offset: int, size: int) -> bool:
        """Put one message where it belongs; false: the level goes on later."""
        try:
            data = self._read(level, physical_offset, size)
        except RecordDamagedError as error:
            if error.is_retried:
                self._schedule(level, _RETRY_MS)
                return False
            data = None
        message = None if data is None else self._real_message(data, level)
        if message is None:
            self._advance(level, level.offset + 1)
            return True
        result = self._store.put(message)
        if result.status is not PutMessageStatus.PUT_OK:
            _LOG.warning("delayed delivery refused status=%s", result.status.name)
            self._schedule(level, _RETRY_MS)
            return False
        # Appends of one turn succeed or fail together and in order, so the offset may run ahead
        # of them in memory; on disk it is saved only by a timer, when they are long decided.
        next_offset = level.offset + 1
        self._stats.count_put(message.topic, 1, result.end_offset - result.physical_offset)

        def appended(status: PutMessageStatus, reason: str) -> None:
            if status is not PutMessageStatus.PUT_OK:
                level.offset = min(level.offset, next_offset - 1)
                self._known[level.level] = level.offset
                self._schedule(level, _RETRY_MS)

        self._replies.add(result, appended, False)
        self._advance(level, next_offset)
        return True

    def _advance(self, level: _Level, offset: int) -> None:
        level.offset = offset
        self._known[level.level] = offset
        self.saver.touched()

    def _real_message(self, data: bytes, level: _Level) -> PutMessage | None:
        """The message as its producer meant it; None when it must not be delivered."""
        try:
            record = decode_record(data)
        except RecordError as error:
            _LOG.warning("delayed record skipped level=%d error=%s", level.level, error)
            return None
        properties = record.property_map
        topic = properties.get(PROPERTY_REAL_TOPIC)
        queue_text = properties.get(PROPERTY_REAL_QUEUE_ID, "")
        queue_id = number_or_none(queue_text, -INT32_MAX - 1, INT32_MAX)
        if not topic or topic == HALF_TOPIC or queue_id is None:
            _LOG.error("delayed record without destination id=%s", record.message_id)
            return None
        if level.offset < level.verify_until and self._was_delivered(record, topic):
            _LOG.info("delayed record was delivered before the crash id=%s", record.message_id)
            return None
        message = record.to_put()
        message.topic = topic
        message.queue_id = queue_id
        message.prepared_transaction_offset = 0
        message.tags_code, message.keys = tags_and_keys(message.properties)
        return message

    def _was_delivered(self, record: Record, topic: str) -> bool:
        """Whether the log holds a copy of this delayed record in its real topic."""
        unique = record.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        if not unique:
            return False
        found = self._store.query_message(
            topic, unique, _DUPLICATES_MAX, record.store_timestamp - INDEX_SLACK_MS, (1 << 63) - 1
        )
        for data in found.buffers:
            copy = decode_record(data)
            if (
                copy.topic == topic
                and copy.physical_offset > record.physical_offset
                and copy.reconsume_times == record.reconsume_times
                and copy.properties == record.properties
            ):
                return True
        return False
