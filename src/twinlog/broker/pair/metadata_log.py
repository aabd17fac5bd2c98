"""Metadata as records of the log: topics, groups, locks, consumer and delay offsets.

RocketMQ's slave asks for the four tables every ten seconds; what changed in between is lost with
the master. Between two twinlogs each change is also a record of a system topic, so data and
metadata on a slave always belong to one point in time. An Apache slave stores the topic as any
other.

Format: the body of a record is one JSON object of a kind below. Compaction: none is needed. A
snapshot of everything is written when a twin slave attaches that has not seen one, and everything
after it is a change, so the state at any place of the log is the last snapshot before it plus what
follows. Nothing is written while nothing changes.

Access rules are no part of it: each broker reads its own file, as RocketMQ's brokers do, and the
administration changes them on every broker of a group.

Rules for the reader: what is not named in a record is left alone, so an empty or older table never
deletes what is there; an offset moves only forward unless the record says that it was set back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from twinlog.broker.pair.skip_guard import Armed

BODY_SIZE_MAX = 256 * 1024  # A snapshot of thousands of topics is cut into several records.

OffsetTable = dict[str, dict[int, int]]


class TopicsChanged(msgspec.Struct, tag="topics", tag_field="kind", omit_defaults=True):
    """Topics as `topics.json` has them, and the names of those that were deleted."""

    version: dict[str, int]
    put: dict[str, dict[str, Any]] = {}
    deleted: list[str] = []


class GroupsChanged(msgspec.Struct, tag="groups", tag_field="kind", omit_defaults=True):
    version: dict[str, int]
    put: dict[str, dict[str, Any]] = {}
    deleted: list[str] = []


class OffsetsMoved(msgspec.Struct, tag="offsets", tag_field="kind", omit_defaults=True):
    """Next offsets by `topic@group` and queue. `back` are those that were set to a lower value."""

    forward: OffsetTable = {}
    back: OffsetTable = {}
    removed: list[str] = []


class DelayMoved(msgspec.Struct, tag="delay", tag_field="kind"):
    """Next offset in the queue of each delay level."""

    offsets: dict[int, int]


class LocksMoved(msgspec.Struct, tag="locks", tag_field="kind", omit_defaults=True):
    """Queues that `client_id` has locked for ordered consumption; no client: nobody has."""

    group: str
    queues: list[tuple[str, str, int]]
    client_id: str = ""


class EpochBegan(msgspec.Struct, tag="epoch", tag_field="kind", frozen=True):
    """The first record of an epoch of a controlled group: who leads from here on."""

    epoch: int
    broker_id: int
    previous_end: int
    is_clean: bool = True


MetadataChange = (
    TopicsChanged | GroupsChanged | OffsetsMoved | DelayMoved | Armed | EpochBegan | LocksMoved
)

_WHOLE = (DelayMoved, EpochBegan, LocksMoved)  # Never cut into several records.
_DECODER = msgspec.json.Decoder(MetadataChange)


class MetadataError(ValueError):
    """A metadata record that cannot be read. Nothing of it is applied."""


def encode_change(change: MetadataChange) -> bytes:
    return msgspec.json.encode(change)


def decode_change(body: bytes) -> MetadataChange:
    try:
        change: MetadataChange = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MetadataError(f"metadata record cannot be read: {error}") from error
    return change


def split_change(change: MetadataChange, size_max: int = BODY_SIZE_MAX) -> Iterator[bytes]:
    """The bodies of one change: one, or several when a table is large."""
    body = encode_change(change)
    if len(body) <= size_max or isinstance(change, _WHOLE):
        yield body
        return
    if isinstance(change, OffsetsMoved) and not change.forward:
        # Set back or removed by hand: never so many that a record cannot hold them.
        yield body
        return
    for part in _halves(change):
        if part == change:
            yield body  # One topic with very many queues.
        else:
            yield from split_change(part, size_max)


def _halves(change: TopicsChanged | GroupsChanged | OffsetsMoved | Armed) -> list[MetadataChange]:
    if isinstance(change, OffsetsMoved):
        return _offset_halves(change)
    if isinstance(change, Armed):
        return _guard_halves(change)
    kind = type(change)
    left, right = _split_map(change.put)
    if not right:
        return _split_deleted(change)
    return [
        kind(version=change.version, put=left),
        kind(version=change.version, put=right, deleted=change.deleted),
    ]


def _offset_halves(change: OffsetsMoved) -> list[MetadataChange]:
    rest = OffsetsMoved(back=change.back, removed=change.removed)
    first, second = _split_map(change.forward)
    halves = [first, second] if second else list(_per_queue(first))
    parts: list[MetadataChange] = [OffsetsMoved(forward=half) for half in halves]
    # Those that were removed first: what follows was committed since.
    return [rest, *parts] if change.back or change.removed else parts


def _guard_halves(change: Armed) -> list[MetadataChange]:
    tables: list[Mapping[str, Any]] = [change.ends, change.earlier, change.between]
    return [
        Armed(change.time_ms, ends, earlier, between, change.is_rest_empty)
        for ends, earlier, between in zip(*map(_split_map, tables), strict=True)
        if ends or earlier or between
    ]


def _split_map(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = list(table)
    middle = len(names) // 2
    if middle == 0:
        return dict(table), {}
    return {n: table[n] for n in names[:middle]}, {n: table[n] for n in names[middle:]}


def _per_queue(table: OffsetTable) -> Iterator[OffsetTable]:
    """One group of one topic with more queues than a record holds: half of them each."""
    for key, queues in table.items():
        ids = list(queues)
        middle = max(1, len(ids) // 2)
        for part in (ids[:middle], ids[middle:]):
            if part:
                yield {key: {queue_id: queues[queue_id] for queue_id in part}}


def _split_deleted(change: TopicsChanged | GroupsChanged) -> list[MetadataChange]:
    kind = type(change)
    middle = len(change.deleted) // 2
    parts: list[MetadataChange] = []
    if change.put:
        parts.append(kind(version=change.version, put=change.put))
    halves = (change.deleted[:middle], change.deleted[middle:])
    return parts + [kind(version=change.version, deleted=names) for names in halves if names]


class OffsetJournal:
    """What moved in a table of consumer offsets since the last time it was asked. Pure.

    One per broker, told of every commit: the cost on that path is two dict look-ups.
    """

    __slots__ = ("_back", "_forward", "_removed")

    def __init__(self) -> None:
        self._forward: OffsetTable = {}
        self._back: OffsetTable = {}
        self._removed: list[str] = []

    def committed(self, key: str, queue_id: int, offset: int, previous: int) -> None:
        """`previous` is the value before, -1 when there was none."""
        if offset < previous:
            self._back.setdefault(key, {})[queue_id] = offset
            forward = self._forward.get(key)
            if forward is not None:
                forward.pop(queue_id, None)
        elif queue_id in self._back.get(key, ()):
            # Set back and then moved on within one interval: the later value is the one to keep.
            self._back[key][queue_id] = offset
        else:
            self._forward.setdefault(key, {})[queue_id] = offset

    def removed(self, key: str) -> None:
        self._forward.pop(key, None)
        self._back.pop(key, None)
        self._removed.append(key)

    @property
    def is_set_back(self) -> bool:
        """Something that the next master must not take for consumed again."""
        return bool(self._back or self._removed)

    def drain(self) -> OffsetsMoved | None:
        """The change since the last call, or None."""
        if not (self._forward or self._back or self._removed):
            return None
        change = OffsetsMoved(forward=self._forward, back=self._back, removed=self._removed)
        self._forward, self._back, self._removed = {}, {}, []
        return change


def merge_offsets(table: OffsetTable, change: OffsetsMoved) -> int:
    """Apply a change to a slave's table; returns how many offsets moved."""
    moved = 0
    for key in change.removed:
        moved += table.pop(key, None) is not None
    for key, queues in change.forward.items():
        mine = table.setdefault(key, {})
        for queue_id, offset in queues.items():
            if offset > mine.get(queue_id, -1):
                mine[queue_id] = offset
                moved += 1
    for key, queues in change.back.items():
        table.setdefault(key, {}).update(queues)
        moved += len(queues)
    return moved
