"""Where a read starts and ends: words, offsets, times and consumer groups to queue offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from twinlog.spark.errors import OptionError
from twinlog.spark.options import EARLIEST, LATEST, QueueTable, SourceOptions
from twinlog.spark.plan.offsets import Offsets, QueueKey
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.transport import ADVICE, CUT, VANISHED, LossPolicy, Skip

Bounds = Mapping[QueueKey, tuple[int, int]]


class Place(Protocol):
    """What is asked where a read starts or ends: a transport, or an archive before one."""

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the offset of the first record stored at or after a time, if there is one."""

    def group_offsets(self, group: str) -> Offsets:
        """Return a consumer group's committed offsets."""


def resolve_start(
    options: SourceOptions, transport: Place, bounds: Bounds, default: int
) -> Offsets:
    """Return the start offset of every queue."""
    kind, value = options.position("starting")
    start = _resolve(options, transport, bounds, "starting", default)
    group = options.raw.get("startingGroup")
    if group and kind == "word":
        committed = transport.group_offsets(group)
        start = {key: committed.get(key, number) for key, number in start.items()}
    assert value is None or kind != "word" or value in (EARLIEST, LATEST)
    return start


def resolve_end(options: SourceOptions, transport: Place, bounds: Bounds) -> Offsets:
    """Return the end offset of every queue."""
    return _resolve(options, transport, bounds, "ending", LATEST)


def _resolve(
    options: SourceOptions, transport: Place, bounds: Bounds, side: str, default: int
) -> Offsets:
    kind, value = options.position(side)
    found = {}
    for key, (begin, end) in bounds.items():
        if kind == "time":
            found[key] = _by_time(options, transport, key, value, side, end)
            continue
        number: int | None = None
        if kind in ("table", "times"):
            number = look_up(value, key)
        if kind == "times" and number is not None:
            found[key] = _by_time(options, transport, key, number, side, end)
            continue
        if number is None and kind in ("table", "times"):
            # A queue that the user did not name is read whole: nothing is lost by an omission.
            number = EARLIEST if side == "starting" else LATEST
        elif number is None:
            number = default if value is None else value
        found[key] = {EARLIEST: begin, LATEST: end}.get(number, number)
    if kind in ("table", "times"):
        by_time = "ByTimestamp" if kind == "times" else ""
        _check_table(f"{side}Offsets{by_time}", value, bounds)
    return found


def look_up(table: QueueTable, key: QueueKey) -> int | None:
    """Find a queue in a table whose broker may be "*"."""
    brokers = table.get(key[0], {})
    queues: Mapping[int, int] = brokers.get(key[1]) or brokers.get("*") or {}
    return queues.get(key[2])


def _check_table(name: str, table: QueueTable, bounds: Bounds) -> None:
    known = set(bounds)
    brokers_of = {topic: {b for t, b, _ in known if t == topic} for topic, _, _ in known}
    for topic, brokers in table.items():
        for broker, queues in brokers.items():
            for queue in queues:
                owners: Iterable[str] = brokers_of.get(topic, ()) if broker == "*" else (broker,)
                if not any((topic, owner, queue) in known for owner in owners):
                    raise OptionError(
                        "BAD_OPTION",
                        f"option {name} names topic {topic!r} broker {broker!r} queue {queue}, "
                        "which is not among the queues that are read",
                    )


def _by_time(
    options: SourceOptions, transport: Place, key: QueueKey, time_ms: int, side: str, end: int
) -> int:
    found = transport.at_time(key, time_ms)
    if found is not None:
        return found
    if side == "starting" and not options.late_timestamp_is_latest:
        where = f"{key[0]} broker {key[1]} queue {key[2]}"
        raise OptionError(
            "BAD_OPTION",
            f"option {_time_option(options, side)}: {where} has no record stored at or after "
            f"{time_ms}; to start at the end there, set startingOffsetsByTimestampStrategy=latest",
        )
    return end


def _time_option(options: SourceOptions, side: str) -> str:
    return f"{side}Timestamp" if f"{side}Timestamp" in options.raw else f"{side}OffsetsByTimestamp"


def ahead(head: int) -> str:
    """Say why offsets behind the end of a queue are a loss."""
    return f"OFFSET_AHEAD the queue ends at {head}: {CUT}"


def within(start: Offsets, bounds: Bounds, policy: LossPolicy) -> Offsets:
    """Return a start that someone noted down, after applying the loss rule to what is behind it."""
    found = dict(start)
    for key, number in sorted(start.items()):
        head = bounds[key][1]
        if number > head:
            policy.lost(Skip(*key, head, number, ahead(head)), ADVICE)
            found[key] = head
    return found


def ranges_between(start: Offsets, end: Offsets, bounds: Bounds, policy: LossPolicy) -> list[Range]:
    """Return what to read, after applying the loss rule to what is not there any more."""
    found = []
    for key, high in sorted(end.items()):
        low = start.get(key, high)
        if key not in bounds:
            if high > low:
                policy.lost(Skip(*key, low, high, VANISHED), ADVICE)
            continue
        begin, head = bounds[key]
        if high > head:
            policy.lost(Skip(*key, max(low, head), high, ahead(head)), ADVICE)
            high = head
        if low < begin and high > low:
            reason = (
                f"OFFSET_EXPIRED retention removed these messages; the queue now begins at {begin}"
            )
            policy.lost(Skip(*key, low, min(begin, high), reason), ADVICE)
            low = begin
        if high > low:
            found.append(Range(*key, low, high))
    return found


def describe_start(options: SourceOptions, default: str) -> str:
    """Name the start for the symbol that stands before the first batch."""
    for name in ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"):
        if name in options.raw:
            return f"{name}={options.raw[name]}"
    group: Any = options.raw.get("startingGroup")
    return f"startingGroup={group}" if group else default
