"""How far each group has consumed each queue (RocketMQ's ConsumerOffsetManager).

Owns `config/consumerOffset.json`, saved every `flushConsumerOffsetInterval` and at the stop, as
in Apache. The last commit wins, also a smaller one. A key is `topic@group`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

from twinlog.broker.pair.metadata_log import OffsetJournal, OffsetsMoved, OffsetTable, merge_offsets
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.tables import offset_json
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message.names import BROKERS_OWN_GROUPS, is_system_topic
from twinlog.runtime.limits import TOPIC_QUEUES_MAX
from twinlog.runtime.numbers import number_of
from twinlog.runtime.saving import TableSaver

_LOG = logging.getLogger("twinlog.broker")
_SEPARATOR = "@"
UNKNOWN_OFFSET = -1
_OFFSET_MAX = (1 << 63) - 1
_T = TypeVar("_T")
Steps = Generator[None, None, _T]
_LOOK_KEYS = 1000  # Keys between two looks at the time.
PLACES_MAX = 2_000_000  # Queues of all groups together, some hundred MB: names cost nothing.


def offset_table(data: Any) -> OffsetTable:
    """The table in a file's or a peer's JSON object.

    Raises ValueError, TypeError or AttributeError when it is not one: nothing of it is taken then.
    """
    return {str(key): _offsets(key, queues) for key, queues in _entries(data)}


def _entries(data: Any) -> Iterable[tuple[Any, Any]]:
    entries: Iterable[tuple[Any, Any]] = (data.get("offsetTable") or {}).items()
    return entries


def _offsets(key: object, queues: Any) -> dict[int, int]:
    offsets = {number_of(number): number_of(value) for number, value in queues.items()}
    if not all(map(is_offset, offsets.values())):
        raise ValueError(f"an offset of {key} is not a number")
    return offsets


def is_offset(number: int) -> bool:
    """Whether a table may hold it; a smaller one would keep the table from being read again."""
    return UNKNOWN_OFFSET <= number <= _OFFSET_MAX


class ConsumerOffsetManager:
    """The table of consumer offsets."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self.saver = TableSaver("offsets", self._write)
        self.table: dict[str, dict[int, int]] = {}
        self._places = 0  # Queues in the table; counted again with each save.
        # How far each queue was handed out since the start, for the metrics. In memory only.
        self.pulled: dict[str, dict[int, int]] = {}
        # Set on a master whose slave follows through the log: told of every commit.
        self.journal: OffsetJournal | None = None
        # Set on a broker that was just promoted.
        self.guard: SkipGuard | None = None

    def load(self) -> None:
        """Read the file; it replaces the whole table.

        What is no offset is left out: one group of thousands is no reason not to start.
        """
        data = self.file.load()
        if data is None:
            return
        self.table = {}
        for key, queues in _entries(data):
            try:
                self.table[str(key)] = _offsets(key, queues)
            except (ValueError, TypeError, AttributeError) as error:
                _LOG.warning("offsets left out path=%s error=%s", self.file.path, error)
        self._count_places()

    def _count_places(self) -> None:
        self._places = sum(map(len, self.table.values()))

    async def _write(self) -> None:
        self._count_places()
        await self.file.save_parts(offset_json.pretty_parts(self.table))

    def replace(self, data: Any) -> None:
        """Take over a table as a file or a master has it."""
        self.table = offset_table(data)
        self._count_places()
        self.saver.touched()

    def merge(self, change: OffsetsMoved) -> None:
        """Take over what moved on the other replica; forward only, unless it was set back."""
        if merge_offsets(self.table, change):
            self.saver.touched()

    def take_forward(
        self, table: OffsetTable, queue_end: Callable[[str, int], int], *, are_own_taken: bool
    ) -> int:
        """Move forward to a peer's offsets, none beyond the end of our own queue; how many moved.

        An offset beyond it would skip what the queue gets next: the peer's log was longer. Of a
        queue that is not here nothing is taken. `are_own_taken`: the peer is our master.
        """
        moved = 0
        for key, queues in table.items():
            topic, _, group = key.partition(_SEPARATOR)
            if group in BROKERS_OWN_GROUPS and not are_own_taken:
                continue
            mine = self.table.get(key, {})
            for queue_id, offset in queues.items():
                if offset <= mine.get(queue_id, UNKNOWN_OFFSET):
                    continue
                reachable = min(offset, queue_end(topic, queue_id))
                if reachable > mine.get(queue_id, 0):
                    self._set(group, topic, queue_id, reachable)
                    moved += 1
        return moved

    def queues_cut(
        self, ends: Mapping[tuple[str, int], int], *, is_rest_empty: bool = False
    ) -> bool:
        """These queues are shorter now: an offset behind the end would skip what comes next.

        Whether there was one. `is_rest_empty`: users' queues that are not named have nothing.
        """
        was_cut = False
        for key, queues in self.table.items():
            topic = key.partition(_SEPARATOR)[0]
            is_empty = is_rest_empty and not is_system_topic(topic)
            for queue_id, offset in queues.items():
                end = ends.get((topic, queue_id), 0 if is_empty else offset)
                if offset > end:
                    queues[queue_id] = end
                    self.saver.touched()
                    was_cut = True
        return was_cut

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """The last one wins. What is no offset moves nothing. False: there is no room for it.

        What a peer says of the broker's own progress moves nothing either.
        """
        if group in BROKERS_OWN_GROUPS or not is_offset(offset):
            return True
        return self._set(group, topic, queue_id, offset)

    def note_own(self, group: str, topic: str, offset: int) -> None:
        """How far the broker itself is with its queue 0 of a topic."""
        self._set(group, topic, 0, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None or queue_id not in queues:
            if not self._has_room(group, queues):
                return False
            self._places += 1
        if self.guard is not None and self.guard.is_armed:
            committed = UNKNOWN_OFFSET if queues is None else queues.get(queue_id, UNKNOWN_OFFSET)
            offset = self.guard.commit(group, topic, queue_id, offset, committed)
        if queues is None:
            queues = self.table[key] = {}
        if self.journal is not None:
            self.journal.committed(key, queue_id, offset, queues.get(queue_id, UNKNOWN_OFFSET))
        queues[queue_id] = offset
        self.saver.touched()
        return True

    def _has_room(self, group: str, queues: dict[int, int] | None) -> bool:
        """For one more queue. The broker's own progress always has."""
        is_full = self._places >= PLACES_MAX or len(queues or ()) >= TOPIC_QUEUES_MAX
        return not is_full or group in BROKERS_OWN_GROUPS

    def handed_out(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """A pull was answered: the group asks for `next_offset` next."""
        self.pulled.setdefault(topic + _SEPARATOR + group, {})[queue_id] = next_offset

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or UNKNOWN_OFFSET."""
        queues = self.table.get(topic + _SEPARATOR + group)
        return UNKNOWN_OFFSET if queues is None else queues.get(queue_id, UNKNOWN_OFFSET)

    def query_all(self, group: str, topic: str) -> dict[int, int] | None:
        return self.table.get(topic + _SEPARATOR + group)

    # The whole table is looked through in steps: it may have two million members.

    def topics_of_group(self, group: str) -> Steps[set[str]]:
        ending = _SEPARATOR + group
        pairs = yield from self._pairs(lambda key: key.endswith(ending))
        return {topic for topic, name in pairs if name == group}

    def topics_by_group(self) -> Steps[dict[str, set[str]]]:
        found: dict[str, set[str]] = {}
        for topic, group in (yield from self._pairs(bool)):
            found.setdefault(group, set()).add(topic)
        return found

    def groups_of_topic(self, topic: str) -> Steps[set[str]]:
        beginning = topic + _SEPARATOR
        pairs = yield from self._pairs(lambda key: key.startswith(beginning))
        return {group for name, group in pairs if name == topic}

    def min_offsets(self, topic: str, excluded_groups: Iterable[str]) -> Steps[dict[int, int]]:
        """Per queue of `topic` the smallest offset over all groups but the excluded."""
        groups = yield from self.groups_of_topic(topic)
        result: dict[int, int] = {}
        for group in groups.difference(excluded_groups):
            for queue_id, offset in (self.query_all(group, topic) or {}).items():
                result[queue_id] = min(offset, result.get(queue_id, offset))
            yield
        return result

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        offsets = self.table.get(topic + _SEPARATOR + source_group)
        if offsets is not None:
            for queue_id, offset in offsets.items():
                self.commit(target_group, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        if group in BROKERS_OWN_GROUPS:
            return
        ending = _SEPARATOR + group
        for key in [key for key in self.table if key.endswith(ending)]:
            if key.count(_SEPARATOR) == 1:
                self._remove(key)

    def _remove(self, key: str) -> None:
        del self.table[key]
        self.pulled.pop(key, None)
        self.saver.touched()
        if self.journal is not None:
            self.journal.removed(key)

    def _pairs(self, is_wanted: Callable[[str], bool]) -> Steps[list[tuple[str, str]]]:
        """(topic, group) of every wanted key that splits into exactly two."""
        found = []
        for number, key in enumerate(list(self.table)):
            if is_wanted(key) and key.count(_SEPARATOR) == 1:
                topic, _, group = key.partition(_SEPARATOR)
                found.append((topic, group))
            if number % _LOOK_KEYS == _LOOK_KEYS - 1:
                yield
        return found
