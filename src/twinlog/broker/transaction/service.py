"""Transactions: ends them, checks the undecided (TransactionalMessageServiceImpl of RocketMQ).

A commit puts the message and the note that its half is done in the same turn of the loop, so both
are written by one call. A crash between them is noticed at the start: a committed record names
the half record it came from. A check stores the half message once more with its counter, as
RocketMQ does, so progress and counters survive a restart and another broker's hands.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from twinlog.broker.errors import BrokerError
from twinlog.broker.host import store_host
from twinlog.broker.put.replies import PutCallback
from twinlog.broker.stats.store_view import (
    INDEX_SLACK_MS,
    placed_end,
    placed_entries,
    queue_entries,
    record_of_entry,
)
from twinlog.broker.transaction import half as halves
from twinlog.broker.transaction.pending import HalfPlace, PendingHalves
from twinlog.broker.transaction.recent import RecentHalf, RecentHalves
from twinlog.message.model import PutMessage, Record
from twinlog.message.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from twinlog.message.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
    property_value,
)
from twinlog.message.record import RecordError, decode_record
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.headers.clients import CheckTransactionStateRequestHeader
from twinlog.remoting.headers.send import EndTransactionRequestHeader
from twinlog.runtime.clock import SteadyWall, TimerHandle
from twinlog.runtime.loop_share import LoopShare
from twinlog.runtime.numbers import INT32_MAX, INT64_MAX, number_or_none
from twinlog.store.errors import RecordDamagedError
from twinlog.store.status import AppendResult, PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")

_HEAL_MS = 200
_READ = 512  # Entries of a queue in one step.
_MISSED_MAX = 1_000  # Damaged records that one search notes; the next one goes on from there.
_COPIES_MAX = 64
_HOUR_MS = 3_600_000
_GROUPS_SAID = 16  # In one check; what is behind them is one line.
_AWAITED_MAX = 1_024  # Groups of producers; those of more are asked in the next check.
# After a switch clients come by themselves: those of RocketMQ look for routes every 30 s and send
# heartbeats every 30 s. Meanwhile their sends are passed on, and nobody is there to be asked.
_PRODUCERS_COME_MS = 70_000
_GROUP = PROPERTY_PRODUCER_GROUP.encode()
_UNIQUE = PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode()


class TransactionalMessageService:
    """Half messages of one master."""

    def __init__(self, broker: Broker) -> None:
        self._failures = broker.failures
        self._config = broker.config
        self._store = broker.store
        self._replies = broker.replies
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._producers = broker.producers
        self._stats = broker.stats
        self._clock = broker.clock
        self._steady = SteadyWall(broker.clock)
        self.host = store_host(broker.config)
        self.pending = PendingHalves()
        self.recent = RecentHalves()
        self._is_running = False
        self._waiting: TimerHandle | None = None  # For a damaged record, at a start.
        self._is_wait_said = False
        self._missed: list[tuple[str, int]] = []  # Topic and number of such records.
        self._missed_text = ""
        self._given_up = (0, "")  # In the present check: how many, and the last.
        self._unasked: dict[str, tuple[int, str]] = {}  # By group: how many, and one of them.
        self._counts_unasked_from_ms = 0  # Monotonic.
        self._tasks = broker.tasks
        self._checking = asyncio.Lock()
        self._awaited: set[str] = set()  # Groups of which nobody was there to be asked.
        self._came: set[str] = set()  # Of these, who is there now, and was not asked yet.
        broker.producers.on_joined = self._producer_joined
        self.commit_count = 0
        self.rollback_count = 0

    @property
    def pending_count(self) -> int:
        return len(self.pending)

    # Life

    def start(self, *, after_crash: bool, after_switch: bool = False) -> None:
        """Find the undecided: those behind the saved progress that no op message speaks of.

        Also in what a group has not confirmed yet: it is in this log, and what follows a half
        message there decides it, whenever consumers see either. After a switch, producers are
        given the time to come before a check that can't ask anybody counts.
        """
        wait_ms = _PRODUCERS_COME_MS if after_switch else 0
        self._counts_unasked_from_ms = self._clock.monotonic_ms() + wait_ms
        self._awaited.clear()
        self._missed.clear()
        self._begin(after_crash=after_crash)

    def _begin(self, *, after_crash: bool) -> None:
        self._waiting = None
        try:
            while self._missed:
                self._read_again(*self._missed[-1])
                self._missed.pop()
            self._find_undecided(after_crash=after_crash)
        except RecordDamagedError as error:
            # Without one of these records an end counts as none, or a half message as ended. A
            # replica may give a good copy soon; ends are refused until then, and asked for later.
            self._is_running = False
            self.pending = PendingHalves()
            self._waiting = self._clock.call_later_ms(
                _HEAL_MS, functools.partial(self._begin, after_crash=after_crash)
            )
            if not self._is_wait_said:
                _LOG.warning("transactions wait until a record is healed: %s", error)
            self._is_wait_said = True
            return
        self._is_wait_said = False

    def _find_undecided(self, *, after_crash: bool) -> None:
        half_progress = self._progress(HALF_TOPIC)
        op_progress = self._progress(OP_HALF_TOPIC)
        self.pending = PendingHalves(half_progress, op_progress)
        # Where a record was that a switch has cut, another one may be now.
        self.recent = RecentHalves()
        done = self._read_ops(op_progress)
        self._need_none_missed()
        self._is_running = True
        self._read_halves(is_start=True)
        if self._store.max_offset_in_queue(HALF_TOPIC, 0):
            self._show_topic()
        for offset in done:
            self.pending.done(offset)
        if after_crash:
            self._settle_after_crash(half_progress)

    def stop(self) -> None:
        self.note_progress()
        self._is_running = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _progress(self, topic: str) -> int:
        saved = self._offsets.query(TRANSACTION_GROUP, topic, 0)
        end = placed_end(self._store, topic, 0)
        return min(max(saved, self._store.min_offset_in_queue(topic, 0), 0), end)

    def note_progress(self) -> None:
        """Put the progress of both queues among the consumer offsets, where RocketMQ has it."""
        if not self._is_running or not self._store.max_offset_in_queue(HALF_TOPIC, 0):
            return
        self.pending.forget_moves_of_done()
        for topic, offset in (
            (HALF_TOPIC, self.pending.half_progress),
            (OP_HALF_TOPIC, self.pending.op_progress),
        ):
            if self._offsets.query(TRANSACTION_GROUP, topic, 0) != offset:
                self._offsets.note_own(TRANSACTION_GROUP, topic, offset)

    def queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        if self._is_running and (HALF_TOPIC, 0) in keys:
            self._read_halves()

    def _read_halves(self, *, is_start: bool = False) -> None:
        read = placed_entries if is_start else queue_entries
        while True:
            start = self.pending.next_offset
            entries = read(self._store, HALF_TOPIC, 0, start, _READ)
            if not entries:
                return
            self.pending.add_run(start, [HalfPlace(at, size) for at, size, _ in entries])

    def _read_ops(self, start: int) -> list[int]:
        """Half offsets that op messages from `start` on declare done."""
        done: list[int] = []
        while True:
            entries = placed_entries(self._store, OP_HALF_TOPIC, 0, start, _READ)
            if not entries:
                return done
            for index, (physical_offset, size, _) in enumerate(entries):
                record = self._read_or_note(OP_HALF_TOPIC, start + index, (physical_offset, size))
                half_offset = None if record is None else number_or_none(record.body)
                if half_offset is not None:
                    done.append(half_offset)
                    self.pending.op_stored(start + index, half_offset)
            start += len(entries)

    def _settle_after_crash(self, start: int) -> None:
        """What was stored again, or committed without its note, is not open any more.

        The progress on disk may be behind: the copies that checks made count as one message,
        and its last copy says how it stands.
        """
        last: dict[str, int] = {}
        while entries := placed_entries(self._store, HALF_TOPIC, 0, start, _READ):
            for offset, (physical_offset, size, _) in enumerate(entries, start):
                record = self._read_or_note(HALF_TOPIC, offset, (physical_offset, size))
                if self._missed:
                    continue  # What this search finds does not count.
                if record is None:
                    self.pending.done(offset)
                    continue
                unique = record.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
                if unique:
                    if unique in last:
                        self.pending.moved(last[unique], offset)
                    last[unique] = offset
                try:
                    if self.pending.find(offset) == offset and self._was_committed(record):
                        self.note_done(offset)
                except Exception as error:
                    # Not known to be committed: it is checked, and decided once more.
                    self._failures.note("transaction settling", error, f"half message {offset}")
            start += len(entries)
        self._need_none_missed()

    def _was_committed(self, half: Record) -> bool:
        target = halves.real_queue(half)
        unique = half.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        if target is None or not unique:
            return False
        found = self._store.query_message(
            target[0], unique, _COPIES_MAX, half.born_timestamp - INDEX_SLACK_MS, INT64_MAX
        )
        return any(
            decode_record(data).prepared_transaction_offset == half.physical_offset
            for data in found.buffers
        )

    def _read(self, topic: str, number: int, entry: tuple[int, int]) -> Record | None:
        try:
            data = record_of_entry(self._store, topic, 0, number, entry)
            return None if data is None else decode_record(data)
        except RecordDamagedError as error:
            if error.is_retried:
                raise  # This round fails; in the next one it may be healed.
            return None
        except RecordError as error:
            _LOG.error("half record unreadable at=%d error=%s", entry[0], error)
            return None

    def _read_or_note(self, topic: str, number: int, entry: tuple[int, int]) -> Record | None:
        """For the search: all records that wait for a replica are noted in one go. It may be long,
        and is made again once they are healed, not for each of them."""
        try:
            return self._read(topic, number, entry)
        except RecordDamagedError as error:
            if len(self._missed) >= _MISSED_MAX:
                raise
            self._missed.append((topic, number))
            self._missed_text = str(error)
            return None

    def _need_none_missed(self) -> None:
        if self._missed:
            raise RecordDamagedError(self._missed_text, is_retried=True)

    def _read_again(self, topic: str, number: int) -> Record | None:
        """By the entry as it is now, which may have been mended."""
        entries = placed_entries(self._store, topic, 0, number, 1)
        return self._read(topic, number, entries[0][:2]) if entries else None

    def _read_pending(self, offset: int) -> Record | None:
        return None if self.pending.place(offset) is None else self._read_again(HALF_TOPIC, offset)

    # The end of a transaction

    def remember(
        self,
        message: PutMessage,
        physical_offset: int,
        half_offset: int,
        topic: str,
        queue_id: int,
        must_wait: bool,
    ) -> None:
        """A half message was put, meant for this queue: its end is expected soon."""
        half = RecentHalf(message, topic, queue_id, half_offset, must_wait)
        self.recent.add(physical_offset, half)
        if HALF_TOPIC not in self._topics.table:
            self._show_topic()

    def _show_topic(self) -> None:
        """The half topic is a topic like others: listed, to be read, kept by a clean-up."""
        self._topics.create_in_send_back(HALF_TOPIC, queue_count=1)

    def commit(self, header: EndTransactionRequestHeader, answered: PutCallback | None) -> None:
        """Put the message where it was meant to go. Raises BrokerError that says why not."""
        self._need_known()
        half = self._find_recent(header)
        if half is not None:
            offset, message, must_wait = half.half_offset, half.message, half.must_wait
            halves.commit_half(message, half.topic, half.queue_id, header.commit_log_offset)
        else:
            offset, record = self._find(header)
            target = halves.real_queue(record)
            if target is None:
                remark = "The half message does not say where it belongs"
                raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
            message = halves.committed_message(record, *target)
            wait = record.property_map.get(PROPERTY_WAIT_STORE_MSG_OK, "true")
            must_wait = wait.lower() == "true"
        result = self._put_committed(message, offset)
        if answered is not None:
            self._replies.add(result, answered, must_wait)

    def _put_committed(self, message: PutMessage, half_offset: int) -> AppendResult:
        """The message, and the note that its half is done, in the same turn."""
        result = self._store.put(message)
        if result.status is not PutMessageStatus.PUT_OK:
            raise _refused(result)
        self.note_done(half_offset)
        self.committed(message.topic, 1, result.end_offset - result.physical_offset)
        return result

    def committed(self, topic: str, messages: int, size: int) -> None:
        """So many were put to this topic, with records of so many bytes."""
        self.commit_count += messages
        self._stats.count_put(topic, messages, size)

    def rollback(self, header: EndTransactionRequestHeader) -> None:
        """Drop the half message. Raises BrokerError that says why not."""
        self._need_known()
        half = self._find_recent(header)
        self.note_done(half.half_offset if half is not None else self._find(header)[0])
        self.rollback_count += 1

    def _need_known(self) -> None:
        if self._waiting is not None:
            remark = "a damaged record of the transactions is being healed; you are asked later"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def _find_recent(self, header: EndTransactionRequestHeader) -> RecentHalf | None:
        """The half message that ends, if it is at hand and the end is right in every respect."""
        half = self.recent.take(header.commit_log_offset)
        if (
            half is not None
            and half.half_offset == header.tran_state_table_offset
            # Also false for one whose append failed, or that a check has moved.
            and self.pending.is_at(half.half_offset, header.commit_log_offset)
            and property_value(half.message.properties, _GROUP) == header.producer_group.encode()
            and _names(
                (header.msg_id, header.transaction_id),
                property_value(half.message.properties, _UNIQUE),
            )
        ):
            return half
        return None

    def _find(self, header: EndTransactionRequestHeader) -> tuple[int, Record]:
        try:
            data = self._store.message_by_offset(header.commit_log_offset)
            record = None if data is None else decode_record(data)
        except RecordDamagedError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except RecordError:
            record = None
        if record is None or record.topic != HALF_TOPIC:
            remark = "Find prepared transaction message failed"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if record.property_map.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != header.tran_state_table_offset:
            remark = "The transaction state table offset wrong"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        unique = record.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
        if not _names((header.msg_id, header.transaction_id), unique.encode()):
            remark = f"The half message there belongs to another transaction, {unique}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        offset = self.pending.find(record.queue_offset)
        if offset is None:
            remark = "The transaction was ended before, or given up after its last check"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        current = record
        if offset != record.queue_offset:
            current = self._read_pending(offset) or record
        return offset, current

    def note_done(self, half_offset: int) -> None:
        """Put the note that this half message is decided."""
        message = halves.op_message(half_offset, host=self.host, now_ms=self._clock.now_ms())
        result = self._store.put(message)
        if result.status is PutMessageStatus.PUT_OK:
            self.pending.op_stored(result.queue_offset, half_offset)
        else:
            # Without its note it is checked once more after a restart, and decided again.
            _LOG.error("op message refused status=%s", result.status.name)
        self.pending.done(half_offset)

    # The check of the undecided

    async def check(self) -> None:
        """One run: ask producers about those old enough, give up those asked too often.

        There may be very many: others have as much of the loop as they.
        """
        async with self._checking:
            await self._check_all()
            self._say_what_was_found()
            self.note_progress()

    def _producer_joined(self, group: str) -> None:
        """A check that found nobody of this group asks it now: the next one may be a minute away,
        and after a switch clients come half a minute late."""
        if self._is_running and group in self._awaited:
            self._awaited.discard(group)
            if not self._came:
                self._tasks.job("transaction check", self._check_those_who_came())
            self._came.add(group)

    async def _check_those_who_came(self) -> None:
        async with self._checking:
            groups, self._came = self._came, set()
            await self._check_all(groups)

    async def _check_all(self, groups: Collection[str] | None = None) -> None:
        share = LoopShare(self._clock)
        for offset in self.pending.snapshot():
            if share.is_used:
                await share.rest()
            if self._is_running and self.pending.find(offset) == offset:
                try:
                    self._check_one(offset, groups)
                except Exception as error:
                    # It stays undecided and is looked at again in the next round.
                    self._failures.note("transaction check", error, f"half message {offset}")

    def _say_what_was_found(self) -> None:
        """One line for each group, of a few: a peer makes as many as it likes."""
        if self._given_up[0]:
            _LOG.warning("transactions given up count=%d last=%s", *self._given_up)
            self._given_up = (0, "")
        unasked, self._unasked = self._unasked, {}
        for group, (count, message_id) in unasked.items():
            _LOG.warning(
                "no producer to ask about transactions group=%s count=%d last=%s",
                group, count, message_id,
            )  # fmt: skip

    def _check_one(self, offset: int, groups: Collection[str] | None) -> None:
        record = self._read_pending(offset)
        if record is None:
            self.pending.done(offset)
            return
        if groups is not None and record.property_map.get(PROPERTY_PRODUCER_GROUP) not in groups:
            return
        age = self._steady.now_ms() - record.born_timestamp
        times = halves.check_times(record)
        if times >= self._config.transaction_check_max or age > self._retention_ms:
            self._give_up(offset, record)
        elif (age >= self._immunity_ms(record) or age < 0) and not self._is_repeat(offset, record):
            self._ask(offset, record, times + 1)

    def _is_repeat(self, offset: int, record: Record) -> bool:
        """Whether this half message stands for another one. A client that got no answer, as after
        the loss of a master, sends it again, and ends the one that was answered: this one would
        be committed a second time. Its last copy says how it stands; one that its application
        sends again has the same id, and was born later."""
        target = halves.real_queue(record)
        if target is None:
            return False
        later = [at for at in self._same(HALF_TOPIC, record) if at > offset]
        if later:
            self.pending.moved(offset, max(later))
        elif self._same(target[0], record):
            self.note_done(offset)
        else:
            return False
        return True

    def _same(self, topic: str, half: Record) -> list[int]:
        """Places in their queues of what was made of the same call of a client."""
        unique = half.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        if not unique:
            return []
        begin_ms = half.born_timestamp - INDEX_SLACK_MS
        found = self._store.query_message(topic, unique, _COPIES_MAX, begin_ms, INT64_MAX)
        records = (decode_record(data) for data in found.buffers)
        return [
            record.queue_offset
            for record in records
            if record.born_timestamp == half.born_timestamp
            and record.property_map.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) == unique
        ]

    @property
    def _retention_ms(self) -> int:
        return self._config.file_reserved_time * _HOUR_MS

    def _immunity_ms(self, record: Record) -> int:
        text = record.property_map.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        seconds = number_or_none(text, high=INT32_MAX)
        return self._config.transaction_time_out if seconds is None else seconds * 1000

    def _give_up(self, offset: int, record: Record) -> None:
        self._topics.create_in_send_back(CHECK_MAX_TIME_TOPIC, queue_count=1)
        result = self._store.put(halves.given_up_message(record))
        if result.status is PutMessageStatus.PUT_OK:
            self._given_up = (self._given_up[0] + 1, record.message_id)
            self.pending.done(offset)

    def _ask(self, offset: int, record: Record, times: int) -> None:
        group = record.property_map.get(PROPERTY_PRODUCER_GROUP, "")
        connection = self._producers.available_connection(group)
        target = halves.real_queue(record)
        if connection is None or target is None:
            self._note_unasked(group, record)
            if self._clock.monotonic_ms() < self._counts_unasked_from_ms:
                return
        message = halves.with_check_times(record, times)
        result = self._store.put(message)
        if result.status is not PutMessageStatus.PUT_OK:
            return
        self.pending.moved(offset, result.queue_offset)
        if connection is not None and target is not None:
            connection.oneway(self._check_request(record, message, result, target))

    def _note_unasked(self, group: str, record: Record) -> None:
        if len(self._awaited) < _AWAITED_MAX:
            self._awaited.add(group)
        name = group if len(self._unasked) < _GROUPS_SAID else "(others)"
        count, _ = self._unasked.get(name, (0, ""))
        self._unasked[name] = (count + 1, record.message_id)

    def _check_request(
        self,
        record: Record,
        message: PutMessage,
        result: AppendResult,
        target: tuple[str, int],
    ) -> RemotingCommand:
        properties = {
            **record.property_map,
            PROPERTY_TRANSACTION_CHECK_TIMES: str(halves.check_times(record) + 1),
        }
        unique = properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=result.physical_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=self._replies.message_id(result.physical_offset),
        )
        body = halves.check_record(
            message,
            target,
            queue_offset=result.queue_offset,
            physical_offset=result.physical_offset,
            store_timestamp=record.store_timestamp,
            properties=properties,
        )
        return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body)

    def resume(self, record: Record) -> AppendResult:
        """Put a message that was given up back to be checked, with its counter at 0."""
        return self._store.put(halves.with_check_times(record, 0))


def _names(ids: tuple[str | None, ...], unique: bytes | None) -> bool:
    """Whether the end is that of this half message, as far as both say.

    Places are not enough: a half message that a switch has cut leaves its place to another one.
    Clients name the id as the message's, as the transaction's, or as both.
    """
    named = [each.encode() for each in ids if each]
    return not unique or not named or unique in named


def _refused(result: AppendResult) -> BrokerError:
    match result.status:
        case PutMessageStatus.MESSAGE_ILLEGAL | PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            code = ResponseCode.MESSAGE_ILLEGAL
        case PutMessageStatus.SERVICE_NOT_AVAILABLE:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        case _:
            code = ResponseCode.SYSTEM_ERROR
    return BrokerError(code, f"{result.status.name} {result.reason}".strip())
