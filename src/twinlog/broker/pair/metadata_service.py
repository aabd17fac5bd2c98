"""Writes metadata changes into the log on a master, applies them on a slave.

The form of the records and the rules of merging are in `metadata_log.py`. The writer is silent
until a twin slave has attached once (or `twinlogMetadataInLog=true`), so the log of a broker with
Apache peers only never holds such a record, and an idle master's log does not grow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from twinlog.broker.delay.schedule import ScheduleMessageService
from twinlog.broker.pair.metadata_log import (
    DelayMoved,
    EpochBegan,
    GroupsChanged,
    LocksMoved,
    MetadataChange,
    MetadataError,
    OffsetJournal,
    OffsetsMoved,
    TopicsChanged,
    decode_change,
    split_change,
)
from twinlog.broker.pair.skip_guard import Armed, SkipGuard
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.rebalance_lock import RebalanceLockManager
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.topic_config import TopicConfigManager, topic_from_json
from twinlog.ha.epochs import EpochEntry
from twinlog.message.model import PutMessage
from twinlog.message.names import METADATA_TOPIC
from twinlog.message.record import decode_record
from twinlog.remoting.bodies.common import MessageQueue
from twinlog.remoting.bodies.subscription_group import group_from_json
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.message_store import MessageStore
from twinlog.store.status import PutMessageStatus

_LOG = logging.getLogger("twinlog.broker")

WRITE_INTERVAL_MS = 500  # Offsets on a slave are at most a second behind; half for the way there.
_READ_COUNT = 64
_QUEUE = (METADATA_TOPIC, 0)
Locks = RebalanceLockManager[MessageQueue]
_Placed = tuple[int, MetadataChange]  # Where in the log the record is.


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTables:
    """What master and slave of a group have in common: the writer reads it, the reader changes it.
    Locks belong to it in a controlled group only."""

    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    schedule: ScheduleMessageService
    guard: SkipGuard
    clock: Clock
    locks: Locks | None = None


class MetadataWriter:
    """On a master: what changed becomes a record."""

    def __init__(self, tables: PairTables, *, host: bytes) -> None:
        self._tables = tables
        self._host = host
        self._is_enabled = False
        self._is_subscribed = False
        self._needs_snapshot = False
        self._owed: list[MetadataChange] = []
        self._delay_written: dict[int, int] = {}
        self.record_count = 0
        self.snapshot: range | None = None
        """Where in the log the newest snapshot is that was written as a whole by `write_tables`:
        who has a log with these bytes, or had them, has every table."""

    @property
    def is_enabled(self) -> bool:
        return self._is_enabled

    @property
    def journal(self) -> OffsetJournal | None:
        """What was committed since the last record."""
        return self._tables.offsets.journal

    def enable(self, *, at_once: bool = False) -> None:
        """From now on every change is written; what there is already is written first, before
        this call returns if `at_once`."""
        if self._is_enabled:
            return
        self._is_enabled = True
        self._tables.offsets.journal = OffsetJournal()
        if not self._is_subscribed:
            self._is_subscribed = True
            self._tables.topics.subscribe(self._topics_changed)
            self._tables.groups.subscribe(self._groups_changed)
        self._tables.guard.on_armed = self._write
        if self._tables.locks is not None:
            self._tables.locks.on_moved = self._locks_moved
        if at_once:
            self.write_tables()
        else:
            self.write_snapshot()
        _LOG.info("metadata is written into the log from now on topic=%s", METADATA_TOPIC)

    def disable(self) -> None:
        """This broker is not the master any more; another one writes what changes."""
        self._is_enabled = self._needs_snapshot = False
        self.snapshot = None
        self._owed = []
        self._tables.offsets.journal = None
        self._tables.guard.on_armed = None
        if self._tables.locks is not None:
            self._tables.locks.on_moved = None

    def write_snapshot(self) -> None:
        """Everything, so that a slave that reads from here on lacks nothing. It goes to the log
        when the turn ends: a slave that has just said who it is has not been answered yet."""
        self._needs_snapshot = False
        owed, self._owed = self._owed, []
        for change in owed:
            self._write(self._still_true(change))
        self._topics_changed(self._tables.topics.table)
        self._groups_changed(self._tables.groups.table)
        if (armed := self._tables.guard.armed) is not None:
            self._write(armed)
        table = {key: dict(queues) for key, queues in self._tables.offsets.table.items()}
        if table:
            self._write(OffsetsMoved(forward=table))
        self._delay_written = {}
        self._write_delays()
        for group, client_id, queues in (
            () if self._tables.locks is None else self._tables.locks.snapshot()
        ):
            self._locks_moved(group, client_id, queues)

    def write_tables(self) -> None:
        """The same at once, for replicas that are to join; `snapshot` says where it is."""
        store = self._tables.store
        store.write_pending()
        start = store.commit_log.max_offset
        self.write_snapshot()
        store.write_pending()
        if not self._needs_snapshot:
            self.snapshot = range(start, store.commit_log.max_offset)

    def tick(self) -> None:
        """Offsets that moved since the last call."""
        if not self._is_enabled:
            return
        if self._needs_snapshot:
            # A record was refused (a full disk): the next good moment writes everything again.
            self.write_snapshot()
            return
        try:
            journal = self._tables.offsets.journal
            if journal is not None and (change := journal.drain()) is not None:
                self._write(change)
            self._write_delays()
        except Exception:
            self._needs_snapshot = True  # What was drained and not written comes with the rest.
            raise

    def write_now(self) -> bool:
        """What was said to be done is about to be answered: whether all of it is in the log."""
        if self._needs_snapshot:
            self.tick()
        journal = self.journal
        if not self._needs_snapshot and journal is not None and journal.is_set_back:
            self.tick()
        return not self._needs_snapshot

    def _topics_changed(self, names: Iterable[str]) -> None:
        put, deleted = _parts(self._tables.topics.table, names)
        self._write(TopicsChanged(self._tables.topics.data_version.to_json(), put, deleted))

    def _groups_changed(self, names: Iterable[str]) -> None:
        put, deleted = _parts(self._tables.groups.table, names)
        self._write(GroupsChanged(self._tables.groups.data_version.to_json(), put, deleted))

    def _locks_moved(self, group: str, client_id: str, queues: list[MessageQueue]) -> bool:
        return self._write(_locks_record(group, client_id, queues))

    def _write_delays(self) -> None:
        offsets = self._tables.schedule.offsets
        moved = {
            level: offset
            for level, offset in offsets.items()
            if self._delay_written.get(level) != offset
        }
        if moved:
            self._delay_written.update(moved)
            self._write(DelayMoved(offsets=moved))

    def _write(self, change: MetadataChange) -> bool:
        if not self._is_enabled:
            return False
        for body in split_change(change):
            message = PutMessage(
                METADATA_TOPIC,
                0,
                body,
                born_timestamp=self._tables.clock.now_ms(),
                born_host=self._host,
                store_host=self._host,
            )
            result = self._tables.store.put(message)
            if result.status is not PutMessageStatus.PUT_OK:
                self._needs_snapshot = True
                if (rest := _beyond_tables(change)) is not None:
                    self._owed.append(rest)
                return False
            self.record_count += 1
        return True

    def _still_true(self, change: MetadataChange) -> MetadataChange:
        """Without names that are there again: their new queues are not to be deleted."""
        if isinstance(change, TopicsChanged):
            table: Collection[str] = self._tables.topics.table
        elif isinstance(change, GroupsChanged):
            table = self._tables.groups.table
        else:
            return change
        gone = [name for name in change.deleted if name not in table]
        return msgspec.structs.replace(change, deleted=gone)


def _beyond_tables(change: MetadataChange) -> MetadataChange | None:
    """What a snapshot of the tables does not say: what they do not have any more."""
    if isinstance(change, TopicsChanged | GroupsChanged) and change.deleted:
        return msgspec.structs.replace(change, put={})
    if isinstance(change, OffsetsMoved) and (change.back or change.removed):
        return OffsetsMoved(back=change.back, removed=change.removed)
    return None


def _locks_record(group: str, client_id: str, queues: list[MessageQueue]) -> LocksMoved:
    named = [(queue.topic, queue.broker_name, queue.queue_id) for queue in queues]
    return LocksMoved(group, named, client_id)


def _parts(table: dict[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    put = {name: table[name].to_json() for name in names if name in table}
    return put, [name for name in names if name not in table]


# What the log says of a table, by the name of its file.
_KINDS: dict[str, type] = {
    "topics.json": TopicsChanged,
    "subscriptionGroup.json": GroupsChanged,
    "consumerOffset.json": OffsetsMoved,
    "delayOffset.json": DelayMoved,
}


def _ends_of(ends: Mapping[tuple[str, int], int]) -> list[tuple[str, int, int]]:
    return sorted((topic, number, end) for (topic, number), end in ends.items())


class _Position(msgspec.Struct):
    """How far a slave has applied the queue, in `store/twinlog/metadata.json`, and the locks up to
    there or further: they have no file of their own, and are not read from the start again. `ends`
    are those of queues that were cut since the tables were saved: (topic, queue, end)."""

    next_offset: int = 0
    locks: list[LocksMoved] = []
    ends: list[tuple[str, int, int]] = []


class MetadataReader:
    """On a slave: applies the records in the order of the log, as they are dispatched."""

    def __init__(self, tables: PairTables, *, disk: Disk, path: str) -> None:
        self._tables = tables
        self._disk = disk
        self._path = path
        self._position = _Position()
        self._saved = _Position()
        self._writing = threading.Lock()
        self._cut_count = 0
        self._cut_ends: dict[tuple[str, int], int] = {}
        self._cut_number = self._marked_number = 0
        self.applied_count = 0
        self.last_store_time_ms = 0
        """When the newest applied record was stored on the master: 0 before the first."""

    def load(self, *, only_offsets: bool = False) -> None:
        """Find where the last process stopped, and apply what came since."""
        if self._disk.exists(self._path):
            try:
                self._position = decode_saved(self._disk.read_bytes(self._path), _Position)
            except BrokenSealError as error:
                # Reading from the start again is right, only slower.
                _LOG.warning("metadata position unreadable path=%s error=%s", self._path, error)
            self._saved = msgspec.structs.replace(self._position)
        for change in self._position.locks:
            self._locks_heard(change)
        self._cut_ends = {(topic, number): end for topic, number, end in self._position.ends}
        self._tables.offsets.queues_cut(self._cut_ends)
        self._tables.schedule.queues_cut(self._cut_ends)
        self.queues_cut({_QUEUE: self._tables.store.max_offset_in_queue(*_QUEUE)})
        self.catch_up(only_offsets=only_offsets)

    def recover(self, name: str) -> int:
        """Apply all that the log says of one table, whose file was lost; how many changes.

        `name` is that of the file. On a slave its master's table replaces it soon; a master has
        nothing else, besides the offsets that its slave gives back.
        """
        kind = _KINDS.get(name)
        if kind is None:
            return 0
        placed, _ = self._read(self._tables.store.min_offset_in_queue(*_QUEUE))
        found = [change for _, change in placed if isinstance(change, kind)]
        if found:
            self._apply(found)
        return len(found)

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The log was cut: records that take the place of those that are gone count too, also
        after a kill, so the place on the disk moves back before they come. So do offsets: tables on
        the disk stand where the lost tail did, and would pass over what comes instead."""
        place = min(self._position.next_offset, ends.get(_QUEUE, self._position.next_offset))
        self._position.next_offset = place
        self._cut_number += 1
        for key, end in ends.items():
            if key != _QUEUE:
                self._cut_ends[key] = min(end, self._cut_ends.get(key, end))
        if place < self._saved.next_offset or _ends_of(self._cut_ends) != self._saved.ends:
            self._cut_count += 1
            place = min(place, self._saved.next_offset)
            self._save_now(_Position(place, self._saved.locks, _ends_of(self._cut_ends)))

    def _save_now(self, place: _Position) -> None:
        try:
            self._write(place, self._cut_count)
        except OSError as error:
            _LOG.warning("position in the metadata not saved, removed error=%s", error)
            with suppress(OSError):  # Without it everything is read again, which is right.
                self._disk.unlink(self._path)
            self._saved = _Position()

    def epochs(self) -> list[EpochEntry]:
        """The epochs that the records of this log open; what lies before them has no checksum."""
        placed, _ = self._read(self._tables.store.min_offset_in_queue(*_QUEUE))
        return [
            EpochEntry(change.epoch, change.previous_end, 0, change.is_clean)
            for _, change in placed
            if isinstance(change, EpochBegan)
        ]

    def rewind(self) -> None:
        """On a broker that was the master: what nobody has confirmed of its log is read again, as
        the next master has it."""
        self.queues_cut({_QUEUE: self._tables.store.max_offset_in_queue(*_QUEUE)})

    def take_all(self) -> None:
        """On a broker that becomes the master: also what consumers do not see yet."""
        queue = self._tables.store.queue_table.get(*_QUEUE)
        if queue is None:
            return
        shown, queue.max_offset = queue.max_offset, queue.next_offset
        try:
            self.catch_up()
        finally:
            queue.max_offset = shown

    def follow_master(self) -> None:
        """On a master: its own records are in its tables already, should it be a slave again."""
        self._position.next_offset = self._tables.store.max_offset_in_queue(*_QUEUE)

    @property
    def behind_count(self) -> int:
        """Records in the queue that are not applied."""
        return self._tables.store.max_offset_in_queue(*_QUEUE) - self._position.next_offset

    def mark(self) -> int:
        """The first record that is not applied; the tables are about to be saved as they are."""
        self._marked_number = self._cut_number
        return self._position.next_offset

    async def save(self, next_offset: int) -> None:
        """Keep the place that was reached before the tables were saved; a cut moves it back. What
        was cut before them is in them."""
        if self._cut_number == self._marked_number:
            self._cut_ends = {}
        locks = () if self._tables.locks is None else self._tables.locks.snapshot()
        place = _Position(
            min(next_offset, self._position.next_offset),
            [_locks_record(*lock) for lock in locks],
            _ends_of(self._cut_ends),
        )
        if place != self._saved:
            await self._disk.run(self._write, place, self._cut_count)

    def _write(self, place: _Position, cut_count: int) -> None:
        with self._writing:
            if cut_count == self._cut_count:
                write_atomically(self._disk, self._path, encode_saved(place))
                self._saved = place

    def queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        if _QUEUE in keys:
            self.catch_up()

    def catch_up(self, *, only_offsets: bool = False) -> None:
        """Apply all records that are dispatched by now, tables saved once."""
        first = self._tables.store.min_offset_in_queue(*_QUEUE)
        placed, self._position.next_offset = self._read(max(self._position.next_offset, first, 0))
        if only_offsets:
            placed = [(at, change) for at, change in placed if isinstance(change, OffsetsMoved)]
        if placed:
            self._apply([change for _, change in placed])
            self._delete_queues(placed)

    def _delete_queues(self, placed: list[_Placed]) -> None:
        """Of topics that the master has deleted: if one is made again, also after a switch, its
        messages of before do not come back. Its queues may have newer ones by now."""
        for at, change in placed:
            if isinstance(change, TopicsChanged) and change.deleted:
                self._tables.store.delete_topics(change.deleted, at)

    def _read(self, position: int) -> tuple[list[_Placed], int]:
        """What is in the queue from `position` on, and where it ends."""
        changes: list[_Placed] = []
        while position < self._tables.store.max_offset_in_queue(*_QUEUE):
            result = self._tables.store.get_message(*_QUEUE, position, _READ_COUNT)
            if result.next_begin_offset <= position:
                break
            for buffer in result.buffers:
                changes += self._decode(buffer)
            position = result.next_begin_offset
        return changes, position

    def _decode(self, buffer: bytes) -> list[_Placed]:
        changes: list[_Placed] = []
        offset = 0
        while offset < len(buffer):
            record = decode_record(buffer, offset)
            offset += record.total_size
            if record.properties or record.born_host != record.store_host:
                # A master wrote none of those itself: a client of one that lets it, as Apache's.
                _LOG.warning("metadata record of a client offset=%d", record.physical_offset)
                continue
            self.last_store_time_ms = record.store_timestamp
            try:
                change = decode_change(bytes(record.body))
                changes.append((record.physical_offset, change))
            except MetadataError as error:
                # A newer twinlog may write kinds that we do not know; the rest still counts.
                _LOG.warning(
                    "metadata record skipped offset=%d reason=%s", record.physical_offset, error
                )
        return changes

    def _apply(self, changes: list[MetadataChange]) -> None:
        self.applied_count += len(changes)
        topics = [change for change in changes if isinstance(change, TopicsChanged)]
        self._apply_tables(topics, self._tables.topics, topic_from_json)
        groups = [change for change in changes if isinstance(change, GroupsChanged)]
        self._apply_tables(groups, self._tables.groups, _parse_group)
        for change in changes:
            if isinstance(change, OffsetsMoved):
                self._tables.offsets.merge(change)
            elif isinstance(change, DelayMoved):
                merged = {**self._tables.schedule.offsets, **change.offsets}
                self._tables.schedule.replace({"offsetTable": merged})
            elif isinstance(change, Armed):
                self._guard_armed(change)
            elif isinstance(change, LocksMoved):
                self._locks_heard(change)

    def _locks_heard(self, change: LocksMoved) -> None:
        if self._tables.locks is not None:
            queues = [MessageQueue(*queue) for queue in change.queues]
            now_ms = self._tables.clock.monotonic_ms()
            self._tables.locks.heard(change.group, queues, change.client_id, now_ms)

    def _guard_armed(self, armed: Armed) -> None:
        """As on the master at this place of the log: what was committed further is of its lost
        tail. Those who have not come back since are sent back here too, after a promotion."""
        self._tables.guard.heard(armed)
        self._tables.offsets.queues_cut(
            {(topic, n): end for topic, queues in armed.ends.items() for n, end in queues.items()}
        )

    def _apply_tables(self, changes: list[Any], manager: Any, parse: Any) -> None:
        if not changes:
            return
        table = dict(manager.table)
        for change in changes:
            for name in change.deleted:
                table.pop(name, None)
            for name, value in change.put.items():
                try:
                    table[name] = parse(name, value)
                except msgspec.ValidationError as error:
                    _LOG.warning("metadata of %s skipped reason=%s", name, error)
        manager.replace(table, changes[-1].version)


def _parse_group(name: str, value: dict[str, Any]) -> Any:
    return group_from_json({**value, "groupName": name})
